package rootfs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"example.org/slipway/gear/rootfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noise returns n bytes, at most 4 MiB, that do not compress.
func noise(n int) string { return lots()[:n] }

var lots = sync.OnceValue(func() string {
	b := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return string(b)
})

// TestWholeStream reads layers in every form that a stream may have besides a single
// complete archive.
func TestWholeStream(t *testing.T) {
	var a arc
	a.file(t, "f", noise(3<<20)).file(t, "g", "last")
	open := bytes.Clone(a.Bytes())
	layer := a.end()
	half := len(layer)/2 + 1
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	padded := join(layer, make([]byte, 9000))
	garbage := join(layer, []byte("garbage"))
	skip := []byte("\x53\x2a\x4d\x18\x05\x00\x00\x00hello")
	for _, tt := range []struct {
		name    string
		in, tar []byte
		kind    rootfs.Compression
	}{
		{"plain", layer, layer, rootfs.Plain},
		{"padding of a record", padded, padded, rootfs.Plain},
		{"something after the end", garbage, garbage, rootfs.Plain},
		{"an archive after the end", join(layer, layer), join(layer, layer), rootfs.Plain},
		{"no end", open, open, rootfs.Plain},
		{"half an end", join(open, make([]byte, 512)), join(open, make([]byte, 512)), rootfs.Plain},
		{"no padding of the last member", open[:len(open)-500], open[:len(open)-500], rootfs.Plain},
		{"gzip", gzipped(t, garbage), garbage, rootfs.Gzip},
		{"gzip members", join(gzipped(t, layer[:half]), gzipped(t, nil), gzipped(t, layer[half:]), gzipped(t, nil)), layer, rootfs.Gzip},
		{"gzip of no end", gzipped(t, open), open, rootfs.Gzip},
		{"zstd", zstded(t, garbage), garbage, rootfs.Zstd},
		{"zstd frames", join(skip, zstded(t, layer[:half]), skip, zstded(t, layer[half:]), skip), layer, rootfs.Zstd},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, sums := read(t, tt.in, nil)
			if len(list) != 2 || list[0].Sum != sha256.Sum256([]byte(noise(3<<20))) || list[1].Sum != sha256.Sum256([]byte("last")) {
				t.Errorf("got entries %+v", list)
			}
			want := rootfs.Sums{
				Compression: tt.kind, Digest: sha256.Sum256(tt.in), Compressed: int64(len(tt.in)),
				DiffID: sha256.Sum256(tt.tar), Uncompressed: int64(len(tt.tar)),
			}
			if diff := cmp.Diff(want, sums); diff != "" {
				t.Errorf("sums (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEmptyLayer(t *testing.T) {
	for name, in := range map[string][]byte{"no bytes": nil, "gzip of none": gzipped(t, nil), "only the end": new(arc).end()} {
		t.Run(name, func(t *testing.T) {
			if list, sums := read(t, in, nil); len(list) != 0 || sums.Digest != sha256.Sum256(in) {
				t.Errorf("got %d entries, sums %+v", len(list), sums)
			}
		})
	}
}

func TestBadStreams(t *testing.T) {
	var a arc
	layer := a.file(t, "first", "content").file(t, "second", noise(1<<20)).end()
	gz, zst := gzipped(t, layer), zstded(t, layer)
	damaged := func(b []byte, at int) []byte {
		b = bytes.Clone(b)
		b[at] ^= 0x55
		return b
	}
	with := func(b []byte, more string) []byte { return append(bytes.Clone(b), more...) }
	for _, tt := range []struct {
		name  string
		in    []byte
		entry string
		is    error // nil: any error
		text  string
	}{
		{"tar cut in a header", layer[:1300], "first", io.ErrUnexpectedEOF, "header of the following member"},
		{"tar cut in content", layer[:5000], "second", io.ErrUnexpectedEOF, ""},
		{"a piece of a header", layer[:100], "", io.ErrUnexpectedEOF, "byte 100"},
		{"not a tar", []byte(strings.Repeat("not a tar archive", 100)), "", nil, "invalid tar header"},
		{"gzip header alone", gz[:5], "", io.ErrUnexpectedEOF, "gzip at compressed byte 5"},
		{"gzip cut", gz[:len(gz)/2], "second", io.ErrUnexpectedEOF, "gzip at compressed byte"},
		{"gzip without its sum", gz[:len(gz)-8], "second", io.ErrUnexpectedEOF, ""},
		{"gzip with another sum", damaged(gz, len(gz)-8), "second", nil, "checksum"},
		{"gzip damaged", damaged(gz, 12), "", nil, "gzip at compressed byte"},
		{"gzip and zeros", with(gz, strings.Repeat("\x00", 512)), "second", nil, "not gzip follows the last member"},
		{"gzip and garbage", with(gz, "garbage and more"), "second", nil, "not gzip follows the last member"},
		{"gzip and little garbage", with(gz, "tail"), "second", io.ErrUnexpectedEOF, ""},
		{"zstd cut", zst[:len(zst)/2], "second", io.ErrUnexpectedEOF, "zstd at compressed byte"},
		{"zstd with another sum", damaged(zst, len(zst)-1), "second", nil, "zstd at compressed byte"},
		{"zstd and garbage", with(zst, "garbage and more"), "second", nil, "zstd at compressed byte"},
		{"bzip2", []byte("BZh91AY&SY"), "", nil, "bzip2"},
		{"xz", []byte("\xfd7zXZ\x00\x00\x04"), "", nil, "xz"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := readError(t, tt.in, nil)
			if f := place(t, err); f.Entry != tt.entry {
				t.Errorf("got error %q for entry %q, want %q", err, f.Entry, tt.entry)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got error %q, want %v", err, tt.is)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got error %q, want %q in it", err, tt.text)
			}
		})
	}
}

// TestSourceFails checks that an error of the source is not reported as an error of the
// layer.
func TestSourceFails(t *testing.T) {
	var a arc
	layer := a.file(t, "f", noise(1<<20)).end()
	broken := errors.New("connection reset")
	for name, b := range map[string][]byte{"plain": layer, "gzip": gzipped(t, layer), "zstd": zstded(t, layer)} {
		for _, n := range []int{0, 3, 700000, len(b)} {
			for _, want := range []error{broken, io.ErrUnexpectedEOF} {
				var err error
				src := io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(want))
				r, err := rootfs.Open(context.Background(), src, nil)
				if err == nil {
					_, err = readAll(r)
					r.Close()
				}
				var f *rootfs.FormatError
				if !errors.Is(err, want) || errors.As(err, &f) {
					t.Errorf("%s, %d bytes: got error %v (%T), want %v and no FormatError", name, n, err, err, want)
				}
			}
		}
	}
}

// TestSlowSource reads from sources that return one byte at a time, or the error together
// with the last data.
func TestSlowSource(t *testing.T) {
	var a arc
	layer := gzipped(t, a.file(t, "f", noise(10000)).end())
	for name, src := range map[string]io.Reader{
		"one byte":       iotest.OneByteReader(bytes.NewReader(layer)),
		"data with EOF":  iotest.DataErrReader(bytes.NewReader(layer)),
		"half a request": iotest.HalfReader(bytes.NewReader(layer)),
	} {
		r, err := rootfs.Open(context.Background(), src, nil)
		if err != nil {
			t.Fatal(err)
		}
		list, err := readAll(r)
		if err != nil || len(list) != 1 {
			t.Errorf("%s: got %d entries, error %v", name, len(list), err)
		}
		if sums, _ := r.Sums(); sums.Digest != sha256.Sum256(layer) {
			t.Errorf("%s: got digest %x", name, sums.Digest)
		}
		r.Close()
	}
	stuck, err := rootfs.Open(context.Background(), idle{}, nil)
	if err == nil {
		stuck.Close()
		t.Error("a source that gives nothing: got no error")
	}
}

// idle is a reader that never returns any data.
type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

func TestPartialRead(t *testing.T) {
	var a arc
	layer := gzipped(t, a.file(t, "f", noise(2<<20)).file(t, "g", "0123456789").add(t, dir("d"), "").end())
	r := open(t, layer, nil)
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read before Next: got %v, want EOF", err)
	}
	for _, want := range []string{"f", "g"} {
		if e, err := r.Next(); err != nil || e.Path != want {
			t.Fatalf("got %v, %v, want %s", e, err, want)
		}
	}
	b := make([]byte, 4)
	if n, err := r.Read(b); string(b[:n]) != "0123" || err != nil {
		t.Errorf("got %q, %v", b[:n], err)
	}
	full := errors.New("disk full")
	if _, err := r.WriteTo(failing{full}); err != full {
		t.Errorf("WriteTo a broken writer: got %v, want %v", err, full)
	}
	if e, err := r.Next(); err != nil || e.Path != "d" {
		t.Fatalf("after a broken writer: got %v, %v", e, err)
	}
	if n, err := r.Read(b); n != 0 || err != io.EOF {
		t.Errorf("content of a directory: got %d bytes, %v", n, err)
	}
	if _, ok := r.Sums(); ok {
		t.Error("sums are known before the end")
	}
	if _, err := r.Next(); err != io.EOF {
		t.Fatal(err)
	}
	if sums, ok := r.Sums(); !ok || sums.Digest != sha256.Sum256(layer) {
		t.Errorf("got sums %+v, %v", sums, ok)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestClose closes at every stage. TestMain checks that no goroutine is left.
func TestClose(t *testing.T) {
	var a arc
	layer := a.file(t, "f", noise(4<<20)).file(t, "g", noise(1<<20)).end()
	for name, b := range map[string][]byte{"plain": layer, "gzip": gzipped(t, layer), "zstd": zstded(t, layer)} {
		for stage := range 4 {
			r := open(t, b, nil)
			if stage > 0 {
				if _, err := r.Next(); err != nil {
					t.Fatal(err)
				}
			}
			if stage > 1 {
				if _, err := io.CopyN(io.Discard, r, 100000); err != nil {
					t.Fatal(err)
				}
			}
			if stage > 2 {
				if _, err := readAll(r); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(r.Close(), r.Close()); err != nil {
				t.Error(err)
			}
			want := error(fs.ErrClosed)
			if stage > 2 {
				want = io.EOF
			}
			if _, err := r.Next(); err != want {
				t.Errorf("%s, stage %d: Next after Close: got %v, want %v", name, stage, err, want)
			}
		}
	}
}

// TestCancel cancels the context without closing, which must free everything too.
func TestCancel(t *testing.T) {
	var a arc
	layer := a.file(t, "f", noise(4<<20)).end()
	reason := errors.New("shutting down")
	for name, b := range map[string][]byte{"plain": layer, "gzip": gzipped(t, layer), "zstd": zstded(t, layer)} {
		ctx, cancel := context.WithCancelCause(context.Background())
		r, err := rootfs.Open(ctx, bytes.NewReader(b), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		cancel(reason)
		if _, err := r.WriteTo(io.Discard); err != reason {
			t.Errorf("%s: got %v, want %v", name, err, reason)
		}
		if _, err := r.Next(); err != reason {
			t.Errorf("%s: Next: got %v, want %v", name, err, reason)
		}
	}
	goleak.VerifyNone(t)
}

// TestCloseWithoutReading checks that Close returns while the source still has data.
func TestCloseWithoutReading(t *testing.T) {
	pr, pw := io.Pipe()
	go func() {
		pw.Write(make([]byte, 600)) // read by Open and its goroutine
		pw.CloseWithError(io.ErrNoProgress)
	}()
	r, err := rootfs.Open(context.Background(), pr, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- r.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Close does not return after the source has ended")
	}
	pr.Close()
}
