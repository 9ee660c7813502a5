// Package store keeps traces as Parquet: a directory with one file for each zone and day
// in UTC, zone=NAME/day=YYYY-MM-DD.parquet, with rows in order of time and a row group
// for each hour. Any reader of Parquet can query it; docs/trace.md has the columns.
//
// A [Writer] takes records in about any order. It publishes each file as a whole, so that
// a file is either complete or absent. A [Store] reads the files by column, with strings
// as [Symbol]s. A pass over tens of millions of requests allocates next to nothing for a
// request.
package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/parquet-go/parquet-go"
)

// Store is a directory of traces, open for reading. Its methods may run
// concurrently. What a [Writer] publishes after Open is not seen.
type Store struct {
	dir    string
	zones  []zone
	tables [numTables]table
}

// zone is what is known of a zone's files, in order of days.
type zone struct {
	name string
	days []dayFile
}

// dayFile is one file's index.
type dayFile struct {
	path  string
	day   int64 // microseconds since 1970
	rows  int64
	hours []hour
	// sound has a bit for each column of each row group that is known to be sound, so
	// that only the first scan must check it.
	sound []atomic.Uint64
}

// ErrNotStore is returned for a directory that has no traces in it.
var ErrNotStore = errors.New("not a store of traces")

// Open reads the index of all files of a store. The error is [ErrNotStore] if there is
// none, and names a file that is damaged or was not written by a [Writer].
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir}
	for i := range s.tables {
		s.tables[i].tab = newStrtab()
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), zonePrefix)
		if !ok || !e.IsDir() {
			continue
		}
		if err := CheckZone(name); err != nil { // names go to terminals and reports
			return nil, fmt.Errorf("open store: %s: %w", dir, err)
		}
		z, err := openZone(filepath.Join(dir, e.Name()), name)
		if err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
		if len(z.days) > 0 {
			s.zones = append(s.zones, z)
		}
	}
	if len(s.zones) == 0 {
		return nil, fmt.Errorf("%s: %w", dir, ErrNotStore)
	}
	return s, nil
}

// Close releases the store. Nothing may use it or its symbols afterwards.
func (s *Store) Close() error { return nil }

// Dir returns the store's directory.
func (s *Store) Dir() string { return s.dir }

func openZone(dir, name string) (zone, error) {
	z := zone{name: name}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return z, err
	}
	for _, e := range entries {
		if e.IsDir() || !strings.HasPrefix(e.Name(), dayPrefix) || !strings.HasSuffix(e.Name(), fileSuffix) {
			continue
		}
		d, err := openDay(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) { // gone since it was listed
			continue
		}
		if err != nil {
			return z, err
		}
		if d.rows > 0 {
			z.days = append(z.days, d)
		}
	}
	slices.SortFunc(z.days, func(a, b dayFile) int { return cmp.Compare(a.day, b.day) })
	return z, nil
}

// openDay reads a file's index.
func openDay(path string) (dayFile, error) {
	d := dayFile{path: path}
	base := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), dayPrefix), fileSuffix)
	day, err := time.Parse(dayFormat, base)
	if err != nil {
		return d, fmt.Errorf("%s: the name has no day: %w", path, err)
	}
	d.day = day.UnixMicro()
	f, pf, err := openParquet(path, dayBuffers)
	if err != nil {
		return d, err
	}
	defer f.Close()
	if v, _ := pf.Lookup(metaVersion); v != version {
		return d, fmt.Errorf("%s: version %q of the layout of traces; this program reads version %s", path, v, version)
	}
	hours, _ := pf.Lookup(metaHours)
	if err := json.Unmarshal([]byte(hours), &d.hours); err != nil {
		return d, fmt.Errorf("%s: index of hours: %w", path, err)
	}
	groups := pf.RowGroups()
	if len(groups) != len(d.hours) {
		return d, fmt.Errorf("%s: the index has %d row groups, the file %d", path, len(d.hours), len(groups))
	}
	d.sound = make([]atomic.Uint64, len(groups))
	last := d.day
	for i, h := range d.hours {
		if groups[i].NumRows() != h.Rows || h.Rows <= 0 || h.Rows > maxGroup || h.First < last || h.Last < h.First {
			return d, fmt.Errorf("%s: the index is wrong about row group %d", path, i)
		}
		last = h.Last
		d.rows += h.Rows
	}
	if last >= d.day+microDay {
		return d, fmt.Errorf("%s: the index has requests of another day", path)
	}
	return d, nil
}

// openParquet opens a file of the store. The caller closes the file.
func openParquet(path string, readBytes int) (f *os.File, pf *parquet.File, err error) {
	f, err = os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	defer damaged(&err, path)
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if err = checkFooter(f, info.Size()); err == nil {
		pf, err = parquet.OpenFile(f, info.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true),
			parquet.ReadBufferSize(readBytes))
	}
	if err == nil {
		err = checkMeta(pf.Metadata(), info.Size())
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return f, pf, nil
}

// damaged turns a panic of the decoder into an error: the decoder trusts lengths and offsets,
// which are wrong in a damaged file. Wrong values that would not cause a panic are detected
// beforehand, see sound.go. It is deferred around the decoder alone, never around a caller's
// function.
func damaged(err *error, path string) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("read %s: the file is damaged: %v", path, r)
	}
}

// Zone describes what a store has of one zone.
type Zone struct {
	Name string `json:"name"`
	// Days are the days that have requests, each at 0:00 UTC, in order. A day that is not
	// among them is absent, which is not the same as idle.
	Days    []time.Time `json:"days"`
	Records int64       `json:"records"`
	// First and Last are the times of the first and the last request.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Zones returns the store's zones in order of their names.
func (s *Store) Zones() []Zone {
	out := make([]Zone, 0, len(s.zones))
	for _, z := range s.zones {
		first, last := z.days[0], z.days[len(z.days)-1]
		v := Zone{Name: z.name, First: time.UnixMicro(first.hours[0].First).UTC(),
			Last: time.UnixMicro(last.hours[len(last.hours)-1].Last).UTC()}
		for _, d := range z.days {
			v.Days = append(v.Days, time.UnixMicro(d.day).UTC())
			v.Records += d.rows
		}
		out = append(out, v)
	}
	return out
}
