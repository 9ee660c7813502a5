package edge

import (
	"fmt"
	"testing"
	"time"
)

// TestLimiterForgets checks that memory is bounded by the recent addresses, and that an address
// cannot gain tokens by being forgotten.
func TestLimiterForgets(t *testing.T) {
	l := NewLimiter(0.001, 2, 1)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	for i := range 10_000 {
		if !l.Allow(fmt.Sprintf("10.0.%d.%d:1", i/256, i%256), clock) {
			t.Fatal("the first request of an address is refused")
		}
	}
	const addr = "10.1.0.1:1"
	//lint:ignore SA4000 each call counts
	if !l.Allow(addr, clock) || !l.Allow(addr, clock) || l.Allow(addr, clock) {
		t.Error("want two requests and no more")
	}
	if l.Allow("10.1.0.1:2", clock) {
		t.Error("another port of the same address is not another client")
	}
	now = now.Add(2 * time.Minute)
	if l.Allow(addr, clock) {
		t.Error("waiting two minutes gave a token that takes a quarter of an hour")
	}
	now = now.Add(time.Hour)
	if !l.Allow(addr, clock) {
		t.Error("an hour gave no token")
	}
	if len(l.clients) > 1 {
		t.Errorf("%d addresses are remembered after an hour", len(l.clients))
	}
	// An IPv6 host has a /64.
	if !l.Allow("[2001:db8::1]:1", clock) || !l.Allow("[2001:db8::2]:1", clock) || l.Allow("[2001:db8::3]:1", clock) {
		t.Error("addresses of one /64 are not one client")
	}
	if !l.Allow("[fe80::1%eth0]:1", clock) || !l.Allow("[fe80::2%eth0]:1", clock) || l.Allow("[fe80::3%eth0]:1", clock) {
		t.Error("link-local addresses are not one client")
	}
	if !l.Allow("[2001:db8:0:1::1]:1", clock) {
		t.Error("another /64 is not another client")
	}
	if !l.Enter(addr) || l.Enter(addr) {
		t.Error("want one at once")
	}
	l.Leave(addr)
	l.Leave(addr) // one too many
	if !l.Enter(addr) || l.Enter(addr) {
		t.Error("want one at once, also after leaving twice")
	}
}
