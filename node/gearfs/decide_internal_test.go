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

// TestTurn checks when a start that was lazy fetches the rest of its image, which has 100 MB in 5,000
// files beyond the profile and takes about ten seconds.
func TestTurn(t *testing.T) {
	t.Parallel()
	const rate = 10e6
	for _, c := range []struct {
		name          string
		since, waited time.Duration
		fetched       int64
		rate          float64
		anyway, want  bool
	}{
		{"long wait for round trips", 4 * time.Second, 3500 * time.Millisecond, 1e6, rate, true, true},
		{"the same, but the rest would come in vain", 4 * time.Second, 3500 * time.Millisecond, 1e6, rate, false, false},
		{"not so long", 3 * time.Second, 2900 * time.Millisecond, 1e6, rate, true, false},
		{"a container that computes", 10 * time.Second, 4 * time.Second, 1e6, rate, true, false},
		{"many who wait at the same time", 2 * time.Second, 20 * time.Second, 1e6, rate, true, false},
		{"a wait for bytes", 4 * time.Second, 4 * time.Second, 30e6, rate, true, false},
		{"a quarter", 8 * time.Second, 8 * time.Second, 26e6, rate, false, true},
		{"a quarter over an unknown link", 2 * time.Second, 2 * time.Second, 26e6, 0, false, true},
		{"little over an unknown link", 2 * time.Second, 2 * time.Second, 1e6, 0, true, false},
	} {
		img := &image{}
		img.st.stall.Store(int64(time.Hour)) // of earlier starts
		img.st.bytes[onDemand].Store(1 << 40)
		turn := &img.st.turn
		turn.begin(img, 5000, 100e6)
		turn.began = time.Now().Add(-c.since)
		img.st.stall.Add(int64(c.waited))
		img.st.bytes[onDemand].Add(c.fetched)
		why, due := turn.due(img, c.rate, c.anyway)
		if due != c.want || due != (why != "") {
			t.Errorf("%s: %t (%s), want %t", c.name, due, why, c.want)
		}
		if _, again := turn.due(img, c.rate, c.anyway); due && again {
			t.Errorf("%s: it is due twice", c.name)
		}
	}
}
