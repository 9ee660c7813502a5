package convert_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
)

// recorder is a sink that records its calls. Like a store that compresses, it reads each
// content in a goroutine.
type recorder struct {
	calls   []string
	has     map[gear.Name]bool
	fail    map[int]error // errors by number of the call
	during  func(call int)
	wg      sync.WaitGroup
	mu      sync.Mutex // guards bad and content
	bad     []error
	content map[gear.Name]int64
}

func (r *recorder) call(format string, args ...any) error {
	n := len(r.calls)
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
	if r.during != nil {
		r.during(n)
	}
	return r.fail[n]
}

func (r *recorder) Missing(_ context.Context, names []gear.Name) ([]bool, error) {
	out := make([]bool, len(names))
	for i, n := range names {
		out[i] = !r.has[n]
	}
	return out, r.call("missing %x", names)
}

func (r *recorder) Put(_ context.Context, f gear.File, c convert.Content) error {
	r.wg.Go(func() {
		defer c.Release()
		err := verify(f, c)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			r.bad = append(r.bad, err)
		}
		if r.content == nil {
			r.content = map[gear.Name]int64{}
		}
		r.content[f.Name] = f.Size
	})
	return r.call("put %x %d %x", f.Name, f.Size, f.Chunks)
}

// verify reads a content in pieces and compares its digests.
func verify(f gear.File, c convert.Content) error {
	whole := sha256.New()
	buf := make([]byte, min(f.Size, gear.ChunkSize))
	for off, i := int64(0), 0; off < f.Size; i++ {
		n, err := c.ReadAt(buf, off)
		if err != nil && err != io.EOF || n != int(min(int64(len(buf)), f.Size-off)) {
			return fmt.Errorf("read %d bytes at %d of %d: %v", n, off, f.Size, err)
		}
		whole.Write(buf[:n])
		if f.Size >= gear.LargeFile && sha256.Sum256(buf[:n]) != f.Chunks[i] {
			return fmt.Errorf("chunk %d of %x differs", i, f.Name)
		}
		off += int64(n)
	}
	if got := gear.Name(whole.Sum(nil)); got != f.Name {
		return fmt.Errorf("content of %x has the digest %x", f.Name, got)
	}
	if n, err := c.ReadAt(buf[:1], f.Size); n != 0 || err != io.EOF {
		return fmt.Errorf("read at the end: %d, %v", n, err)
	}
	return nil
}

func (r *recorder) check(t testing.TB) {
	t.Helper()
	r.wg.Wait()
	for _, err := range r.bad {
		t.Error(err)
	}
}

// makeLayer returns a tar with files of the given sizes, some of them twice, with other
// entries in between.
func makeLayer(t testing.TB, sizes ...int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(h *tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	rnd := rand.NewChaCha8([32]byte{1})
	add(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700}, nil)
	for i, n := range sizes {
		data := make([]byte, n)
		rnd.Read(data)
		add(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d%d/file", i), Mode: 0o644}, data)
		if i%3 == 0 {
			add(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d%d/again", i), Mode: 0o600}, data)
			add(&tar.Header{Typeflag: tar.TypeLink, Name: fmt.Sprintf("d%d/b", i), Linkname: fmt.Sprintf("d%d/file", i), Mode: 0o600}, nil)
		}
	}
	add(&tar.Header{Typeflag: tar.TypeReg, Name: "etc/.wh.gone"}, nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func manySizes() []int {
	rnd := rand.New(rand.NewPCG(1, 2))
	sizes := []int{0, 1, gear.LargeFile - 1, gear.LargeFile, gear.LargeFile + 1, 1 << 20, 0, 9 << 20, 3<<20 + 5}
	for range 1500 {
		sizes = append(sizes, rnd.IntN(3000))
	}
	for range 6 {
		sizes = append(sizes, rnd.IntN(3<<20))
	}
	return sizes
}

func convertWith(t testing.TB, layer []byte, sink convert.Sink, o *convert.Options) (*convert.Result, error) {
	t.Helper()
	if o.TempDir == "" {
		o.TempDir = t.TempDir()
	}
	return convert.Layer(t.Context(), bytes.NewReader(layer), convert.Want{}, sink, o)
}

func TestConvertIsDeterministic(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	defer goleak.VerifyNone(t)
	layer := makeLayer(t, manySizes()...)
	var zipped bytes.Buffer
	z, _ := gzip.NewWriterLevel(&zipped, gzip.NoCompression)
	z.Write(layer)
	z.Close()
	var calls []string
	var index []byte
	for i, o := range []convert.Options{{Workers: 1, MemoryBytes: 17 << 20}, {Workers: 8, MemoryBytes: 17 << 20}} {
		var last, entries int64
		o.Progress = func(n, e int64) {
			if n < last || e < entries {
				t.Errorf("progress goes back from %d, %d to %d, %d", last, entries, n, e)
			}
			last, entries = n, e
		}
		sink := &recorder{}
		got, err := convertWith(t, zipped.Bytes(), sink, &o)
		if err != nil {
			t.Fatal(err)
		}
		sink.check(t)
		var buf bytes.Buffer
		if err := got.Index.Encode(&buf); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			calls, index = sink.calls, buf.Bytes()
			if len(calls) < 1400 {
				t.Fatalf("%d calls only", len(calls))
			}
		}
		if !slices.Equal(calls, sink.calls) {
			t.Errorf("%d workers: other calls than one worker", o.Workers)
		}
		if !bytes.Equal(index, buf.Bytes()) {
			t.Errorf("%d workers: another index than one worker", o.Workers)
		}
		if got.Sums.Digest != sha256.Sum256(zipped.Bytes()) || got.Sums.DiffID != sha256.Sum256(layer) {
			t.Errorf("sums %+v are not those of the layer", got.Sums)
		}
		if last != int64(zipped.Len()) {
			t.Errorf("progress ends at %d of %d bytes", last, zipped.Len())
		}
		// Each file of the index was put once, except the empty one.
		if got.New != len(sink.content) || got.New != len(got.Index.Files)-1 {
			t.Errorf("%d files of %d were put, %d told", len(sink.content), len(got.Index.Files), got.New)
		}
		for _, f := range got.Index.Files {
			if size, ok := sink.content[f.Name]; (!ok || size != f.Size) && f.Size > 0 {
				t.Errorf("file %x of %d bytes was put: %t with %d", f.Name, f.Size, ok, size)
			}
		}
	}
}

func TestConvertTree(t *testing.T) {
	got, err := convertWith(t, makeLayer(t, 3, 0), &recorder{}, &convert.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []rootfs.Entry{
		{Path: ".", Type: rootfs.Dir, Mode: 0o700},
		{Path: "d0/again", Type: rootfs.File, Mode: 0o600, Size: 3},
		{Path: "d0/b", Type: rootfs.File, Mode: 0o600, Size: 3}, // in path order this name comes first, so it is the file
		{Path: "d0/file", Type: rootfs.HardLink, Link: "d0/b"},
		{Path: "d1/file", Type: rootfs.File, Mode: 0o644},
		{Path: "etc/gone", Type: rootfs.Whiteout},
	}
	if diff := cmp.Diff(want, plain(got.Index)); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	var files []int32
	for _, e := range got.Index.Entries {
		files = append(files, e.File)
	}
	if want := []int32{-1, 0, 0, 0, 1, -1}; !slices.Equal(files, want) {
		t.Errorf("contents: got %v, want %v", files, want)
	}
	if len(got.Index.Files) != 2 || got.Index.Files[1].Name != gear.Empty().Name {
		t.Errorf("files: %+v", got.Index.Files)
	}
}

func TestConvertPutsOnlyMissing(t *testing.T) {
	layer := makeLayer(t, 10, 20, 30)
	first := &recorder{}
	got, err := convertWith(t, layer, first, &convert.Options{})
	if err != nil {
		t.Fatal(err)
	}
	second := &recorder{has: map[gear.Name]bool{got.Index.Files[0].Name: true, got.Index.Files[2].Name: true}}
	again, err := convertWith(t, layer, second, &convert.Options{})
	if err != nil {
		t.Fatal(err)
	}
	second.check(t)
	if again.New != 1 || again.NewBytes != 20 || second.content[got.Index.Files[1].Name] != 20 {
		t.Errorf("put %v", second.calls)
	}
	if diff := cmp.Diff(got.Index, again.Index); diff != "" {
		t.Errorf("another index:\n%s", diff)
	}
}

// wantsNothing is a sink that already has every content.
type wantsNothing struct{ puts int }

func (*wantsNothing) Missing(_ context.Context, names []gear.Name) ([]bool, error) {
	return make([]bool, len(names)), nil
}

func (w *wantsNothing) Put(_ context.Context, _ gear.File, c convert.Content) error {
	w.puts++
	c.Release()
	return nil
}

// TestConvertIndexOnly checks that the index is the same whether or not contents are
// kept, also when keeping them stops in the middle of a large one.
func TestConvertIndexOnly(t *testing.T) {
	defer goleak.VerifyNone(t)
	layer := makeLayer(t, manySizes()...)
	encode := func(o *convert.Options) []byte {
		t.Helper()
		o.MemoryBytes = 8 << 20 // makes files of 2 MiB large
		sink := &wantsNothing{}
		got, err := convertWith(t, layer, sink, o)
		if err != nil {
			t.Fatal(err)
		}
		if sink.puts != 0 || got.New != 0 {
			t.Errorf("%d files were put, %d counted, want none", sink.puts, got.New)
		}
		var out bytes.Buffer
		if err := got.Index.Encode(&out); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	want := encode(&convert.Options{})
	for _, from := range []int{1, 3, 7} {
		asked := 0
		got := encode(&convert.Options{IndexOnly: func() bool { asked++; return asked >= from }})
		if asked < from {
			t.Errorf("from %d on: asked %d times only", from, asked)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("from %d on: another index", from)
		}
	}
}

func TestConvertDigests(t *testing.T) {
	layer := makeLayer(t, 10)
	sum := sha512.Sum512(layer)
	right, wrong := oci.SHA256(layer), oci.SHA256(nil)
	right512 := oci.Digest("sha512:" + hex.EncodeToString(sum[:]))
	for name, test := range map[string]struct {
		want convert.Want
		what string
	}{
		"both":         {convert.Want{Digest: right, DiffID: right}, ""},
		"sha512":       {convert.Want{Digest: right512}, ""},
		"other sha512": {convert.Want{Digest: right512[:len(right512)-1] + "_"}, "digest"},
		"other digest": {convert.Want{Digest: wrong, DiffID: right}, "digest"},
		"other diffID": {convert.Want{Digest: right, DiffID: wrong}, "diff ID"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := convert.Layer(t.Context(), bytes.NewReader(layer), test.want, &recorder{}, nil)
			var mismatch *gear.MismatchError
			switch {
			case test.what == "" && err != nil:
				t.Error(err)
			case test.what != "" && (!errors.As(err, &mismatch) || mismatch.What != test.what):
				t.Errorf("got %v, want a mismatch of the %s", err, test.what)
			}
		})
	}
	if _, err := convert.Layer(t.Context(), bytes.NewReader(layer), convert.Want{DiffID: right512}, &recorder{}, nil); err == nil {
		t.Error("a diff ID that cannot be compared was accepted")
	}
}

// TestConvertFails makes a conversion fail in all places. It waits until each goroutine
// has ended and each content is released.
func TestConvertFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	layer := makeLayer(t, manySizes()...)
	broken := errors.New("broken")
	t.Run("sink", func(t *testing.T) {
		for _, at := range []int{0, 1, 500, 1026, 1400} {
			sink := &recorder{fail: map[int]error{at: broken}}
			_, err := convertWith(t, layer, sink, &convert.Options{MemoryBytes: 8 << 20})
			sink.check(t)
			if !errors.Is(err, broken) || len(sink.calls) != at+1 {
				t.Errorf("call %d: got %v after %d calls", at, err, len(sink.calls))
			}
		}
	})
	t.Run("layer ends early", func(t *testing.T) {
		for _, n := range []int{0, 100, 10 << 20, 20 << 20, len(layer) - 5000} {
			sink := &recorder{}
			_, err := convertWith(t, layer[:n], sink, &convert.Options{MemoryBytes: 8 << 20})
			sink.check(t)
			if err == nil && n > 0 {
				t.Errorf("%d bytes of the layer were taken for a layer", n)
			}
		}
	})
	t.Run("reader", func(t *testing.T) {
		sink := &recorder{}
		r := io.MultiReader(bytes.NewReader(layer[:20<<20]), &failing{broken})
		_, err := convert.Layer(t.Context(), r, convert.Want{}, sink, &convert.Options{TempDir: t.TempDir()})
		sink.check(t)
		if !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("temporary directory", func(t *testing.T) {
		sink := &recorder{}
		_, err := convertWith(t, layer, sink, &convert.Options{TempDir: "/nonexistent", MemoryBytes: 8 << 20})
		sink.check(t)
		if err == nil {
			t.Error("a conversion without a place for large files succeeded")
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		for _, at := range []int{0, 700, 1400} {
			ctx, cancel := context.WithCancelCause(t.Context())
			sink := &recorder{during: func(n int) {
				if n == at {
					cancel(broken)
				}
			}}
			_, err := convert.Layer(ctx, bytes.NewReader(layer), convert.Want{}, sink, &convert.Options{TempDir: t.TempDir()})
			sink.check(t)
			cancel(nil)
			if !errors.Is(err, broken) && !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled in call %d: got %v", at, err)
			}
			if len(sink.calls) > at+2 {
				t.Errorf("cancelled in call %d of %d", at, len(sink.calls))
			}
		}
	})
	t.Run("contradiction", func(t *testing.T) {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeFifo, Name: "a"})
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeFifo, Name: "a/b"})
		w.Close()
		if _, err := convertWith(t, out.Bytes(), &recorder{}, &convert.Options{}); !errors.Is(err, gear.ErrConflict) {
			t.Errorf("got %v", err)
		}
	})
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// TestConvertMemory converts 3 GB, of which one file is 1 GB.
func TestConvertMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes half a gigabyte to disk")
	}
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		block := make([]byte, 1<<20)
		write := func(name string, size int64) error {
			rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(block[:min(4096, size)])
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size}); err != nil {
				return err
			}
			for size > 0 {
				n, err := tw.Write(block[:min(size, int64(len(block)))])
				if err != nil {
					return err
				}
				size -= int64(n)
			}
			return nil
		}
		err := write("big", 500<<20)
		for i := 0; i < 40 && err == nil; i++ {
			err = write(fmt.Sprint("medium/", i), 16<<20)
			for j := 0; j < 100 && err == nil; j++ {
				err = write(fmt.Sprint("small/", i, "-", j), 10<<10)
			}
		}
		w.CloseWithError(errors.Join(err, tw.Close()))
	}()
	runtime.GC() // free what other tests left
	var peak uint64
	sink := &recorder{}
	watch := func(int64, int64) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapInuse)
	}
	got, err := convert.Layer(t.Context(), r, convert.Want{}, sink, &convert.Options{TempDir: t.TempDir(), Progress: watch})
	if err != nil {
		t.Fatal(err)
	}
	sink.check(t)
	t.Logf("%d bytes, heap at most %d MiB", got.Sums.Uncompressed, peak>>20)
	if got.Sums.Uncompressed < 1e9 {
		t.Errorf("the layer has %d bytes only", got.Sums.Uncompressed)
	}
	if limit := uint64(200 << 20); peak > limit {
		t.Errorf("the heap grew to %d bytes, the limit is %d", peak, limit)
	}
}

func plain(x *gear.Index) (out []rootfs.Entry) {
	for _, e := range x.Entries {
		out = append(out, e.Entry)
	}
	return out
}
