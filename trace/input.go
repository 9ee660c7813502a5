package trace

import (
	"archive/tar"
	"bufio"
	"bytes"
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

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// More formats, which an [Input] reads and nothing writes.
const (
	// FormatDistribution is the JSON log of Distribution.
	FormatDistribution Format = "distribution"
	// FormatNginx is Combined Log Format of nginx, with $request_time at the end or
	// without.
	FormatNginx Format = "nginx"
	// FormatHarbor is the access log of Harbor's proxy.
	FormatHarbor Format = "harbor"
	// FormatURIs is one URI per line and nothing else.
	FormatURIs Format = "uris"
)

// ParseInputFormat checks the name of a format that an [Input] reads; "" and "auto"
// mean that it finds out by itself.
func ParseInputFormat(s string) (Format, error) {
	switch f := Format(s); f {
	case "", "auto":
		return "", nil
	case FormatTrace, FormatDistribution, FormatCLF, FormatNginx, FormatHarbor, FormatURIs:
		return f, nil
	}
	return "", fmt.Errorf("unknown format %q: use auto, trace, distribution, clf, nginx, harbor or uris", s)
}

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
	mu       sync.Mutex
	skipped  map[Bad]*Skipped
	spare    []*interner // of parts that were joined
}

// NewInput returns an Input that has read nothing.
func NewInput(o *InputOptions) *Input {
	in := &Input{skipped: map[Bad]*Skipped{}, read: new(atomic.Int64), interned: new(interner)}
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
// The file may be compressed with gzip or zstd, and may be a tar archive, of files that
// are compressed in turn. The record is valid until fn returns. What is skipped is
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

const (
	// sniffSize is how much of a file is looked at to find out what it is, in bytes.
	sniffSize = 64 << 10
	// maxNesting of compressed files in archives in compressed files.
	maxNesting = 4
	// maxWindow bounds the memory of a zstd decoder: 128 MiB is what zstd --long
	// takes by default.
	maxWindow = 128 << 20
)

// stream reads a file, or what was compressed or archived in one.
func (in *Input) stream(ctx context.Context, r io.Reader, name string, depth int, fn func(Source, *Record) error) error {
	br := bufio.NewReaderSize(&stickyReader{r: r}, sniffSize)
	head, _ := br.Peek(sniffSize) // an error comes again when it is read
	if depth < maxNesting {
		switch {
		case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
			z, err := gzip.NewReader(br)
			if err != nil {
				in.Skip(BadFile, name, 0, err.Error())
				return nil
			}
			defer z.Close()
			return in.stream(ctx, z, name, depth+1, fn)
		case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}), skippableFrame(head):
			z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
			if err != nil {
				return fmt.Errorf("read log %s: %w", name, err)
			}
			defer z.Close()
			return in.stream(ctx, z, name, depth+1, fn)
		case len(head) > 262 && string(head[257:262]) == "ustar":
			return in.archive(ctx, br, name, depth+1, fn)
		}
	}
	if len(bytes.TrimSpace(head)) == 0 {
		if _, err := br.ReadByte(); err != nil && !errors.Is(err, io.EOF) {
			in.Skip(BadFile, name, 0, err.Error())
		}
		return nil // empty
	}
	dec, err := in.decoder(ctx, br, head)
	if cerr := ctx.Err(); err != nil && cerr != nil {
		return cerr
	}
	if err != nil {
		in.Skip(BadFile, name, 0, err.Error())
		return nil
	}
	return in.records(ctx, dec, name, fn)
}

// skippableFrame tells whether a file begins with a frame of zstd that is not data, as
// those of programs that compress in parallel do.
func skippableFrame(head []byte) bool {
	return len(head) > 3 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18})
}

// archive reads the regular files of a tar archive.
func (in *Input) archive(ctx context.Context, r io.Reader, name string, depth int, fn func(Source, *Record) error) error {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			in.Skip(BadFile, name, 0, err.Error())
			return nil
		}
		if h.Typeflag != tar.TypeReg || strings.HasPrefix(filepath.Base(h.Name), ".") {
			continue
		}
		if err := in.stream(ctx, tr, name+":"+h.Name, depth, fn); err != nil {
			return err
		}
	}
}

// records calls fn for what a decoder reads.
func (in *Input) records(ctx context.Context, dec decoder, name string, fn func(Source, *Record) error) error {
	var rec Record
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
			if err := fn(src, &rec); err != nil {
				return err
			}
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &skip):
			in.Skip(skip.kind, name, src.Record, skip.why)
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
func (in *Input) decoder(ctx context.Context, r io.Reader, head []byte) (decoder, error) {
	format := in.o.Format
	if format == "" {
		if format = detect(head); format == "" {
			return nil, fmt.Errorf("its format is not known; it begins with %.60q", bytes.TrimSpace(head))
		}
	}
	switch format {
	case FormatTrace:
		return newJSONDecoder(r, in.interned), nil
	case FormatDistribution:
		return newLineDecoder(r, parseDistribution), nil
	case FormatCLF:
		return newLineDecoder(r, parseCLF), nil
	case FormatNginx:
		return newLineDecoder(r, parseNginx), nil
	case FormatHarbor:
		p := &harborParser{in.o.Now}
		return newLineDecoder(r, p.parse), nil
	case FormatURIs:
		if in.turn != nil { // its times go on where those of the file before end
			select {
			case <-in.turn:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return newLineDecoder(r, in.uris.parse), nil
	}
	return nil, fmt.Errorf("unknown format %q", format)
}

// detect tells the format of a file by its first lines, "" if it is none of ours.
func detect(head []byte) Format {
	head = bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))
	if head = bytes.TrimSpace(head); len(head) > 0 && head[0] == '[' && len(bytes.TrimLeft(head[1:], "[ \t\r\n{]")) < len(head)-1 {
		return FormatTrace
	}
	const look = 50
	for n := 0; len(head) > 0 && n < look; n++ {
		line, rest, _ := bytes.Cut(head, []byte("\n"))
		head = rest
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if f := detectLine(line); f != "" {
			return f
		}
	}
	return ""
}

// detectLine tells the format of a line, "" if it is of none or could be of several.
func detectLine(line []byte) Format {
	if line[0] == '{' {
		switch {
		case bytes.Contains(line, []byte(`"timestamp"`)):
			return FormatTrace
		case bytes.Contains(line, []byte(`"msg"`)) && bytes.Contains(line, []byte(`"level"`)):
			return FormatDistribution
		}
		return FormatTrace
	}
	var rec Record
	if parseNginx(line, &rec) == nil {
		if rec.Duration >= 0 {
			return FormatNginx
		}
		return FormatCLF
	}
	if (&harborParser{}).parse(line, &rec) == nil {
		return FormatHarbor
	}
	uri := strings.TrimPrefix(string(line), "/")
	if (uri == "v2" || strings.HasPrefix(uri, "v2/")) && !strings.ContainsAny(uri, " \t") {
		return FormatURIs
	}
	return ""
}

// ibmName is how the files of the IBM traces are called.
var ibmName = regexp.MustCompile(`(?:^|[/:])([A-Za-z0-9-]{1,64})-logstash-\d{4}\.\d{2}\.\d{2}-\d+\.json(?:\.(?:gz|zst))?$`)

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
