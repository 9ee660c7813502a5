package filestore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(withServers{m}) }

// tb is the common part of testing.TB and rapid.T.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// bed is a store over a catalogue and an object store.
type bed struct {
	t    tb
	ctx  context.Context
	path string
	cat  *catalog.Catalog
	objs objstore.Store
	s    *filestore.Store
	opts filestore.Options

	mu      sync.Mutex
	now     time.Time
	corrupt []*filestore.CorruptError
}

const repo = "team/app"

func newBed(t *testing.T, o *filestore.Options) *bed {
	t.Helper()
	b := &bed{t: t, ctx: t.Context(), path: filepath.Join(t.TempDir(), "catalog.db"), objs: memstore.New(nil)}
	b.init(o)
	t.Cleanup(func() {
		if err := b.cat.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func (b *bed) init(o *filestore.Options) {
	b.now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if o != nil {
		b.opts = *o
	}
	b.opts.Clock = b.clock
	b.opts.OnCorrupt = func(e *filestore.CorruptError) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.corrupt = append(b.corrupt, e)
	}
	b.open()
}

// open opens the catalogue and the store, as a new process does.
func (b *bed) open() {
	b.t.Helper()
	var err error
	if b.cat, err = catalog.Open(b.ctx, b.path, &catalog.Options{Clock: b.clock, Grace: time.Millisecond}); err != nil {
		b.t.Fatalf("open catalogue: %v", err)
	}
	b.newStore()
}

func (b *bed) newStore() {
	b.t.Helper()
	var err error
	if b.s, err = filestore.New(b.cat, b.objs, &b.opts); err != nil {
		b.t.Fatalf("new store: %v", err)
	}
}

func (b *bed) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bed) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

func must(t tb, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// push adds the blob of a layer.
func (b *bed) push(layer string) oci.Digest {
	b.t.Helper()
	d := oci.Digest("sha256:" + hex.EncodeToString(sum([]byte(layer))))
	_, err := b.cat.PutBlob(b.ctx, repo, catalog.Blob{Digest: d, Size: int64(len(layer)), Content: []byte(layer)}, "")
	must(b.t, err)
	return d
}

// remove deletes the blob of a layer.
func (b *bed) remove(layer string) {
	b.t.Helper()
	d := oci.Digest("sha256:" + hex.EncodeToString(sum([]byte(layer))))
	must(b.t, b.cat.DeleteBlob(b.ctx, repo, d))
	b.pass(time.Second)
	_, _, err := b.cat.Garbage.Collect(b.ctx, catalog.CollectOptions{Before: b.clock(), Keep: func(_ string, other oci.Digest) (time.Time, bool) {
		return b.clock(), other != d // only d has lost its manifest
	}})
	must(b.t, err)
}

func sum(b []byte) []byte { s := sha256.Sum256(b); return s[:] }

func name(content []byte) gear.Name { return sha256.Sum256(content) }

func file(content []byte) gear.File {
	f := gear.File{Name: name(content), Size: int64(len(content))}
	if len(content) >= gear.LargeFile {
		for c := range slices.Chunk(content, gear.ChunkSize) {
			f.Chunks = append(f.Chunks, name(c))
		}
	}
	return f
}

// content is a convert.Content that must be released once it was put.
type content struct {
	*bytes.Reader
	released *sync.WaitGroup
	once     sync.Once
}

func (c *content) Release() { c.once.Do(c.released.Done) }

// write puts contents into a writer and waits until all are released.
func write(ctx context.Context, w *filestore.Writer, contents [][]byte) error {
	var released sync.WaitGroup
	for part := range slices.Chunk(contents, 7) {
		names := make([]gear.Name, len(part))
		for i, c := range part {
			names[i] = name(c)
		}
		missing, err := w.Missing(ctx, names)
		if err != nil {
			return err
		}
		for i, c := range part {
			if !missing[i] {
				continue
			}
			released.Add(1)
			if err := w.Put(ctx, file(c), &content{Reader: bytes.NewReader(c), released: &released}); err != nil {
				return err
			}
		}
	}
	released.Wait() // no further call may be needed
	return nil
}

// index returns a stand-in for a layer's index.
func index(layer string, contents [][]byte) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "index of %s\n", layer)
	for _, c := range contents {
		fmt.Fprintf(&b, "%x\n", name(c))
	}
	return []byte(b.String())
}

// convert converts a layer whose blob exists.
func (b *bed) convert(d oci.Digest, layer string, contents [][]byte) error {
	w, err := b.s.NewWriter(b.ctx)
	if err != nil {
		return err
	}
	defer w.Abort(b.ctx)
	if err := write(b.ctx, w, contents); err != nil {
		return err
	}
	if _, err := w.PutIndex(b.ctx, index(layer, contents)); err != nil {
		return err
	}
	return w.Commit(b.ctx, gearfacts.Layer{Digest: d})
}

// add pushes a layer and converts it.
func (b *bed) add(layer string, contents ...[]byte) {
	b.t.Helper()
	must(b.t, b.convert(b.push(layer), layer, contents))
}

// check reads each content in every way.
func (b *bed) check(contents ...[]byte) {
	b.t.Helper()
	names := make([]gear.Name, len(contents))
	for i, c := range contents {
		names[i] = name(c)
		f, err := b.s.Open(b.ctx, names[i])
		if err != nil {
			b.t.Fatalf("open content %d of %d bytes: %v", i, len(c), err)
		}
		var got bytes.Buffer
		if n, err := f.WriteRange(b.ctx, &got, 0, -1); err != nil || n != int64(len(c)) || !bytes.Equal(got.Bytes(), c) {
			b.t.Fatalf("content %d of %d bytes: got %d bytes, %v", i, len(c), n, err)
		}
	}
	var stream bytes.Buffer
	must(b.t, b.s.Stream(b.ctx, &stream, names, nil))
	r := gear.NewStreamReader(&stream)
	for i, c := range contents {
		it, err := r.Next()
		if err != nil {
			b.t.Fatalf("content %d of the stream: %v", i, err)
		}
		var got bytes.Buffer
		if it.Missing || it.Failure != "" {
			b.t.Fatalf("content %d of %d bytes in the stream: missing %v, failure %q", i, len(c), it.Missing, it.Failure)
		}
		if _, err := it.WriteTo(&got); err != nil || it.Name != names[i] || !bytes.Equal(got.Bytes(), c) {
			b.t.Fatalf("content %d of the stream: %d bytes, %v", i, got.Len(), err)
		}
	}
	if _, err := r.Next(); err == nil || err.Error() != "EOF" {
		b.t.Fatalf("end of the stream: %v", err)
	}
}

// verify checks that the store is sound and returns the number of its packs.
func (b *bed) verify() int {
	b.t.Helper()
	rep, err := b.s.Verify(b.ctx, filestore.VerifyOptions{Contents: true, Found: func(p filestore.Problem) { b.t.Errorf("problem: %+v", p) }})
	must(b.t, err)
	if rep.Problems > 0 {
		b.t.Fatalf("%d problems", rep.Problems)
	}
	return rep.Packs
}

func (b *bed) settle(all bool) filestore.SettleReport {
	b.t.Helper()
	rep, err := b.s.Settle(b.ctx, filestore.SettleOptions{All: all})
	must(b.t, err)
	return rep
}

// keys returns the keys of all objects.
func (b *bed) keys() []string {
	b.t.Helper()
	var out []string
	for info, err := range b.objs.List(b.ctx, "slipway/gear/packs/", "") {
		must(b.t, err)
		out = append(out, info.Key)
	}
	return out
}

// text returns a compressible content. The same seed gives the same content.
func text(seed uint64, size int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	words := make([]string, 60)
	wr := rand.New(rand.NewPCG(7, 7)) // all contents share these words
	for i := range words {
		words[i] = fmt.Sprintf("w%x", wr.Uint64())
	}
	b := fmt.Appendf(nil, "%d ", seed)
	for len(b) < size {
		b = append(append(b, words[r.IntN(len(words))]...), ' ')
	}
	return b[:size]
}

// noise returns an incompressible content.
func noise(seed uint64, size int) []byte {
	r := rand.New(rand.NewPCG(seed, 2))
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// many returns n small contents.
func many(seed uint64, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = text(seed*1000+uint64(i), 300+i*37%3000)
	}
	return out
}

var errInjected = errors.New("injected")
