// Package hot provides a table in memory that maps the names of contents to values.
package hot

import (
	"encoding/binary"
	"sync"

	"example.org/slipway/gear"
)

// Shards is the number of shards, which spread lock contention. It is a power of two.
const Shards = 16

// Table is a table of values bounded by the sum of their costs. A value that was
// requested since the clock hand last passed it is not evicted. All methods may run
// concurrently.
type Table[V any] struct {
	shards [Shards]shard[V]
}

type shard[V any] struct {
	mu sync.Mutex
	// at finds a slot by the beginning of a name. Two names with the same beginning
	// displace each other, but it would take years to find such a pair.
	at    map[uint64]int32
	slots []slot[V]
	free  []int32
	hand  int
	// cost is the cost of all values, and limit bounds it.
	cost, limit int64
}

type slot[V any] struct {
	name  gear.Name
	value V
	cost  int64 // 0: the slot is free
	asked bool
}

// New returns a table that holds values of at most limit total cost.
func New[V any](limit int64) *Table[V] {
	h := &Table[V]{}
	for i := range h.shards {
		h.shards[i].at = map[uint64]int32{}
		h.shards[i].limit = limit / Shards
	}
	return h
}

// of returns the shard of a name, and the key of the name in it. Names are hashes.
func (h *Table[V]) of(name *gear.Name) (*shard[V], uint64) {
	return &h.shards[name[8]%Shards], binary.LittleEndian.Uint64(name[:])
}

// Get returns the value of a name.
func (h *Table[V]) Get(name gear.Name) (v V, ok bool) {
	s, k := h.of(&name)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.at[k]
	if !ok || s.slots[i].name != name {
		return v, false
	}
	s.slots[i].asked = true
	return s.slots[i].value, true
}

// Put adds a value. Its cost is at least 1. Put ignores a value that costs more than half
// of what its shard may hold.
func (h *Table[V]) Put(name gear.Name, v V, cost int64) {
	s, k := h.of(&name)
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
		s.slots = append(s.slots, slot[V]{})
	}
	s.slots[i] = slot[V]{name: name, value: v, cost: cost}
	s.at[k] = i
	s.cost += cost
}

// evict removes one value. There is at least one, because the cost is above 0.
func (s *shard[V]) evict() {
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

func (s *shard[V]) remove(i int32) {
	e := &s.slots[i]
	delete(s.at, binary.LittleEndian.Uint64(e.name[:]))
	s.cost -= e.cost
	*e = slot[V]{}
	s.free = append(s.free, i)
}

// Drop removes the value of a name.
func (h *Table[V]) Drop(name gear.Name) {
	s, k := h.of(&name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.at[k]; ok && s.slots[i].name == name {
		s.remove(i)
	}
}

// Contents is a table of small contents. The cost of a content is the memory it takes.
type Contents struct{ table *Table[[]byte] }

// slotBytes is about the cost of an entry besides its content.
const slotBytes = 160

// NewContents returns a table that holds at most limit bytes of contents.
func NewContents(limit int64) *Contents { return &Contents{New[[]byte](limit)} }

// Get returns a content. Callers must not change it.
func (c *Contents) Get(name gear.Name) ([]byte, bool) { return c.table.Get(name) }

// Put keeps a content.
func (c *Contents) Put(name gear.Name, content []byte) {
	c.table.Put(name, content, int64(len(content))+slotBytes)
}
