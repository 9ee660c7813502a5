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

// TestSmoke starts a small image once with a plain pull and once with the agent, over a distant
// link. It measures the bytes of two versions, deploys both in sequence, and starts the last again and
// again.
func TestSmoke(t *testing.T) {
	corpus, dir := smoke.Corpus(t), tool.ShortTempDir(t)
	o, err := parse([]string{"-bin", server.Binary(t), "-corpus", corpus, "-dir", dir, "-prepared", filepath.Join(dir, "prepared"),
		"-systems", "plain,slipway", "-rates", "20", "-rtts", "20", "-rounds", "1", "-scenario", "start,bytes,sequence,cycles"})
	if err != nil {
		t.Fatal(err)
	}
	o.cycles = 3
	o.watch, o.anyLink = 6*time.Second, true // the machine may be busy
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Start.Samples) != 2 || len(r.Start.Needs) != 1 || r.Start.Needs[0].Files == 0 {
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
	if text := report(r, ""); !strings.Contains(text, "### Versions in sequence") || !strings.Contains(text, "### Cycles of a container") {
		t.Errorf("the report is:\n%s", text)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v, want what is prepared", left, err)
	}
}
