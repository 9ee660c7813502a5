package catalog_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
)

// TestLeases checks that a list has only running leases whose names begin with the literal prefix.
func TestLeases(t *testing.T) { servers.OnBoth(t, testLeases) }

func testLeases(t *testing.T, base *catalogtest.Bed) {
	now := time.UnixMilli(1_000_000)
	c := open(t, base, &catalog.Options{Clock: func() time.Time { return now }})
	for _, l := range []struct {
		name, owner string
		d           time.Duration
	}{
		{"member/a", "1 http://a", 10 * time.Second},
		{"member/b", "2 http://b", 20 * time.Second},
		{"member/%", "3 http://c", 20 * time.Second},
		{"members", "x", 20 * time.Second},
		{"gc", "x", 20 * time.Second},
	} {
		if ok, err := c.DB.Lease(t.Context(), l.name, l.owner, l.d); err != nil || !ok {
			t.Fatalf("lease %s: %v, %v", l.name, ok, err)
		}
	}
	for _, s := range []struct {
		after  time.Duration
		prefix string
		want   map[string]string
	}{
		{0, "member/", map[string]string{"member/a": "1 http://a", "member/b": "2 http://b", "member/%": "3 http://c"}},
		{0, "member/%", map[string]string{"member/%": "3 http://c"}},
		{9999 * time.Millisecond, "member/a", map[string]string{"member/a": "1 http://a"}},
		{time.Millisecond, "member/", map[string]string{"member/b": "2 http://b", "member/%": "3 http://c"}},
		{time.Minute, "", map[string]string{}},
	} {
		now = now.Add(s.after)
		got, err := c.DB.Leases(t.Context(), s.prefix)
		if diff := cmp.Diff(s.want, got); err != nil || diff != "" {
			t.Errorf("%s later, prefix %q: %v, (-want +got)\n%s", s.after, s.prefix, err, diff)
		}
	}
}
