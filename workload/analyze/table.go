package analyze

import (
	"fmt"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// bySymbol holds a value for each symbol. A zone uses only some of the symbols, which are
// small numbers, so the table has pages, and only pages in use take memory.
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

// all calls fn for each value of the pages in use.
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

// add adds a symbol and reports whether it is new.
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

// succeeded reports whether a status is a success. Status 0, which means that the source
// has none, counts as a success: such logs hold no failures.
func succeeded(status uint16) bool { return status < 400 }

// layerGet reports whether request i got a layer, whole or in part.
func layerGet(b *store.Batch, i int) bool {
	if b.Method[i] != store.GET || b.Kind[i] != trace.Blob {
		return false
	}
	s := b.Status[i]
	return s == 200 || s == 206 || s == 0
}

// manifestGet reports whether request i pulled an image, manifestPut whether it pushed
// one.
func manifestGet(b *store.Batch, i int) bool {
	return b.Method[i] == store.GET && b.Kind[i] == trace.Manifest && succeeded(b.Status[i])
}

func manifestPut(b *store.Batch, i int) bool {
	return b.Method[i] == store.PUT && b.Kind[i] == trace.Manifest && succeeded(b.Status[i])
}

// layerPut reports whether request i ended the push of a layer.
func layerPut(b *store.Batch, i int) bool {
	return b.Method[i] == store.PUT && isLayer(b.Kind[i]) && succeeded(b.Status[i])
}

// isLayer reports whether a path is about layers: blobs and their uploads.
func isLayer(k trace.Kind) bool { return k == trace.Blob || k == trace.Upload }

// These are lengths of time in microseconds.
const (
	microSecond = int64(1e6)
	microMinute = 60 * microSecond
	microHour   = 60 * microMinute
	microDay    = 24 * microHour
)

// floorDiv returns a/b rounded down, also for negative numbers.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// calendar follows the time of a zone and finds absent days: whole days in UTC without a
// request between two days that have some. The paper's archive lacks the files of some
// days. Such a day was not idle; it was not recorded.
type calendar struct {
	prev   int64
	begun  bool
	absent int64 // days
}

// next takes the time of the next request. It returns the absent time between the request
// before and this one; from equals to if there is none. A request that claims to be
// earlier than the request before counts as simultaneous.
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

// unknown notes how many requests a figure lacks.
func (r *Result) unknown(n int64, what string) {
	r.Unknown = n
	if n > 0 {
		r.note(fmt.Sprintf("%s left out, because the source does not have %s.", plural(n, "request", "requests"), what))
	}
}

func isPing(b *store.Batch, i int) bool { return b.Kind[i] == trace.Ping }
