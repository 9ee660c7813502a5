// Package cache keeps frequently requested content where it is cheap to serve.
//
// [RAM] is a byte-bounded table of immutable values. It does no I/O and starts no
// goroutine.
package cache

import (
	"hash/maphash"
	"math/bits"
	"sync/atomic"
)

// Key names a cached value. It has a kind chosen by the user of the cache, and two
// strings, usually a repository and a tag or digest.
type Key struct {
	Kind      uint8
	Repo, Ref string
}

// shardCount is the number of shards, which spread lock contention. It is a power of two.
const shardCount = 16

// epochCount is how many slots keys are spread over. Each slot has a count of changes.
// epochCount is a multiple of shardCount, so that a slot belongs to one shard. The counts
// take 32 KB.
const epochCount = 4096

// RAM is a table of values, bounded by the bytes it takes in memory. It stores values as
// bytes in blocks that hold many of them (see block), so that the garbage collector has
// next to nothing to mark however full the table is.
//
// The table evicts in the order in which values were put, oldest first. It spares a value
// that was requested since it was put, or since it was last spared. So values that are
// read once do not displace hot values, and a hit needs no stronger lock than a reader's.
//
// All methods may run concurrently.
type RAM struct {
	seed   maphash.Seed
	shards [shardCount]shard
	// epochs count the changes of the keys of each slot, so that a value read before a
	// change cannot be put after it. There are so many slots that a change of one key
	// rarely spoils the fill of another.
	epochs [epochCount]atomic.Uint64

	hits, misses, evictions atomic.Int64
}

// NewRAM returns a table of at most limit bytes. With 0 or less it caches nothing.
func NewRAM(limit int64) *RAM {
	c := &RAM{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].init(limit / shardCount)
	}
	return c
}

// shard returns the shard that a key belongs to, and the key's hash.
func (c *RAM) shard(k *Key) (*shard, uint64) {
	h := maphash.String(c.seed, k.Ref)
	h ^= bits.RotateLeft64(maphash.String(c.seed, k.Repo), 31) + uint64(k.Kind)
	return &c.shards[h%shardCount], h
}

// Get returns a value. The caller must not change it. The value stays valid after the
// table has dropped it, but it holds its whole block in memory, so the caller must use it
// at once and not keep it.
func (c *RAM) Get(k Key) (value []byte, ok bool) {
	s, h := c.shard(&k)
	s.mu.RLock()
	if p, r := s.find(&k, h); r != nil {
		s.blocks[p.block].markAsked(p.off)
		value, ok = r.value(), true
	}
	s.mu.RUnlock()
	if ok {
		c.hits.Add(1)
	} else {
		c.misses.Add(1)
	}
	return value, ok
}

// Epoch returns the epoch of a key. The caller takes it before it reads a value from
// where the value is stored, and passes it to Put with the value.
func (c *RAM) Epoch(k Key) uint64 {
	_, h := c.shard(&k)
	return c.epochs[h%epochCount].Load()
}

// Put adds a value, unless something in its slot changed since epoch, because the value
// may then be out of date. The value is given in one or more pieces, which are copied.
// Put ignores a value that needs more than a quarter of its shard (a 64th of the whole).
func (c *RAM) Put(k Key, epoch uint64, value ...[]byte) {
	s, h := c.shard(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.epochs[h%epochCount].Load() == epoch {
		c.evictions.Add(s.put(&k, h, value))
	}
}

// Replace makes value the value of a key that the caller has just changed. epoch was
// taken before the change. If something in the slot was dropped or replaced since, the
// order of the changes is not known, and Replace only drops the key.
func (c *RAM) Replace(k Key, epoch uint64, value ...[]byte) {
	s, h := c.shard(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(&k, h)
	if c.epochs[h%epochCount].Add(1) == epoch+1 {
		c.evictions.Add(s.put(&k, h, value))
	}
}

// Drop forgets a value, and every value of its slot that is being read at this moment. It
// is called after the change that invalidated the value is durable.
func (c *RAM) Drop(k Key) {
	s, h := c.shard(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.epochs[h%epochCount].Add(1)
	s.drop(&k, h)
}

// Clear forgets all values, including values that are being read at this moment, as Drop
// does for one value.
func (c *RAM) Clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for e := i; e < epochCount; e += shardCount { // the slots of this shard
			c.epochs[e].Add(1)
		}
		s.clear()
		s.mu.Unlock()
	}
}

// Stats are counts since the start, and the number of bytes held now.
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
		st.Entries += int64(len(s.index))
		st.Bytes += s.bytes
		s.mu.RUnlock()
	}
	return st
}
