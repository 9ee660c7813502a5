package trace

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Analyse is how long it takes to make and to analyse a trace of all zones.
type Analyse struct {
	Run        measure.Run     `json:"run"`
	Requests   int64           `json:"requests"`
	StoreBytes int64           `json:"store_bytes"`
	Generate   measure.Spent   `json:"generate"`
	Analyze    []measure.Spent `json:"analyze"`
}

// analysed is what this scenario leaves for the scenario figures.
type analysed struct {
	requests int64
	dir      string // directory of the report
}

// storeBytesPerRequest is the maximum number of bytes of disk space that a request takes
// while a store is written.
const storeBytesPerRequest = 100

func runAnalyse(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Analyse{Requests: b.o.requests}
	if out.Requests == 0 {
		out.Requests = archiveRequests
	}
	if err := b.needRoom(fmt.Sprintf("a store of %d requests", out.Requests), out.Requests*storeBytesPerRequest); err != nil {
		return err
	}
	store, report := b.NewDir(), b.NewDir()
	defer b.Remove(store)
	args := []string{"trace", "generate", "--zone", "all", "--seed", "1", "-o", store}
	if out.Requests != archiveRequests {
		args = append(args, "--requests", strconv.FormatInt(out.Requests, 10))
	}
	var err error
	if _, out.Generate, err = b.Slipway(ctx, 0, args...); err != nil {
		return err
	}
	b.Logf("%d requests generated in %.1f s", out.Requests, out.Generate.Wall)
	files, err := filesOf(store)
	if err != nil {
		return err
	}
	for _, f := range files {
		out.StoreBytes += f.size
	}
	for round := range b.Run.Rounds {
		_, u, err := b.Slipway(ctx, 0, "trace", "analyze", store, "-o", report)
		if err != nil {
			return err
		}
		out.Analyze = append(out.Analyze, u)
		b.Logf("round %d: analysed in %.1f s with %.0f MB", round+1, u.Wall, peakMB(u))
	}
	b.analysed = &analysed{out.Requests, report}
	out.Run = b.Since(began)
	b.results.Analyse = out
	return nil
}

// Title is the heading.
func (a *Analyse) Title() string { return "Analysis" }

// Head says how the part was measured.
func (a *Analyse) Head() string {
	return fmt.Sprintf("%s\n- %d requests of seven zones, a store of %s MB", a.Run.Head(), a.Requests, measure.Megabytes(a.StoreBytes))
}

// About says what was done.
func (a *Analyse) About() string {
	return "Seven zones are generated into a store (once), and all figures are made of it in one pass: tables, CSV, SVG and the page. On all cores."
}

// Targets returns what is promised for a trace of full size.
func (a *Analyse) Targets() []measure.Target {
	took := worst("analyse", "all figures", 120, " s", of(a.Analyze, wall))
	memory := worst("analyse", "peak RSS", 2000, " MB", of(append([]measure.Spent{a.Generate}, a.Analyze...), peakMB))
	took.Missing = took.Missing || a.Requests < archiveRequests
	return []measure.Target{took, memory}
}

// Write writes the table.
func (a *Analyse) Write(w *strings.Builder) {
	row := func(name string, list []measure.Spent) []string {
		return []string{name, spread(list, wall), spread(list, cpu),
			spread(list, func(u measure.Spent) float64 { return float64(a.Requests) / 1e6 / u.Wall }), spread(list, peakMB), spread(list, otherCPUs)}
	}
	measure.Table(w, 1, []string{"", "s", "CPU s", "M requests/s", "peak RSS MB", "other CPUs"},
		[][]string{row("generate", []measure.Spent{a.Generate}), row("analyze", a.Analyze)})
}

// Pictures returns no pictures.
func (a *Analyse) Pictures() []measure.Picture { return nil }
