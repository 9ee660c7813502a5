package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/trace"
)

// ImportOptions say how logs become a store. The zero value works.
type ImportOptions struct {
	// Zone of records in files whose name does not tell; "" is "default".
	Zone string
	// ForceZone gives Zone to all records.
	ForceZone bool
	// Change is called for each record before it is added, and may change it; nil for
	// none.
	Change func(*trace.Record)
	// Progress is called now and then with the number of records that were added; nil
	// for nobody. It is called by one goroutine at a time.
	Progress func(records int64)
}

// defaultZone is the zone of logs that do not tell theirs.
const defaultZone = "default"

// Counts say what requests there were.
type Counts struct {
	Records  int64            `json:"records"`
	Kinds    map[string]int64 `json:"kinds"`
	Methods  map[string]int64 `json:"methods"`
	Statuses map[int]int64    `json:"statuses"`
	// Mix is how many requests there are of each method and kind, as "GET blob".
	Mix map[string]int64 `json:"mix"`
}

// tally counts requests without looking anything up.
type tally struct {
	mix      [DELETE + 1][trace.Catalog + 1]int64
	statuses [1000]int64
}

func (t *tally) add(m Method, k trace.Kind, status int) {
	t.mix[m][k]++
	if uint(status) < uint(len(t.statuses)) {
		t.statuses[status]++
	} else {
		t.statuses[0]++
	}
}

// fill sets all of the counts but for Records.
func (t *tally) fill(c *Counts) {
	*c = Counts{Records: c.Records, Kinds: map[string]int64{}, Methods: map[string]int64{}, Statuses: map[int]int64{}, Mix: map[string]int64{}}
	for m := range t.mix {
		for k, n := range t.mix[m] {
			if n > 0 {
				method, kind := Method(m).String(), trace.Kind(k).String()
				c.Kinds[kind] += n
				c.Methods[method] += n
				c.Mix[method+" "+kind] += n
			}
		}
	}
	for status, n := range t.statuses {
		if n > 0 {
			c.Statuses[status] = n
		}
	}
}

// Imported is what an import has done.
type Imported struct {
	Counts
	// Zones is how many records each zone got.
	Zones map[string]int64 `json:"zones"`
	// Unknown are the first few URIs that are none of the protocol's, and methods that
	// no registry knows, with where they are. They are counted and stored like others.
	Unknown []trace.Place `json:"unknown,omitempty"`
	// Skipped records and files.
	Skipped []trace.Skipped `json:"skipped,omitempty"`
	// Written to the store.
	Written Written `json:"written"`
}

// unknownPlaces is how many requests with unknown URIs or methods are named.
const unknownPlaces = 5

// importBatch is how many records go from the reader to the writer at once.
const importBatch = 512

// placed is a record and where it came from.
type placed struct {
	rec trace.Record
	src trace.Source
}

// Import reads files into a store and closes w. Reading and writing go on at the same
// time. After an error the result tells what was done before it, and w has published
// what it could.
func Import(ctx context.Context, in *trace.Input, files []string, w *Writer, o *ImportOptions) (*Imported, error) {
	im := importer{in: in, w: w, out: Imported{Zones: map[string]int64{}}}
	if o != nil {
		im.o = *o
	}
	if im.o.Zone == "" {
		im.o.Zone = defaultZone
	}
	const ahead = 4 // batches
	full, empty := make(chan []placed, ahead), make(chan []placed, ahead+2)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(full)
		return im.read(gctx, files, full, empty)
	})
	g.Go(func() error {
		for batch := range full {
			if err := im.add(batch); err != nil {
				return err
			}
			select {
			case empty <- batch[:0]:
			default:
			}
		}
		return nil
	})
	err := g.Wait()
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	im.counts.fill(&im.out.Counts)
	im.out.Written = w.Written()
	im.out.Skipped = in.Skipped()
	return &im.out, err
}

type importer struct {
	in  *trace.Input
	w   *Writer
	o   ImportOptions
	out Imported
	// file is the last record's file, zone its zone.
	file, zone string
	counts     tally
}

// read reads the files into batches.
func (im *importer) read(ctx context.Context, files []string, full chan<- []placed, empty <-chan []placed) error {
	var batch []placed
	send := func() error {
		select {
		case full <- batch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case batch = <-empty:
		default:
			batch = make([]placed, 0, importBatch)
		}
		return nil
	}
	for _, file := range files {
		err := im.in.ReadFile(ctx, file, func(src trace.Source, r *trace.Record) error {
			if !storable(r.Time) {
				im.in.Skip(trace.BadTime, src.File, src.Record, fmt.Sprintf("%v: %v", ErrTime, r.Time))
				return nil
			}
			if batch = append(batch, placed{*r, src}); len(batch) >= importBatch {
				return send()
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return send()
}

// storable tells whether a Writer takes a time.
func storable(t time.Time) bool { return t.Unix() >= 0 && t.Year() <= maxYear }

// add adds a batch to the store.
func (im *importer) add(batch []placed) error {
	for i := range batch {
		p := &batch[i]
		if p.src.File != im.file || im.zone == "" {
			im.file, im.zone = p.src.File, im.o.Zone
			if z := trace.ZoneOf(im.file); z != "" && !im.o.ForceZone {
				im.zone = z
			}
		}
		if im.o.Change != nil {
			im.o.Change(&p.rec)
		}
		kind, err := im.w.add(im.zone, &p.rec)
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

// count counts a record.
func (im *importer) count(p *placed, kind trace.Kind) {
	im.out.Records++
	im.out.Zones[im.zone]++
	method := ParseMethod(p.rec.Method)
	im.counts.add(method, kind, p.rec.Status)
	if (kind == trace.Other || method == OtherMethod) && len(im.out.Unknown) < unknownPlaces {
		im.out.Unknown = append(im.out.Unknown, trace.Place{File: p.src.File, Record: p.src.Record,
			Why: strings.Trim(fmt.Sprintf("%.20q", p.rec.Method), `"`) + fmt.Sprintf(" %.100q", p.rec.URI)})
	}
}
