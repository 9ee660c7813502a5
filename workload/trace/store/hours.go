package store

import (
	"slices"
	"strings"
	"sync"
)

// hourBuffer holds the rows of one hour. They are few enough to be sorted within the
// processor's cache.
type hourBuffer struct {
	n int
	// rows are in chunks of chunkRows. Only the last chunk may hold fewer rows and grow.
	// So rows are hardly ever copied, and their memory is reused.
	rows [][]memRow
	// ids holds the ids of all rows in chunks of idChunk bytes. A row has the number of
	// its chunk, and the id's offset and length in it. An id that is longer than idChunk
	// has its own chunk, and the length wholeChunk.
	ids []*strings.Builder
}

const (
	chunkRows = 1 << 8
	idChunk   = 1 << 14
	// wholeChunk is larger than the length of any id that shares a chunk.
	wholeChunk = 1<<16 - 1
)

// add adds a row and returns how many more bytes the buffer takes.
func (h *hourBuffer) add(m *memRow, id string, free *sync.Pool) (more int) {
	if more = h.addID(m, id); len(h.rows) == 0 {
		h.rows = append(h.rows, nil)
	}
	last := &h.rows[len(h.rows)-1]
	if n := len(*last); n == cap(*last) {
		if n < chunkRows {
			*last = append(make([]memRow, 0, max(16, 2*n)), *last...)
		} else {
			h.rows = append(h.rows, newRows(free))
			last = &h.rows[len(h.rows)-1]
			n = 0
		}
		more += (cap(*last) - n) * (memRowSize + positionSize)
	}
	*last = append(*last, *m)
	h.n++
	return more
}

// newRows returns an empty chunk, from free memory if there is some.
func newRows(free *sync.Pool) []memRow {
	if c, ok := free.Get().(*[chunkRows]memRow); ok {
		return c[:0]
	}
	return make([]memRow, 0, chunkRows)
}

// addID adds a row's id and returns how many more bytes the buffer takes.
func (h *hourBuffer) addID(m *memRow, id string) (more int) {
	if m.idLen = 0; id == "" {
		return 0
	}
	n := len(h.ids)
	if n == 0 || h.ids[n-1].Len()+len(id) > idChunk {
		h.ids = append(h.ids, new(strings.Builder))
		if n > 0 { // the new string probably gets as many ids
			h.ids[n].Grow(max(idChunk, len(id)))
			more = h.ids[n].Cap()
		}
		n++
	}
	last := h.ids[n-1]
	if m.idChunk, m.idOff, m.idLen = uint32(n-1), uint16(last.Len()), wholeChunk; len(id) <= idChunk {
		m.idLen = uint16(len(id))
	}
	before := last.Cap()
	last.WriteString(id)
	return more + last.Cap() - before
}

// row returns a row by its index.
func (h *hourBuffer) row(i uint32) *memRow { return &h.rows[i/chunkRows][i%chunkRows] }

// id returns the id of a row.
func (h *hourBuffer) id(m *memRow) string {
	if m.idLen == 0 {
		return ""
	}
	chunk := h.ids[m.idChunk].String()
	if m.idLen == wholeChunk {
		return chunk
	}
	return chunk[m.idOff:][:m.idLen]
}

// release gives memory back. Afterwards the rows are gone.
func (h *hourBuffer) release(free *sync.Pool) {
	for _, c := range h.rows {
		if cap(c) == chunkRows {
			free.Put((*[chunkRows]memRow)(c[:chunkRows]))
		}
	}
	*h = hourBuffer{}
}

// sorter sorts the rows of an hour by time. It keeps its memory.
type sorter struct {
	// order holds a key for each row: the microsecond of the hour, which fits into 32
	// bits, above the row's index, so that rows of the same time keep their order.
	order, spare []uint64
}

// hour sorts the rows of an hour.
func (s *sorter) hour(h *hourBuffer) {
	s.order = slices.Grow(s.order[:0], h.n)
	sorted, last := true, int64(0)
	for _, rows := range h.rows {
		for i := range rows {
			t := rows[i].time
			sorted = sorted && t >= last
			last = t
			s.order = append(s.order, uint64(t%microHour)<<32|uint64(len(s.order)))
		}
	}
	switch {
	case sorted:
	case len(s.order) < radixFrom:
		slices.Sort(s.order)
	default:
		s.radix()
	}
}

const (
	// radixFrom is the smallest number of rows for which counting digits is faster than
	// comparing.
	radixFrom = 1 << 10
	// The 32 bits of a time are three digits of 11 bits.
	radixBits, radixDigits = 11, 3
)

// radix sorts by the time, beginning with the lowest digit.
func (s *sorter) radix() {
	var counts [radixDigits][1 << radixBits]uint32
	for _, v := range s.order {
		for d := range counts {
			counts[d][v>>(32+d*radixBits)&(1<<radixBits-1)]++
		}
	}
	s.spare = slices.Grow(s.spare[:0], len(s.order))[:len(s.order)]
	for d := range counts {
		at := uint32(0)
		for i, n := range counts[d] {
			counts[d][i] = at
			at += n
		}
		for _, v := range s.order {
			to := &counts[d][v>>(32+d*radixBits)&(1<<radixBits-1)]
			s.spare[*to] = v
			*to++
		}
		s.order, s.spare = s.spare, s.order
	}
}
