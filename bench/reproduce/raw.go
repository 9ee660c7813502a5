package reproduce

import (
	"errors"
	"os"
	"path/filepath"

	"example.org/slipway/integration/bench/cider"
	"example.org/slipway/integration/bench/gear"
	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/mirrors"
	"example.org/slipway/integration/bench/start"
	"example.org/slipway/integration/bench/tiers"
)

// Raw holds the raw figures of all suites. None of them is nil; what was not measured is nil
// within them.
type Raw struct {
	Own     *Results
	Gear    *gear.Results
	Start   *start.Results
	Tiers   *tiers.Results
	Mirrors *mirrors.Results
	Cider   *cider.Results
}

// ownFile is the file of the parts that this suite measures itself.
const ownFile = "reproduce.json"

// resultsFile returns the name of the file in which a suite keeps its raw figures.
func resultsFile(suite string) string { return "bench-" + suite + ".json" }

// readRaw reads the raw figures in a directory.
func readRaw(dir string) (*Raw, error) {
	r := &Raw{}
	return r, errors.Join(
		load(&r.Own, dir, ownFile),
		load(&r.Gear, dir, resultsFile("gear")),
		load(&r.Start, dir, resultsFile("start")),
		load(&r.Tiers, dir, resultsFile("tiers")),
		load(&r.Mirrors, dir, resultsFile("mirrors")),
		load(&r.Cider, dir, resultsFile("cider")),
	)
}

// load reads a file of results. Without the file there are empty results.
func load[T any](into **T, dir, name string) error {
	r, err := measure.Load[T](filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		r, err = new(T), nil
	}
	*into = r
	return err
}
