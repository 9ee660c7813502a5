package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bad says why a record was skipped.
type Bad string

// Why records are skipped.
const (
	BadSyntax    Bad = "syntax error"
	BadType      Bad = "wrong type"
	BadMissing   Bad = "missing field"
	BadNumber    Bad = "impossible number"
	BadTime      Bad = "no time"
	BadLength    Bad = "too long"
	BadTruncated Bad = "truncated"
	// BadLine is a line that cannot be of the format, such as one with a field that cannot
	// be a client, a time or a size.
	BadLine Bad = "not understood"
	// BadRepeated is a file that repeats the requests of another.
	BadRepeated Bad = "logged elsewhere too"
	// BadFile is a file that is damaged, or whose format is not known.
	BadFile Bad = "unreadable file"
	// BadOther is a line that tells of something else than a request, and no error.
	BadOther Bad = "not a request"
)

// badRecord is the error of a record that is skipped.
type badRecord struct {
	kind Bad
	why  string
}

func (e *badRecord) Error() string { return string(e.kind) + ": " + e.why }

// Place is where a record was skipped.
type Place struct {
	File string `json:"file"`
	// Record is its number in the file, from 1, among all that were read or skipped.
	Record int64  `json:"record"`
	Why    string `json:"why"`
}

// Skipped is how often something was skipped for one reason.
type Skipped struct {
	Kind  Bad   `json:"kind"`
	Count int64 `json:"count"`
	// First are the first few.
	First []Place `json:"first"`
}

// firstPlaces is how many places of each kind are named.
const firstPlaces = 5

// InputOptions say how logs are read. The zero value works.
type InputOptions struct {
	// Format of all files; "" finds it out for each by its first lines.
	Format Format
	// Start is the time of the first URI of FormatURIs; zero is 2000-01-01.
	Start time.Time
	// Rate is how many URIs of FormatURIs are a second; 0 is 10.
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
	// interned are strings of files in FormatTrace, which have about the same.
	interned *interner
	read     *atomic.Int64
	// identified counts records that got an id.
	identified *atomic.Int64
	mu         sync.Mutex
	skipped    map[Bad]*Skipped
	spare      []*interner // of parts that were joined
}

// NewInput returns an Input that has read nothing.
func NewInput(o *InputOptions) *Input {
	in := &Input{skipped: map[Bad]*Skipped{}, read: new(atomic.Int64), identified: new(atomic.Int64), interned: new(interner)}
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

// Skipped returns what was skipped so far, most first.
func (in *Input) Skipped() []Skipped {
	in.mu.Lock()
	defer in.mu.Unlock()
	out := make([]Skipped, 0, len(in.skipped))
	for _, s := range in.skipped {
		v := *s
		v.First = slices.Clone(s.First)
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Skipped) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(string(a.Kind), string(b.Kind)))
	})
	return out
}

// Skip counts a record that the caller could not use.
func (in *Input) Skip(kind Bad, file string, record int64, why string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.skippedOf(kind)
	s.Count++
	if len(s.First) < firstPlaces {
		s.First = append(s.First, Place{file, record, why})
	}
}

// skippedOf is what was skipped for one reason. The mutex is held.
func (in *Input) skippedOf(kind Bad) *Skipped {
	s := in.skipped[kind]
	if s == nil {
		s = &Skipped{Kind: kind}
		in.skipped[kind] = s
	}
	return s
}

// Source is where a record comes from.
type Source struct {
	// File is the file's name; that of an archive and of the file in it, with a colon
	// between.
	File string
	// Record is the record's number in the file, from 1.
	Record int64
}

// Files lists the files of paths: a directory stands for all regular files below it
// whose names do not begin with a dot, in order of their names; whatever else is named
// itself, such as a pipe, is taken. The size is that of all regular files. That there is
// none at all is an error.
func Files(paths []string) (files []string, size int64, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, 0, fmt.Errorf("list logs: %w", err)
		}
		if !info.IsDir() {
			files = append(files, path)
			if info.Mode().IsRegular() {
				size += info.Size()
			}
			continue
		}
		path = filepath.Clean(path) + string(filepath.Separator) // what a link points at
		err = filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if file != path && strings.HasPrefix(d.Name(), ".") {
				if d.IsDir() {
					return filepath.SkipDir
				}
				return nil
			}
			info, err := os.Stat(file) // of what a link points at
			if err != nil {
				return err
			}
			if info.Mode().IsRegular() {
				files, size = append(files, file), size+info.Size()
			}
			return nil
		})
		if err != nil {
			return nil, 0, fmt.Errorf("list logs: %w", err)
		}
	}
	if len(files) == 0 {
		return nil, 0, fmt.Errorf("list logs: there are no files in %s", strings.Join(paths, ", "))
	}
	return files, size, nil
}

// ReadFile calls fn for the records of a file, in the order in which they lie there.
// The file may be compressed with gzip, zstd, xz or bzip2, and may be a tar archive, of
// files that are compressed in turn. The record is valid until fn returns. What is skipped is
// counted; the error is one of fn, as it is, or of reading the file, or that ctx is
// done.
func (in *Input) ReadFile(ctx context.Context, path string, fn func(Source, *Record) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer f.Close()
	return in.ReadFrom(ctx, f, path, fn)
}

// ReadFrom is ReadFile for something that is open; the name is that in sources.
func (in *Input) ReadFrom(ctx context.Context, r io.Reader, name string, fn func(Source, *Record) error) error {
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
func (in *Input) records(ctx context.Context, dec decoder, name string, fn func(Source, *Record) error) error {
	var rec Record
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
		err := dec.read(&rec)
		var skip *badRecord
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
			in.Skip(skip.kind, name, src.Record, skip.why)
		case errors.As(err, new(*unknownError)):
			in.Skip(BadFile, name, 0, err.Error())
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		default: // what was compressed is damaged or cut short
			in.Skip(BadFile, name, src.Record, err.Error())
			return nil
		}
	}
}

// decoder reads records of a format. A badRecord is no end; io.EOF and all others are.
type decoder interface {
	read(*Record) error
}

// decoder returns the one for a file that begins with head.
func (in *Input) decoder(ctx context.Context, r text, head []byte) (decoder, error) {
	format := in.o.Format
	if format == "" && beginsTrace(head) || format == FormatTrace && bareObjects(head, in.o.Now) {
		return newJSONDecoder(r.unbuffered(), in.interned), nil
	}
	begin := func() (func([]byte, *Record) error, error) {
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
	if format == FormatURIs {
		return dec, dec.readURIs(begin)
	}
	dec.uris = begin
	return dec, nil
}

// ibmName is how the files of the IBM traces are called.
var ibmName = regexp.MustCompile(`(?:^|[/:])([A-Za-z0-9-]{1,64})-logstash-\d{4}\.\d{2}\.\d{2}-\d+\.json(?:\.(?:gz|zst|xz|bz2))?$`)

// ZoneOf returns the zone that a file of the IBM traces is of, by its name, and "" for
// other files. The production zones are called without their prefix: prod-dal09 is
// dal09, stage-dal09 is stage-dal09.
func ZoneOf(file string) string {
	m := ibmName.FindStringSubmatch(file)
	if m == nil {
		return ""
	}
	return strings.TrimPrefix(m[1], "prod-")
}
