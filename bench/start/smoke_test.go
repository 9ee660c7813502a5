package start

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/smoke"
	server "example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// TestMain makes this program run the inner commands, as the suite starts its own program for them.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "start" {
		measure.Main(Suite())
	}
	os.Exit(m.Run())
}

// checkTouch checks what was measured of two portions with a plain pull and the agent, which also
// starts images that were started before, and those over a connection that is held.
func checkTouch(t *testing.T, r *Touch) {
	t.Helper()
	if r == nil || len(r.Samples) != 2*4 || len(r.Portions) != 2 || r.Portions[1].Files != r.Files {
		t.Fatalf("portions of an image: %+v", r)
	}
	for _, s := range r.Samples {
		if s.Failure != "" || s.PullSec <= 0 || s.RunSec <= 0 || s.RunBytes == 0 {
			t.Errorf("not a measurement: %s", s)
		}
	}
	for _, c := range r.cells() {
		if _, ok := r.heldOverFree(c); !ok {
			t.Errorf("%v was not measured with a held connection", c)
		}
		if _, _, best, ok := r.overBest(c, slipwayName+knownSuffix); !ok || best != plainName {
			t.Errorf("%v is compared with %q", c, best)
		}
	}
	// A start that reads a tenth moves less than the layers; one that reads all moves not much more.
	few, all := r.cells()[0], r.cells()[1]
	if lazy, plain := r.spread(few, slipwayName+knownSuffix, wireBytes), r.spread(all, plainName, wireBytes); lazy.Median >= 0.8*plain.Median {
		t.Errorf("a tenth of an image is %.0f bytes, the plain pull %.0f", lazy.Median, plain.Median)
	}
}

// TestSmoke starts a small image once with a plain pull and twice with the agent, with a profile of
// its own and as a new version, over a distant link. It measures the bytes of two versions, deploys
// both in sequence, starts the last again and again, and has tasks read portions of an image.
func TestSmoke(t *testing.T) {
	corpus, dir := smoke.Corpus(t), tool.ShortTempDir(t)
	o, err := parse([]string{"-bin", server.Binary(t), "-corpus", corpus, "-dir", dir, "-prepared", filepath.Join(dir, "prepared"),
		"-systems", "plain,slipway", "-rates", "20", "-rtts", "20", "-rounds", "1",
		"-scenario", "start,bytes,sequence,cycles,touch", "-touch", "10,100", "-profiles", "both", "-held"})
	if err != nil {
		t.Fatal(err)
	}
	o.cycles, o.touchMB = 3, 6
	o.watch, o.anyLink = 6*time.Second, true // the machine may be busy
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Start.Samples) != 3 || len(r.Start.Needs) != 1 || r.Start.Needs[0].Files == 0 {
		t.Errorf("starts: %+v", r.Start)
	}
	for _, s := range r.Start.Samples {
		if s.Failure != "" || s.Computed || s.PullSec <= 0 || s.RunSec <= 0 || s.SecondSec <= 0 || s.RunBytes == 0 {
			t.Errorf("not a measurement: %s", s)
		}
	}
	if len(r.Bytes.Versions) != 2 {
		t.Fatalf("bytes: %+v", r.Bytes)
	}
	// The second version shares the shell, so that a node which has the first needs little of it.
	if v := r.Bytes.Versions[1]; v.New >= v.Plain/2 || v.Warm == 0 || v.Warm >= v.Empty {
		t.Errorf("bytes of the second version: %+v", v)
	}
	if len(r.Sequence.Versions) != 2 {
		t.Fatalf("sequence: %+v", r.Sequence)
	}
	for i, v := range r.Sequence.Versions {
		if v.Place != i || v.Mbit != 20 || v.Plain <= 0 || v.Slipway <= 0 || v.Computed {
			t.Errorf("version in sequence: %+v", v)
		}
	}
	if len(r.Cycles.Plain) != 3 || len(r.Cycles.Slipway) != 3 || slices.Min(append(r.Cycles.Plain, r.Cycles.Slipway...)) <= 0 {
		t.Errorf("cycles: %+v", r.Cycles)
	}
	checkTouch(t, r.Touch)
	if text := report(r, ""); !strings.Contains(text, "### Versions in sequence") || !strings.Contains(text, "### Cycles of a container") {
		t.Errorf("the report is:\n%s", text)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v, want what is prepared", left, err)
	}
}
