package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/internal/policy"
)

// levels makes a two-level cache with LRU in both levels and plays requests. It returns r
// and s for hits in memory and on the SSD, and m for a miss.
func levels(ram, ssd int64, o *policy.TwoLevelOptions, requests string) (*policy.TwoLevel, string, []string) {
	var moves []string
	if o == nil {
		o = &policy.TwoLevelOptions{}
	}
	o.OnMove = func(m policy.Move) {
		moves = append(moves, fmt.Sprintf("%s %v>%v", strings.TrimRight(string(m.Key[:]), "\x00"), m.From, m.To))
	}
	c := policy.NewTwoLevel(ram, policy.NewLRU(), ssd, policy.NewLRU(), o)
	var out strings.Builder
	for r := range strings.FieldsSeq(requests) {
		var size int64
		if _, err := fmt.Sscanf(r[1:], "%d", &size); err != nil {
			panic(err)
		}
		at := c.Get(key(r[:1]))
		out.WriteByte("mrs"[at])
		if at == policy.Nowhere {
			c.Add(key(r[:1]), size, 1)
		}
	}
	return c, out.String(), moves
}

// TestTwoLevelByHand plays all cases of the cache of figure 17 in one sequence, worked
// out by hand.
func TestTwoLevelByHand(t *testing.T) {
	// The memory holds 4, the SSD 10. Contents of 4 and more go to the SSD at once.
	c, got, moves := levels(4, 10, &policy.TwoLevelOptions{Split: 4}, "a2 b2 c2 a2 d5 c2 e11 d5 f4")
	if want := "mmmsmrmsm"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	want := []string{
		"a nowhere>ram", "b nowhere>ram",
		"a ram>ssd", "c nowhere>ram", // c pushes a down
		"b ram>ssd", "a ssd>ram", // a hit on the SSD moves a up and b down
		"d nowhere>ssd", // too large for memory; the SSD holds 2 + 5
		// e is larger than the SSD and is not cached. d is hit on the SSD and stays
		// there.
		"b ssd>nowhere", "f nowhere>ssd", // 2 + 5 + 4 is more than 10, so the oldest goes
	}
	if diff := cmp.Diff(want, moves); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
	st := c.Stats()
	wantStats := policy.TwoLevelStats{
		RAMHits: 1, SSDHits: 2, Misses: 6, RAMHitBytes: 2, SSDHitBytes: 7,
		RAMEvictions: 2, SSDEvictions: 1, SSDWrites: 4, SSDBytes: 2 + 2 + 5 + 4, Bypassed: 1,
	}
	if diff := cmp.Diff(wantStats, st); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestSecondTouch(t *testing.T) {
	// a is evicted after one request and is not written. The second time it is. b is hit
	// in memory before it is evicted.
	_, got, moves := levels(2, 10, &policy.TwoLevelOptions{Admission: policy.SecondTouch}, "a2 b2 b2 a2 c2 a2 b2")
	if want := "mmrmmss"; got != want {
		t.Errorf("got %s, want %s; moves %v", got, want, moves)
	}
	want := []string{
		"a nowhere>ram", "a ram>nowhere", "b nowhere>ram",
		"b ram>ssd", "a nowhere>ram",
		"a ram>ssd", "c nowhere>ram",
		"c ram>nowhere", "a ssd>ram",
		"a ram>ssd", "b ssd>ram",
	}
	if diff := cmp.Diff(want, moves); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
	// Only one content is remembered: a is forgotten when b is evicted.
	_, got, _ = levels(1, 10, &policy.TwoLevelOptions{Admission: policy.SecondTouch, Remember: 1}, "a1 b1 c1 a1 d1 a1")
	if want := "mmmmmm"; got != want {
		t.Errorf("with one ghost: got %s, want %s", got, want)
	}
}

func TestWriteBudget(t *testing.T) {
	now := time.Unix(0, 0)
	o := policy.TwoLevelOptions{Now: func() time.Time { return now }, WriteRate: 1, WriteBurst: 10, Admission: policy.Adaptive}
	c := policy.NewTwoLevel(1, policy.NewLRU(), 100, policy.NewLRU(), &o)
	// Everything is written while half of the burst is left.
	for i, want := range []policy.Level{policy.SSD, policy.SSD, policy.Nowhere} {
		if got := c.Add(policy.NumberKey(uint64(i)), 3, 1); got != want {
			t.Errorf("content %d goes to %v, want %v", i, got, want)
		}
	}
	// Below that, only contents that are requested again are written.
	if got := c.Add(policy.NumberKey(2), 3, 1); got != policy.SSD {
		t.Errorf("a content asked for twice goes to %v, want ssd", got)
	}
	c.Add(policy.NumberKey(3), 3, 1)
	if got := c.Add(policy.NumberKey(3), 3, 1); got != policy.Nowhere {
		t.Errorf("a content goes to %v with 1 byte of budget left, want nowhere", got)
	}
	now = now.Add(5 * time.Second)
	if got := c.Add(policy.NumberKey(4), 3, 1); got != policy.SSD {
		t.Errorf("a content goes to %v after the budget has filled, want ssd", got)
	}
}

func TestAdmissionNames(t *testing.T) {
	for _, a := range []policy.Admission{policy.AdmitAll, policy.SecondTouch, policy.Adaptive} {
		if got, err := policy.ParseAdmission(a.String()); err != nil || got != a {
			t.Errorf("%v: parsed as %v, %v", a, got, err)
		}
	}
	if _, err := policy.ParseAdmission("some"); err == nil {
		t.Error("an unknown admission is taken")
	}
}
