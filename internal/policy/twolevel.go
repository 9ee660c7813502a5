package policy

import (
	"fmt"
	"time"
)

// Level is a place of a two-level cache.
type Level uint8

// These are the levels.
const (
	// Nowhere means outside the cache.
	Nowhere Level = iota
	// RAM is the first level.
	RAM
	// SSD is the second, larger level.
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

// Move says that a content changes its place. The caller has to move the bytes.
type Move struct {
	Key      Key
	Size     int64
	From, To Level
}

// Admission says what may be written to the SSD.
type Admission uint8

// These are the admissions.
const (
	// AdmitAll writes everything that memory gives up or that is too large for memory.
	AdmitAll Admission = iota
	// SecondTouch writes only contents that were requested at least twice, as far as is
	// remembered.
	SecondTouch
	// Adaptive is AdmitAll while more than half of the write budget's burst is left, and
	// SecondTouch otherwise.
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
	// Now is the clock for pins and the write budget. Both need it.
	Now func() time.Time
	// Split is the size in bytes at and above which a content never goes into memory.
	// Default 0: contents that are not larger than memory go there. FAST'18 has 100 MiB.
	Split int64
	// Admission says what may be written to the SSD.
	Admission Admission
	// Remember is for SecondTouch and Adaptive. It is how many contents outside the cache
	// are remembered as requested. Default 1<<18, about 40 MB.
	Remember int
	// WriteRate is the write budget of the SSD in bytes per second. Unused budget adds up
	// to WriteBurst bytes. A content that exceeds the budget is not written, so a content
	// larger than the burst is never written. Default 0: no limit. One drive write a day
	// of 1 TB is 11.6 MB/s.
	WriteRate  int64
	WriteBurst int64
	// OnMove is called for every change of place, in an order in which the bytes can
	// follow. It must not call the cache.
	OnMove func(Move)
}

// TwoLevelStats counts what a two-level cache did.
type TwoLevelStats struct {
	// RAMHits, SSDHits and Misses count the requests. The fields for bytes add up their
	// sizes.
	RAMHits, SSDHits, Misses int64
	RAMHitBytes, SSDHitBytes int64
	// RAMEvictions counts what memory gave up, and SSDEvictions what the SSD gave up.
	RAMEvictions, SSDEvictions int64
	// SSDWrites counts the contents that were written to the SSD. SSDBytes adds up their
	// sizes.
	SSDWrites, SSDBytes int64
	// Bypassed counts the contents that were added nowhere. NotAdmitted counts the
	// contents that were not admitted to the SSD or exceeded its budget, whether they
	// came from memory or not.
	Bypassed, NotAdmitted int64
}

// TwoLevel is memory above an SSD. A content is in at most one of them. What memory gives
// up moves down. What is hit on the SSD moves up, if memory may hold it. A content that
// is too large for memory goes to the SSD at once. A content that is too large for the
// SSD, too, is not kept.
type TwoLevel struct {
	ram, ssd *Cache
	o        TwoLevelOptions
	seen     seen
	budget   bucket
	stats    TwoLevelStats
}

// NewTwoLevel returns an empty cache of two levels. Each level has a limit in bytes and a
// policy. With an SSD limit of 0 or less there is only one level.
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

// RAM returns the first level, for inspection and for pins.
func (t *TwoLevel) RAM() *Cache { return t.ram }

// SSD returns the second level, for inspection and for pins.
func (t *TwoLevel) SSD() *Cache { return t.ssd }

// Stats returns the counts.
func (t *TwoLevel) Stats() TwoLevelStats { return t.stats }

// WriteBudget returns how many bytes may be written to the SSD now. Without a limit, the
// value is meaningless.
func (t *TwoLevel) WriteBudget() int64 {
	if t.o.Now != nil {
		t.budget.fill(t.o.Now())
	}
	return int64(t.budget.tokens)
}

// Where returns where a content is. It does not count as a request.
func (t *TwoLevel) Where(k Key) Level {
	switch {
	case t.ram.Has(k):
		return RAM
	case t.ssd.Has(k):
		return SSD
	}
	return Nowhere
}

// Get notes a request and returns where the content was found. If it was found on the SSD
// and memory may hold it, it moves to memory, unless it is pinned on the SSD.
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

// promote moves an entry from the SSD into memory. It removes the entry from the SSD
// first, so that there is room for what memory gives up in exchange.
func (t *TwoLevel) promote(e Entry) {
	t.ssd.Remove(e.Key)
	if t.ram.add(e.Key, e.Size, e.Cost, e.Hits) {
		t.move(e.Key, e.Size, SSD, RAM)
		return
	}
	// Memory found it worth less than its entries. Its bytes are still on the SSD.
	if !t.ssd.add(e.Key, e.Size, e.Cost, e.Hits) {
		t.evicted(e)
	}
}

// Add adds a content after a request for it missed, and returns where it is now. A cost
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

// demote handles an entry that memory gives up.
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

// admit decides with what is known of an entry and with the remaining budget. It takes
// the entry's bytes from the budget.
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

// evicted notes that the SSD gives up an entry.
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

// Remove removes a content wherever it is, and reports whether it was held.
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

// seen remembers the keys that were added last, at most limit of them, in a ring and an
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

// bucket is a token bucket. It fills at rate tokens per second up to burst, and starts
// full.
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

// take takes n tokens if there are that many.
func (b *bucket) take(n float64) bool {
	if n > b.tokens {
		return false
	}
	b.tokens -= n
	return true
}
