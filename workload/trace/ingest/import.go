// Package ingest brings logs into a store of traces: whole files, or a log that is still being
// written. It can replace names by pseudonyms.
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
	// Zone is the zone of records in files whose name does not say it; "" is "default".
	Zone string
	// ForceZone gives Zone to all records.
	ForceZone bool
	// Change, if not nil, is called for each record before it is added, and may change it. Only one
	// goroutine at a time calls it, in the order of the records.
	Change func(*trace.Record)
	// Progress, if not nil, is called now and then with the number of records added so far. Only
	// one goroutine at a time calls it.
	Progress func(records int64)
}

// defaultZone is the zone of logs that do not name theirs.
const defaultZone = "default"

// Imported says what an import has done.
type Imported struct {
	store.Counts
	// Zones holds the number of records of each zone.
	Zones map[string]int64 `json:"zones"`
	// Unknown holds the first few URIs outside the protocol, and methods that no registry knows,
	// with their places. They are counted and stored like others.
	Unknown []logs.Place `json:"unknown,omitempty"`
	// Skipped holds the skipped records and files.
	Skipped []logs.Skipped `json:"skipped,omitempty"`
	// Written says what was written to the store.
	Written store.Written `json:"written"`
}

// unknownPlaces is the maximum number of requests with unknown URIs or methods that are listed.
const unknownPlaces = 5

const (
	// importBatch is the number of records that go from a reader to the writer at once.
	importBatch = 512
	// batchBytes bounds the strings of a batch, except the strings of its last record.
	// Five hundred ordinary records have fewer bytes.
	batchBytes = 256 << 10
	// aheadBatches is the number of batches of a file that may wait until the files before it are
	// in the store: 32,768 records, or about 10 MB. Strings beyond aheadBytes do not wait.
	aheadBatches = 64
	aheadBytes   = 16 << 20
	// maxReaders bounds the number of files that are read at the same time. One goroutine adds
	// their records, which takes a good half of the time that reading takes.
	maxReaders = 4
)

// placed is a record with its place in a log.
type placed struct {
	rec trace.Record
	src logs.Source
}

// bytes returns the number of bytes in the record's strings.
func (p *placed) bytes() int {
	r := &p.rec
	return len(r.Host) + len(r.Method) + len(r.RemoteAddr) + len(r.User) + len(r.URI) + len(r.Proto) +
		len(r.UserAgent) + len(r.Referer) + len(r.Digest) + len(r.ID)
}

// batch is records that go from a reader to the writer.
type batch struct {
	records *[]placed
	// room is the part of its file's aheadBytes that it takes.
	room int64
}

// Import reads files into a store and closes w. It reads files, adds their records and writes days
// at the same time, but the store is the same as if one file were read after the other. After an
// error, the result says what was done before it, and w has published what it could.
func Import(ctx context.Context, in *logs.Input, files []string, w *store.Writer, o *ImportOptions) (*Imported, error) {
	im := importer{in: in, w: w, out: Imported{Zones: map[string]int64{}}}
	if o != nil {
		im.o = *o
	}
	if im.o.Zone == "" {
		im.o.Zone = defaultZone
	}
	files = in.Choose(ctx, files)
	// The file whose records are added, and the files that wait here, are read at the
	// same time.
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

// ErrNothing says that an import or a recording found no request.
var ErrNothing = errors.New("no request was read from the logs; name their format with --format if it was not detected; docs/trace.md shows a line of each format")

// reading is a file that is being read.
type reading struct {
	name    string
	in      *logs.Input // a part for this file
	turn    chan struct{}
	batches chan batch
	room    *semaphore.Weighted // of the strings in batches, in bytes
	err     error               // valid once batches is closed
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

// newBatch returns an empty batch with room for importBatch records.
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
	inZone     int64 // records of it that Zones does not count yet
	counts     store.Tally
}

// file adds the records of a file, after the records of the files before.
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

// countZone counts the zone's records since the last call.
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
