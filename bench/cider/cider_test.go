package cider

import (
	"strings"
	"testing"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/ctrnode"
)

// sample returns deployments of a corpus of two images in all ways. The plain pull takes 10 and 20
// s, a volume 1 and 1.5 s, and a clone 2 and 2 s.
func sample() []Deployment {
	var list []Deployment
	for round := range 3 {
		for way, times := range map[string][2]float64{ctrnode.Plain: {10, 20}, ctrnode.VolumeLocal: {1, 1.5}, ctrnode.VolumeNetwork: {2, 2}} {
			for i, im := range []string{"a/1", "b/1"} {
				list = append(list, Deployment{Image: im, Way: way, Nodes: 1, Containers: 1, Round: round, PullSec: times[i] - 0.5, RunSec: 0.5, CephBytes: 1e6})
			}
		}
	}
	return list
}

func TestSingleTargets(t *testing.T) {
	s := &Single{Deployments: sample(), Sizes: map[string]int64{"a/1": 100e6, "b/1": 200e6}}
	want := map[string]float64{
		"local below the plain pull, mean": 100 * (1 - 1.25/15), "network below the plain pull, mean": 100 * (1 - 2.0/15),
		"growth with the image's size, local / plain": 0.05, "growth with the image's size, network / plain": 0,
	}
	for _, target := range s.Targets() {
		if got := target.Figure; target.Missing || got < want[target.What]-1e-9 || got > want[target.What]+1e-9 {
			t.Errorf("%s: %v (missing %t), want %v", target.What, got, target.Missing, want[target.What])
		}
	}
}

// TestFailuresAreNoMeans checks that an image that failed in one of the ways is in no mean.
func TestFailuresAreNoMeans(t *testing.T) {
	list := append(sample(), Deployment{Image: "c/1", Way: ctrnode.Plain, Nodes: 1, Containers: 1, PullSec: 1000},
		Deployment{Image: "c/1", Way: ctrnode.VolumeLocal, Nodes: 1, Containers: 1, Failure: "it broke\nhere"})
	if got := mean(list, cell{way: ctrnode.Plain}, (*Deployment).TotalSec); got != 15 {
		t.Errorf("mean %v, want 15", got)
	}
	if rows := failures(list); len(rows) != 1 || rows[0][2] != "it broke" {
		t.Errorf("failures %q", rows)
	}
}

func TestReport(t *testing.T) {
	r := &Results{
		Equality:   &Equality{Images: []EqualityOne{{Image: "a/1", Differences: map[string]int{ctrnode.VolumeLocal: 0, ctrnode.VolumeNetwork: 1}, First: "x: mode"}}},
		Series:     &Series{List: []SeriesOne{{Series: "a", Versions: 2, Together: 5, Apart: 10}}},
		Single:     &Single{Deployments: sample(), Sizes: map[string]int64{"a/1": 100e6, "b/1": 200e6}},
		Node10:     &Node10{Deployments: sample()},
		Nodes:      &Nodes{Deployments: sample()},
		PageCache:  &PageCache{Samples: []PageCacheSample{{ctrnode.VolumeLocal, 1, 0, 100}, {ctrnode.VolumeLocal, 20, 0, 130}}},
		Throughput: &Throughput{List: []ThroughputOne{{Name: "x", PerSec: map[string][]float64{ctrnode.Plain: {100}, ctrnode.VolumeLocal: {98}}}}},
	}
	var verdict strings.Builder
	if measure.CheckParts(&verdict, r.Parts()) {
		t.Error("a difference and 1.3 times the page cache pass")
	}
	for _, line := range []string{"FAIL  equality", "PASS  series", "PASS  node10", "FAIL  pagecache", "PASS  throughput"} {
		if !strings.Contains(verdict.String(), line) {
			t.Errorf("no %q in\n%s", line, verdict.String())
		}
	}
	text := measure.Report(verdict.String(), r.Parts())
	for _, words := range []string{"img/cider-single.svg", "img/cider-nodes.svg", "volume, network", "a/1: x: mode"} {
		if !strings.Contains(text, words) {
			t.Errorf("no %q in the report", words)
		}
	}
	for _, p := range measure.Pictures(r.Parts()) {
		if !strings.HasPrefix(p.Chart.SVG(), "<svg") {
			t.Errorf("%s is no picture", p.File)
		}
	}
}

// TestSetting checks that a report says how nodes were bound, and of older figures nothing.
func TestSetting(t *testing.T) {
	o, err := parse([]string{"-from", "x", "-light", "-disk", "120", "-cpus", "0.25"})
	if err != nil {
		t.Fatal(err)
	}
	head := (&Node10{Mbit: 1000, Set: o.setting()}).Head()
	for _, words := range []string{"ends at start-up", "120 MB/s", "at most 0.25 processors"} {
		if !strings.Contains(head, words) {
			t.Errorf("no %q in %s", words, head)
		}
	}
	if plain := (&Node10{Mbit: 1000}).Head(); !strings.HasSuffix(plain, "1000 Mbit/s") {
		t.Errorf("without limits: %s", plain)
	}
}

func TestApplicationRates(t *testing.T) {
	a := application{after: "tps ="}
	if got, err := a.find("latency\ntps = 12.5 (without)"); err != nil || got != 12.5 {
		t.Errorf("%v, error %v", got, err)
	}
	if _, err := a.find("nothing"); err == nil {
		t.Error("a rate in nothing")
	}
}
