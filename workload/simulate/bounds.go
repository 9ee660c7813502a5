package simulate

import (
	"container/heap"
	"math"
	"math/rand/v2"

	"example.org/slipway/internal/policy"
)

// never is the time of the next request for a layer that is not requested again.
const never = math.MaxInt64

// nextRequests returns, for each request, when its layer is requested next.
func nextRequests(r *Requests) []int64 {
	next := make([]int64, r.Len())
	last := make([]int64, len(r.Size))
	for i := range last {
		last[i] = never
	}
	for i := r.Len() - 1; i >= 0; i-- {
		next[i] = last[r.Layer[i]]
		last[r.Layer[i]] = int64(i)
	}
	return next
}

// bound is a policy that knows the future: when the layer of this request is requested
// next.
type bound interface {
	policy.Policy
	// at sets the time of this request and of the next request for its layer, counted in
	// requests.
	at(now, next int64)
	// keeps reports whether the policy keeps a layer that is never requested again.
	keeps() bool
}

// belady evicts the content that is requested again last. For contents of equal size, no
// policy that admits all has more hits.
type belady struct {
	next    int64
	entries laterFirst
}

var _ bound = (*belady)(nil)

func (p *belady) at(_, next int64)         { p.next = next }
func (p *belady) keeps() bool              { return true }
func (p *belady) SetLimit(int64)           {}
func (p *belady) Offer(*policy.Entry) bool { return true }
func (p *belady) Remove(e *policy.Entry)   { heap.Remove(&p.entries, e.Slot) }
func (p *belady) Add(e *policy.Entry)      { e.Rank = float64(p.next); heap.Push(&p.entries, e) }
func (p *belady) Hit(e *policy.Entry)      { e.Rank = float64(p.next); heap.Fix(&p.entries, e.Slot) }

func (p *belady) Evict(*policy.Entry) *policy.Entry {
	if len(p.entries) == 0 {
		return nil
	}
	return heap.Pop(&p.entries).(*policy.Entry)
}

// laterFirst is a heap of entries by the time of the next request, the latest first. Slot
// is an entry's place.
type laterFirst []*policy.Entry

func (h laterFirst) Len() int           { return len(h) }
func (h laterFirst) Less(i, j int) bool { return h[i].Rank > h[j].Rank }

func (h laterFirst) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].Slot, h[j].Slot = i, j
}

func (h *laterFirst) Push(x any) {
	e := x.(*policy.Entry)
	e.Slot = len(*h)
	*h = append(*h, e)
}

func (h *laterFirst) Pop() any {
	n := len(*h) - 1
	e := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return e
}

// beladySize draws 128 entries at random and evicts the one with the largest product of
// size and time to its next request. It does not admit a content that is never requested
// again. It is no proven bound, but close to one if sizes differ. The exact bound is hard
// to compute.
type beladySize struct {
	now, next int64
	entries   []*policy.Entry
	rnd       *rand.Rand
}

// beladySample is how many entries are drawn: 128, as in libCacheSim.
const beladySample = 128

func newBeladySize(seed uint64) *beladySize {
	return &beladySize{rnd: rand.New(rand.NewPCG(seed, 0x42656c61))}
}

var _ bound = (*beladySize)(nil)

func (p *beladySize) at(now, next int64)       { p.now, p.next = now, next }
func (p *beladySize) keeps() bool              { return false }
func (p *beladySize) SetLimit(int64)           {}
func (p *beladySize) Offer(*policy.Entry) bool { return p.next != never }
func (p *beladySize) Hit(e *policy.Entry)      { e.Rank = float64(p.next) }

func (p *beladySize) Add(e *policy.Entry) {
	e.Rank, e.Slot = float64(p.next), len(p.entries)
	p.entries = append(p.entries, e)
}

func (p *beladySize) Remove(e *policy.Entry) {
	n := len(p.entries) - 1
	last := p.entries[n]
	p.entries[e.Slot], last.Slot = last, e.Slot
	p.entries[n] = nil
	p.entries = p.entries[:n]
}

func (p *beladySize) Evict(*policy.Entry) *policy.Entry {
	if len(p.entries) == 0 {
		return nil
	}
	var victim *policy.Entry
	most := -1.0
	for range beladySample {
		e := p.entries[p.rnd.IntN(len(p.entries))]
		if worth := float64(e.Size) * (e.Rank - float64(p.now)); worth > most {
			victim, most = e, worth
		}
	}
	p.Remove(victim)
	return victim
}
