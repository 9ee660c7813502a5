package recipes

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/gear/filestore"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/internal/logtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const repo = "team/app"

// cold is how long after a pull the layers of a bed are dropped, again how long they wait for it.
const (
	cold  = time.Hour
	again = 24 * time.Hour
)

// bed is a registry over a directory, with its Gear side, as package serve wires them.
type bed struct {
	t   testing.TB
	dir string
	log *logtest.Buffer
	// parity is as in Options, and packSize as in filestore.Options, from the next start on.
	parity   int
	packSize int64

	cat    *catalog.Catalog
	disk   *flipping
	store  *Store
	files  *filestore.Store
	svc    *gearregistry.Service
	reg    *registry.Registry
	keeper *Keeper
	stop   func()

	mu  sync.Mutex
	now time.Time
}

func newBed(t testing.TB) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir(), log: &logtest.Buffer{}, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	b.open()
	t.Cleanup(func() {
		b.close()
		if strings.Contains(b.log.String(), "%!") {
			t.Error("the log has a message that lacks a part")
		}
		if t.Failed() {
			t.Logf("log:\n%s", b.log)
		}
	})
	return b
}

func (b *bed) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// pass advances the clock.
func (b *bed) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// open starts a process.
func (b *bed) open() {
	b.t.Helper()
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(b.log, nil))
	var err error
	b.cat, err = catalog.Open(ctx, filepath.Join(b.dir, registry.CatalogFile), &catalog.Options{Clock: b.clock, Grace: time.Minute})
	b.must(err)
	disk, err := fsstore.New(b.dir, nil)
	b.must(err)
	b.disk = &flipping{Store: disk}
	b.store, err = New(b.cat, b.disk, &Options{Log: log, TempDir: b.t.TempDir(), Parity: b.parity, OnCorrupt: func(e *filestore.CorruptError) { b.svc.Remake(e) }})
	b.must(err)
	b.files, err = filestore.New(b.cat, b.store, &filestore.Options{Log: log, Clock: b.clock, Proof: b.store.Proof(), PackSize: b.packSize,
		OnCorrupt: func(e *filestore.CorruptError) { b.svc.Remake(e) }})
	b.must(err)
	b.svc = gearregistry.New(b.cat, b, b.files, &gearregistry.Options{Logger: log, Clock: b.clock, TempDir: b.dir})
	b.reg, err = registry.New(ctx, b.cat, b.store, &registry.Options{Clock: b.clock, Logger: log, Grace: time.Minute})
	b.must(err)
	b.keeper = NewKeeper(b.store, b.files, b.reg, Policy{ColdAfter: cold, Again: again, LeastBytes: 1, MostRecipe: 50})
	run, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	svc := b.svc
	go func() { done <- svc.Run(run) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("run: %v", err)
		}
	}
}

// OpenBlob implements gearregistry.Blobs.
func (b *bed) OpenBlob(ctx context.Context, d oci.Digest, off int64) (io.ReadCloser, int64, error) {
	return storage.OpenBlob(ctx, b.cat, b.store, d, off)
}

// close stops the process in the order of package serve.
func (b *bed) close() {
	b.t.Helper()
	b.stop()
	b.svc.Close()
	ctx := context.Background()
	for _, err := range []error{b.reg.Close(ctx), b.cat.Close(), b.store.Close()} {
		if err != nil {
			b.t.Errorf("close: %v", err)
		}
	}
}

// restart stops the process and starts another.
func (b *bed) restart() {
	b.t.Helper()
	b.close()
	b.open()
}

// push pushes a layer and has it converted.
func (b *bed) push(layer []byte) oci.Digest {
	b.t.Helper()
	ctx := b.t.Context()
	d := oci.SHA256(layer)
	_, err := b.reg.PushBlob(ctx, repo, d, int64(len(layer)), bytes.NewReader(layer))
	b.must(err)
	b.must(b.svc.Queue(ctx, repo, []oci.Digest{d}))
	b.must(b.svc.Wait(ctx, d))
	return d
}

// settle settles all packs.
func (b *bed) settle() {
	b.t.Helper()
	_, err := b.files.Settle(b.t.Context(), filestore.SettleOptions{All: true})
	b.must(err)
}

// run passes once.
func (b *bed) run() Report {
	b.t.Helper()
	rep, err := b.keeper.Pass(b.t.Context())
	b.must(err)
	return rep
}

// drop settles and drops everything that is here.
func (b *bed) drop() {
	b.t.Helper()
	b.settle()
	b.pass(2 * cold)
	if rep := b.run(); rep.Failed > 0 {
		b.t.Errorf("recipes: %+v", rep)
	}
	b.pass(2 * again)
	if rep := b.run(); rep.Failed > 0 {
		b.t.Errorf("drops: %+v", rep)
	}
}

// stored reports whether a layer has an object.
func (b *bed) stored(d oci.Digest) bool {
	b.t.Helper()
	_, err := b.disk.Stat(b.t.Context(), storage.BlobKey(d))
	if err != nil && !isAbsent(err) {
		b.t.Fatal(err)
	}
	return err == nil
}

// state returns what is recorded of a layer's recipe, -1 if nothing is.
func (b *bed) state(d oci.Digest) gearfacts.RecipeState {
	b.t.Helper()
	l, err := gearfacts.NewRecipes(b.cat.DB).LayerRecipe(b.t.Context(), d)
	if isUnknown(err) {
		return -1
	}
	b.must(err)
	return l.State
}

// read pulls a layer whole, as a client does.
func (b *bed) read(d oci.Digest) ([]byte, error) {
	c, err := b.reg.GetBlob(b.t.Context(), repo, d)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return io.ReadAll(c)
}

// check pulls a layer whole and in ranges.
func (b *bed) check(what string, layer []byte) {
	b.t.Helper()
	d := oci.SHA256(layer)
	got, err := b.read(d)
	if err != nil || !bytes.Equal(got, layer) {
		b.t.Fatalf("%s: pulled %d bytes of %s, want its %d; %v", what, len(got), d, len(layer), err)
	}
	if desc, err := b.reg.ResolveBlob(b.t.Context(), repo, d); err != nil || desc.Size != int64(len(layer)) {
		b.t.Errorf("%s: HEAD of %s: %+v, %v", what, d, desc, err)
	}
	r := rand.New(rand.NewPCG(1, uint64(len(layer))))
	for range 4 {
		off := r.Int64N(int64(len(layer)))
		n := r.Int64N(int64(len(layer))-off) + 1
		c, err := b.reg.GetBlobRange(b.t.Context(), repo, d, off, n)
		if err != nil {
			b.t.Fatalf("%s: range %d+%d of %s: %v", what, off, n, d, err)
		}
		got, err := io.ReadAll(c)
		c.Close()
		if err != nil || !bytes.Equal(got, layer[off:off+n]) {
			b.t.Errorf("%s: range %d+%d of %s has other bytes, %v", what, off, n, d, err)
		}
	}
}

// short returns the second number with -short, under which the race detector runs: it makes a rebuild
// take fifteen times as long, and a longer one says no more about what happens at once.
func short(long, n int) int {
	if testing.Short() {
		return n
	}
	return long
}

// archive is a tar of some files, of which those with low numbers are in every archive.
func archive(seed uint64, files int) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range files {
		from := seed
		if i < files/3 {
			from = 0
		}
		r := rand.New(rand.NewPCG(from, uint64(i)))
		body := make([]byte, r.IntN(60_000))
		for j := range body {
			body[j] = "the cat sat on a mat\n"[r.IntN(8+int(from)%4)]
		}
		h := &tar.Header{Name: fmt.Sprintf("dir%d/file%d-%d", i%5, from, i), Mode: 0o644, Size: int64(len(body)), ModTime: time.Unix(1_600_000_000+int64(i), 0)}
		if err := w.WriteHeader(h); err != nil {
			panic(err) // of a buffer
		}
		_, _ = w.Write(body)
	}
	_ = w.Close()
	return b.Bytes()
}

// compressed is a gzip stream of one member for each part.
func compressed(level int, parts ...[]byte) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		w, err := gzip.NewWriterLevel(&b, level)
		if err != nil {
			panic(err) // of a constant
		}
		_, _ = w.Write(p)
		_ = w.Close()
	}
	return b.Bytes()
}

// flipping is a store that, once it is told to, stores other bytes than it is given, or
// stops.
type flipping struct {
	objstore.Store
	on atomic.Bool
	// bad says which objects cannot be read; nil: all can.
	bad atomic.Pointer[unreadable]
	// left is how many operations are left until nothing works any more; 0: no limit.
	left atomic.Int64
	// fault makes operations fail for a while; nil: none fails.
	fault atomic.Pointer[fault]
}

// fault makes operations fail after the first ones, as long as it is there.
type fault struct {
	err   error
	first int64 // how many operations work
	once  bool  // only one operation fails; otherwise all do
	n     atomic.Int64
}

// step returns the error of an operation.
func (f *fault) step() error {
	if f == nil {
		return nil
	}
	if n := f.n.Add(1); n == f.first+1 || n > f.first && !f.once {
		return f.err
	}
	return nil
}

// met reports whether an operation has failed.
func (f *fault) met() bool { return f.n.Load() > f.first }

// faultyObject is an object of which each read is an operation.
type faultyObject struct {
	objstore.Object
	f *flipping
}

// Read implements io.Reader.
func (o faultyObject) Read(p []byte) (int, error) {
	if err := o.f.fault.Load().step(); err != nil {
		return 0, err
	}
	return o.Object.Read(p)
}

// WriteTo implements io.WriterTo.
func (o faultyObject) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{o})
}

// unreadable are the objects whose keys have a prefix, until the one that has it for a key
// is stored again, and the error of reading them.
type unreadable struct {
	prefix string
	err    error
}

// stopAfter has the store do n more operations, and nothing after them.
func (f *flipping) stopAfter(n int) { f.left.Store(int64(n) + 1) }

// stopped reports whether the store does nothing any more.
func (f *flipping) stopped() bool { return f.left.Load() == 1 }

// step returns an error if the store does nothing any more, or fails for now.
func (f *flipping) step() error {
	if err := f.fault.Load().step(); err != nil {
		return err
	}
	for {
		n := f.left.Load()
		if n == 0 {
			return nil
		}
		if n == 1 {
			return errors.New("the process has ended")
		}
		if f.left.CompareAndSwap(n, n-1) {
			return nil
		}
	}
}

// Get implements objstore.Store.
func (f *flipping) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if err := f.step(); err != nil {
		return nil, err
	}
	if u := f.bad.Load(); u != nil && strings.HasPrefix(key, u.prefix) {
		return nil, u.err
	}
	o, err := f.Store.Get(ctx, key, off, n)
	if err != nil {
		return nil, err
	}
	return faultyObject{o, f}, nil
}

// Stat implements objstore.Store.
func (f *flipping) Stat(ctx context.Context, key string) (objstore.Info, error) {
	if err := f.fault.Load().step(); err != nil {
		return objstore.Info{}, err
	}
	return f.Store.Stat(ctx, key)
}

// Delete implements objstore.Store.
func (f *flipping) Delete(ctx context.Context, key string) error {
	if err := f.step(); err != nil {
		return err
	}
	return f.Store.Delete(ctx, key)
}

// Unwrap implements objstore.Wrapper.
func (f *flipping) Unwrap() objstore.Store { return f.Store }

// NewUpload implements objstore.Store.
func (f *flipping) NewUpload(ctx context.Context, sizeHint int64) (objstore.Upload, error) {
	if err := f.step(); err != nil {
		return nil, err
	}
	u, err := f.Store.NewUpload(ctx, sizeHint)
	return flippedUpload{u, f}, err
}

type flippedUpload struct {
	objstore.Upload
	f *flipping
}

// Write implements io.Writer.
func (u flippedUpload) Write(p []byte) (int, error) {
	if err := u.f.step(); err != nil {
		return 0, err
	}
	if u.f.on.Load() && len(p) > 0 {
		p = bytes.Clone(p)
		p[len(p)/2] ^= 1
	}
	return u.Upload.Write(p)
}

// Commit implements objstore.Upload.
func (u flippedUpload) Commit(ctx context.Context, key string) error {
	if err := u.f.step(); err != nil {
		return err
	}
	err := u.Upload.Commit(ctx, key)
	if bad := u.f.bad.Load(); err == nil && bad != nil && bad.prefix == key {
		u.f.bad.Store(nil)
	}
	return err
}
