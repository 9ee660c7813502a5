package hot

import (
	"testing"

	"example.org/slipway/gear"
)

func TestTable(t *testing.T) {
	h := New[int](Shards * 10)
	at := func(i int) gear.Name { return gear.Name{byte(i), byte(i >> 8), 7: 3} } // all in one shard
	for i := range 10 {
		h.Put(at(i), i, 1)
	}
	h.Get(at(0))
	for i := 10; i < 15; i++ {
		h.Put(at(i), i, 1)
	}
	var have []int
	for i := range 15 {
		if v, ok := h.Get(at(i)); ok {
			have = append(have, v)
		}
	}
	if len(have) != 10 || have[0] != 0 {
		t.Errorf("kept %v, want 10 with 0, which was asked for", have)
	}
	h.Put(at(0), 100, 2)
	if v, _ := h.Get(at(0)); v != 100 {
		t.Errorf("replaced by 100, got %d", v)
	}
	h.Drop(at(0))
	if _, ok := h.Get(at(0)); ok {
		t.Error("still there after drop")
	}
	h.Put(at(99), 1, 6)
	if _, ok := h.Get(at(99)); ok {
		t.Error("took a value that costs more than half")
	}
	for i := range 1000 {
		h.Put(at(i), i, int64(1+i%5))
		n := at(i)
		if s, _ := h.of(&n); s.cost > s.limit || len(s.at)+len(s.free) != len(s.slots) {
			t.Fatalf("after %d: cost %d of %d, %d+%d slots of %d", i, s.cost, s.limit, len(s.at), len(s.free), len(s.slots))
		}
	}
}
