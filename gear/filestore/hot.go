package filestore

import (
	"encoding/binary"
	"sync"

	"example.org/slipway/gear"
)

// hotShards spreads lock contention; a power of two.
const hotShards = 16

// hot is a table of values bounded by the sum of their costs. A value that was
// asked for since the hand last passed is not evicted. All methods may run
// concurrently.
type hot[V any] struct {
	shards [hotShards]hotShard[V]
}

type hotShard[V any] struct {
	mu sync.Mutex
	// at finds a slot by the beginning of a name. Two names that begin alike, of
	// which one had to look for years, displace each other.
	at    map[uint64]int32
	slots []hotSlot[V]
	free  []int32
	hand  int
	// cost of all values, and its bound
	cost, limit int64
}

type hotSlot[V any] struct {
	name  gear.Name
	value V
	cost  int64 // 0: the slot is free
	asked bool
}

func newHot[V any](limit int64) *hot[V] {
	h := &hot[V]{}
	for i := range h.shards {
		h.shards[i].at = map[uint64]int32{}
		h.shards[i].limit = limit / hotShards
	}
	return h
}

// shard returns where a name belongs, and what it is found by there. Names are
// hashes.
func (h *hot[V]) shard(name *gear.Name) (*hotShard[V], uint64) {
	return &h.shards[name[8]%hotShards], binary.LittleEndian.Uint64(name[:])
}

func (h *hot[V]) get(name gear.Name) (v V, ok bool) {
	s, k := h.shard(&name)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.at[k]
	if !ok || s.slots[i].name != name {
		return v, false
	}
	s.slots[i].asked = true
	return s.slots[i].value, true
}

// put adds a value of a cost of at least 1, unless that is more than half of
// what its shard may hold.
func (h *hot[V]) put(name gear.Name, v V, cost int64) {
	s, k := h.shard(&name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.at[k]; ok {
		s.remove(i)
	}
	if cost > s.limit/2 {
		return
	}
	for s.cost+cost > s.limit {
		s.evict()
	}
	i := int32(len(s.slots))
	if n := len(s.free); n > 0 {
		i, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.slots = append(s.slots, hotSlot[V]{})
	}
	s.slots[i] = hotSlot[V]{name: name, value: v, cost: cost}
	s.at[k] = i
	s.cost += cost
}

// evict removes one value. There is one, as the cost is above 0.
func (s *hotShard[V]) evict() {
	for {
		s.hand = (s.hand + 1) % len(s.slots)
		switch e := &s.slots[s.hand]; {
		case e.cost == 0:
		case e.asked:
			e.asked = false
		default:
			s.remove(int32(s.hand))
			return
		}
	}
}

func (s *hotShard[V]) remove(i int32) {
	e := &s.slots[i]
	delete(s.at, binary.LittleEndian.Uint64(e.name[:]))
	s.cost -= e.cost
	*e = hotSlot[V]{}
	s.free = append(s.free, i)
}

func (h *hot[V]) drop(name gear.Name) {
	s, k := h.shard(&name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.at[k]; ok && s.slots[i].name == name {
		s.remove(i)
	}
}

// contentCache is the Cache of a store that was given none.
type contentCache struct{ *hot[[]byte] }

// slotBytes is about what an entry costs besides its content.
const slotBytes = 160

func (c *contentCache) Get(name gear.Name) ([]byte, bool) { return c.get(name) }

func (c *contentCache) Put(name gear.Name, content []byte) {
	c.put(name, content, int64(len(content))+slotBytes)
}
