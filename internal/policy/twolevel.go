package policy

import (
	"fmt"
	"time"
)

// Level is a place of a two-level cache.
type Level uint8

// The levels.
const (
	// Nowhere is outside of the cache.
	Nowhere Level = iota
	// RAM is the first level.
	RAM
	// SSD is the second, larger one.
	SSD
)

// String returns the level's name.
func (l Level) String() string {
	switch l {
	case RAM:
		return "ram"
	case SSD:
		return "ssd"
	}
	return "nowhere"
}

// Move tells that a content changes its place: the bytes have to follow.
type Move struct {
	Key      Key
	Size     int64
	From, To Level
}

// Admission says what may be written to the SSD.
type Admission uint8

// The admissions.
const (
	// AdmitAll writes all that memory gives up or is too small for.
	AdmitAll Admission = iota
	// SecondTouch writes only what was asked for at least twice, as far as is
	// remembered.
	SecondTouch
	// Adaptive is AdmitAll as long as more than half of the write budget's burst is
	// left, and SecondTouch below.
	Adaptive
)

// ParseAdmission returns an admission by its name.
func ParseAdmission(s string) (Admission, error) {
	switch s {
	case "", "all":
		return AdmitAll, nil
	case "second-touch":
		return SecondTouch, nil
	case "adaptive":
		return Adaptive, nil
	}
	return 0, fmt.Errorf("no admission is called %q; there are all, second-touch and adaptive", s)
}

// String returns the admission's name.
func (a Admission) String() string {
	switch a {
	case SecondTouch:
		return "second-touch"
	case Adaptive:
		return "adaptive"
	}
	return "all"
}

// MarshalText writes the name.
func (a Admission) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// TwoLevelOptions are the settings of a two-level cache. The zero value works.
type TwoLevelOptions struct {
	// Now is the clock for pins and the write budget. It is needed for either.
	Now func() time.Time
	// Split is the size in bytes from which on a content never goes into memory.
	// Default 0: whatever is not larger than memory goes there. FAST'18 has 100 MiB.
	Split int64
	// Admission says what is written to the SSD.
	Admission Admission
	// Remember is how many contents outside of the cache are remembered as asked for,
	// for SecondTouch and Adaptive. Default 1<<18, about 40 MB.
	Remember int
	// WriteRate is the write budget of the SSD in bytes per second, which adds up to
	// WriteBurst bytes. What is not in the budget is not written, so what is larger than
	// the burst never is. Default 0: no limit. One drive write a day of 1 TB is 11.6 MB/s.
	WriteRate  int64
	WriteBurst int64
	// OnMove is told of every change of place, in the order in which the bytes can
	// follow. It must not call the cache.
	OnMove func(Move)
}

// TwoLevelStats counts what a two-level cache did.
type TwoLevelStats struct {
	// RAMHits, SSDHits and Misses count the requests, the bytes their sizes.
	RAMHits, SSDHits, Misses int64
	RAMHitBytes, SSDHitBytes int64
	// RAMEvictions counts what memory gave up, SSDEvictions what the SSD gave up.
	RAMEvictions, SSDEvictions int64
	// SSDWrites counts the contents written to the SSD, SSDBytes their sizes.
	SSDWrites, SSDBytes int64
	// Bypassed counts the contents that were taken in nowhere; NotAdmitted those that
	// had no business on the SSD or no budget there, whether they came from memory or
	// not.
	Bypassed, NotAdmitted int64
}

// TwoLevel is memory above an SSD. A content is in one of them at most: what memory gives
// up goes down, and what is hit below goes up, if it may be there. What is too large for
// memory goes to the SSD at once, and what is larger than that passes by.
type TwoLevel struct {
	ram, ssd *Cache
	o        TwoLevelOptions
	seen     seen
	budget   bucket
	stats    TwoLevelStats
}

// NewTwoLevel returns an empty cache of two levels with a limit in bytes and a policy
// each. An SSD limit of 0 or less makes it one level.
func NewTwoLevel(ramLimit int64, ram Policy, ssdLimit int64, ssd Policy, o *TwoLevelOptions) *TwoLevel {
	t := &TwoLevel{}
	if o != nil {
		t.o = *o
	}
	if t.o.Remember <= 0 {
		t.o.Remember = 1 << 18
	}
	t.seen.limit = t.o.Remember
	t.budget = bucket{rate: float64(t.o.WriteRate), burst: float64(t.o.WriteBurst)}
	t.ram = NewCache(ramLimit, ram, &Options{Now: t.o.Now, OnEvict: t.demote})
	t.ssd = NewCache(ssdLimit, ssd, &Options{Now: t.o.Now, OnEvict: t.evicted})
	return t
}

// RAM is the first level, to look at and to pin in.
func (t *TwoLevel) RAM() *Cache { return t.ram }

// SSD is the second level, to look at and to pin in.
func (t *TwoLevel) SSD() *Cache { return t.ssd }

// Stats returns the counts.
func (t *TwoLevel) Stats() TwoLevelStats { return t.stats }

// WriteBudget is how many bytes may be written to the SSD now; without a limit it says
// nothing.
func (t *TwoLevel) WriteBudget() int64 {
	if t.o.Now != nil {
		t.budget.fill(t.o.Now())
	}
	return int64(t.budget.tokens)
}

// Where tells where a content is. It is not a request.
func (t *TwoLevel) Where(k Key) Level {
	switch {
	case t.ram.Has(k):
		return RAM
	case t.ssd.Has(k):
		return SSD
	}
	return Nowhere
}

// Get notes a request and tells where the content was found. What was found on the SSD
// and may be in memory is there afterwards, unless it is pinned below.
func (t *TwoLevel) Get(k Key) Level {
	if t.ram.Get(k) {
		t.stats.RAMHits++
		e, _ := t.ram.Lookup(k)
		t.stats.RAMHitBytes += e.Size
		return RAM
	}
	if !t.ssd.Get(k) {
		t.stats.Misses++
		return Nowhere
	}
	e, _ := t.ssd.Lookup(k)
	t.stats.SSDHits++
	t.stats.SSDHitBytes += e.Size
	if t.forRAM(e.Size) && !t.ssd.Pinned(k) {
		t.promote(e)
	}
	return SSD
}

// forRAM reports whether a content of a size may be in memory.
func (t *TwoLevel) forRAM(size int64) bool {
	return size <= t.ram.limit && (t.o.Split <= 0 || size < t.o.Split)
}

// promote moves an entry from the SSD into memory. It leaves the SSD first, so that there
// is room for what memory gives up in exchange.
func (t *TwoLevel) promote(e Entry) {
	t.ssd.Remove(e.Key)
	if t.ram.add(e.Key, e.Size, e.Cost, e.Hits) {
		t.move(e.Key, e.Size, SSD, RAM)
		return
	}
	// Memory found it worth less than what is there. Its bytes are on the SSD already.
	if !t.ssd.add(e.Key, e.Size, e.Cost, e.Hits) {
		t.evicted(e)
	}
}

// Add takes a content in after a request for it missed and tells where it is now. A cost
// of 0 or less counts as 1.
func (t *TwoLevel) Add(k Key, size int64, cost float64) Level {
	if at := t.Where(k); at != Nowhere {
		return at
	}
	hits := int64(1)
	if t.o.Admission != AdmitAll && t.seen.take(k) {
		hits = 2
	}
	if t.forRAM(size) && t.ram.add(k, size, cost, hits) {
		t.move(k, size, Nowhere, RAM)
		return RAM
	}
	if t.toSSD(Entry{Key: k, Size: size, Cost: cost, Hits: hits}, Nowhere) {
		return SSD
	}
	t.stats.Bypassed++
	return Nowhere
}

// demote takes what memory gives up.
func (t *TwoLevel) demote(e Entry) {
	t.stats.RAMEvictions++
	if !t.toSSD(e, RAM) {
		t.move(e.Key, e.Size, RAM, Nowhere)
	}
}

// toSSD writes an entry to the SSD if it is admitted there.
func (t *TwoLevel) toSSD(e Entry, from Level) bool {
	if e.Size > t.ssd.limit || t.ssd.limit == 0 {
		t.remember(e.Key)
		return false
	}
	if !t.admit(e) || !t.ssd.add(e.Key, e.Size, e.Cost, e.Hits) {
		t.stats.NotAdmitted++
		t.remember(e.Key)
		return false
	}
	t.stats.SSDWrites++
	t.stats.SSDBytes += e.Size
	t.move(e.Key, e.Size, from, SSD)
	return true
}

// admit decides by what is known of an entry and what is left of the budget, and takes
// the entry's bytes from that.
func (t *TwoLevel) admit(e Entry) bool {
	if t.o.WriteRate > 0 && t.o.Now != nil {
		t.budget.fill(t.o.Now())
	}
	second := t.o.Admission == SecondTouch ||
		t.o.Admission == Adaptive && t.o.WriteRate > 0 && t.budget.tokens < t.budget.burst/2
	if second && e.Hits < 2 {
		return false
	}
	return t.o.WriteRate <= 0 || t.budget.take(float64(e.Size))
}

// evicted notes what the SSD gives up.
func (t *TwoLevel) evicted(e Entry) {
	t.stats.SSDEvictions++
	t.remember(e.Key)
	t.move(e.Key, e.Size, SSD, Nowhere)
}

func (t *TwoLevel) remember(k Key) {
	if t.o.Admission != AdmitAll {
		t.seen.add(k)
	}
}

// Remove takes a content out wherever it is, and reports whether it was held.
func (t *TwoLevel) Remove(k Key) bool {
	if e, ok := t.ram.take(k); ok {
		t.move(k, e.Size, RAM, Nowhere)
		return true
	}
	if e, ok := t.ssd.take(k); ok {
		t.move(k, e.Size, SSD, Nowhere)
		return true
	}
	return false
}

func (t *TwoLevel) move(k Key, size int64, from, to Level) {
	if t.o.OnMove != nil {
		t.o.OnMove(Move{Key: k, Size: size, From: from, To: to})
	}
}

// seen remembers the keys that were added last, limit of them at most: a ring and an
// index.
type seen struct {
	limit int
	ring  []Key
	at    int
	index map[Key]int32 // place in the ring
}

func (s *seen) add(k Key) {
	if _, ok := s.index[k]; ok {
		return
	}
	if s.index == nil {
		s.index = map[Key]int32{}
	}
	if len(s.ring) < s.limit {
		s.index[k] = int32(len(s.ring))
		s.ring = append(s.ring, k)
		return
	}
	if old := s.ring[s.at]; s.index[old] == int32(s.at) {
		delete(s.index, old)
	}
	s.ring[s.at] = k
	s.index[k] = int32(s.at)
	s.at = (s.at + 1) % s.limit
}

func (s *seen) take(k Key) bool {
	_, ok := s.index[k]
	delete(s.index, k)
	return ok
}

// bucket is a token bucket: it fills by rate a second up to burst, and is full at first.
type bucket struct {
	rate, burst float64
	tokens      float64
	at          time.Time
}

func (b *bucket) fill(now time.Time) {
	if b.at.IsZero() {
		b.tokens = b.burst
	} else if d := now.Sub(b.at); d > 0 {
		b.tokens = min(b.burst, b.tokens+b.rate*d.Seconds())
	} else {
		return
	}
	b.at = now
}

// take takes n tokens if there are as many.
func (b *bucket) take(n float64) bool {
	if n > b.tokens {
		return false
	}
	b.tokens -= n
	return true
}
