// Package ingest brings logs into a store of traces: whole files, or a log as it is
// written, with pseudonyms in place of names if need be.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/store"
)

// ImportOptions say how logs become a store. The zero value works.
type ImportOptions struct {
	// Zone of records in files whose name does not tell; "" is "default".
	Zone string
	// ForceZone gives Zone to all records.
	ForceZone bool
	// Change is called for each record before it is added, and may change it; nil for
	// none. It is called by one goroutine at a time, in the order of the records.
	Change func(*trace.Record)
	// Progress is called now and then with the number of records that were added; nil
	// for nobody. It is called by one goroutine at a time.
	Progress func(records int64)
}

// defaultZone is the zone of logs that do not tell theirs.
const defaultZone = "default"

// Imported is what an import has done.
type Imported struct {
	store.Counts
	// Zones is how many records each zone got.
	Zones map[string]int64 `json:"zones"`
	// Unknown are the first few URIs that are none of the protocol's, and methods that
	// no registry knows, with where they are. They are counted and stored like others.
	Unknown []logs.Place `json:"unknown,omitempty"`
	// Skipped records and files.
	Skipped []logs.Skipped `json:"skipped,omitempty"`
	// Written to the store.
	Written store.Written `json:"written"`
}

// unknownPlaces is how many requests with unknown URIs or methods are named.
const unknownPlaces = 5

const (
	// importBatch is how many records go from a reader to the writer at once.
	importBatch = 512
	// batchBytes bounds the strings of a batch but for its last record's: five hundred
	// usual records have fewer.
	batchBytes = 256 << 10
	// aheadBatches are how many of a file may wait until the files before are in the
	// store: 32,768 records, and about 10 MB. Strings of more than aheadBytes do not.
	aheadBatches = 64
	aheadBytes   = 16 << 20
	// maxReaders bounds how many files are read at once: one goroutine adds their records,
	// which takes a good half of the time that reading takes.
	maxReaders = 4
)

// placed is a record and where it came from.
type placed struct {
	rec trace.Record
	src logs.Source
}

// bytes is how many the strings of the record have.
func (p *placed) bytes() int {
	r := &p.rec
	return len(r.Host) + len(r.Method) + len(r.RemoteAddr) + len(r.User) + len(r.URI) + len(r.Proto) +
		len(r.UserAgent) + len(r.Referer) + len(r.Digest) + len(r.ID)
}

// batch is records that go from a reader to the writer.
type batch struct {
	records *[]placed
	// room is what it takes of its file's aheadBytes.
	room int64
}

// Import reads files into a store and closes w. Files are read, their records added and
// days written at the same time, but the store is the same as if one file were read
// after the other. After an error the result tells what was done before it, and w has
// published what it could.
func Import(ctx context.Context, in *logs.Input, files []string, w *store.Writer, o *ImportOptions) (*Imported, error) {
	im := importer{in: in, w: w, out: Imported{Zones: map[string]int64{}}}
	if o != nil {
		im.o = *o
	}
	if im.o.Zone == "" {
		im.o.Zone = defaultZone
	}
	files = in.Choose(ctx, files)
	// Read at once are the file whose records are added, and those that wait here.
	order := make(chan *reading, min(runtime.GOMAXPROCS(0), maxReaders)-1)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(order)
		for _, file := range files {
			r := newReading(in, file)
			select {
			case order <- r:
			case <-gctx.Done():
				return context.Cause(gctx)
			}
			g.Go(func() error {
				r.run(gctx, &im.batches)
				return nil
			})
		}
		return nil
	})
	g.Go(func() error {
		for r := range order {
			if err := im.file(r); err != nil {
				return err
			}
		}
		return nil
	})
	err := g.Wait()
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	im.countZone()
	im.counts.Fill(&im.out.Counts)
	im.out.Written = w.Written()
	im.out.Skipped = in.Skipped()
	if im.out.Records == 0 && err == nil {
		err = ErrNothing
	}
	return &im.out, err
}

// ErrNothing says that an import or a recording read no request.
var ErrNothing = errors.New("no request was read from the logs; name their format with --format if it was not detected; docs/trace.md shows a line of each format")

// reading is a file that is being read.
type reading struct {
	name    string
	in      *logs.Input // a part for this file
	turn    chan struct{}
	batches chan batch
	room    *semaphore.Weighted // of the strings in batches, in bytes
	err     error               // once batches is closed
}

func newReading(in *logs.Input, file string) *reading {
	turn := make(chan struct{})
	return &reading{name: file, in: in.Part(turn), turn: turn, batches: make(chan batch, aheadBatches),
		room: semaphore.NewWeighted(aheadBytes)}
}

// run reads the file into batches, whose memory is taken from free.
func (r *reading) run(ctx context.Context, free *sync.Pool) {
	defer close(r.batches)
	records, size := newBatch(free), 0
	send := func() error {
		b := batch{records, min(int64(size), aheadBytes)}
		if err := r.room.Acquire(ctx, b.room); err != nil {
			return context.Cause(ctx)
		}
		select {
		case r.batches <- b:
			records, size = newBatch(free), 0
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.err = r.in.ReadFile(ctx, r.name, func(src logs.Source, rec *trace.Record) error {
		if !store.Storable(rec.Time) {
			r.in.Skip(trace.BadTime, src.File, src.Record, fmt.Sprintf("%v: %v", store.ErrTime, rec.Time))
			return nil
		}
		n := len(*records) // there is room for one more
		*records = (*records)[:n+1]
		p := &(*records)[n]
		p.rec, p.src = *rec, src
		if size += p.bytes(); n+1 == importBatch || size >= batchBytes {
			return send()
		}
		return nil
	})
	if err := send(); r.err == nil {
		r.err = err
	}
}

// newBatch is an empty batch with room for importBatch records.
func newBatch(free *sync.Pool) *[]placed {
	if b, ok := free.Get().(*[]placed); ok {
		*b = (*b)[:0]
		return b
	}
	b := make([]placed, 0, importBatch)
	return &b
}

type importer struct {
	in      *logs.Input
	w       *store.Writer
	o       ImportOptions
	out     Imported
	batches sync.Pool // of *[]placed
	// from is the last record's file, zone its zone.
	from, zone string
	inZone     int64 // records of it that Zones does not have yet
	counts     store.Tally
}

// file adds the records of a file, after those of the files before.
func (im *importer) file(r *reading) error {
	close(r.turn)
	for b := range r.batches {
		if err := im.add(*b.records); err != nil {
			return err
		}
		im.batches.Put(b.records)
		r.room.Release(b.room)
	}
	im.in.Join(r.in)
	return r.err
}

// add adds a batch to the store.
func (im *importer) add(batch []placed) error {
	for i := range batch {
		p := &batch[i]
		if p.src.File != im.from || im.zone == "" {
			im.countZone()
			im.from, im.zone = p.src.File, im.o.Zone
			if z := logs.ZoneOf(im.from); z != "" && !im.o.ForceZone {
				im.zone = z
			}
		}
		if im.o.Change != nil {
			im.o.Change(&p.rec)
		}
		kind, err := im.w.AddKind(im.zone, &p.rec)
		if err != nil {
			return err
		}
		im.count(p, kind)
	}
	if im.o.Progress != nil {
		im.o.Progress(im.out.Records)
	}
	return nil
}

// countZone counts the records of the zone since it was called last.
func (im *importer) countZone() {
	if im.inZone > 0 {
		im.out.Zones[im.zone] += im.inZone
		im.inZone = 0
	}
}

// count counts a record.
func (im *importer) count(p *placed, kind trace.Kind) {
	im.out.Records++
	im.inZone++
	method := store.ParseMethod(p.rec.Method)
	im.counts.Add(method, kind, p.rec.Status)
	if (kind == trace.Other || method == store.OtherMethod) && len(im.out.Unknown) < unknownPlaces {
		im.out.Unknown = append(im.out.Unknown, logs.Place{File: p.src.File, Record: p.src.Record,
			Why: strings.Trim(fmt.Sprintf("%.20q", p.rec.Method), `"`) + fmt.Sprintf(" %.100q", p.rec.URI)})
	}
}
