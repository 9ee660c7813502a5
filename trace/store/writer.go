package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/durable"
	"example.org/slipway/trace"
)

// WriterOptions say how a store is written. The zero value works.
type WriterOptions struct {
	// Memory bounds what the records that are not yet in files take, in bytes; 0 is
	// 256 MiB. Beyond it, days are published that nothing has been added to for a
	// while, or sorted runs of records go to temporary files in the store's directory.
	Memory int64
	// DropDuplicates leaves out a record whose time, URI and id, which must not be
	// empty, are those of another. Without it they are only counted.
	DropDuplicates bool
}

// Written is what a Writer has written.
type Written struct {
	// Files published. A file that was published more than once, because records for
	// its day came late, counts each time.
	Files int
	// Records in the files that were published and were not there before.
	Records int64
	// Duplicates that were met among the records of a day, with those that were there
	// before.
	Duplicates int64
	// Dropped of the duplicates.
	Dropped int64
	// Spilled is the number of runs that went to temporary files.
	Spilled int
}

// Writer writes records to a store. Records may come in any order; what is fastest
// and takes the least memory is about the order of time. A store that exists is added
// to. Only one Writer at a time may work in a directory, and its methods must not run
// concurrently.
//
// A file appears with its final name when it is complete and durable, so that after a
// crash, or when the disk is full, all files of the store can be read.
type Writer struct {
	dir     string
	o       WriterOptions
	days    map[dayKey]*dayBuffer
	tick    int64 // counts records
	checked int64 // tick when the memory was last reckoned up
	runs    string
	written Written
	err     error
	closed  bool
}

// dayKey is one file.
type dayKey struct {
	zone string
	day  int64
}

// dayBuffer holds the records of a file to be.
type dayBuffer struct {
	hours [24]hourBuffer
	tab   *strtab
	runs  []string // temporary files
	last  int64    // tick of the last Add
	// What the last record had, which the next one often has too.
	host, method       string
	hostSym, methodSym Symbol
	recent             [recentSlots]recentSym
}

// hourBuffer holds those of one hour: together they are few enough that sorting them
// stays in the processor's cache.
type hourBuffer struct {
	rows []memRow
	ids  strings.Builder // of all rows, one after the other
}

// memRow is a record in memory: 80 bytes, and its strings.
type memRow struct {
	time, duration, size            int64
	host, client, repo, ref, digest Symbol
	agent, uri, method              Symbol
	status                          int32
	id, idLen                       uint32 // where its id is
	kind                            trace.Kind
}

// recentSym is a string that was looked up, such as a client or a user agent.
type recentSym struct {
	name string
	sym  Symbol
}

// recentSlots are enough for those of most requests: a registry has some hundreds of
// clients at a time.
const recentSlots = 1 << 10

// lookup is strtab.symbol for strings that come again and again. They are mostly the
// same bytes in memory, so that comparing them is faster than hashing them.
func (b *dayBuffer) lookup(s string) Symbol {
	if len(s) < 4 {
		return b.tab.symbol(s)
	}
	n := len(s)
	h := uint32(n) ^ uint32(s[n-1])<<24 ^ uint32(s[n-2])<<16 ^ uint32(s[n/2])<<8 ^ uint32(s[0]) ^ uint32(s[1])<<4 ^ uint32(s[n-4])<<20
	r := &b.recent[h*2654435761>>22]
	if r.name == s && r.name != "" {
		return r.sym
	}
	sym := b.tab.symbol(s)
	*r = recentSym{s, sym}
	return sym
}

const (
	defaultMemory = 256 << 20
	memRowSize    = 80
	// positionSize is taken for each row when a buffer is sorted.
	positionSize = 16
	// checkEvery is after how many records the memory is reckoned up: at most some
	// MB are added in between.
	checkEvery = 1 << 13
	// coldAfter is after how many records for others a day is taken to be complete.
	coldAfter = 1 << 18
)

// NewWriter makes dir if need be. What a Writer that was killed has left there is
// removed.
func NewWriter(dir string, o *WriterOptions) (*Writer, error) {
	w := &Writer{dir: dir, days: map[dayKey]*dayBuffer{}}
	if o != nil {
		w.o = *o
	}
	if w.o.Memory <= 0 {
		w.o.Memory = defaultMemory
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write store: %w", err)
	}
	for _, pattern := range []string{partPrefix + "*", filepath.Join(zonePrefix+"*", partPrefix+"*")} {
		left, err := filepath.Glob(filepath.Join(globEscape(dir), pattern))
		if err != nil {
			return nil, fmt.Errorf("write store: %w", err)
		}
		for _, name := range left {
			if err := os.RemoveAll(name); err != nil {
				return nil, fmt.Errorf("write store: %w", err)
			}
		}
	}
	return w, nil
}

// globEscape makes a pattern that matches a path itself.
func globEscape(path string) string {
	out := make([]byte, 0, len(path))
	for _, c := range []byte(path) {
		if c == '*' || c == '?' || c == '[' || c == '\\' {
			out = append(out, '\\')
		}
		out = append(out, c)
	}
	return string(out)
}

// ErrTime is returned by [Writer.Add] for a time before 1970 or after 2200.
var ErrTime = errors.New("the time is out of range")

// maxYear is the last that the store takes.
const maxYear = 2200

// Add adds a record; it keeps nothing of it. The error wraps [ErrTime] if the record
// cannot be stored; after any other error the writer only fails.
func (w *Writer) Add(zone string, r *trace.Record) error {
	_, err := w.add(zone, r)
	return err
}

// add is Add, and tells what the record's URI points at.
func (w *Writer) add(zone string, r *trace.Record) (trace.Kind, error) {
	if w.err != nil {
		return trace.Other, w.err
	}
	if !storable(r.Time) {
		return trace.Other, fmt.Errorf("%w: %v", ErrTime, r.Time)
	}
	us := r.Time.UnixMicro()
	b, err := w.buffer(dayKey{zone, us - us%microDay})
	if err != nil {
		return trace.Other, err
	}
	w.tick++
	b.last = w.tick
	target := trace.ParseURI(r.URI)
	b.add(us, r, target)
	if w.tick-w.checked >= checkEvery {
		w.checked = w.tick
		w.err = w.shrink()
	}
	return target.Kind, w.err
}

// buffer returns the buffer of a file to be.
func (w *Writer) buffer(key dayKey) (*dayBuffer, error) {
	if b, ok := w.days[key]; ok {
		return b, nil
	}
	if w.closed {
		return nil, os.ErrClosed
	}
	if err := checkZone(key.zone); err != nil {
		return nil, err
	}
	b := &dayBuffer{tab: newStrtab()}
	w.days[key] = b
	return b, nil
}

func (b *dayBuffer) add(us int64, r *trace.Record, target trace.Target) {
	if r.Host != b.host {
		b.host, b.hostSym = r.Host, b.tab.symbol(r.Host)
	}
	if r.Method != b.method {
		b.method, b.methodSym = r.Method, b.tab.symbol(r.Method)
	}
	m := memRow{time: us, duration: -1, size: r.Written, host: b.hostSym, client: b.lookup(r.RemoteAddr),
		repo: b.tab.symbol(target.Repo), ref: b.tab.symbol(target.Ref), agent: b.lookup(r.UserAgent), method: b.methodSym,
		status: int32(r.Status), kind: target.Kind}
	if r.Duration >= 0 {
		m.duration = r.Duration.Microseconds()
	}
	if r.Received != 0 { // as in the ten-field form
		m.size = r.Received
	}
	if d := digestOf(target, r); d == target.Ref {
		m.digest = m.ref
	} else {
		m.digest = b.tab.symbol(d)
	}
	if target.Kind == trace.Other {
		m.uri = b.tab.symbol(plainURI(r.URI))
	}
	h := &b.hours[us%microDay/microHour]
	m.id, m.idLen = uint32(h.ids.Len()), uint32(len(r.ID))
	h.ids.WriteString(r.ID)
	if len(h.rows) == cap(h.rows) { // append would grow by a quarter and copy more often
		h.rows = slices.Grow(h.rows, max(64, len(h.rows)))
	}
	h.rows = append(h.rows, m)
}

// plainURI is a URI in the ten-field form: without the leading slash and the query.
func plainURI(uri string) string {
	for i := 0; i < len(uri); i++ {
		if uri[i] == '?' {
			uri = uri[:i]
			break
		}
	}
	if uri != "" && uri[0] == '/' {
		uri = uri[1:]
	}
	return uri
}

// size is about what the buffer takes in memory.
func (b *dayBuffer) size() int64 {
	total := b.tab.bytes + recentSlots*24 + 1<<11
	for i := range b.hours {
		h := &b.hours[i]
		total += int64(cap(h.rows))*(memRowSize+positionSize) + int64(h.ids.Cap())
	}
	return total
}

// empty tells whether the buffer has no rows.
func (b *dayBuffer) empty() bool {
	for i := range b.hours {
		if len(b.hours[i].rows) > 0 {
			return false
		}
	}
	return true
}

// shrink makes room if the records take too much memory: first publish days that seem
// to be complete, then write runs of the largest.
func (w *Writer) shrink() error {
	var total int64
	for _, b := range w.days {
		total += b.size()
	}
	if total <= w.o.Memory {
		return nil
	}
	for _, key := range w.keys() {
		b := w.days[key]
		if w.tick-b.last < coldAfter {
			continue
		}
		total -= b.size()
		if err := w.publish(key, b); err != nil {
			return err
		}
	}
	for total > w.o.Memory/2 {
		var largest dayKey
		for key, b := range w.days {
			if l := w.days[largest]; l == nil || b.size() > l.size() {
				largest = key
			}
		}
		b := w.days[largest]
		if b == nil || b.empty() {
			return nil
		}
		total -= b.size()
		if err := w.spill(largest, b); err != nil {
			return err
		}
		total += b.size()
	}
	return nil
}

// keys are those of all buffers in the order of zones and days.
func (w *Writer) keys() []dayKey {
	keys := make([]dayKey, 0, len(w.days))
	for key := range w.days {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b dayKey) int {
		if a.zone != b.zone {
			if a.zone < b.zone {
				return -1
			}
			return 1
		}
		return int(min(1, max(-1, a.day-b.day)))
	})
	return keys
}

// Flush publishes all that was added.
func (w *Writer) Flush() error {
	if w.err != nil {
		return w.err
	}
	for _, key := range w.keys() {
		if w.err = w.publish(key, w.days[key]); w.err != nil {
			return w.err
		}
	}
	return nil
}

// Close publishes all that was added and removes temporary files. After an error what
// was published before stays.
func (w *Writer) Close() error {
	if w.closed {
		return w.err
	}
	err := w.Flush()
	w.closed = true
	w.days = nil
	if w.runs != "" {
		err = errors.Join(err, os.RemoveAll(w.runs))
	}
	if w.err = err; err == nil {
		w.err = nil
	}
	return err
}

// Written tells what has been published so far.
func (w *Writer) Written() Written { return w.written }

// spill writes what a buffer holds as a sorted run to a temporary file.
func (w *Writer) spill(key dayKey, b *dayBuffer) error {
	if w.runs == "" {
		runs, err := os.MkdirTemp(w.dir, partPrefix+"runs-")
		if err != nil {
			return fmt.Errorf("write store: %w", err)
		}
		w.runs = runs
	}
	path := filepath.Join(w.runs, fmt.Sprintf("%s-%s-%d", key.zone, time.UnixMicro(key.day).UTC().Format(dayFormat), len(b.runs)))
	if _, err := writeFile(path, key, []source{b.source()}, false); err != nil {
		return fmt.Errorf("write run: %w", err)
	}
	*b = dayBuffer{tab: newStrtab(), runs: append(b.runs, path), last: b.last}
	w.written.Spilled++
	return nil
}

// publish writes the file of a day: what it has already, the runs and what is in
// memory, merged. It forgets the buffer.
func (w *Writer) publish(key dayKey, b *dayBuffer) (err error) {
	dir := filepath.Join(w.dir, zonePrefix+key.zone)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write store: %w", err)
	}
	path := filepath.Join(dir, dayName(key.day))
	sources := make([]source, 0, len(b.runs)+2)
	var before int64
	defer func() {
		for _, s := range sources {
			err = errors.Join(err, s.close())
		}
	}()
	if _, serr := os.Lstat(path); serr == nil {
		d, err := openDay(path)
		if err != nil {
			return fmt.Errorf("add to store: %w", err)
		}
		before = d.rows
		s, err := openSource(path)
		if err != nil {
			return fmt.Errorf("add to store: %w", err)
		}
		sources = append(sources, s)
	} else if !os.IsNotExist(serr) {
		return fmt.Errorf("add to store: %w", serr)
	}
	for _, run := range b.runs {
		s, err := openSource(run)
		if err != nil {
			return fmt.Errorf("merge runs: %w", err)
		}
		sources = append(sources, s)
	}
	sources = append(sources, b.source())
	part := filepath.Join(dir, partPrefix+dayName(key.day))
	stats, err := writeFile(part, key, sources, w.o.DropDuplicates)
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), removePart(part))
	}
	if err := os.Rename(part, path); err != nil {
		return errors.Join(fmt.Errorf("write store: %w", err), removePart(part))
	}
	for _, d := range []string{dir, w.dir} {
		if err := durable.SyncDir(d); err != nil {
			return fmt.Errorf("write store: %w", err)
		}
	}
	w.written.Files++
	w.written.Records += stats.rows - before
	w.written.Duplicates += stats.duplicates
	w.written.Dropped += stats.dropped
	delete(w.days, key)
	for _, run := range b.runs {
		if err := os.Remove(run); err != nil {
			return fmt.Errorf("write store: %w", err)
		}
	}
	return nil
}

// removePart removes a file that could not be completed.
func removePart(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
