package policy

import (
	"math"
	"time"
)

// Options are the options of a cache. The zero value works.
type Options struct {
	// Now is the clock that ends pins; nil means that pins end only by Unpin.
	Now func() time.Time
	// OnEvict is called for every entry that the cache gives up to make room, before the
	// call that needed the room returns. It is not called for a content that was never
	// added, and not for Remove. It must not call the cache.
	OnEvict func(e Entry)
}

// Stats counts what a cache did since its start.
type Stats struct {
	// Hits and Misses count the calls of Get. HitBytes adds up the sizes of the hits.
	Hits, Misses int64
	HitBytes     int64
	// Adds counts the entries that were added. Refused counts the contents that were not.
	Adds, Refused int64
	// Evictions counts the entries that were given up to make room. EvictedBytes adds up
	// their sizes.
	Evictions, EvictedBytes int64
	// Removed counts the entries that Remove removed.
	Removed int64
}

// Cache is one level of a cache. It holds at most a limit of bytes, ordered by a policy.
type Cache struct {
	limit   int64
	policy  Policy
	now     func() time.Time
	onEvict func(Entry)

	index  map[Key]*Entry
	bytes  int64
	pins   pinHeap
	pinned int64 // bytes of pinned entries; the policy does not know them
	free   *Entry
	stats  Stats
}

// NewCache returns an empty cache of at most limit bytes. No other cache may use the
// policy.
func NewCache(limit int64, p Policy, o *Options) *Cache {
	c := &Cache{limit: max(limit, 0), policy: p, index: map[Key]*Entry{}}
	if o != nil {
		c.now, c.onEvict = o.Now, o.OnEvict
	}
	p.SetLimit(c.limit)
	return c
}

// Limit returns how many bytes the cache may hold.
func (c *Cache) Limit() int64 { return c.limit }

// Bytes returns how many bytes the cache holds.
func (c *Cache) Bytes() int64 { return c.bytes }

// PinnedBytes returns how many bytes of the cache are pinned.
func (c *Cache) PinnedBytes() int64 { return c.pinned }

// Len returns the number of entries.
func (c *Cache) Len() int { return len(c.index) }

// Stats returns the counts.
func (c *Cache) Stats() Stats { return c.stats }

// Has reports whether a key is held. It does not count as a request, and changes nothing.
func (c *Cache) Has(k Key) bool {
	_, ok := c.index[k]
	return ok
}

// Lookup returns a copy of the entry of a key. It does not count as a request.
func (c *Cache) Lookup(k Key) (Entry, bool) {
	e, ok := c.index[k]
	if !ok {
		return Entry{}, false
	}
	return e.public(), true
}

// public returns a copy without the policy's fields.
func (e *Entry) public() Entry {
	return Entry{Key: e.Key, Size: e.Size, Cost: e.Cost, Hits: e.Hits}
}

// Get notes a request for a key and reports whether it is held.
func (c *Cache) Get(k Key) bool {
	c.expire()
	e, ok := c.index[k]
	if !ok {
		c.stats.Misses++
		return false
	}
	c.stats.Hits++
	c.stats.HitBytes += e.Size
	e.Hits++
	if e.pinned == 0 {
		c.policy.Hit(e)
	}
	return true
}

// Add adds a content of size bytes after a request for it missed, and gives up others for
// it. It reports whether the content is held now. It returns false if the size is not
// positive, if the size exceeds the bytes that are not pinned, or if the policy finds the
// content worth less than what it would push out. A cost of 0 or less counts as 1. A key
// that is already held is not changed.
func (c *Cache) Add(k Key, size int64, cost float64) bool {
	c.expire()
	if c.Has(k) {
		return true
	}
	return c.add(k, size, cost, 1)
}

// add is like Add, for an entry that was requested hits times.
func (c *Cache) add(k Key, size int64, cost float64, hits int64) bool {
	if size <= 0 || size > c.limit-c.pinned {
		c.stats.Refused++
		return false
	}
	if !(cost > 0) {
		cost = 1
	}
	e := c.alloc()
	e.Key, e.Size, e.Cost, e.Hits = k, size, cost, hits
	if !c.policy.Offer(e) || !c.makeRoom(e) {
		c.stats.Refused++
		c.release(e)
		return false
	}
	c.policy.Add(e)
	c.index[k] = e
	c.bytes += size
	c.stats.Adds++
	return true
}

// makeRoom evicts until an entry fits, and reports whether it does.
func (c *Cache) makeRoom(e *Entry) bool {
	for c.bytes+e.Size > c.limit {
		v := c.policy.Evict(e)
		if v == nil || v == e {
			return false
		}
		c.drop(v)
	}
	return true
}

// drop removes an entry that the policy has given up.
func (c *Cache) drop(v *Entry) {
	delete(c.index, v.Key)
	c.bytes -= v.Size
	c.stats.Evictions++
	c.stats.EvictedBytes += v.Size
	out := v.public()
	c.release(v)
	if c.onEvict != nil {
		c.onEvict(out)
	}
}

// Remove removes a content, even if it is pinned, and reports whether it was held.
func (c *Cache) Remove(k Key) bool {
	_, ok := c.take(k)
	return ok
}

// take is like Remove, but also returns what was removed.
func (c *Cache) take(k Key) (Entry, bool) {
	e, ok := c.index[k]
	if !ok {
		return Entry{}, false
	}
	if e.pinned != 0 {
		c.pins.remove(e)
		c.pinned -= e.Size
		c.policy.SetLimit(c.limit - c.pinned)
	} else {
		c.policy.Remove(e)
	}
	delete(c.index, k)
	c.bytes -= e.Size
	c.stats.Removed++
	out := e.public()
	c.release(e)
	return out, true
}

// forever is the end of a pin without an end.
const forever = math.MaxInt64

// Pin keeps an entry until a time, regardless of the policy. The zero time means until
// Unpin. A second pin replaces the first. Pin reports whether the key is held.
func (c *Cache) Pin(k Key, until time.Time) bool {
	e, ok := c.index[k]
	if !ok {
		return false
	}
	if e.pinned != 0 {
		c.pins.remove(e)
	} else {
		c.policy.Remove(e)
		c.pinned += e.Size
		c.policy.SetLimit(c.limit - c.pinned)
	}
	e.until = forever
	if !until.IsZero() {
		e.until = until.UnixNano()
	}
	c.pins.add(e)
	c.expire()
	return true
}

// Unpin ends an entry's pin. The entry then counts as just requested. Unpin reports
// whether there was a pin.
func (c *Cache) Unpin(k Key) bool {
	e, ok := c.index[k]
	if !ok || e.pinned == 0 {
		return false
	}
	c.unpin(e)
	return true
}

func (c *Cache) unpin(e *Entry) {
	c.pins.remove(e)
	c.pinned -= e.Size
	c.policy.SetLimit(c.limit - c.pinned)
	// The entry already has its room. If the policy refuses it, because of its size or
	// because it is worth nothing, it is dropped.
	if !c.policy.Offer(e) {
		c.drop(e)
		return
	}
	c.policy.Add(e)
}

// Pinned reports whether a key is held and pinned now.
func (c *Cache) Pinned(k Key) bool {
	c.expire()
	e, ok := c.index[k]
	return ok && e.pinned != 0
}

// expire ends the pins whose time has come.
func (c *Cache) expire() {
	if len(c.pins) == 0 || c.now == nil {
		return
	}
	now := c.now().UnixNano()
	for len(c.pins) > 0 && c.pins[0].until <= now {
		c.unpin(c.pins[0])
	}
}

// alloc returns an empty entry. It reuses a dropped entry if there is one.
func (c *Cache) alloc() *Entry {
	e := c.free
	if e == nil {
		return &Entry{}
	}
	c.free = e.next
	*e = Entry{}
	return e
}

func (c *Cache) release(e *Entry) {
	e.prev, e.next = nil, c.free
	c.free = e
}

// pinHeap holds the pinned entries, ordered by the end of the pin. An entry's field
// pinned is its place plus 1.
type pinHeap []*Entry

func (h pinHeap) less(i, j int) bool { return h[i].until < h[j].until }

func (h pinHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pinned, h[j].pinned = int32(i+1), int32(j+1)
}

func (h *pinHeap) add(e *Entry) {
	*h = append(*h, e)
	e.pinned = int32(len(*h))
	h.up(len(*h) - 1)
}

func (h *pinHeap) remove(e *Entry) {
	i, n := int(e.pinned-1), len(*h)-1
	h.swap(i, n)
	(*h)[n] = nil
	*h = (*h)[:n]
	if i < n {
		h.down(i)
		h.up(i)
	}
	e.pinned = 0
}

func (h pinHeap) up(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h pinHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h.less(c+1, c) {
			c++
		}
		if !h.less(c, i) {
			return
		}
		h.swap(i, c)
		i = c
	}
}
