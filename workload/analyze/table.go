package analyze

import (
	"fmt"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// bySymbol has a value for each symbol. Symbols are small numbers that a zone shares
// with others, so the table has pages, and only those in use take memory.
type bySymbol[T any] struct {
	pages [][]T
}

// pageBits is the binary logarithm of the entries of a page.
const pageBits = 9

// at returns the place of a symbol's value, which is zero at first.
func (t *bySymbol[T]) at(s store.Symbol) *T {
	p := int(s >> pageBits)
	if p >= len(t.pages) {
		t.pages = append(t.pages, make([][]T, p+1-len(t.pages))...)
	}
	if t.pages[p] == nil {
		t.pages[p] = make([]T, 1<<pageBits)
	}
	return &t.pages[p][s&(1<<pageBits-1)]
}

// all calls fn for all values of the pages in use.
func (t *bySymbol[T]) all(fn func(*T)) {
	for _, p := range t.pages {
		for i := range p {
			fn(&p[i])
		}
	}
}

// symbolSet is a set of symbols.
type symbolSet struct {
	words bySymbol[uint64]
	n     int64
}

// add tells whether the symbol is new.
func (s *symbolSet) add(sym store.Symbol) bool {
	w, bit := s.words.at(sym>>6), uint64(1)<<(sym&63)
	if *w&bit != 0 {
		return false
	}
	*w |= bit
	s.n++
	return true
}

// pair makes one key of two symbols.
func pair(a, b store.Symbol) uint64 { return uint64(a)<<32 | uint64(b) }

// succeeded tells whether a status is one of success. 0, where the source does not
// tell, is taken as one: such logs have no others.
func succeeded(status uint16) bool { return status < 400 }

// layerGet is a layer that was got, whole or in part.
func layerGet(b *store.Batch, i int) bool {
	if b.Method[i] != store.GET || b.Kind[i] != trace.Blob {
		return false
	}
	s := b.Status[i]
	return s == 200 || s == 206 || s == 0
}

// manifestGet is an image that was pulled, manifestPut one that was pushed.
func manifestGet(b *store.Batch, i int) bool {
	return b.Method[i] == store.GET && b.Kind[i] == trace.Manifest && succeeded(b.Status[i])
}

func manifestPut(b *store.Batch, i int) bool {
	return b.Method[i] == store.PUT && b.Kind[i] == trace.Manifest && succeeded(b.Status[i])
}

// layerPut is the request that ends the push of a layer.
func layerPut(b *store.Batch, i int) bool {
	return b.Method[i] == store.PUT && isLayer(b.Kind[i]) && succeeded(b.Status[i])
}

// isLayer tells whether a path is about layers: blobs and their uploads.
func isLayer(k trace.Kind) bool { return k == trace.Blob || k == trace.Upload }

// Lengths of time in microseconds.
const (
	microSecond = int64(1e6)
	microMinute = 60 * microSecond
	microHour   = 60 * microMinute
	microDay    = 24 * microHour
)

// floorDiv is a/b rounded down, also below 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// calendar follows the time of a zone and finds the days that are absent: whole days
// in UTC without a request between two that have some. The archive of the paper lacks
// files of some days, so such a day was not idle; it was not recorded.
type calendar struct {
	prev   int64
	begun  bool
	absent int64 // days
}

// next takes the time of the next request and returns the time between it and the one
// before that is absent; from == to if there is none. A request that claims to be
// earlier than the one before is taken to be at the same time.
func (c *calendar) next(t int64) (at, from, to int64) {
	if !c.begun {
		c.prev, c.begun = t, true
		return t, t, t
	}
	t = max(t, c.prev)
	last, day := floorDiv(c.prev, microDay), floorDiv(t, microDay)
	c.prev = t
	if day <= last+1 {
		return t, t, t
	}
	c.absent += day - last - 1
	return t, (last + 1) * microDay, day * microDay
}

// note says how many days were left out.
func (c *calendar) note(r *Result) {
	if c.absent > 0 {
		r.note(fmt.Sprintf("%s without any request between the first and the last left out: a day that is absent is not taken as idle.", plural(c.absent, "day", "days")))
	}
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// unknown notes requests that a figure lacks.
func (r *Result) unknown(n int64, what string) {
	r.Unknown = n
	if n > 0 {
		r.note(fmt.Sprintf("%s left out, of which the source does not tell %s.", plural(n, "request", "requests"), what))
	}
}

func isPing(b *store.Batch, i int) bool { return b.Kind[i] == trace.Ping }
