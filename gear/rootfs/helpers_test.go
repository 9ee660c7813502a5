package rootfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear/rootfs"
)

// arc is an archive under construction.
type arc struct {
	bytes.Buffer
}

// add appends a member that archive/tar encodes.
func (a *arc) add(tb testing.TB, h tar.Header, content string) *arc {
	tb.Helper()
	if h.Size == 0 {
		h.Size = int64(len(content))
	}
	w := tar.NewWriter(&a.Buffer)
	if err := w.WriteHeader(&h); err != nil {
		tb.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		tb.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		tb.Fatal(err)
	}
	return a
}

// file appends a regular file of mode 0644.
func (a *arc) file(tb testing.TB, name, content string) *arc {
	tb.Helper()
	return a.add(tb, tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, content)
}

// raw appends a header block as edit leaves it, with a correct checksum, followed by
// content and its padding.
func (a *arc) raw(typ byte, name, content string, edit func(block []byte)) *arc {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x00")
	copy(b[108:], "0000000\x00")
	copy(b[116:], "0000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", len(content)))
	copy(b[136:], "00000000000\x00")
	b[156] = typ
	copy(b[257:], "ustar\x0000")
	if edit != nil {
		edit(b)
	}
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	a.Write(b)
	return a.pad(content)
}

func (a *arc) pad(content string) *arc {
	a.WriteString(content)
	a.Write(make([]byte, -len(content)&511))
	return a
}

// pax appends an extended header. records holds keys and values in turn.
func (a *arc) pax(typ byte, records ...string) *arc {
	var s string
	for i := 0; i < len(records); i += 2 {
		rest := " " + records[i] + "=" + records[i+1] + "\n"
		n := len(rest)
		for n != len(fmt.Sprint(n))+len(rest) {
			n = len(fmt.Sprint(n)) + len(rest)
		}
		s += fmt.Sprint(n) + rest
	}
	return a.raw(typ, "PaxHeaders/x", s, nil)
}

// end appends the end-of-archive blocks.
func (a *arc) end() []byte {
	a.Write(make([]byte, 1024))
	return a.Bytes()
}

func gzipped(tb testing.TB, b []byte) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func zstded(tb testing.TB, b []byte) []byte {
	tb.Helper()
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		tb.Fatal(err)
	}
	defer e.Close()
	return e.EncodeAll(b, nil)
}

// member is an entry and the SHA-256 sum of its content.
type member struct {
	rootfs.Entry
	Sum [sha256.Size]byte
}

// readAll reads a layer to the end.
func readAll(r *rootfs.Reader) (list []member, err error) {
	for {
		e, err := r.Next()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		h := sha256.New()
		n, err := r.WriteTo(h)
		if err != nil {
			return list, err
		}
		if n != e.Size {
			return list, fmt.Errorf("%s: got %d bytes of content, want %d", e.Path, n, e.Size)
		}
		m := member{Entry: *e}
		if e.Type == rootfs.File {
			h.Sum(m.Sum[:0])
		}
		list = append(list, m)
	}
}

// open opens a layer and closes it when the test ends.
func open(tb testing.TB, layer []byte, opts *rootfs.Options) *rootfs.Reader {
	tb.Helper()
	r, err := rootfs.Open(context.Background(), bytes.NewReader(layer), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { r.Close() })
	return r
}

// read reads a layer that must be valid.
func read(tb testing.TB, layer []byte, opts *rootfs.Options) ([]member, rootfs.Sums) {
	tb.Helper()
	r := open(tb, layer, opts)
	list, err := readAll(r)
	if err != nil {
		tb.Fatal(err)
	}
	sums, ok := r.Sums()
	if !ok {
		tb.Fatal("no sums after the last entry")
	}
	return list, sums
}

// readError reads a layer that must be invalid and returns the error.
func readError(tb testing.TB, layer []byte, opts *rootfs.Options) error {
	tb.Helper()
	r, err := rootfs.Open(context.Background(), bytes.NewReader(layer), opts)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err = readAll(r); err == nil {
		tb.Fatal("got no error")
	}
	if _, again := r.Next(); again != err {
		tb.Errorf("Next after an error: got %v, want %v", again, err)
	}
	if _, again := r.Read(make([]byte, 1)); again != err {
		tb.Errorf("Read after an error: got %v, want %v", again, err)
	}
	if _, ok := r.Sums(); ok {
		tb.Error("got sums after an error")
	}
	return err
}

// place returns err as a FormatError.
func place(tb testing.TB, err error) *rootfs.FormatError {
	tb.Helper()
	var f *rootfs.FormatError
	if !errors.As(err, &f) {
		tb.Fatalf("got error %v (%T), want a FormatError", err, err)
	}
	return f
}

func entriesOf(list []member) []rootfs.Entry {
	var es []rootfs.Entry
	for _, m := range list {
		es = append(es, m.Entry)
	}
	return es
}

// sumOf returns the sum of the only file in the list.
func sumOf(tb testing.TB, list []member) [sha256.Size]byte {
	tb.Helper()
	if len(list) != 1 {
		tb.Fatalf("got %d entries, want 1", len(list))
	}
	return list[0].Sum
}
