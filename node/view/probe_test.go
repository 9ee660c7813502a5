package view_test

import (
	"os"
	"strings"
	"testing"

	"example.org/slipway/node/view"
)

func TestProbe(t *testing.T) {
	needRoot(t)
	for _, force := range []view.Tier{view.Auto, view.Full, view.Metacopy, view.Loop, view.FUSE, view.Plain} {
		t.Run(force.String(), func(t *testing.T) {
			dir := t.TempDir()
			s, err := view.Probe(t.Context(), dir, force)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(s.Tier, s.Reasons)
			if force != view.Auto && s.Tier != force {
				t.Errorf("got tier %s", s.Tier)
			}
			if !strings.Contains(s.Reasons[len(s.Reasons)-1], "works") {
				t.Errorf("reasons %q", s.Reasons)
			}
			left, err := os.ReadDir(dir)
			if err != nil || len(left) > 0 {
				t.Errorf("left behind %v, %v", left, err)
			}
			mounts, err := view.Mounts(dir)
			if err != nil || len(mounts) > 0 {
				t.Errorf("left behind %v, %v", mounts, err)
			}
		})
	}
}

// TestProbeFails probes where only unpacking can work: on a file system that is already stacked too
// deep.
func TestProbeFails(t *testing.T) {
	r := newRig(t)
	in := r.overlay("merged", view.OverlayOptions{Lower: []string{r.mkdir("low")}, Upper: r.mkdir("upper"), Work: r.mkdir("work")})
	s, err := view.Probe(t.Context(), in(""), view.Full)
	if err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("on an overlay: %+v, %v", s, err)
	}
	s, err = view.Probe(t.Context(), in(""), view.Auto)
	must(t, err)
	t.Logf("%q", s.Reasons)
	if s.Tier < view.FUSE || len(s.Reasons) != 5 {
		t.Errorf("on an overlay: %+v", s)
	}
	if left, err := os.ReadDir(in("")); err != nil || len(left) > 0 {
		t.Errorf("left behind %v, %v", left, err)
	}
	if s, err := view.Probe(t.Context(), r.dir+"/nowhere", view.Auto); err != nil || s.Tier != view.Plain {
		t.Errorf("without a directory: %+v, %v", s, err)
	}
}

func TestTierNames(t *testing.T) {
	for tier := view.Auto; tier <= view.Plain; tier++ {
		if got, err := view.ParseTier(tier.String()); got != tier || err != nil {
			t.Errorf("%d is %q is %d, %v", int(tier), tier, int(got), err)
		}
	}
	if _, err := view.ParseTier("none"); err == nil {
		t.Error("there is a tier none")
	}
	if got := view.Tier(77).String(); got != "Tier(77)" {
		t.Errorf("an unknown tier is %q", got)
	}
}
