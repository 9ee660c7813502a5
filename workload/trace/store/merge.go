package store

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
)

// source returns rows in order of time. A row is valid until the next call. The error at
// the end is io.EOF.
type source interface {
	next() (*row, error)
	close() error
}

// memSource returns the rows of a buffer.
type memSource struct {
	b    *dayBuffer
	hour int // the hour whose rows are being returned, from 1
	sort sorter
	i    int
	row  row
}

// source returns the rows of a buffer in order of time. Rows of the same time keep the
// order in which they were added.
func (b *dayBuffer) source() source { return &memSource{b: b} }

func (s *memSource) next() (*row, error) {
	for s.i == len(s.sort.order) {
		if s.hour == len(s.b.hours) {
			return nil, io.EOF
		}
		h := &s.b.hours[s.hour]
		s.hour++
		s.i = 0
		s.sort.hour(h)
	}
	h := &s.b.hours[s.hour-1]
	m := h.row(uint32(s.sort.order[s.i]))
	s.i++
	t := &s.b.tabs
	s.row = row{Time: m.time, Duration: m.duration, Size: m.size, Status: m.status, ID: h.id(m),
		Host: t.name(m, textHost), Client: t.name(m, textClient), Method: t.name(m, textMethod), Kind: t.name(m, textKind),
		Repo: t.name(m, textRepo), Ref: t.name(m, textRef), Digest: t.name(m, textDigest), Agent: t.name(m, textAgent),
		URI: t.name(m, textURI)}
	return &s.row, nil
}

func (s *memSource) close() error { return nil }

// fileSource returns the rows of a file.
type fileSource struct {
	path string
	f    *os.File
	pf   *parquet.File
	r    *parquet.GenericReader[row]
	buf  []row
	i, n int
	eof  bool
	at   int64 // the number of the next row that is read
	// checked is how many row groups are known to be sound. sound is how many rows they
	// have.
	checked int
	sound   int64
}

// These are how many bytes a source reads of each column at once. There is one source for
// a day's file and up to maxRuns for its runs.
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
	s := &fileSource{path: path, f: f, pf: pf, buf: make([]row, 512)}
	if err := s.begin(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

// begin makes the reader of the rows.
func (s *fileSource) begin() (err error) {
	defer damaged(&err, s.path)
	s.r = parquet.NewGenericReader[row](s.pf)
	return nil
}

// check makes sure that the row groups of all rows up to the given one can be decoded.
func (s *fileSource) check(last int64) error {
	meta := s.pf.Metadata()
	for ; s.checked < len(meta.RowGroups) && s.sound <= last; s.checked++ {
		for column := range meta.RowGroups[s.checked].Columns {
			if err := checkChunk(s.f, meta, s.checked, column); err != nil {
				return fmt.Errorf("row group %d, column %d: %w", s.checked, column, err)
			}
		}
		s.sound += meta.RowGroups[s.checked].NumRows
	}
	return nil
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
	s.i, s.n = 0, 0
	if err = s.check(s.at + int64(len(s.buf))); err == nil {
		s.n, err = s.r.Read(s.buf)
	}
	s.at += int64(s.n)
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
	err := errors.Join(s.end(), s.f.Close())
	s.f = nil
	return err
}

// end ends the reader of the rows.
func (s *fileSource) end() (err error) {
	defer damaged(&err, s.path)
	return s.r.Close()
}

// merge merges the rows of several sources. Rows of the same time come in the order of
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
