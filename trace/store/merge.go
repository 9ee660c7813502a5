package store

import (
	"container/heap"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"
)

// source gives rows in order of time. The row is valid until the next call; the error
// at the end is io.EOF.
type source interface {
	next() (*row, error)
	close() error
}

// memSource gives the rows of a buffer.
type memSource struct {
	b     *dayBuffer
	hour  int      // the one that is being given, from 1
	order []uint64 // of its rows: the microsecond of the hour, which fits into 32 bits, and the index
	i     int
	ids   string
	row   row
}

// source gives the rows of a buffer in order of time. Rows of the same time stay in
// the order in which they were added.
func (b *dayBuffer) source() source { return &memSource{b: b} }

// sort prepares an hour's rows.
func (s *memSource) sort(h *hourBuffer) {
	s.i, s.order, s.ids = 0, s.order[:0], h.ids.String()
	for i := range h.rows {
		s.order = append(s.order, uint64(h.rows[i].time%microHour)<<32|uint64(i))
	}
	if !slices.IsSorted(s.order) {
		slices.Sort(s.order)
	}
}

func (s *memSource) next() (*row, error) {
	for s.i == len(s.order) {
		if s.hour == len(s.b.hours) {
			return nil, io.EOF
		}
		s.hour++
		s.sort(&s.b.hours[s.hour-1])
	}
	m := &s.b.hours[s.hour-1].rows[uint32(s.order[s.i])]
	s.i++
	n := s.b.tab.names
	s.row = row{Time: m.time, Duration: m.duration, Host: n[m.host], Client: n[m.client], Method: n[m.method],
		Kind: m.kind.String(), Repo: n[m.repo], Ref: n[m.ref], Digest: n[m.digest], Size: m.size, Status: m.status,
		Agent: n[m.agent], ID: s.ids[m.id : m.id+m.idLen], URI: n[m.uri]}
	return &s.row, nil
}

func (s *memSource) close() error { return nil }

// fileSource gives the rows of a file.
type fileSource struct {
	path string
	f    *os.File
	r    *parquet.GenericReader[row]
	buf  []row
	i, n int
	eof  bool
}

// What a source reads of each column at once, in bytes: there is one source for a day's
// file and up to maxRuns for its runs.
const (
	dayBuffers = 1 << 18
	runBuffer  = 1 << 15
)

// openSource opens a file that a Writer has written.
func openSource(path string, readBytes int) (*fileSource, error) {
	f, pf, err := openParquet(path, readBytes)
	if err != nil {
		return nil, err
	}
	if _, err := columnIndexes(pf, path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &fileSource{path: path, f: f, r: parquet.NewGenericReader[row](pf), buf: make([]row, 512)}, nil
}

func (s *fileSource) next() (*row, error) {
	for s.i == s.n {
		if s.eof {
			return nil, io.EOF
		}
		if err := s.fill(); err != nil {
			return nil, err
		}
	}
	s.i++
	return &s.buf[s.i-1], nil
}

func (s *fileSource) fill() (err error) {
	defer damaged(&err, s.path)
	s.i = 0
	s.n, err = s.r.Read(s.buf)
	if errors.Is(err, io.EOF) {
		s.eof, err = true, nil
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", s.path, err)
	}
	return err
}

func (s *fileSource) close() error {
	if s.f == nil {
		return nil
	}
	err := errors.Join(s.r.Close(), s.f.Close())
	s.f = nil
	return err
}

// merge gives the rows of several sources. Rows of the same time come in the order of
// the sources.
type merge struct {
	heads []head
}

type head struct {
	row   *row
	src   source
	order int
}

func (m *merge) Len() int { return len(m.heads) }
func (m *merge) Less(i, j int) bool {
	a, b := &m.heads[i], &m.heads[j]
	if a.row.Time != b.row.Time {
		return a.row.Time < b.row.Time
	}
	return a.order < b.order
}
func (m *merge) Swap(i, j int) { m.heads[i], m.heads[j] = m.heads[j], m.heads[i] }
func (m *merge) Push(x any)    { m.heads = append(m.heads, x.(head)) }
func (m *merge) Pop() any {
	last := m.heads[len(m.heads)-1]
	m.heads = m.heads[:len(m.heads)-1]
	return last
}

// each calls fn for all rows in order of time, with the index of their source.
func (m *merge) each(sources []source, fn func(r *row, source int) error) error {
	for i, s := range sources {
		r, err := s.next()
		if errors.Is(err, io.EOF) {
			continue
		}
		if err != nil {
			return err
		}
		m.heads = append(m.heads, head{r, s, i})
	}
	heap.Init(m)
	for len(m.heads) > 0 {
		top := &m.heads[0]
		if err := fn(top.row, top.order); err != nil {
			return err
		}
		r, err := top.src.next()
		switch {
		case errors.Is(err, io.EOF):
			heap.Pop(m)
			continue
		case err != nil:
			return err
		}
		top.row = r
		if len(m.heads) > 1 {
			heap.Fix(m, 0)
		}
	}
	return nil
}

// fileOptions say how writeFile writes.
type fileOptions struct {
	// final is a file of the store, not a run: duplicates are counted, and it is durable.
	final bool
	drop  bool // duplicates
	// old is how many of the sources, the first, have what is in the store already.
	old int
}

// fileStats are what writeFile has written: of rows that were not in the store already,
// how many there are now, how many were duplicates, and how many of those were left out.
type fileStats struct {
	added, duplicates, dropped int64
}

// writeFile writes a file of the store.
func writeFile(path string, key dayKey, sources []source, o *fileOptions) (st fileStats, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return st, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s := newSink(f, o)
	if err := (&merge{}).each(sources, s.add); err != nil {
		return st, err
	}
	if err := s.finish(key); err != nil || !o.final {
		return s.stats, err
	}
	return s.stats, f.Sync()
}

// sink writes rows that come in order of time.
type sink struct {
	w     *parquet.GenericWriter[row]
	buf   []row
	hours []hour
	stats fileStats
	o     *fileOptions
	// now is the last row's time, first the first row of it, same all of it if there is
	// more than one.
	now   int64
	first rowID
	same  map[rowID]struct{}
}

// rowID is what two rows of the same time have in common if one is a duplicate.
type rowID struct {
	id, kind, repo, ref, uri string
}

const (
	// sinkRows are collected before they are encoded.
	sinkRows = 1 << 10
	// pageBytes bounds a page; a reader has one of each column in memory.
	pageBytes = 256 << 10
	// writeBytes are written to a file at once.
	writeBytes = 1 << 20
)

func newSink(out io.Writer, o *fileOptions) *sink {
	w := parquet.NewGenericWriter[row](out, parquet.Compression(&parquet.Snappy), parquet.PageBufferSize(pageBytes), parquet.WriteBufferSize(writeBytes),
		parquet.CreatedBy("slipway", version, ""), parquet.DataPageStatistics(false),
		// The bounds of pages cost a tenth of the time, and only those of the time can be of
		// use: it is what rows are sorted by.
		parquet.SkipPageBounds("host"), parquet.SkipPageBounds("client"), parquet.SkipPageBounds("method"),
		parquet.SkipPageBounds("kind"), parquet.SkipPageBounds("repo"), parquet.SkipPageBounds("ref"),
		parquet.SkipPageBounds("digest"), parquet.SkipPageBounds("agent"), parquet.SkipPageBounds("id"),
		parquet.SkipPageBounds("uri"))
	return &sink{w: w, buf: make([]row, 0, sinkRows), o: o, same: map[rowID]struct{}{}, now: -1}
}

func (s *sink) add(r *row, source int) error {
	if fresh := source >= s.o.old; s.o.final && s.duplicate(r) && fresh {
		s.stats.duplicates++
		if s.o.drop {
			s.stats.dropped++
			return nil
		}
		s.stats.added++
	} else if fresh {
		s.stats.added++
	}
	n := len(s.hours)
	if n == 0 || s.hours[n-1].Rows == maxGroup || s.hours[n-1].First/microHour != r.Time/microHour {
		if n > 0 {
			if err := s.flush(); err != nil {
				return err
			}
			if err := s.w.Flush(); err != nil {
				return err
			}
		}
		s.hours = append(s.hours, hour{First: r.Time})
		n++
	}
	h := &s.hours[n-1]
	h.Rows++
	h.Last = r.Time
	s.buf = append(s.buf, *r)
	if len(s.buf) == cap(s.buf) {
		return s.flush()
	}
	return nil
}

// duplicate tells whether a row is one that came before.
func (s *sink) duplicate(r *row) bool {
	if r.Time != s.now { // most times are those of one row
		s.now, s.first = r.Time, identity(r)
		clear(s.same)
		return false
	}
	id := identity(r)
	if id.id == "" {
		return false
	}
	if len(s.same) == 0 && s.first.id != "" {
		s.same[s.first] = struct{}{}
	}
	if _, ok := s.same[id]; ok {
		return true
	}
	s.same[id] = struct{}{}
	return false
}

func identity(r *row) rowID { return rowID{r.ID, r.Kind, r.Repo, r.Ref, r.URI} }

func (s *sink) flush() error {
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	return err
}

// finish writes the last rows and the footer.
func (s *sink) finish(key dayKey) error {
	if err := s.flush(); err != nil {
		return err
	}
	hours, err := json.Marshal(s.hours)
	if err != nil {
		return err
	}
	s.w.SetKeyValueMetadata(metaVersion, version)
	s.w.SetKeyValueMetadata(metaZone, key.zone)
	s.w.SetKeyValueMetadata(metaDay, time.UnixMicro(key.day).UTC().Format(dayFormat))
	s.w.SetKeyValueMetadata(metaHours, string(hours))
	return s.w.Close()
}
