package manage_test

import (
	"math"
	"testing"

	"example.org/slipway/oci/fleet"
	"example.org/slipway/web/manage"
)

// TestNodeRow checks what a row says about the exchange between nodes, also of a node that claims
// too much.
func TestNodeRow(t *testing.T) {
	for name, c := range map[string]struct {
		node   fleet.Node
		shares bool
		saved  float64
	}{
		"alone":     {fleet.Node{}, false, 0},
		"a quarter": {fleet.Node{PeerBytes: 100, RegistryBytes: 300}, true, .25},
		"sends":     {fleet.Node{SentBytes: 1}, true, 0},
		"lies":      {fleet.Node{PeerBytes: math.MaxInt64, RegistryBytes: math.MaxInt64, SentBytes: math.MaxInt64}, true, .5},
	} {
		if r := manage.NewNodeRow(c.node); r.Shares != c.shares || math.Abs(r.Saved-c.saved) > 1e-9 {
			t.Errorf("%s: it shares: %v, and saves %v, want %v and %v", name, r.Shares, r.Saved, c.shares, c.saved)
		}
	}
}
