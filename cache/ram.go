// Package cache keeps what is asked for often where it is cheap to serve.
//
// [RAM] is a byte-bounded table of immutable values. It does no I/O and starts
// no goroutine.
package cache

import (
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"unique"
)

// Key names a cached value: a kind chosen by the user of the cache, and two
// strings, usually a repository and a tag or digest.
type Key struct {
	Kind      uint8
	Repo, Ref string
}

// entryBytes is what an entry costs besides its value: the map slot (about 25
// bytes at the usual load), the entry itself (112), the key's digest (80) and
// its share of the repository's name.
const entryBytes = 230

// shardCount spreads lock contention; a power of two.
const shardCount = 16

// epochCount is how many slots of keys have a count of changes of their own; a
// multiple of shardCount, so that a slot belongs to one shard. 32 KB.
const epochCount = 4096

// RAM is a table of values bounded by the sum of their costs in bytes. A value
// that was asked for since the eviction hand last passed survives one more
// round (the SIEVE policy: Zhang et al., NSDI'24), which keeps one-time reads
// from displacing hot values and needs no lock stronger than a reader's to
// serve a hit.
//
// Values must not be changed after Put. All methods may run concurrently.
type RAM struct {
	seed   maphash.Seed
	shards [shardCount]shard
	// epochs count the changes of the keys of each slot, so that a value read
	// before a change cannot be put after it. Their number makes it rare that
	// the change of one key spoils the fill of another.
	epochs [epochCount]atomic.Uint64

	hits, misses, evictions atomic.Int64
}

type shard struct {
	mu sync.RWMutex
	// entries by the hash of their key: hashing the key once finds both shard
	// and entry. Two keys with one hash, which a shard of 100,000 entries meets
	// once in 10^9 look-ups, displace each other.
	entries map[uint64]*entry
	// head is the newest entry, hand where eviction goes on (nil: at the tail).
	head, tail, hand *entry
	bytes, limit     int64
}

type entry struct {
	key        Key
	hash       uint64
	repo       unique.Handle[string] // keeps the one copy of key.Repo
	value      any
	cost       int64
	prev, next *entry // prev is newer
	visited    atomic.Bool
}

// NewRAM returns a table of at most limit bytes; 0 or less caches nothing.
func NewRAM(limit int64) *RAM {
	c := &RAM{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].entries = map[uint64]*entry{}
		c.shards[i].limit = limit / shardCount
	}
	return c
}

// shard returns where a key belongs, and its hash.
func (c *RAM) shard(k *Key) (*shard, uint64) {
	h := maphash.String(c.seed, k.Ref)
	h ^= bits.RotateLeft64(maphash.String(c.seed, k.Repo), 31) + uint64(k.Kind)
	return &c.shards[h%shardCount], h
}

// find returns a key's entry, or nil. mu is held.
func (s *shard) find(k *Key, h uint64) *entry {
	if e := s.entries[h]; e != nil && e.key == *k {
		return e
	}
	return nil
}

// Get returns a value.
func (c *RAM) Get(k Key) (any, bool) {
	s, h := c.shard(&k)
	s.mu.RLock()
	e := s.find(&k, h)
	var v any
	if e != nil {
		v = e.value
		if !e.visited.Load() { // a store on every hit would bounce the cache line
			e.visited.Store(true)
		}
	}
	s.mu.RUnlock()
	if e == nil {
		c.misses.Add(1)
		return nil, false
	}
	c.hits.Add(1)
	return v, true
}

// Epoch is taken before a value is read from where it is stored, and given to
// Put with the value.
func (c *RAM) Epoch(k Key) uint64 {
	_, h := c.shard(&k)
	return c.epochs[h%epochCount].Load()
}

// Put adds a value that costs size bytes, unless something of its slot changed
// since epoch: then the value may be out of date. A value larger than
// a quarter of its shard (a 64th of the whole) is not taken.
func (c *RAM) Put(k Key, v any, size int64, epoch uint64) {
	s, h := c.shard(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.epochs[h%epochCount].Load() == epoch {
		c.put(s, h, k, v, size)
	}
}

// Replace makes v the value of a key that the caller has just changed. epoch was
// taken before the change. If something of the slot was dropped or replaced
// since, the order of the changes is not known, and the key is only dropped.
func (c *RAM) Replace(k Key, v any, size int64, epoch uint64) {
	s, h := c.shard(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.find(&k, h); e != nil {
		s.remove(e)
	}
	if c.epochs[h%epochCount].Add(1) == epoch+1 {
		c.put(s, h, k, v, size)
	}
}

// put adds an entry. s.mu is held.
func (c *RAM) put(s *shard, h uint64, k Key, v any, size int64) {
	cost := size + entryBytes
	if cost > s.limit/4 {
		return
	}
	if old := s.entries[h]; old != nil { // the same key, or one with its hash
		s.remove(old)
	}
	for s.bytes+cost > s.limit && s.evict() {
		c.evictions.Add(1)
	}
	// The caller's strings are usually parts of a longer one, which the table
	// would keep alive.
	repo := unique.Make(k.Repo)
	k.Repo, k.Ref = repo.Value(), strings.Clone(k.Ref)
	e := &entry{key: k, hash: h, repo: repo, value: v, cost: cost, next: s.head}
	if s.head != nil {
		s.head.prev = e
	}
	s.head = e
	if s.tail == nil {
		s.tail = e
	}
	s.entries[h] = e
	s.bytes += cost
}

// evict removes one entry: the first, from the hand towards newer ones, that
// was not asked for since the hand last passed it.
func (s *shard) evict() bool {
	e := s.hand
	if e == nil {
		e = s.tail
	}
	for e != nil && e.visited.Load() {
		e.visited.Store(false)
		if e = e.prev; e == nil {
			e = s.tail
		}
	}
	if e == nil {
		return false
	}
	s.hand = e.prev
	s.remove(e)
	return true
}

func (s *shard) remove(e *entry) {
	if s.hand == e {
		s.hand = e.prev
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		s.head = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		s.tail = e.prev
	}
	delete(s.entries, e.hash)
	s.bytes -= e.cost
}

// Drop forgets a value, and every value of its slot that is being read at this
// moment. It is called after the change that made the value untrue is durable.
func (c *RAM) Drop(k Key) {
	s, h := c.shard(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.epochs[h%epochCount].Add(1)
	if e := s.find(&k, h); e != nil {
		s.remove(e)
	}
}

// Stats are counts since the start, and the bytes held now.
type Stats struct {
	Hits, Misses, Evictions int64
	Entries, Bytes          int64
}

// Stats reads the counters.
func (c *RAM) Stats() Stats {
	st := Stats{Hits: c.hits.Load(), Misses: c.misses.Load(), Evictions: c.evictions.Load()}
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.RLock()
		st.Entries += int64(len(s.entries))
		st.Bytes += s.bytes
		s.mu.RUnlock()
	}
	return st
}
