package rebuild

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// progress is what a run of a scenario leaves to the next one that continues it: in the
// file progress.json of its directory, beside the registries.
type progress struct {
	Images []string `json:"images"`
	Flags  string   `json:"flags,omitempty"` // of the scenario
	Step   int      `json:"step"`            // how many steps are done
	Pushed int      `json:"pushed"`          // images or layers
	Turn   int      `json:"turn,omitempty"`  // how many parts of the day are replayed
	Took   float64  `json:"took_sec"`
	Runs   int      `json:"runs"`
	// Storage and Day have the figures so far. Only that of the scenario is set.
	Storage *Storage `json:"storage,omitempty"`
	Day     *Day     `json:"day,omitempty"`

	path string
}

// continued fills in what earlier runs have left in a directory, which it creates. p stays as
// it is if there is nothing.
func (p *progress) continued(dir string, images []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	p.path = filepath.Join(dir, "progress.json")
	flags := p.Flags
	if err := measure.ReadJSON(p, p.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if p.Images == nil {
		p.Images = images
	}
	if !slices.Equal(images, p.Images) || flags != p.Flags {
		return fmt.Errorf("%s is of a run with %d other images, or with other flags: %s", dir, len(p.Images), p.Flags)
	}
	p.Runs++
	return nil
}

func (p *progress) save() error { return measure.Save(p.path, p) }

// do does the steps that no earlier run has done. It saves the progress after each step, and
// when a step ends because the time is over.
func (p *progress) do(steps []func() error) error {
	began, before := time.Now(), p.Took
	for _, step := range steps[p.Step:] {
		err := step()
		p.Took = before + time.Since(began).Seconds()
		if err == nil {
			p.Step++
		}
		if err := errors.Join(err, p.save()); err != nil {
			return err
		}
	}
	return nil
}

// inRuns says in how many runs a scenario was measured, if there were several.
func inRuns(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf("\n- In %d runs, each of which continued the one before; the time is that of all together", n)
}

// until returns when nothing more is to be begun; zero: never.
func (b *bench) until() time.Time {
	if b.limit == 0 {
		return time.Time{}
	}
	return time.Now().Add(b.limit)
}

// names returns the names of the images.
func (b *bench) names() (out []string) {
	for _, im := range b.images {
		out = append(out, im.String())
	}
	return out
}
