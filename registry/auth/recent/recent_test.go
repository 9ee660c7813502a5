package recent

import (
	"net/netip"
	"testing"
	"time"
)

func TestExpiringCacheIsBounded(t *testing.T) {
	c := NewCache[int](cacheShards * 4)
	now := time.Unix(1000, 0)
	for i := range 10_000 {
		c.Put(Key{byte(i), byte(i >> 8)}, i, now.Add(time.Minute), now)
	}
	n := 0
	for i := range c.shards {
		n += len(c.shards[i].m)
	}
	if n != cacheShards*4 {
		t.Errorf("entries: got %d, want %d", n, cacheShards*4)
	}
	c.Put(Key{7}, 7, now.Add(time.Minute), now)
	if v, ok := c.Get(Key{7}, now.Add(time.Minute-1)); !ok || v != 7 {
		t.Errorf("before the end: got %d, %v", v, ok)
	}
	if _, ok := c.Get(Key{7}, now.Add(time.Minute)); ok {
		t.Error("the entry outlives its end")
	}
}

func TestFailuresForgetAndStayBounded(t *testing.T) {
	f := NewFailures(2)
	now := time.Unix(1000, 0)
	a := netip.MustParseAddr("192.0.2.1")
	f.Add(a, now)
	if d := f.Blocked(a, now); d != 0 {
		t.Errorf("after one failure: blocked for %v", d)
	}
	f.Add(a, now.Add(20*time.Second))
	if d := f.Blocked(a, now.Add(20*time.Second)); d != 40*time.Second {
		t.Errorf("after two: blocked for %v, want 40s", d)
	}
	if d := f.Blocked(a, now.Add(time.Minute)); d != 0 {
		t.Errorf("after a minute: blocked for %v", d)
	}
	for i := range maxFailureAddrs + 10 {
		f.Add(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now)
	}
	if len(f.m) > maxFailureAddrs {
		t.Errorf("%d addresses are kept, at most %d should be", len(f.m), maxFailureAddrs)
	}
}
