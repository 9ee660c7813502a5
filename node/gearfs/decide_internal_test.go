package gearfs

import (
	"testing"
	"time"
)

// TestEagerHasAPrice checks that an eager start is chosen where it gains enough for what it fetches
// in vain.
func TestEagerHasAPrice(t *testing.T) {
	t.Parallel()
	image := decisionInput{files: 5000, missingFiles: 5000, bytes: 100 << 20, missingBytes: 100 << 20}
	for _, c := range []struct {
		name     string
		rtt      time.Duration
		rate     float64
		profiled int
		want     Mode
	}{
		{"fast line nearby", 300 * time.Microsecond, 110e6, 0, Lazy},
		{"fast line far away", 50 * time.Millisecond, 110e6, 0, Eager},
		{"slow line", 20 * time.Millisecond, 600e3, 0, Lazy},
		{"fast line far away with a profile", 50 * time.Millisecond, 110e6, 300, Lazy},
	} {
		in := image
		in.link = measured{rtt: c.rtt, rate: c.rate}
		if in.profiled = c.profiled; c.profiled > 0 {
			in.profileFiles, in.profileBytes = c.profiled, 8<<20
		}
		if d := decide(in); d.Mode != c.want {
			t.Errorf("%s: %s (%s), want %s", c.name, d.Mode, d.Reason, c.want)
		}
	}
}
