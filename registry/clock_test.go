package registry_test

import (
	"testing"
	"time"

	"example.org/slipway/registry"
)

// TestClockSetAhead: whatever the clock says, content has its grace period.
func TestClockSetAhead(t *testing.T) {
	const grace = time.Hour
	for _, tc := range []struct {
		name string
		// steps are what the clock is set by, each after a minute, before the
		// push and after it.
		before, after []time.Duration
		held          bool // a collection then says that it waits
	}{
		{"an honest clock", nil, nil, false},
		{"a year ahead", nil, []time.Duration{365 * 24 * time.Hour}, true},
		{"a little ahead", nil, []time.Duration{5 * time.Minute}, false},
		{"ahead in small steps", nil, []time.Duration{5 * time.Minute, 5 * time.Minute, 50 * time.Minute}, true},
		{"back, and ahead again", []time.Duration{-24 * time.Hour}, []time.Duration{24 * time.Hour}, true},
		{"back", nil, []time.Duration{-24 * time.Hour}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			steady := newFakeClock()
			b := newBed(t, nil, registry.Options{Grace: grace, Steady: func() time.Duration { return steady.Now().Sub(time.Unix(0, 0)) }})
			pass := func(d time.Duration) { b.clock.Add(d); steady.Add(d) }
			collect := func() registry.CollectReport {
				t.Helper()
				rep, err := b.Collect(t.Context(), registry.CollectOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return rep
			}
			for _, step := range tc.before {
				pass(time.Minute)
				b.clock.Add(step)
				collect()
			}
			pass(2 * grace) // what came before is forgotten
			collect()
			b.pushBlob("a", content(1, 50_000))
			var rep registry.CollectReport
			for _, step := range tc.after {
				pass(time.Minute)
				b.clock.Add(step)
				rep = collect()
			}
			if rep.Contents != 0 || (rep.Wait > 0) != tc.held {
				t.Errorf("after the clock was set: got %d contents collected, wait %v, want none, wait %v", rep.Contents, rep.Wait, tc.held)
			}
			pass(grace - 10*time.Minute)
			if rep := collect(); rep.Contents != 0 {
				t.Errorf("collected before its grace period was over")
			}
			pass(12 * time.Minute)
			if back := tc.after != nil && tc.after[0] < 0; back {
				pass(24 * time.Hour) // its due time was written down before
			}
			if rep := collect(); rep.Contents != 1 {
				t.Errorf("after the grace period: got %d contents collected, wait %v, want 1", rep.Contents, rep.Wait)
			}
		})
	}
}
