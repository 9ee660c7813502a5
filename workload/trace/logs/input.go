// Package logs reads the logs of registries and proxies as [trace.Record]s: it detects
// what a file is, and takes off what archives, compression and collectors of logs put
// around its lines. The formats of lines are in package formats.
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
	// Format of all files; "" finds it out for each by its first lines.
	Format trace.Format
	// Start is the time of the first URI of [formats.URIs]; zero is 2000-01-01.
	Start time.Time
	// Rate is how many URIs of [formats.URIs] are a second; 0 is 10.
	Rate float64
	// Now is when the logs are read, for those whose times have no year; zero is the
	// clock's time.
	Now time.Time
	// Identify gives records without an id one that is made of their content, so that they
	// are recognised in another copy of the log.
	Identify bool
}

// Input reads logs. Its methods must not run concurrently, but for [Input.Read],
// [Input.Skip] and [Input.Skipped]; files that are read at once have parts, see
// [Input.Part].
type Input struct {
	o InputOptions
	// turn is closed when the files before were read; nil for what has none before it.
	turn <-chan struct{}
	uris *uriParser
	// interned are strings of files in trace.FormatTrace, which have about the same.
	interned *tenfield.Interner
	read     *atomic.Int64
	// identified counts records that got an id.
	identified *atomic.Int64
	mu         sync.Mutex
	skipped    map[trace.Bad]*Skipped
	spare      []*tenfield.Interner // of parts that were joined
}

// NewInput returns an Input that has read nothing.
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

// Read is how many bytes of files have been read, as they lie there.
func (in *Input) Read() int64 { return in.read.Load() }

// Identified returns the number of records that got an id, see [InputOptions].
func (in *Input) Identified() int64 { return in.identified.Load() }

// ReadFile calls fn for the records of a file, in the order in which they lie there.
// The file may be compressed with gzip, zstd, xz or bzip2, and may be a tar archive, of
// files that are compressed in turn. The record is valid until fn returns. What is skipped is
// counted; the error is one of fn, as it is, or of reading the file, or that ctx is
// done.
func (in *Input) ReadFile(ctx context.Context, path string, fn func(Source, *trace.Record) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer f.Close()
	return in.ReadFrom(ctx, f, path, fn)
}

// ReadFrom is ReadFile for something that is open; the name is that in sources.
func (in *Input) ReadFrom(ctx context.Context, r io.Reader, name string, fn func(Source, *trace.Record) error) error {
	raw := &rawReader{r: r, n: in.read, ended: ctx.Err}
	err := in.stream(ctx, raw, name, 0, fn)
	if cerr := ctx.Err(); cerr != nil && errors.Is(raw.err, cerr) {
		return cerr
	}
	if raw.err != nil { // whatever the decoders have made of it
		return fmt.Errorf("read log %s: %w", name, raw.err)
	}
	return err
}

// rawReader counts bytes and keeps the error of the file itself.
type rawReader struct {
	r io.Reader
	n *atomic.Int64
	// ended tells why no more is to be read: a line may be as long as the file.
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

// stickyReader returns an error again and again. Peek of bufio forgets it, and some
// decoders say it once and that all is well after that.
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
		default: // what was compressed is damaged or cut short
			in.Skip(trace.BadFile, name, src.Record, err.Error())
			return nil
		}
	}
}

// decoder reads records of a format. A badRecord is no end; io.EOF and all others are.
type decoder interface {
	Read(*trace.Record) error
}

// decoder returns the one for a file that begins with head.
func (in *Input) decoder(ctx context.Context, r text, head []byte) (decoder, error) {
	format := in.o.Format
	if format == "" && tenfield.Begins(head) || format == trace.FormatTrace && bareObjects(head, in.o.Now) {
		return tenfield.NewDecoder(r.unbuffered(), in.interned), nil
	}
	begin := func() (func([]byte, *trace.Record) error, error) {
		if in.turn != nil { // its times go on where those of the file before end
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

// bareObjects reports whether a file of the ten-field form has its objects without
// anything that a collector put around them.
func bareObjects(head []byte, now time.Time) bool {
	if tenfield.Begins(head) {
		return true
	}
	first, _, _ := bytes.Cut(bytes.TrimSpace(head), []byte("\n"))
	var l line
	l.unwrap(first, now)
	return len(l.Text) == 0 || l.Text[0] == '{' && len(l.Text) == len(bytes.TrimPrefix(bytes.TrimSpace(first), []byte("\xef\xbb\xbf")))
}
