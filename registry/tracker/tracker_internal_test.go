package tracker

import (
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"example.org/slipway/oci/peering"
)

// TestShare has one client announce as many images as it can. Others still have room, and so has
// the client once its announcements are over.
func TestShare(t *testing.T) {
	tr := New(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), nil)
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	join := func(client string, n int) error {
		a := &peering.Announcement{Manifest: fmt.Sprint(n), Key: fmt.Sprint("key of ", client), Address: ":1"}
		tr.mu.Lock()
		defer tr.mu.Unlock()
		_, err := tr.join(swarmKey{"team/app", a.Manifest}, netip.MustParseAddr(client), now, a, netip.MustParseAddrPort("10.0.0.9:1"))
		return err
	}
	taken := 0
	for join("10.0.0.1", taken) == nil {
		if taken++; taken > maxMembers {
			break
		}
	}
	if taken >= maxMembers {
		t.Errorf("one client has announced %d images, of %d", taken, maxMembers)
	}
	if err := join("10.0.0.1", 0); err != nil {
		t.Errorf("the client cannot announce again what it announced: %v", err)
	}
	if err := join("10.0.0.2", 1<<30); err != nil {
		t.Errorf("another client has no room: %v", err)
	}
	now = now.Add(lifetime + time.Second)
	if err := join("10.0.0.1", 1<<30+1); err != nil {
		t.Errorf("after all that is over, the client has no room: %v", err)
	}
	if tr.count != 1 || len(tr.shares) != 1 || len(tr.swarms) != 1 {
		t.Errorf("%d members, %d clients and %d images are left", tr.count, len(tr.shares), len(tr.swarms))
	}
}
