package store

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go/format"
)

// fileOptions say how writeFile writes.
type fileOptions struct {
	// final marks a file of the store, as opposed to a run. Its duplicates are counted,
	// and it is made durable.
	final bool
	drop  bool // duplicates
	// maxRows bounds the rows of a row group, which is at most maxGroup.
	maxRows int
	// old is how many of the sources, counted from the first, hold rows that are in the
	// store already.
	old int
}

// fileStats says what writeFile has written: the rows that were not in the store before,
// the rows that there are now, the duplicates, and the duplicates that were left out.
type fileStats struct {
	added, duplicates, dropped int64
}

// writeFile writes a file of the store: the rows of the sources and of a buffer, which
// may be nil. Rows of the buffer come after rows of the sources with the same time.
func writeFile(path string, key dayKey, sources []source, b *dayBuffer, o *fileOptions) (st fileStats, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return st, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s, err := newSink(f, o)
	if err != nil {
		return st, err
	}
	switch {
	case len(sources) == 0 && b != nil:
		err = s.buffer(b)
	case b != nil:
		err = s.merge(append(sources, b.source()))
	default:
		err = s.merge(sources)
	}
	if err != nil {
		return st, err
	}
	if err := s.finish(key); err != nil || !o.final {
		return s.stats, err
	}
	return s.stats, f.Sync()
}

// sink writes rows that come in order of time.
type sink struct {
	w     *pageWriter
	group group
	hours []hour
	stats fileStats
	o     *fileOptions
}

func newSink(out io.Writer, o *fileOptions) (*sink, error) {
	w, err := newPageWriter(out)
	return &sink{w: w, o: o, group: group{maxRows: o.maxRows}}, err
}

// buffer writes the rows of a buffer. The buffer's symbols already number the rows'
// strings.
func (s *sink) buffer(b *dayBuffer) error {
	var sort sorter
	var seen twins[symbolID]
	s.group.use(&b.tabs)
	rows := make([]memRow, 0, chunkRows)
	for i := range b.hours {
		h := &b.hours[i]
		sort.hour(h)
		for part := range slices.Chunk(sort.order, chunkRows) {
			rows = rows[:len(part)]
			for i, v := range part { // a loop of its own, so that the processor waits for many rows at once
				rows[i] = *h.row(uint32(v))
			}
			if s.o.final {
				rows = s.fresh(h, rows, &seen)
			}
			if len(rows) == 0 {
				continue
			}
			if _, err := s.place(rows[0].time, rows[len(rows)-1].time, len(rows)); err != nil {
				return err
			}
			s.group.add(rows)
			for i := range rows {
				s.group.addID(h.id(&rows[i]))
			}
		}
	}
	return nil
}

// fresh counts rows of a buffer and keeps only the rows that are to be written.
func (s *sink) fresh(h *hourBuffer, rows []memRow, seen *twins[symbolID]) []memRow {
	kept := rows[:0]
	for i := range rows {
		m := &rows[i]
		id := symbolID{h.id(m), m.texts[textKind], m.texts[textRepo], m.texts[textRef], m.texts[textURI]}
		if s.keep(seen.again(m.time, m.idLen > 0, id), true) {
			kept = append(kept, *m)
		}
	}
	return kept
}

// merge writes the rows of sources. It numbers their strings again in each row group.
func (s *sink) merge(sources []source) error {
	t, one := newTabs(), make([]memRow, 1)
	var seen twins[stringID]
	s.group.use(&t)
	return (&merge{}).each(sources, func(r *row, source int) error {
		fresh := source >= s.o.old
		if s.o.final && !s.keep(seen.again(r.Time, r.ID != "", stringID{r.ID, r.Kind, r.Repo, r.Ref, r.URI}), fresh) {
			return nil
		}
		begun, err := s.place(r.Time, r.Time, 1)
		if err != nil {
			return err
		}
		if begun {
			t = newTabs()
			s.group.use(&t)
		}
		m := &one[0]
		*m = memRow{time: r.Time, duration: r.Duration, size: r.Size, status: r.Status}
		for i, text := range [numTexts]string{textHost: r.Host, textClient: r.Client, textMethod: r.Method, textKind: r.Kind,
			textRepo: r.Repo, textRef: r.Ref, textDigest: r.Digest, textAgent: r.Agent, textURI: r.URI} {
			m.texts[i] = t[textTabs[i]].symbol(text)
		}
		s.group.add(one)
		s.group.addID(r.ID)
		return nil
	})
}

// keep counts a row and reports whether it is to be written.
func (s *sink) keep(duplicate, fresh bool) bool {
	switch {
	case !fresh:
	case duplicate && s.o.drop:
		s.stats.duplicates++
		s.stats.dropped++
		return false
	case duplicate:
		s.stats.duplicates++
		s.stats.added++
	default:
		s.stats.added++
	}
	return true
}

// place makes room for n rows of an hour, whose times go from first to last. It begins a
// row group if the rows before are of another hour, or if they fill their row group.
func (s *sink) place(first, last int64, n int) (begun bool, err error) {
	at := len(s.hours) - 1
	if at < 0 || s.group.full(n) || s.hours[at].First/microHour != first/microHour {
		if at >= 0 {
			if err := s.group.write(s.w); err != nil {
				return false, err
			}
		}
		s.hours = append(s.hours, hour{First: first})
		begun = true
		at++
	}
	s.hours[at].Rows += int64(n)
	s.hours[at].Last = last
	return begun, nil
}

// finish writes the last rows and the footer.
func (s *sink) finish(key dayKey) error {
	if s.group.rows > 0 {
		if err := s.group.write(s.w); err != nil {
			return err
		}
	}
	hours, err := json.Marshal(s.hours)
	if err != nil {
		return err
	}
	return s.w.finish([]format.KeyValue{
		{Key: metaVersion, Value: version},
		{Key: metaZone, Value: key.zone},
		{Key: metaDay, Value: time.UnixMicro(key.day).UTC().Format(dayFormat)},
		{Key: metaHours, Value: string(hours)},
	})
}

// symbolID identifies a row among rows of the same time and buffer. stringID identifies a
// row among rows of the same time from any sources. Two rows with the same identity are
// duplicates.
type (
	symbolID struct {
		id                    string
		kind, repo, ref, path Symbol
	}
	stringID struct{ id, kind, repo, ref, path string }
)

// twins finds duplicates among rows in order of time.
type twins[ID comparable] struct {
	begun bool
	// now is the time of the last row, and first is the first row of that time. same has all
	// rows of that time that can be duplicates, if there are several.
	now      int64
	first    ID
	firstCan bool
	same     map[ID]struct{}
}

// again reports whether an equal row came before. It returns false for a row that cannot
// be a duplicate.
func (w *twins[ID]) again(t int64, can bool, id ID) bool {
	if t != w.now || !w.begun { // at most times there is one row
		w.begun, w.now, w.first, w.firstCan = true, t, id, can
		if len(w.same) > 0 {
			clear(w.same)
		}
		return false
	}
	if !can {
		return false
	}
	if w.same == nil {
		w.same = map[ID]struct{}{}
	}
	if len(w.same) == 0 && w.firstCan {
		w.same[w.first] = struct{}{}
	}
	if _, ok := w.same[id]; ok {
		return true
	}
	w.same[id] = struct{}{}
	return false
}
