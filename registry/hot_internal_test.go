package registry

import (
	"fmt"
	"testing"
	"time"
)

func TestHot(t *testing.T) {
	var h hot
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 3 {
		h.note(pullKey{"a", "1"}, at.Add(time.Duration(i)*time.Minute))
	}
	h.note(pullKey{"b", "1"}, at)
	check := func(at time.Time, want string) {
		t.Helper()
		list, _ := h.list(10, at)
		if got := fmt.Sprint(list); got != want {
			t.Errorf("at %s: got %s, want %s", at.Format("15:04"), got, want)
		}
	}
	check(at.Add(5*time.Minute), "[{a 1 3} {b 1 1}]")
	h.note(pullKey{"b", "1"}, at.Add(11*time.Minute))
	check(at.Add(11*time.Minute), "[{a 1 3} {b 1 2}]")
	check(at.Add(22*time.Minute), "[{b 1 1}]")
	check(at.Add(2*time.Hour), "[]")
	if list, since := h.list(0, at.Add(2*time.Hour)); len(list) != 0 || !since.Equal(at.Add(2*time.Hour)) {
		t.Errorf("nothing asked for: %v since %v", list, since)
	}
}

// TestHotAmongMany checks that whatever makes up more than one in 1,000 pulls is found, however
// many others there are, and that memory stays bounded.
func TestHotAmongMany(t *testing.T) {
	var h hot
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const pulls, frequent = 100_000, 50
	for i := range pulls {
		if i%frequent == 0 {
			h.note(pullKey{"hot", "latest"}, at)
		} else {
			h.note(pullKey{fmt.Sprint("cold", i), "latest"}, at)
		}
		if len(h.now) > hotImages {
			t.Fatalf("%d names are counted", len(h.now))
		}
	}
	list, _ := h.list(1, at)
	if len(list) != 1 || list[0].Repo != "hot" {
		t.Fatalf("got %v", list)
	}
	if got := list[0].Pulls; got > pulls/frequent || got < pulls/frequent-pulls/hotImages {
		t.Errorf("%d pulls were counted as %d", pulls/frequent, got)
	}
}
