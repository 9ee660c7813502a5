package starts_test

import (
	"testing"
	"time"

	"example.org/slipway/node/gearfs/starts"
)

// TestTurn checks when a start that was lazy fetches the rest of its image, which has 100 MB in 5,000
// files beyond the profile and takes about ten seconds.
func TestTurn(t *testing.T) {
	t.Parallel()
	const rate = 10e6
	for _, c := range []struct {
		name                string
		since, waited       time.Duration
		fetched             int64
		known, anyway, want bool
	}{
		{"long wait for round trips", 4 * time.Second, 3500 * time.Millisecond, 1e6, true, true, true},
		{"the same, but the rest would come in vain", 4 * time.Second, 3500 * time.Millisecond, 1e6, true, false, false},
		{"not so long", 3 * time.Second, 2900 * time.Millisecond, 1e6, true, true, false},
		{"a container that computes", 10 * time.Second, 4 * time.Second, 1e6, true, true, false},
		{"many who wait at the same time", 2 * time.Second, 20 * time.Second, 1e6, true, true, false},
		{"a wait for bytes", 4 * time.Second, 4 * time.Second, 30e6, true, true, false},
		{"a quarter", 8 * time.Second, 8 * time.Second, 26e6, true, false, true},
		{"a quarter over an unknown link", 2 * time.Second, 2 * time.Second, 26e6, false, false, true},
		{"little over an unknown link", 2 * time.Second, 2 * time.Second, 1e6, false, true, false},
	} {
		var turn starts.Turn
		before, now := starts.Waits{Fetched: 1 << 40, Stalled: time.Hour}, time.Now() // of earlier starts
		after := starts.Waits{Fetched: before.Fetched + c.fetched, Stalled: before.Stalled + c.waited}
		if _, due := turn.Due(after, rate, c.known, c.anyway, now); due {
			t.Errorf("%s: it is due before a start", c.name)
		}
		turn.Begin(5000, 100e6, before, now.Add(-c.since))
		why, due := turn.Due(after, rate, c.known, c.anyway, now)
		if due != c.want || due != (why != "") {
			t.Errorf("%s: %t (%s), want %t", c.name, due, why, c.want)
		}
		if _, again := turn.Due(after, rate, c.known, c.anyway, now); due && again {
			t.Errorf("%s: it is due twice", c.name)
		}
	}
}
