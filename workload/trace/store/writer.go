package store

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"example.org/slipway/workload/trace"
)

// WriterOptions say how a store is written. The zero value works.
type WriterOptions struct {
	// Memory bounds what the records that are not yet in files take, in bytes; 0 is
	// 256 MiB. Beyond it, days are published that nothing has been added to for a
	// while, or sorted runs of records go to temporary files in the store's directory.
	Memory int64
	// DropDuplicates leaves out a record that has the same time, URI and non-empty id as
	// another. Without it, duplicates are only counted. What is in the store already
	// stays in any case.
	DropDuplicates bool
}

// Written is what a Writer has written.
type Written struct {
	// Files is how many files were published. A file that was published again, because
	// records for its day came late, counts each time.
	Files int
	// Records is how many records in the published files were not there before.
	Records int64
	// Duplicates is how many of them are duplicates of one another or of records that
	// were there before.
	Duplicates int64
	// Dropped is how many duplicates were left out. Records does not count them.
	Dropped int64
	// Spilled is the number of runs that went to temporary files.
	Spilled int
}

// Writer writes records to a store. It writes files while more records are added. Records
// may come in any order; roughly the order of time is fastest and takes the least memory.
// If the store exists, records are added to it. A Writer locks its directory: there is
// only one at a time, and its methods must not run concurrently. For zones that are
// written at once it has parts, see [Writer.Part].
//
// A file appears with its final name when it is complete and durable, so that after a
// crash, or when the disk is full, all files of the store can be read.
type Writer struct {
	dir   string
	lock  *os.File // nil for a part
	o     WriterOptions
	zone  string              // the zone of a part; empty for other writers
	parts map[string]struct{} // zones that parts have
	open  *atomic.Int64       // how many parts of a writer are open, shared with its parts
	days  map[dayKey]*dayBuffer
	// latest is the buffer of the last record, if it is still in days. The next record
	// mostly goes to the same buffer.
	latest    *dayBuffer
	latestKey dayKey
	tick      int64 // counts records
	checked   int64 // tick when the memory was last added up
	runs      string
	maxRuns   int
	maxGroup  int // rows
	spilled   int // runs
	err       error
	closed    bool
	free      *sync.Pool // chunks of rows that have been written to files; shared by a writer and its parts
	// publishing writes days while the caller continues.
	publishing publisher
}

// dayKey is one file.
type dayKey struct {
	zone string
	day  int64
}

// dayBuffer holds the records of a file that is not written yet.
type dayBuffer struct {
	hours [24]hourBuffer
	bytes int64 // that the hours take
	tabs  tabs
	kinds [trace.Catalog + 1]Symbol // the symbols of their names; None for kinds that no record had
	runs  []string                  // temporary files
	last  int64                     // tick of the last Add
	// These are the values of the last record. The next one often has the same.
	host, method       string
	hostSym, methodSym Symbol
	// recent is created when there are enough records to be worth it, so that a trace of
	// very many days does not take a table for each.
	recent []recentSym
	n      int
}

// recentSym is a string that was looked up, such as a client or a user agent.
type recentSym struct {
	name string
	sym  Symbol
}

// recentSlots is enough for the strings of most requests: a registry has some hundreds of
// clients at a time.
const recentSlots = 1 << 10

const (
	// recentFrom is the smallest number of records of a day for which there is such a
	// table.
	recentFrom = 1 << 8
	// maxRecent bounds each string that such a table keeps alive, in bytes.
	maxRecent = 1 << 8
)

// lookup is like strtab.symbol, for recurring names. They mostly share their bytes in memory,
// so comparing them is faster than hashing them.
func (b *dayBuffer) lookup(s string) Symbol {
	if len(s) <= shortString || len(s) > maxRecent || b.recent == nil {
		return b.tabs[tabNames].symbol(s)
	}
	n := len(s)
	h := uint32(n) ^ uint32(s[n-1])<<24 ^ uint32(s[n-2])<<16 ^ uint32(s[n/2])<<8 ^ uint32(s[0]) ^ uint32(s[1])<<4 ^ uint32(s[n-4])<<20
	r := &b.recent[h*2654435761>>22]
	if r.name == s && r.name != "" {
		return r.sym
	}
	sym := b.tabs[tabNames].symbol(s)
	*r = recentSym{s, sym}
	return sym
}

const (
	defaultMemory = 256 << 20
	memRowSize    = 72
	// positionSize is what sorting a buffer takes for each row.
	positionSize = 16
	// checkEvery is how many records are added between two checks of the memory. They
	// take some MB at most.
	checkEvery = 1 << 13
	// coldAfter is how many records must go to other days before a day is taken to be
	// complete.
	coldAfter = 1 << 18
)

// NewWriter creates dir if it is missing. It removes what a killed Writer has left there.
// The error wraps [ErrBusy] while another Writer works there.
func NewWriter(dir string, o *WriterOptions) (_ *Writer, err error) {
	w := &Writer{dir: dir, days: map[dayKey]*dayBuffer{}, parts: map[string]struct{}{}, open: new(atomic.Int64),
		maxRuns: maxRuns, maxGroup: maxGroup, free: new(sync.Pool)}
	if o != nil {
		w.o = *o
	}
	if w.o.Memory <= 0 {
		w.o.Memory = defaultMemory
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write store: %w", err)
	}
	if w.lock, err = lockDir(dir); err != nil {
		return nil, fmt.Errorf("write store %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.lock.Close())
		}
	}()
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

// Part returns a Writer for one zone of the store, which may work at the same time as w and
// other parts; each has the memory of the options to itself. w takes no records of that zone
// any more. The parts must be closed before w; any goroutine may close them.
func (w *Writer) Part(zone string) (*Writer, error) {
	if w.closed || w.zone != "" {
		return nil, fmt.Errorf("write store: part for zone %s: %w", zone, os.ErrClosed)
	}
	if err := CheckZone(zone); err != nil {
		return nil, err
	}
	if _, taken := w.parts[zone]; taken || w.has(zone) {
		return nil, fmt.Errorf("write store: zone %s is being written already", zone)
	}
	w.parts[zone] = struct{}{}
	w.open.Add(1)
	return &Writer{dir: w.dir, o: w.o, zone: zone, open: w.open, maxRuns: w.maxRuns, maxGroup: w.maxGroup, free: w.free, days: map[dayKey]*dayBuffer{}}, nil
}

// has reports whether there are records of a zone that have not been published.
func (w *Writer) has(zone string) bool {
	for key := range w.days {
		if key.zone == zone {
			return true
		}
	}
	return w.publishing.has(zone)
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

// endOfTime is the beginning of 2201 in UTC, in seconds since 1970. The store takes only
// earlier records.
const endOfTime = 7_289_654_400

// Storable reports whether a Writer accepts a time.
func Storable(t time.Time) bool { return uint64(t.Unix()) < endOfTime }

// Add adds a record; it keeps nothing of it. The error wraps [ErrTime] if the record
// cannot be stored; after any other error the writer only fails.
func (w *Writer) Add(zone string, r *trace.Record) error {
	_, err := w.AddKind(zone, r)
	return err
}

// AddKind is like [Writer.Add], and also returns what the record's URI points at.
func (w *Writer) AddKind(zone string, r *trace.Record) (trace.Kind, error) {
	if w.err != nil {
		return trace.Other, w.err
	}
	if !Storable(r.Time) {
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
	b.add(us, r, target, w.free)
	if w.tick-w.checked >= checkEvery {
		w.checked = w.tick
		w.err = w.shrink()
	}
	return target.Kind, w.err
}

// buffer returns the buffer of a file that is not written yet.
func (w *Writer) buffer(key dayKey) (*dayBuffer, error) {
	if w.latest != nil && key == w.latestKey {
		return w.latest, nil
	}
	if b, ok := w.days[key]; ok {
		w.latest, w.latestKey = b, key
		return b, nil
	}
	if w.closed {
		return nil, os.ErrClosed
	}
	if err := CheckZone(key.zone); err != nil {
		return nil, err
	}
	if _, taken := w.parts[key.zone]; taken || w.zone != "" && w.zone != key.zone {
		return nil, fmt.Errorf("write store: records of zone %s do not belong to this part of the writer", key.zone)
	}
	b := &dayBuffer{tabs: newTabs()}
	w.days[key] = b
	w.latest, w.latestKey = b, key
	return b, nil
}

func (b *dayBuffer) add(us int64, r *trace.Record, target trace.Target, free *sync.Pool) {
	if b.n++; b.n == recentFrom {
		b.recent = make([]recentSym, recentSlots)
	}
	if r.Host != b.host {
		b.host, b.hostSym = r.Host, b.tabs[tabNames].symbol(r.Host)
	}
	if r.Method != b.method {
		b.method, b.methodSym = r.Method, b.tabs[tabNames].symbol(r.Method)
	}
	if b.kinds[target.Kind] == None {
		b.kinds[target.Kind] = b.tabs[tabNames].symbol(target.Kind.String())
	}
	m := memRow{time: us, duration: -1, size: r.Written, status: int32(r.Status)}
	x := &m.texts
	x[textHost], x[textMethod], x[textKind] = b.hostSym, b.methodSym, b.kinds[target.Kind]
	x[textClient], x[textAgent] = b.lookup(r.RemoteAddr), b.lookup(r.UserAgent)
	x[textRepo], x[textRef] = b.tabs[tabPaths].symbol(target.Repo), b.tabs[tabRefs].symbol(target.Ref)
	if r.Duration >= 0 {
		m.duration = r.Duration.Microseconds()
	}
	if r.Received != 0 { // as in the ten-field form
		m.size = r.Received
	}
	if d := digestOf(target, r); d == target.Ref {
		x[textDigest] = x[textRef]
	} else {
		x[textDigest] = b.tabs[tabRefs].symbol(d)
	}
	if target.Kind == trace.Other {
		x[textURI] = b.tabs[tabPaths].symbol(plainURI(r.URI))
	}
	b.bytes += int64(b.hours[us%microDay/microHour].add(&m, validUTF8(r.ID), free))
}

// validUTF8 returns s with U+FFFD for bytes that are not UTF-8. Logs hold any bytes that
// clients send, and readers of Parquet may refuse a whole file for one such string.
func validUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// plainURI returns a URI in the ten-field form: without the leading slash and the query.
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

// size returns about what the buffer takes in memory.
func (b *dayBuffer) size() int64 {
	total := b.bytes + int64(cap(b.recent))*24 + 1<<11
	for _, t := range b.tabs {
		total += t.bytes
	}
	return total
}

// release gives the memory of rows back.
func (b *dayBuffer) release(free *sync.Pool) {
	for i := range b.hours {
		b.hours[i].release(free)
	}
}

// empty reports whether the buffer has no rows.
func (b *dayBuffer) empty() bool {
	for i := range b.hours {
		if b.hours[i].n > 0 {
			return false
		}
	}
	return true
}

// shrink frees memory if the records take too much. At half of the limit it publishes
// days that seem to be complete, while records are added. If that is not enough, it
// writes runs of the largest buffers.
func (w *Writer) shrink() error {
	held := w.held()
	if held <= w.o.Memory/2 {
		return w.publishing.failed()
	}
	for _, key := range w.keys() {
		b := w.days[key]
		if w.tick-b.last < coldAfter {
			continue
		}
		held -= b.size()
		w.publish(key, b)
	}
	if held+w.publishing.held() <= w.o.Memory {
		return w.publishing.failed()
	}
	if err := w.publishing.wait(); err != nil || held <= w.o.Memory {
		return err
	}
	keys := w.keys()
	slices.SortStableFunc(keys, func(x, y dayKey) int { return cmp.Compare(w.days[y].size(), w.days[x].size()) })
	for _, key := range keys {
		b := w.days[key]
		if held <= w.o.Memory/2 || b.empty() {
			break
		}
		held -= b.size()
		if err := w.spill(key, b); err != nil {
			return err
		}
		held += b.size()
	}
	return nil
}

// held returns how much memory is taken by records that are not being published.
func (w *Writer) held() (total int64) {
	for _, b := range w.days {
		total += b.size()
	}
	return total
}

// keys returns the keys of all buffers in the order of zones and days.
func (w *Writer) keys() []dayKey {
	keys := make([]dayKey, 0, len(w.days))
	for key := range w.days {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b dayKey) int {
		return cmp.Or(cmp.Compare(a.zone, b.zone), cmp.Compare(a.day, b.day))
	})
	return keys
}

// Flush publishes all that was added.
func (w *Writer) Flush() error {
	if w.err != nil {
		return w.err
	}
	for _, key := range w.keys() {
		if w.publishing.failed() == nil {
			w.publish(key, w.days[key])
		}
	}
	w.err = w.publishing.wait()
	return w.err
}

// Close publishes all records that were added and removes temporary files. After an
// error, what was published before stays.
func (w *Writer) Close() error {
	if w.closed {
		return w.err
	}
	err := w.Flush()
	if perr := w.publishing.wait(); err == nil { // before the runs go
		err = perr
	}
	w.closed = true
	w.days = nil
	if w.runs != "" {
		err = errors.Join(err, os.RemoveAll(w.runs))
	}
	if w.zone != "" {
		w.open.Add(-1)
	} else {
		if n := w.open.Load(); n > 0 {
			err = errors.Join(err, fmt.Errorf("write store: %d parts of the writer are still open", n))
		}
		err = errors.Join(err, w.lock.Close())
	}
	w.err = err
	return err
}

// Written returns what has been published so far.
func (w *Writer) Written() Written {
	sum := w.publishing.counted()
	sum.Spilled = w.spilled
	return sum
}

// spill writes what a buffer holds as a sorted run to a temporary file.
func (w *Writer) spill(key dayKey, b *dayBuffer) error {
	if w.runs == "" {
		runs, err := os.MkdirTemp(w.dir, partPrefix+"runs-")
		if err != nil {
			return fmt.Errorf("write store: %w", err)
		}
		w.runs = runs
	}
	path := filepath.Join(w.runs, fmt.Sprintf("%s-%s-%d", key.zone, time.UnixMicro(key.day).UTC().Format(dayFormat), w.spilled))
	if _, err := writeFile(path, key, nil, b, &fileOptions{maxRows: w.maxGroup}); err != nil {
		return fmt.Errorf("write run: %w", err)
	}
	b.release(w.free)
	*b = dayBuffer{tabs: newTabs(), runs: append(b.runs, path), last: b.last}
	w.spilled++
	if len(b.runs) < w.maxRuns {
		return nil
	}
	return w.joinRuns(key, b)
}

// maxRuns is how many runs of a day are merged into one. A merge has all files open at
// once, with some 0.5 MB of memory each.
const maxRuns = 64

// joinRuns merges the runs of a day.
func (w *Writer) joinRuns(key dayKey, b *dayBuffer) (err error) {
	sources, err := runSources(b.runs)
	defer func() {
		for _, s := range sources {
			err = errors.Join(err, s.close())
		}
	}()
	if err != nil {
		return err
	}
	path := b.runs[len(b.runs)-1] + "-joined"
	if _, err := writeFile(path, key, sources, nil, &fileOptions{maxRows: w.maxGroup}); err != nil {
		return fmt.Errorf("merge runs: %w", err)
	}
	for _, run := range b.runs {
		if err := os.Remove(run); err != nil {
			return fmt.Errorf("merge runs: %w", err)
		}
	}
	b.runs = []string{path}
	return nil
}

// runSources opens runs. The caller closes the result, even after an error.
func runSources(runs []string) ([]source, error) {
	sources := make([]source, 0, len(runs)+2)
	for _, run := range runs {
		s, err := openSource(run, runBuffer)
		if err != nil {
			return sources, fmt.Errorf("merge runs: %w", err)
		}
		sources = append(sources, s)
	}
	return sources, nil
}
