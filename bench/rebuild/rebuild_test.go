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
	o, err := parse([]string{"-bin", slipway.Binary(t), "-corpus", smallSet(t), "-dir", t.TempDir(),
		"-history", "1", "-requests", "20000", "-speed", "86400", "-turns", "2", "-link", "1000", "-rtt", "1ms"})
	if err != nil {
		t.Fatal(err)
	}
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
	d := r.Day
	if d.Layers != 3 || len(d.Pulls) < 3 || d.Left > d.Dropped || d.Servers[0].CPU <= 0 || d.Servers[1].CPU <= 0 || d.Servers[0].Stored.Rest <= d.Bytes ||
		d.Servers[0].Stored.Rest-d.Servers[1].Stored.Rest < d.DroppedBytes/2 {
		t.Errorf("day: %+v", d)
	}
	for _, p := range d.Pulls {
		if p.First[0] < 0.002 || p.First[1] < 0.002 || p.Sec[0] < p.First[0] || p.Sec[1] < p.First[1] {
			t.Errorf("not a pull with two round trips: %+v", p)
		}
	}
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

// TestContinued runs the scenario storage in portions. The last one must have the figures
// of all, and a run with other images must not continue it.
func TestContinued(t *testing.T) {
	set, dir := smallSet(t), t.TempDir()
	run := func(more ...string) (*Results, error) {
		o, err := parse(append([]string{"-bin", slipway.Binary(t), "-corpus", set, "-dir", t.TempDir(), "-scenario", "storage", "-state", dir, "-for", "2s"}, more...))
		if err != nil {
			t.Fatal(err)
		}
		return o.measure(t.Context())
	}
	for n := 1; ; n++ {
		r, err := run()
		if err == nil {
			checkStorage(t, r.Storage)
			if n < 2 || r.Storage.Runs != n || r.Storage.Run.TookSec < 2 {
				t.Errorf("%d runs: %+v", n, r.Storage)
			}
			break
		}
		if !errors.Is(err, errUnfinished) || r.Storage != nil || n > 100 {
			t.Fatalf("run %d: %+v, %v", n, r.Storage, err)
		}
		if _, err := run("-images", "shop/0"); err == nil || errors.Is(err, errUnfinished) {
			t.Fatalf("a run with other images continues: %v", err)
		}
	}
	if _, err := parse([]string{"-bin", "x", "-corpus", set, "-for", "1m"}); err == nil {
		t.Error("a run that cannot be continued is accepted")
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
	want := []string{"bytes of gzip layers with a recipe 60 false", "made and proven, a core 6 false", "rebuilt, a core, docker 15 false", "rebuilt, a core 0 true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
