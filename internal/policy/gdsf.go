package policy

// GDSF is Greedy-Dual-Size-Frequency (Cherkasova, 1998). The worth of an entry is
//
//	L + frequency x cost / size
//
// L is the worth of the last victim, so entries that were valuable long ago lose to new
// entries over time. The frequency starts at 1 again when an entry comes back. The order
// is exact. A newcomer is not kept if it is worth less than every entry that is held.
type GDSF struct {
	heap  rankHeap
	aged  float64 // L
	clock int64
}

// NewGDSF returns an empty GDSF.
func NewGDSF() *GDSF { return &GDSF{} }

var _ Policy = (*GDSF)(nil)

// SetLimit implements [Policy].
func (p *GDSF) SetLimit(int64) {}

// Offer implements [Policy].
func (p *GDSF) Offer(e *Entry) bool {
	e.freq = 0
	p.rank(e)
	return true
}

// rank counts a request for an entry and sets its rank.
func (p *GDSF) rank(e *Entry) {
	p.clock++
	e.freq++
	e.stamp = p.clock
	e.Rank = p.aged + float64(e.freq)*e.Cost/float64(e.Size)
}

// Evict implements [Policy].
func (p *GDSF) Evict(forEntry *Entry) *Entry {
	if len(p.heap) == 0 {
		return nil
	}
	e := p.heap[0]
	if forEntry != nil && ranksBelow(forEntry, e) {
		p.aged = forEntry.Rank
		return forEntry
	}
	p.heap.remove(e)
	p.aged = e.Rank
	return e
}

// Add implements [Policy].
func (p *GDSF) Add(e *Entry) { p.heap.add(e) }

// Hit implements [Policy].
func (p *GDSF) Hit(e *Entry) {
	p.rank(e)
	p.heap.fix(e)
}

// Remove implements [Policy].
func (p *GDSF) Remove(e *Entry) { p.heap.remove(e) }

// LFUDA is least frequently used with dynamic aging. With each request, an entry's worth
// becomes L + frequency, where L is the worth of the last victim. Sizes do not count.
type LFUDA struct {
	heap  rankHeap
	aged  float64
	clock int64
}

// NewLFUDA returns an empty LFUDA.
func NewLFUDA() *LFUDA { return &LFUDA{} }

var _ Policy = (*LFUDA)(nil)

// SetLimit implements [Policy].
func (p *LFUDA) SetLimit(int64) {}

// Offer implements [Policy].
func (p *LFUDA) Offer(*Entry) bool { return true }

// Evict implements [Policy].
func (p *LFUDA) Evict(*Entry) *Entry {
	if len(p.heap) == 0 {
		return nil
	}
	e := p.heap[0]
	p.heap.remove(e)
	p.aged = e.Rank
	return e
}

// Add implements [Policy].
func (p *LFUDA) Add(e *Entry) {
	p.clock++
	e.stamp, e.freq = p.clock, 1
	e.Rank = p.aged + 1
	p.heap.add(e)
}

// Hit implements [Policy].
func (p *LFUDA) Hit(e *Entry) {
	p.clock++
	e.stamp = p.clock
	e.freq++
	e.Rank = p.aged + float64(e.freq)
	p.heap.fix(e)
}

// Remove implements [Policy].
func (p *LFUDA) Remove(e *Entry) { p.heap.remove(e) }

// rankHeap holds entries ordered by Rank, the lowest first. Entries of equal rank are
// ordered by stamp, the oldest first. An entry's Slot is its place.
type rankHeap []*Entry

// ranksBelow reports whether a precedes b.
func ranksBelow(a, b *Entry) bool {
	if a.Rank != b.Rank {
		return a.Rank < b.Rank
	}
	return a.stamp < b.stamp
}

func (h *rankHeap) add(e *Entry) {
	e.Slot = len(*h)
	*h = append(*h, e)
	h.up(e.Slot)
}

func (h *rankHeap) remove(e *Entry) {
	i, n := e.Slot, len(*h)-1
	last := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	if i < n {
		(*h)[i], last.Slot = last, i
		h.fix(last)
	}
}

// fix moves an entry whose rank has changed.
func (h rankHeap) fix(e *Entry) {
	if i := e.Slot; !h.up(i) {
		h.down(i)
	}
}

// up reports whether it moved anything.
func (h rankHeap) up(i int) bool {
	e, from := h[i], i
	for i > 0 {
		parent := (i - 1) / 2
		if !ranksBelow(e, h[parent]) {
			break
		}
		h[i], h[parent].Slot = h[parent], i
		i = parent
	}
	h[i], e.Slot = e, i
	return i != from
}

func (h rankHeap) down(i int) {
	e := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && ranksBelow(h[c+1], h[c]) {
			c++
		}
		if !ranksBelow(h[c], e) {
			break
		}
		h[i], h[c].Slot = h[c], i
		i = c
	}
	h[i], e.Slot = e, i
}
