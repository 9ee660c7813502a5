package peers

import (
	"os"
	"strings"
	"testing"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// TestMeasure rolls a small image out to two nodes with every system that is there.
func TestMeasure(t *testing.T) {
	tool.NeedRoot(t)
	for _, name := range []string{"containerd", "ctr"} {
		tool.Built(t, name)
	}
	dir := tool.ShortTempDir(t)
	o, err := parse([]string{"-quick", "-bin", slipway.Binary(t), "-dir", dir})
	if err != nil {
		t.Fatal(err)
	}
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	image := float64(o.mbytes<<20) / 1e6
	for scenario, s := range map[string]*Series{sceneTogether: &r.Together.Series, sceneStaggered: &r.Staggered.Series} {
		for name, atLeast := range map[string]float64{namePlain: 2, nameSlipway: 1} { // times the image
			one, both := s.figures(name, 1, sent), s.figures(name, 2, sent)
			if len(one) != 1 || len(both) != 1 || one[0] < image || one[0] > 1.5*image || both[0] < atLeast*image {
				t.Errorf("%s, %s: the registry sent %v MB to one node and %v MB to two, of an image of %.1f MB", scenario, name, one, both, image)
			}
			for _, sec := range append(s.figures(name, 1, (*Rollout).Slowest), s.figures(name, 2, (*Rollout).Slowest)...) {
				if least := 0.8 * 8 * image / float64(o.mbit); sec < least { // less than the link takes
					t.Errorf("%s, %s: %.2f s, and the link alone takes %.2f s", scenario, name, sec, least)
				}
			}
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestTargets makes up roll-outs that meet the targets or miss them.
func TestTargets(t *testing.T) {
	for _, tt := range []struct {
		sent int64
		sec  float64
		want bool
	}{{14, 24, true}, {16, 24, false}, {14, 26, false}} {
		s := Series{Rollouts: []Rollout{
			{System: nameSpegel, Nodes: 1, Sent: 10e6, Sec: []float64{10}}, {System: nameSpegel, Nodes: 3, Sent: 30e6, Sec: []float64{1, 30, 2}},
			{System: nameSlipway, Nodes: 1, Sent: 10e6, Sec: []float64{10}}, {System: nameSlipway, Nodes: 3, Sent: tt.sent * 1e6, Sec: []float64{1, 2, tt.sec}},
		}}
		r := &Results{Together: &Together{s}}
		var w strings.Builder
		if got := measure.CheckParts(&w, r.Parts()); got != tt.want {
			t.Errorf("%+v: met %v\n%s", tt, got, &w)
		}
		if text := measure.Report("", r.Parts()); !strings.Contains(text, "| spegel | 10.0 | 30.0 | 3.00 | 10.0 | 30.0 |") || strings.Contains(text, "| plain") {
			t.Errorf("the table lacks Spegel, or has what was not measured:\n%s", text)
		}
	}
}
