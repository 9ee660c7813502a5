package policy

// LRU gives up the entry whose last request is the oldest.
type LRU struct{ entries list }

// NewLRU returns an empty LRU.
func NewLRU() *LRU { return &LRU{} }

var _ Policy = (*LRU)(nil)

// SetLimit implements [Policy].
func (p *LRU) SetLimit(int64) {}

// Offer implements [Policy].
func (p *LRU) Offer(*Entry) bool { return true }

// Evict implements [Policy].
func (p *LRU) Evict(*Entry) *Entry { return p.entries.popBack() }

// Add implements [Policy].
func (p *LRU) Add(e *Entry) { p.entries.pushFront(e) }

// Hit implements [Policy].
func (p *LRU) Hit(e *Entry) { p.entries.toFront(e) }

// Remove implements [Policy].
func (p *LRU) Remove(e *Entry) { p.entries.remove(e) }

// FIFO gives up the oldest entry.
type FIFO struct{ LRU }

// NewFIFO returns an empty FIFO.
func NewFIFO() *FIFO { return &FIFO{} }

var _ Policy = (*FIFO)(nil)

// Hit implements [Policy].
func (p *FIFO) Hit(*Entry) {}

// SIEVE (Zhang and others, NSDI 2024) is a queue in the order of arrival with a hand that
// moves from the oldest entry to the newest. A request marks an entry. The hand removes
// the marks that it passes, and gives up the first entry without a mark. Entries do not
// move in the queue.
type SIEVE struct {
	entries list
	hand    *Entry
}

// NewSIEVE returns an empty SIEVE.
func NewSIEVE() *SIEVE { return &SIEVE{} }

var _ Policy = (*SIEVE)(nil)

// SetLimit implements [Policy].
func (p *SIEVE) SetLimit(int64) {}

// Offer implements [Policy].
func (p *SIEVE) Offer(*Entry) bool { return true }

// Add implements [Policy].
func (p *SIEVE) Add(e *Entry) {
	e.freq = 0
	p.entries.pushFront(e)
}

// Hit implements [Policy].
func (p *SIEVE) Hit(e *Entry) { e.freq = 1 }

// Remove implements [Policy].
func (p *SIEVE) Remove(e *Entry) {
	if p.hand == e {
		p.hand = e.prev
	}
	p.entries.remove(e)
}

// Evict implements [Policy].
func (p *SIEVE) Evict(*Entry) *Entry {
	e := p.hand
	if e == nil {
		e = p.entries.tail
	}
	if e == nil {
		return nil
	}
	for e.freq > 0 {
		e.freq = 0
		if e = e.prev; e == nil {
			e = p.entries.tail
		}
	}
	p.hand = e
	p.Remove(e)
	return e
}

// SLRU is an LRU in segments of equal size. A hit moves an entry up one segment. An entry
// for which a segment has no room moves down one segment. Victims come from the lowest
// segment.
type SLRU struct {
	segments []list
	// share is each segment's share of the limit. room is in bytes.
	share []float64
	room  []int64
}

// NewSLRU returns an empty SLRU of four segments.
func NewSLRU() *SLRU { return newSLRU(0.25, 0.25, 0.25, 0.25) }

func newSLRU(share ...float64) *SLRU {
	return &SLRU{segments: make([]list, len(share)), share: share, room: make([]int64, len(share))}
}

var _ Policy = (*SLRU)(nil)

// SetLimit implements [Policy].
func (p *SLRU) SetLimit(limit int64) {
	for i, s := range p.share {
		p.room[i] = int64(s * float64(limit))
	}
}

// Offer implements [Policy]. It refuses an entry that is larger than the lowest segment,
// because the entry would push out everything in it.
func (p *SLRU) Offer(e *Entry) bool { return e.Size <= p.room[0] }

// Add implements [Policy]. The entry goes into the lowest segment that has room.
func (p *SLRU) Add(e *Entry) {
	e.queue = 0
	for i := range p.segments {
		if p.segments[i].bytes+e.Size <= p.room[i] {
			e.queue = uint8(i)
			break
		}
	}
	p.segments[e.queue].pushFront(e)
}

// Hit implements [Policy].
func (p *SLRU) Hit(e *Entry) {
	q := int(e.queue)
	if q == len(p.segments)-1 {
		p.segments[q].toFront(e)
		return
	}
	p.segments[q].remove(e)
	e.queue++
	p.segments[q+1].pushFront(e)
	// An entry without room moves down, which may in turn push entries out of the segment
	// below.
	for i := q + 1; i > 0; i-- {
		for p.segments[i].bytes > p.room[i] {
			v := p.segments[i].popBack()
			v.queue--
			p.segments[i-1].pushFront(v)
		}
	}
}

// Remove implements [Policy].
func (p *SLRU) Remove(e *Entry) { p.segments[e.queue].remove(e) }

// Evict implements [Policy].
func (p *SLRU) Evict(*Entry) *Entry { return p.victim(true) }

// victim returns the next victim, and removes it if out is set.
func (p *SLRU) victim(out bool) *Entry {
	for i := range p.segments {
		if e := p.segments[i].tail; e != nil {
			if out {
				p.segments[i].remove(e)
			}
			return e
		}
	}
	return nil
}

// TwoQ (Johnson and Shasha, VLDB 1994) lets newcomers pass through a FIFO of a quarter of
// the room. It remembers for some time the keys that left that queue. An entry that is
// requested again while its key is remembered is kept in an LRU.
type TwoQ struct {
	in, main list
	out      ghosts
	inRoom   int64
	again    bool // the offered entry was remembered
}

// NewTwoQ returns an empty TwoQ.
func NewTwoQ() *TwoQ { return &TwoQ{} }

var _ Policy = (*TwoQ)(nil)

const (
	twoQMain = iota
	twoQIn
)

// SetLimit implements [Policy]. The shares are taken from the paper: a quarter of the
// room for the queue, and remembered keys for half of the room's bytes.
func (p *TwoQ) SetLimit(limit int64) {
	p.inRoom = limit / 4
	p.out.limit = limit / 2
}

// Offer implements [Policy].
func (p *TwoQ) Offer(e *Entry) bool {
	if e.Size > p.inRoom {
		return false
	}
	p.again = p.out.take(e.Key)
	return true
}

// Add implements [Policy].
func (p *TwoQ) Add(e *Entry) {
	if p.again {
		e.queue = twoQMain
		p.main.pushFront(e)
		return
	}
	e.queue = twoQIn
	p.in.pushFront(e)
}

// Hit implements [Policy]. It ignores hits in the first queue.
func (p *TwoQ) Hit(e *Entry) {
	if e.queue == twoQMain {
		p.main.toFront(e)
	}
}

// Remove implements [Policy].
func (p *TwoQ) Remove(e *Entry) {
	if e.queue == twoQMain {
		p.main.remove(e)
	} else {
		p.in.remove(e)
	}
}

// Evict implements [Policy].
func (p *TwoQ) Evict(*Entry) *Entry {
	if p.main.bytes > 0 && p.in.bytes <= p.inRoom {
		return p.main.popBack()
	}
	e := p.in.popBack()
	if e != nil {
		p.out.add(e.Key, e.Size)
	}
	return e
}
