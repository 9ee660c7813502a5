// Package logs reads the logs of registries and proxies as [trace.Record]s. It detects what a file
// is, and removes what archives, compression and log collectors put around its lines. Package
// formats has the formats of lines.
package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/formats"
	"example.org/slipway/workload/trace/logs/internal/tenfield"
)

// InputOptions say how logs are read. The zero value works.
type InputOptions struct {
	// Format is the format of all files. If it is "", the format of each file is detected from its
	// first lines.
	Format trace.Format
	// Start is the time of the first URI of [formats.URIs]; zero is 2000-01-01.
	Start time.Time
	// Rate is the number of URIs of [formats.URIs] per second; 0 means 10.
	Rate float64
	// Now is the time of reading, for logs whose times have no year. Zero means the clock's time.
	Now time.Time
	// Identify gives records without an id one that is derived from their content, so that they are
	// recognised in another copy of the log.
	Identify bool
}

// Input reads logs. Its methods must not run concurrently, except [Input.Read], [Input.Skip] and
// [Input.Skipped]. Files that are read at the same time have parts, see [Input.Part].
type Input struct {
	o InputOptions
	// turn is closed when the files before have been read. It is nil if there are none.
	turn <-chan struct{}
	uris *uriParser
	// interned holds strings of files in trace.FormatTrace, which mostly have the same ones.
	interned *tenfield.Interner
	read     *atomic.Int64
	// identified counts records that got an id.
	identified *atomic.Int64
	mu         sync.Mutex
	skipped    map[trace.Bad]*Skipped
	spare      []*tenfield.Interner // of parts that were joined
}

// NewInput returns an Input that has read nothing yet.
func NewInput(o *InputOptions) *Input {
	in := &Input{skipped: map[trace.Bad]*Skipped{}, read: new(atomic.Int64), identified: new(atomic.Int64), interned: new(tenfield.Interner)}
	if o != nil {
		in.o = *o
	}
	if in.o.Start.IsZero() {
		in.o.Start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if !(in.o.Rate > 0) {
		in.o.Rate = 10
	}
	if in.o.Now.IsZero() {
		in.o.Now = time.Now()
	}
	in.uris = &uriParser{start: in.o.Start, rate: in.o.Rate}
	return in
}

// Read returns the number of bytes of files that have been read, as they are on disk.
func (in *Input) Read() int64 { return in.read.Load() }

// Identified returns the number of records that got an id, see [InputOptions].
func (in *Input) Identified() int64 { return in.identified.Load() }

// ReadFile calls fn for the records of a file, in their order in the file. The file may
// be compressed with gzip, zstd, xz or bzip2. It may be a tar archive of files that may
// be compressed in turn. A record is valid until fn returns. Skipped records are counted.
// The error is fn's, unchanged, or an error of reading the file, or says that ctx is
// done.
func (in *Input) ReadFile(ctx context.Context, path string, fn func(Source, *trace.Record) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer f.Close()
	return in.ReadFrom(ctx, f, path, fn)
}

// ReadFrom is like ReadFile, for an open reader. name is its name in sources.
func (in *Input) ReadFrom(ctx context.Context, r io.Reader, name string, fn func(Source, *trace.Record) error) error {
	raw := &rawReader{r: r, n: in.read, ended: ctx.Err}
	err := in.stream(ctx, raw, name, 0, fn)
	if cerr := ctx.Err(); cerr != nil && errors.Is(raw.err, cerr) {
		return cerr
	}
	if raw.err != nil { // whatever the decoders have turned it into
		return fmt.Errorf("read log %s: %w", name, raw.err)
	}
	return err
}

// rawReader counts bytes and keeps the error of the file itself.
type rawReader struct {
	r io.Reader
	n *atomic.Int64
	// ended returns why reading must stop: a line may be as long as the file.
	ended func() error
	err   error
}

func (r *rawReader) Read(b []byte) (int, error) {
	if r.err = r.ended(); r.err != nil {
		return 0, r.err
	}
	n, err := r.r.Read(b)
	r.n.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// stickyReader keeps returning an error. bufio's Peek forgets it, and some decoders return it once
// and then report success.
type stickyReader struct {
	r   io.Reader
	err error
}

func (r *stickyReader) Read(b []byte) (n int, err error) {
	if r.err == nil {
		n, r.err = r.r.Read(b)
	}
	return n, r.err
}

// records calls fn for what a decoder reads.
func (in *Input) records(ctx context.Context, dec decoder, name string, fn func(Source, *trace.Record) error) error {
	var rec trace.Record
	var ids *identifier
	if in.o.Identify {
		ids = &identifier{}
	}
	for src := (Source{File: name, Record: 1}); ; src.Record++ {
		if src.Record%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		err := dec.Read(&rec)
		var skip *trace.BadRecord
		switch {
		case err == nil:
			if ids != nil && rec.ID == "" {
				rec.ID = ids.id(&rec)
				in.identified.Add(1)
			}
			if err := fn(src, &rec); err != nil {
				return err
			}
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &skip):
			in.Skip(skip.Kind, name, src.Record, skip.Why)
		case errors.As(err, new(*unknownError)):
			in.Skip(trace.BadFile, name, 0, err.Error())
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		default: // the compressed data is damaged or cut short
			in.Skip(trace.BadFile, name, src.Record, err.Error())
			return nil
		}
	}
}

// decoder reads records of a format. A badRecord does not end it; io.EOF and all other errors do.
type decoder interface {
	Read(*trace.Record) error
}

// decoder returns the decoder for a file that begins with head.
func (in *Input) decoder(ctx context.Context, r text, head []byte) (decoder, error) {
	format := in.o.Format
	if format == "" && tenfield.Begins(head) || format == trace.FormatTrace && bareObjects(head, in.o.Now) {
		return tenfield.NewDecoder(r.unbuffered(), in.interned), nil
	}
	begin := func() (func([]byte, *trace.Record) error, error) {
		if in.turn != nil { // its times continue where the times of the file before end
			select {
			case <-in.turn:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return in.uris.parse, nil
	}
	dec := newLineDecoder(r, format, in.o.Now)
	if format == formats.URIs {
		return dec, dec.readURIs(begin)
	}
	dec.uris = begin
	return dec, nil
}

// bareObjects reports whether a file of the ten-field form has its objects without anything from a
// collector around them.
func bareObjects(head []byte, now time.Time) bool {
	if tenfield.Begins(head) {
		return true
	}
	first, _, _ := bytes.Cut(bytes.TrimSpace(head), []byte("\n"))
	var l line
	l.unwrap(first, now)
	return len(l.Text) == 0 || l.Text[0] == '{' && len(l.Text) == len(bytes.TrimPrefix(bytes.TrimSpace(first), []byte("\xef\xbb\xbf")))
}
