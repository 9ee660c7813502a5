package rebuild

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// smallSet writes two images, which share a layer.
func smallSet(t *testing.T) string {
	t.Helper()
	layer := func(seed uint64) imagetest.Layer {
		r, a := rand.New(rand.NewPCG(seed, 0)), new(imagetest.Archive).Dir("./")
		for i := range 20 {
			data := make([]byte, 30_000)
			for j := range data {
				data[j] = "abcdefgh"[r.IntN(1+i%8)]
			}
			a.File(fmt.Sprint("f", i), string(data)+fmt.Sprint(r.Uint64()))
		}
		return a.Layer()
	}
	dir, base := t.TempDir(), layer(0)
	for v := range uint64(2) {
		imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{base, layer(1 + v)}).WriteLayout(t, filepath.Join(dir, "shop", fmt.Sprint(v)), "v")
	}
	return dir
}

// TestRun measures a real server with little content.
func TestRun(t *testing.T) {
	o, err := parse(append([]string{"-bin", slipway.Binary(t), "-corpus", smallSet(t), "-dir", t.TempDir()}, daySmall...))
	if err != nil {
		t.Fatal(err)
	}
	o.sample = 500_001 // ends within a file
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Recipes.Layers) != 3 {
		t.Fatalf("recipes of %d layers, want 3", len(r.Recipes.Layers))
	}
	for _, l := range r.Recipes.Layers {
		if l.Stays != "" || l.Recipe == 0 || l.Recipe > l.Bytes/20 || l.Make <= 0 || l.Rebuild <= 0 {
			t.Errorf("not a measurement: %+v", l)
		}
	}
	if e := r.Recipes.Encoders; len(e) != 2 || e[0].Encoder != "go level 6" || e[1].Encoder != "pgzip" || e[1].Rebuild <= 0 {
		t.Errorf("encoders: %+v", e)
	}
	checkStorage(t, r.Storage)
	checkDay(t, r.Day)
	report := measure.Report("", r.Parts())
	for _, want := range []string{"### Recipes", "### Storage", "### A day", "layers dropped", "without parity"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
}

// checkStorage checks the figures of the images of smallSet.
func checkStorage(t *testing.T, s *Storage) {
	t.Helper()
	if s.Dropped == 0 || s.Dropped+s.Refused > 3 || s.Pulled != 2 || s.Before.Packs == 0 || s.Before.Rest-s.After.Rest < s.DroppedBytes/2 ||
		s.Before.Parity+s.Bare.Parity > 0 || s.After.Parity == 0 || s.Bare.Packs == 0 {
		t.Errorf("storage: %+v", s)
	}
}

// daySmall are flags of a day that takes seconds.
var daySmall = []string{"-history", "1", "-requests", "20000", "-speed", "86400", "-turns", "2", "-link", "1000", "-rtt", "1ms"}

// TestContinued runs scenarios in portions. The last one must have the figures of all, and a
// run with other images must not continue it.
func TestContinued(t *testing.T) {
	set, dir := smallSet(t), t.TempDir()
	run := func(more ...string) (*Results, error) {
		o, err := parse(slices.Concat([]string{"-bin", slipway.Binary(t), "-corpus", set, "-dir", t.TempDir(), "-state", dir, "-for", "2s"}, daySmall, more))
		if err != nil {
			t.Fatal(err)
		}
		return o.measure(t.Context())
	}
	// complete repeats a run until it is complete.
	complete := func(scenario string) (r *Results, runs int) {
		for runs = 1; ; runs++ {
			r, err := run("-scenario", scenario)
			if err == nil {
				return r, runs
			}
			if !errors.Is(err, errUnfinished) || r.Storage != nil || r.Day != nil || runs > 100 {
				t.Fatalf("%s, run %d: %+v, %v", scenario, runs, r, err)
			}
			if _, err := run("-scenario", scenario, "-images", "shop/0"); err == nil || errors.Is(err, errUnfinished) {
				t.Fatalf("%s: a run with other images continues: %v", scenario, err)
			}
		}
	}
	r, runs := complete("storage")
	checkStorage(t, r.Storage)
	if runs < 2 || r.Storage.Runs != runs || r.Storage.Run.TookSec < 2 {
		t.Errorf("%d runs: %+v", runs, r.Storage)
	}
	r, runs = complete("day")
	checkDay(t, r.Day)
	if runs < 2 || r.Day.Runs != runs || r.Day.Run.TookSec < 2 {
		t.Errorf("%d runs: %+v", runs, r.Day)
	}
	if _, err := run("-scenario", "day", "-speed", "43200"); err == nil || errors.Is(err, errUnfinished) {
		t.Errorf("a run of a day with other flags continues: %v", err)
	}
	if _, err := parse([]string{"-bin", "x", "-corpus", set, "-for", "1m"}); err == nil {
		t.Error("a run that cannot be continued is accepted")
	}
}

// checkDay checks the figures of a day of the images of smallSet.
func checkDay(t *testing.T, d *Day) {
	t.Helper()
	if d.Layers != 3 || len(d.Pulls) < 3 || d.Left > d.Dropped || d.Servers[0].CPU <= 0 || d.Servers[1].CPU <= 0 || d.Servers[0].Stored.Rest <= d.Bytes ||
		d.Servers[0].Stored.Rest-d.Servers[1].Stored.Rest < d.DroppedBytes/2 {
		t.Errorf("day: %+v", d)
	}
	for _, p := range d.Pulls {
		if p.First[0] < 0.002 || p.First[1] < 0.002 || p.Sec[0] < p.First[0] || p.Sec[1] < p.First[1] {
			t.Errorf("not a pull with two round trips: %+v", p)
		}
	}
}

// TestTargets checks sums and rates, with figures worked out by hand.
func TestTargets(t *testing.T) {
	r := &Recipes{Layers: []Layer{
		{Bytes: 30e6, Recipe: 1000, Encoder: "go level 6", Make: 4, Rebuild: 1},
		{Bytes: 30e6, Recipe: 500, Encoder: "go level 6", Make: 2, Rebuild: 3},
		{Bytes: 40e6, Stays: "not gzip"},
	}, Encoders: []Layer{{Bytes: 60e6, Image: "docker", Rebuild: 4}}}
	var got []string
	for _, x := range r.Targets() {
		got = append(got, fmt.Sprint(x.What, " ", x.Figure, " ", x.Missing))
	}
	want := []string{"bytes of gzip layers with a recipe 60 false", "made and verified, a core 10 false", "rebuilt, a core, docker 15 false", "rebuilt, a core 0 true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
