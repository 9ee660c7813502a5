package filestore_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
)

func TestWriteReadSettle(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil)
	large := append(text(1, 3<<20), noise(2, 2<<20+123)...)
	edge := noise(3, gear.LargeFile)
	small := many(1, 200)
	odd := [][]byte{{}, {1}, text(9, 4<<20-1), noise(4, 100<<10), large, edge}
	b.add("one", append(slices.Clone(small), odd...)...)
	b.check(append(slices.Clone(small), odd...)...)
	b.add("two", many(1, 250)...) // 200 of them are already stored
	b.check(many(1, 250)...)
	if n := b.verify(); n != 2 {
		t.Errorf("%d packs, want one for each conversion", n)
	}
	rep := b.settle(true)
	if rep.Replaced != 2 || rep.Written != 1 || rep.WrittenBytes >= rep.ReplacedBytes {
		t.Errorf("settled: %+v", rep)
	}
	b.check(append(many(1, 250), odd...)...)
	if again := b.settle(true); again.Written != 0 {
		t.Errorf("settled again: %+v", again)
	}
	if n := len(b.keys()); n != 3 {
		t.Errorf("%d objects before the delay is over, want 3", n)
	}
	b.pass(time.Hour)
	must(t, b.s.Housekeep(b.ctx))
	if n := len(b.keys()); n != 1 {
		t.Errorf("%d objects after the delay, want 1", n)
	}
	b.check(append(many(1, 250), odd...)...)
	b.verify()
}

func TestDictionaryPays(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil)
	b.add("one", many(3, 2000)...)
	rep := b.settle(true)
	if rep.WrittenBytes > rep.ReplacedBytes*3/4 {
		t.Errorf("settled %d bytes into %d: no dictionary", rep.ReplacedBytes, rep.WrittenBytes)
	}
	b.newStore() // empties the caches in RAM
	b.check(many(3, 2000)...)
}

func TestSameBytesWithAnyWorkers(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	var want []string
	for _, workers := range []int{1, 5} {
		b := newBed(t, &filestore.Options{Workers: workers, PackSize: 1 << 20})
		b.add("one", append(many(1, 700), text(5, 3<<20), noise(6, 300<<10))...)
		b.add("two", many(2, 900)...)
		fresh := b.keys()
		b.settle(true)
		got := append(fresh, b.keys()...)
		if want == nil {
			want = got
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("with %d workers other packs (-1 worker, +now):\n%s", workers, diff)
		}
	}
}

func TestRollOver(t *testing.T) {
	b := newBed(t, &filestore.Options{PackSize: 1 << 20})
	var contents [][]byte
	for i := range 50 {
		contents = append(contents, noise(uint64(i), 100<<10))
	}
	b.add("one", contents...)
	if n := b.verify(); n != 5 {
		t.Errorf("%d packs of 1 MiB, want 5", n)
	}
	b.check(contents...)
}

func TestDeletedLayer(t *testing.T) {
	b := newBed(t, nil)
	b.add("one", many(1, 100)...)
	b.add("two", append(many(1, 50), many(2, 10)...)...)
	b.remove("one")
	must(t, b.s.Housekeep(b.ctx))
	if _, err := b.s.Open(b.ctx, name(many(1, 100)[99])); err != nil {
		t.Errorf("a dead content is here until it is settled: %v", err)
	}
	b.settle(true)
	b.check(append(many(1, 50), many(2, 10)...)...)
	if _, err := b.s.Open(b.ctx, name(many(1, 100)[99])); !errors.Is(err, filestore.ErrNotFound) {
		t.Errorf("a content of a deleted layer: %v, want ErrNotFound", err)
	}
	b.remove("two")
	must(t, b.s.Housekeep(b.ctx))
	b.settle(false)
	b.pass(time.Hour)
	must(t, b.s.Housekeep(b.ctx))
	if keys := b.keys(); len(keys) != 0 {
		t.Errorf("objects are left: %v", keys)
	}
	if n, err := gearfacts.NewFiles(b.cat.DB).Counts(b.ctx); err != nil || n != (gearfacts.Counts{}) {
		t.Errorf("counts %+v, %v", n, err)
	}
}

// TestDeadComesBack checks that a deleted layer finds its contents again when it comes
// back.
func TestDeadComesBack(t *testing.T) {
	b := newBed(t, nil)
	b.add("one", many(1, 100)...)
	b.remove("one")
	must(t, b.s.Housekeep(b.ctx))
	b.add("one", many(1, 100)...)
	if n := len(b.keys()); n != 1 {
		t.Errorf("%d packs, want 1", n)
	}
	b.settle(true)
	b.check(many(1, 100)...)
}

// gets counts the calls of Get and the bytes they ask for.
type gets struct {
	objstore.Store
	calls, bytes atomic.Int64
}

func (g *gets) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	g.calls.Add(1)
	g.bytes.Add(n)
	return g.Store.Get(ctx, key, off, n)
}

// TestChunksAsStored checks that chunks are returned as they are stored, and that only
// those asked for are read.
func TestChunksAsStored(t *testing.T) {
	b := newBed(t, nil)
	g := &gets{Store: b.objs}
	b.objs = g
	b.newStore()
	large := append(bytes.Repeat([]byte("so compressible "), 6<<16), noise(1, 1<<20+5)...)
	small := noise(2, 1000)
	b.add("one", large, small)
	count := gear.ChunkCount(int64(len(large)))
	for _, tt := range [][2]int{{0, 1}, {2, 3}, {count - 1, 1}, {0, count}} {
		f, err := b.s.Open(b.ctx, name(large))
		must(t, err)
		g.bytes.Store(0)
		var sent bytes.Buffer
		told := int64(-1)
		must(t, f.WriteChunks(b.ctx, &sent, tt[0], tt[1], func(n int64) { told = n }))
		if told != int64(sent.Len()) || g.bytes.Load() > told+int64(count)*gear.ChunkEntry {
			t.Errorf("chunks %v: %d bytes for %d read, %d were told", tt, sent.Len(), g.bytes.Load(), told)
		}
		r, err := gear.NewChunkReader(&sent, int64(len(large)), tt[0], tt[1])
		must(t, err)
		got, err := io.ReadAll(r)
		from := tt[0] << 20
		if want := large[from:min(from+tt[1]<<20, len(large))]; err != nil || !bytes.Equal(got, want) {
			t.Errorf("chunks %v: %d bytes, error %v, want %d", tt, len(got), err, len(want))
		}
		if tt[0] == 0 && tt[1] == 1 && told > 4096 {
			t.Errorf("a chunk of repetitions takes %d bytes", told)
		}
	}
	for _, tt := range []struct {
		of       []byte
		first, n int
	}{{large, 0, 0}, {large, -1, 1}, {large, count, 1}, {large, 0, count + 1}, {large, count - 1, 1 << 62}, {small, 0, 1}} {
		f, err := b.s.Open(b.ctx, name(tt.of))
		must(t, err)
		err = f.WriteChunks(b.ctx, io.Discard, tt.first, tt.n, func(int64) { t.Errorf("chunks %d+%d begin", tt.first, tt.n) })
		if !errors.Is(err, filestore.ErrNoChunk) {
			t.Errorf("chunks %d+%d of %d: error %v", tt.first, tt.n, count, err)
		}
	}
}

func TestRangeReadsItsChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil)
	g := &gets{Store: b.objs}
	b.objs = g
	b.newStore()
	large := noise(1, 20<<20+5)
	b.add("one", large)
	for _, tt := range []struct{ off, n, chunks int64 }{
		{0, 1, 1}, {1<<20 - 1, 2, 2}, {20 << 20, 5, 1}, {20<<20 - 1, 100, 2}, {5 << 20, 1 << 20, 1}, {int64(len(large)), 1, 0}, {int64(len(large)) + 9, -1, 0}, {3 << 20, 0, 0},
	} {
		g.calls.Store(0)
		g.bytes.Store(0)
		f, err := b.s.Open(b.ctx, name(large))
		must(t, err)
		var got bytes.Buffer
		n, err := f.WriteRange(b.ctx, &got, tt.off, tt.n)
		from := min(tt.off, int64(len(large)))
		want := large[from:]
		if tt.n >= 0 && tt.n < int64(len(want)) {
			want = want[:tt.n]
		}
		if err != nil || n != int64(len(want)) || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("range %d+%d: %d bytes, %v", tt.off, tt.n, n, err)
		}
		if limit := tt.chunks<<20 + 21*gear.ChunkEntry; g.bytes.Load() > limit || g.calls.Load() > 2 {
			t.Errorf("range %d+%d read %d bytes in %d calls, want at most %d in 2", tt.off, tt.n, g.bytes.Load(), g.calls.Load(), limit)
		}
	}
}

func TestStream(t *testing.T) {
	b := newBed(t, nil)
	n := 3000
	if testing.Short() {
		n = 300
	}
	contents := many(1, n)
	b.add("one", contents...)
	b.settle(true)
	b.add("two", many(2, 100)...)
	g := &gets{Store: b.objs}
	b.objs = g
	b.newStore()
	absent, secret := name([]byte("absent")), name(contents[5])
	names := []gear.Name{absent}
	for _, c := range contents {
		names = append(names, name(c))
	}
	names = append(names, name(many(2, 100)[3]), name(contents[0]))
	var out bytes.Buffer
	must(t, b.s.Stream(b.ctx, &out, names, &filestore.StreamOptions{Allow: func(_ context.Context, names []gear.Name) ([]bool, error) {
		ok := make([]bool, len(names))
		for i, n := range names {
			ok[i] = n != secret
		}
		return ok, nil
	}}))
	if g.calls.Load() > 10 {
		t.Errorf("%d reads for %d neighbours", g.calls.Load(), len(contents))
	}
	r := gear.NewStreamReader(&out)
	for _, n := range names {
		it, err := r.Next()
		must(t, err)
		if it.Name != n || it.Missing != (n == absent || n == secret) || it.Failure != "" {
			t.Fatalf("got %x missing %v %q, want %x", it.Name, it.Missing, it.Failure, n)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("end: %v", err)
	}
}

// TestPackGone checks that a reader with an outdated place finds the new one.
func TestPackGone(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil)
	large := noise(1, 6<<20)
	small := many(1, 20)
	b.add("one", append(small, large)...)
	other, err := filestore.New(b.cat, b.objs, &b.opts)
	must(t, err)
	var files []*filestore.File
	for _, c := range append(small, large) {
		f, err := other.Open(b.ctx, name(c))
		must(t, err)
		files = append(files, f)
	}
	b.settle(true)
	b.pass(time.Hour)
	must(t, b.s.Housekeep(b.ctx))
	var stream bytes.Buffer
	must(t, other.Stream(b.ctx, &stream, []gear.Name{name(small[3]), name(large)}, nil))
	r := gear.NewStreamReader(&stream)
	for range 2 {
		it, err := r.Next()
		must(t, err)
		if _, err := it.WriteTo(io.Discard); err != nil || it.Missing || it.Failure != "" {
			t.Errorf("in a stream: %+v, %v", it, err)
		}
	}
	for i, c := range append(small, large) {
		var got bytes.Buffer
		if _, err := files[i].WriteRange(b.ctx, &got, 1, -1); err != nil || !bytes.Equal(got.Bytes(), c[1:]) {
			t.Errorf("content %d: %v", i, err)
		}
	}
	if len(b.corrupt) != 0 {
		t.Errorf("taken for damaged: %v", b.corrupt)
	}
}

func TestDamagedBytesAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil)
	contents := [][]byte{text(1, 700), noise(2, 90), text(3, 300)}
	b.add("one", contents...)
	key := b.keys()[0]
	o, err := b.objs.Get(b.ctx, key, 0, -1)
	must(t, err)
	good, err := io.ReadAll(o)
	must(t, errors.Join(err, o.Close()))
	for i := 0; i < len(good); i += 3 { // an entry has 49 bytes, so three entries have each of their bytes changed once
		bad := slices.Clone(good)
		bad[i] ^= 1 << (i % 8)
		must(t, b.objs.Put(b.ctx, key, bad, false))
		rep, err := b.s.Verify(b.ctx, filestore.VerifyOptions{Contents: true})
		if err != nil || rep.Problems == 0 {
			t.Fatalf("byte %d of %d changed: %+v, %v", i, len(good), rep, err)
		}
		b.newStore()
		for _, c := range contents {
			f, err := b.s.Open(b.ctx, name(c))
			if errors.Is(err, filestore.ErrLost) {
				continue
			}
			must(t, err)
			var corrupt *filestore.CorruptError
			got, err := f.Content(b.ctx)
			if !bytes.Equal(got, c) && !errors.As(err, &corrupt) {
				t.Fatalf("byte %d changed: read %q, %v", i, got, err)
			}
		}
		must(t, b.objs.Put(b.ctx, key, good, false))
		// Store the contents again, so that the next round starts as this one did.
		w, err := b.s.NewWriter(b.ctx)
		must(t, err)
		must(t, write(b.ctx, w, contents))
		_, err = w.PutIndex(b.ctx, index("one", contents))
		must(t, err)
		must(t, w.Commit(b.ctx, gearfacts.Layer{Digest: b.push("one")}))
		b.settleBack(t, key, contents)
	}
}

// settleBack puts all contents back into the pack they came from.
func (b *bed) settleBack(t *testing.T, key string, contents [][]byte) {
	t.Helper()
	b.check(contents...)
	if n := len(b.keys()); n == 1 {
		return
	}
	b.remove("one")
	must(t, b.s.Housekeep(b.ctx))
	b.settle(true)
	b.pass(time.Hour)
	must(t, b.s.Housekeep(b.ctx))
	b.add("one", contents...)
	if keys := b.keys(); len(keys) != 1 || keys[0] != key {
		t.Fatalf("packs %v, want %s", keys, key)
	}
}

func TestDamagedChunk(t *testing.T) {
	b := newBed(t, nil)
	large := append(text(1, 5<<20), 1)
	b.add("one", large, text(2, 100))
	key := b.keys()[0]
	o, err := b.objs.Get(b.ctx, key, 0, -1)
	must(t, err)
	bad, err := io.ReadAll(o)
	must(t, errors.Join(err, o.Close()))
	bad[len(bad)/3] ^= 4
	must(t, b.objs.Put(b.ctx, key, bad, false))
	f, err := b.s.Open(b.ctx, name(large))
	must(t, err)
	var corrupt *filestore.CorruptError
	if _, err := f.WriteRange(b.ctx, io.Discard, 0, -1); !errors.As(err, &corrupt) || corrupt.Name != hex.EncodeToString(sum(large)) ||
		!strings.HasSuffix(key, corrupt.Pack) || len(b.corrupt) != 1 {
		t.Fatalf("read: %v; told %v", err, b.corrupt)
	}
	if _, err := b.s.Open(b.ctx, name(large)); !errors.Is(err, filestore.ErrLost) {
		t.Errorf("open: %v, want ErrLost", err)
	}
	layers, err := gearfacts.NewLayers(b.cat.DB).LayersOf(b.ctx, name(large), 5)
	if err != nil || len(layers) != 1 {
		t.Fatalf("layers %v, %v", layers, err)
	}
	must(t, b.convert(layers[0], "one", [][]byte{large, text(2, 100)}))
	b.check(large, text(2, 100))
}

// TestSettleShortTail checks that the dictionary of a pack serves small contents only.
// The short last chunk of a large content is read without a dictionary and must not use
// it.
func TestSettleShortTail(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil)
	large := text(7, 5<<20+700)
	contents := [][]byte{large}
	for i := range 300 {
		contents = append(contents, text(uint64(100+i), 2000))
	}
	b.add("one", contents...)
	if rep := b.settle(true); rep.Written != 1 {
		t.Fatalf("settled into %d packs, want 1", rep.Written)
	}
	b.check(contents...)
	b.verify()
}

// TestSettleOnce checks that each pack is rewritten once, wherever the large contents
// come.
func TestSettleOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const unit = 4 << 10 // a sixteenth of a pack
	for _, sizes := range [][]int{{3, 15, 3, 15, 6, 5}, {9, 8, 9, 8}, {11, 8, 1, 1, 1, 17, 2, 11}, {1, 40, 1, 40}} {
		b := newBed(t, &filestore.Options{PackSize: 16 * unit})
		var all [][]byte
		for i, size := range sizes {
			content := noise(uint64(i), size*unit)
			b.add(fmt.Sprint("layer", i), content)
			all = append(all, content)
		}
		fresh := b.verify()
		first, second := b.settle(false), b.settle(true)
		if replaced := first.Replaced + second.Replaced; replaced != fresh {
			t.Errorf("%d: replaced %d packs, want each of %d once", sizes, replaced, fresh)
		}
		if again := b.settle(true); again.Replaced > 0 {
			t.Errorf("%d: settled again: %+v", sizes, again)
		}
		b.check(all...)
		b.verify()
	}
}

// TestSettleDamaged checks that settling skips what is damaged and goes on.
func TestSettleDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil)
	contents := append(many(1, 100), noise(8, 50<<10))
	b.add("one", contents...)
	b.s.Housekeep(b.ctx)
	key := b.keys()[0]
	o, err := b.objs.Get(b.ctx, key, 0, -1)
	must(t, err)
	bad, err := io.ReadAll(o)
	must(t, errors.Join(err, o.Close()))
	bad[bytes.Index(bad, contents[100])+77] ^= 4
	must(t, b.objs.Put(b.ctx, key, bad, false))
	b.settle(true)
	b.check(contents[:100]...)
	if _, err := b.s.Open(b.ctx, name(contents[100])); !errors.Is(err, filestore.ErrLost) || len(b.corrupt) != 1 {
		t.Errorf("open: %v, want ErrLost; told %v", err, b.corrupt)
	}
	b.add("one", contents...)
	b.check(contents...)
	b.verify()
}

func TestRebuild(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil)
	b.add("one", append(many(1, 300), text(2, 5<<20))...)
	b.settle(true)
	b.add("two", many(2, 30)...)
	b.pass(time.Hour)
	must(t, b.s.Housekeep(b.ctx))
	packs := b.keys()
	// Another catalogue, which is empty.
	must(t, b.cat.Close())
	b.path += "2"
	b.open()
	if n, _, err := b.s.Rebuild(b.ctx, func(p filestore.Problem) { t.Errorf("%+v", p) }); err != nil || n != 2 {
		t.Fatalf("rebuilt %d packs, %v", n, err)
	}
	b.settle(true)
	must(t, b.s.Housekeep(b.ctx))
	b.add("one", append(many(1, 300), text(2, 5<<20))...)
	b.add("two", many(2, 30)...)
	if diff := cmp.Diff(packs, b.keys()); diff != "" {
		t.Errorf("packs (-before +after):\n%s", diff)
	}
	b.check(append(many(1, 300), text(2, 5<<20))...)
	b.verify()
}

// TestRepairEnds damages a pack in every way. After a repair the next check must find
// nothing, and no readable content may be lost.
func TestRepairEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	contents := [][]byte{text(1, 700), noise(2, 90), text(3, 300)}
	harm := func(good []byte, n int) []byte {
		switch {
		case n == 0:
			return nil // nil: the object is deleted
		case n%2 == 0:
			return good[:len(good)*n/24]
		}
		bad := slices.Clone(good)
		bad[len(bad)*n/24] ^= 1 << (n % 8)
		return bad
	}
	for n := range 24 {
		b := newBed(t, nil)
		b.add("one", contents...)
		key := b.keys()[0]
		o, err := b.objs.Get(b.ctx, key, 0, -1)
		must(t, err)
		good, err := io.ReadAll(o)
		must(t, errors.Join(err, o.Close()))
		if bad := harm(good, n); bad != nil {
			must(t, b.objs.Put(b.ctx, key, bad, false))
		} else {
			must(t, b.objs.Delete(b.ctx, key))
		}
		b.newStore()
		named := map[string]bool{}
		rep, err := b.s.Verify(b.ctx, filestore.VerifyOptions{Contents: true, Repair: true, Found: func(p filestore.Problem) { named[p.Name] = true }})
		if err != nil || rep.Problems == 0 {
			t.Fatalf("harm %d: %+v, %v", n, rep, err)
		}
		b.verify()
		for _, c := range contents {
			id := name(c)
			f, err := b.s.Open(b.ctx, id)
			if lost := errors.Is(err, filestore.ErrLost); lost != named[hex.EncodeToString(id[:])] {
				t.Fatalf("harm %d: content %x: %v, but the repair named %v", n, id, err, named)
			} else if lost {
				continue
			}
			must(t, err)
			if got, err := f.Content(b.ctx); err != nil || !bytes.Equal(got, c) {
				t.Fatalf("harm %d: read %q, %v", n, got, err)
			}
		}
	}
}

func TestOrphan(t *testing.T) {
	b := newBed(t, nil)
	b.add("one", many(1, 3)...)
	key := "slipway/gear/packs/" + strings.Repeat("ab", 32)
	must(t, b.objs.Put(b.ctx, key, []byte("left over"), false))
	rep, err := b.s.Verify(b.ctx, filestore.VerifyOptions{Repair: true})
	if err != nil || rep.Problems != 1 || slices.Contains(b.keys(), key) {
		t.Errorf("%+v, %v, objects %v", rep, err, b.keys())
	}
	b.check(many(1, 3)...)
}

func TestStaged(t *testing.T) {
	b := newBed(t, nil)
	b.push("some blob, so that the repository is there")
	w, err := b.s.NewWriter(b.ctx)
	must(t, err)
	must(t, write(b.ctx, w, many(1, 10)))
	must(t, w.Stage(b.ctx, repo, b.clock().Add(time.Hour)))
	ask := []gear.Name{name(many(1, 10)[3]), name([]byte("x"))}
	if got, err := gearfacts.NewFiles(b.cat.DB).Visible(b.ctx, repo, ask); err != nil || !slices.Equal(got, []bool{true, false}) {
		t.Errorf("visible: %v, %v", got, err)
	}
	if got, err := gearfacts.NewFiles(b.cat.DB).Visible(b.ctx, "other", ask); err != nil || !slices.Equal(got, []bool{false, false}) {
		t.Errorf("visible elsewhere: %v, %v", got, err)
	}
	b.pass(2 * time.Hour)
	must(t, b.s.Housekeep(b.ctx))
	b.settle(false)
	b.pass(2 * time.Hour)
	must(t, b.s.Housekeep(b.ctx))
	if n := len(b.keys()); n != 0 {
		t.Errorf("%d packs after the upload expired", n)
	}
}

func TestBlobGoneMeanwhile(t *testing.T) {
	b := newBed(t, nil)
	d := b.push("one")
	b.remove("one")
	if err := b.convert(d, "one", many(1, 10)); !errors.Is(err, catalog.ErrNotStored) {
		t.Errorf("convert: %v, want ErrNotStored", err)
	}
	must(t, b.s.Housekeep(b.ctx))
	if n := len(b.keys()); n != 0 {
		t.Errorf("%d packs are left", n)
	}
}

func BenchmarkContent(b *testing.B) {
	for _, cached := range []bool{false, true} {
		b.Run(map[bool]string{false: "read", true: "cached"}[cached], func(b *testing.B) {
			bench(b, cached)
		})
	}
}

// never is a cache that keeps nothing.
type never struct{}

func (never) Get(gear.Name) ([]byte, bool) { return nil, false }
func (never) Put(gear.Name, []byte)        {}

func bench(b *testing.B, cached bool) {
	d := &bed{t: b, ctx: b.Context(), path: b.TempDir() + "/catalog.db", objs: memstore.New(nil)}
	o := &filestore.Options{}
	if !cached {
		o.Cache = never{}
		o.Locations = 16 // so few that the catalogue is asked
	}
	d.init(o)
	defer d.cat.Close()
	contents := make([][]byte, 300)
	for i := range contents {
		contents[i] = text(uint64(i), 8<<10)
	}
	d.add("one", contents...)
	d.settle(true)
	names := make([]gear.Name, len(contents))
	for i, c := range contents {
		names[i] = name(c)
	}
	for b.Loop() {
		for _, n := range names {
			f, err := d.s.Open(d.ctx, n)
			must(b, err)
			_, err = f.Content(d.ctx)
			must(b, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(contents)), "ns/file")
}
