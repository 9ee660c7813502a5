// Package recent remembers, in bounded memory, what clients showed a short time ago:
// credentials that were verified, and wrong passwords.
package recent

import (
	"crypto/sha256"
	"sync"
	"time"
)

// Key is a SHA-256 sum or an HMAC. The secret that it was computed from is not kept.
type Key = [sha256.Size]byte

// cacheShards is the number of shards. Each has its own lock, so that many cores rarely
// wait for the same lock.
const cacheShards = 16

// Cache is a bounded map whose entries expire. It is safe for concurrent use.
type Cache[V any] struct {
	perShard int
	shards   [cacheShards]struct {
		mu sync.RWMutex
		m  map[Key]expiringEntry[V]
	}
}

type expiringEntry[V any] struct {
	value V
	until time.Time
}

// NewCache returns a cache of at most size entries.
func NewCache[V any](size int) *Cache[V] {
	c := &Cache[V]{perShard: max(size/cacheShards, 1)}
	for i := range c.shards {
		c.shards[i].m = map[Key]expiringEntry[V]{}
	}
	return c
}

// Get returns the entry for key if it is still valid at now.
func (c *Cache[V]) Get(key Key, now time.Time) (value V, ok bool) {
	s := &c.shards[key[0]%cacheShards]
	s.mu.RLock()
	e, ok := s.m[key]
	s.mu.RUnlock()
	if !ok || !now.Before(e.until) {
		return value, false
	}
	return e.value, true
}

// Put stores an entry. If the shard is full, its expired entries are dropped first, and
// then any entry. If the entry of a credential was dropped, the credential is verified
// again.
func (c *Cache[V]) Put(key Key, value V, until, now time.Time) {
	s := &c.shards[key[0]%cacheShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.m) >= c.perShard {
		for k, e := range s.m {
			if !now.Before(e.until) {
				delete(s.m, k)
			}
		}
	}
	if len(s.m) >= c.perShard {
		for k := range s.m {
			delete(s.m, k)
			break
		}
	}
	s.m[key] = expiringEntry[V]{value, until}
}
