package agent

import (
	"testing"
	"time"

	"example.org/slipway/oci/fleet"
)

// TestStartDue checks when a start is reported: while it goes on, when other containers run, and once
// a registry may have forgotten it.
func TestStartDue(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		was  startState
		want bool
	}{
		"never reported":   {startState{}, true},
		"under way":        {startState{now, 1, false}, true},
		"over":             {startState{now, 1, true}, false},
		"other containers": {startState{now, 2, true}, true},
		"just before":      {startState{now.Add(time.Second - fleet.Lifetime), 1, true}, false},
		"long ago":         {startState{now.Add(-fleet.Lifetime), 1, true}, true},
	} {
		if got := c.was.due(1, now); got != c.want {
			t.Errorf("%s: due is %v, want %v", name, got, c.want)
		}
	}
}
