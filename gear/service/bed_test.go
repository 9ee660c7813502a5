package service_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
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

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/internal/logtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(withServers{m}) }

// patience is how long a test waits for a condition.
const patience = 30 * time.Second

const (
	ours   = "ours/app"
	theirs = "theirs/app"
)

// setup configures a bed. The zero value gives a bed over a store in memory, with the
// defaults.
type setup struct {
	store  objstore.Store
	gear   gearregistry.Options
	filest filestore.Options
	// idle leaves the queue unprocessed until run is called.
	idle bool
	// tick is how far the conversions' clock advances each time they read it.
	tick time.Duration
	// off runs the registry without its Gear side.
	off bool
	// dsn names a catalogue that several processes share. They then use the system's
	// clock. If dsn is empty, the bed makes its own catalogue.
	dsn string
}

// bed is a registry with its Gear side and all layers below, wired as package serve does.
type bed struct {
	t   testing.TB
	dir string
	o   setup

	cat   *catalog.Catalog
	objs  objstore.Store
	files *filestore.Store
	svc   *gearregistry.Service
	reg   *registry.Registry
	log   *logtest.Buffer
	stop  func()

	// before, if set, is called before each operation of the store.
	before atomic.Pointer[func(op, key string) error]
	// opened counts how often the Gear side opened each blob.
	openedMu sync.Mutex
	opened   map[oci.Digest]int

	mu  sync.Mutex
	now time.Time
}

func newBed(t testing.TB, o setup) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir(), o: o, log: &logtest.Buffer{}, opened: map[oci.Digest]int{},
		now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	inner := o.store
	if inner == nil {
		inner = memstore.New(&memstore.Options{Now: b.clock})
	}
	b.objs = objtest.Faulty(inner, objtest.Faults{Before: func(op, key string) error {
		if f := b.before.Load(); f != nil {
			return (*f)(op, key)
		}
		return nil
	}})
	b.open()
	t.Cleanup(func() {
		b.close()
		if err := inner.Close(); err != nil {
			t.Errorf("close the store: %v", err)
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
	b.now = b.now.Add(d)
	b.mu.Unlock()
	b.svc.Wake()
}

// fault sets the function that is called before each operation of the store.
func (b *bed) fault(f func(op, key string) error) {
	if f == nil {
		b.before.Store(nil)
		return
	}
	b.before.Store(&f)
}

// OpenBlob implements gearregistry.Blobs.
func (b *bed) OpenBlob(ctx context.Context, d oci.Digest, off int64) (io.ReadCloser, int64, error) {
	b.openedMu.Lock()
	b.opened[d]++
	b.openedMu.Unlock()
	return storage.OpenBlob(ctx, b.cat, b.objs, d, off)
}

func (b *bed) opens(d oci.Digest) int {
	b.openedMu.Lock()
	defer b.openedMu.Unlock()
	return b.opened[d]
}

// open starts a process.
func (b *bed) open() {
	b.t.Helper()
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(b.log, nil))
	var err error
	clock := b.clock
	if b.o.dsn != "" {
		clock = nil
		b.cat, err = catalog.OpenPostgres(ctx, b.o.dsn, &catalog.Options{Grace: time.Minute})
	} else {
		b.cat, err = catalog.Open(ctx, filepath.Join(b.dir, registry.CatalogFile), &catalog.Options{Clock: b.clock, Grace: time.Minute})
	}
	b.must(err)
	f := b.o.filest
	f.Log, f.Clock = log, clock
	f.OnCorrupt = func(e *filestore.CorruptError) { b.svc.Remake(e) }
	b.files, err = filestore.New(b.cat, b.objs, &f)
	b.must(err)
	g := b.o.gear
	g.Logger, g.Clock, g.TempDir = log, clock, b.dir
	if b.o.tick > 0 {
		g.Clock = func() time.Time {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.now = b.now.Add(b.o.tick)
			return b.now
		}
	}
	b.svc = gearregistry.New(b.cat, b, b.files, &g)
	o := &registry.Options{Clock: clock, Logger: log, Grace: time.Minute, Tap: b.svc,
		Partial: func(repo string) bool { return strings.HasPrefix(repo, "up/") },
		OnEvent: func(ctx context.Context, e registry.Event) error { b.svc.OnEvent(ctx, e); return nil }}
	if b.o.off {
		o.Tap, o.OnEvent = nil, nil
	}
	b.reg, err = registry.New(ctx, b.cat, b.objs, o)
	b.must(err)
	b.stop = func() {}
	if !b.o.idle {
		b.run()
	}
}

// run starts to process the queue.
func (b *bed) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	svc := b.svc
	go func() { done <- svc.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("run: %v", err)
		}
	}
}

// close stops the process in the order of package serve.
func (b *bed) close() {
	if b.cat == nil {
		return
	}
	b.stop()
	b.svc.Close()
	if n := b.svc.SlotsTaken(); n != 0 {
		b.t.Errorf("%d slots are taken after the end", n)
	}
	if st, err := b.svc.Status(context.Background()); err != nil || len(st.Active) > 0 {
		b.t.Errorf("at the end: active %v (%v)", st.Active, err)
	}
	if err := b.reg.Close(context.Background()); err != nil {
		b.t.Errorf("close the registry: %v", err)
	}
	if err := b.cat.Close(); err != nil {
		b.t.Errorf("close the catalogue: %v", err)
	}
	b.cat = nil
}

// restart stops the process and starts another.
func (b *bed) restart() {
	b.t.Helper()
	b.close()
	b.open()
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// eventually waits until a condition holds.
func (b *bed) eventually(what string, holds func() bool) {
	b.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(end) {
			b.t.Fatalf("waited in vain: %s", what)
		}
	}
}

// quiet waits until no conversion is running.
func (b *bed) quiet() {
	b.t.Helper()
	b.eventually("no conversion", func() bool { return b.svc.SlotsTaken() == 0 && len(b.status().Active) == 0 })
}

func (b *bed) status() gearregistry.Status {
	b.t.Helper()
	st, err := b.svc.Status(context.Background())
	b.must(err)
	return st
}

// metric returns the value of a counter of the service.
func (b *bed) metric(name string) int {
	b.t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(b.svc.Metrics()...)
	families, err := r.Gather()
	b.must(err)
	for _, f := range families {
		if f.GetName() == "slipway_gear_"+name {
			return int(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	b.t.Fatalf("no metric %s", name)
	return 0
}

// wait waits until the index of a layer exists.
func (b *bed) wait(d oci.Digest) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	if err := b.svc.Wait(ctx, d); err != nil {
		b.t.Fatalf("wait for %s: %v", d, err)
	}
}

// file is a member of a layer's tar.
type file struct {
	name string
	data []byte
}

func tarOf(files ...file) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.data)), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if _, err := w.Write(f.data); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func zipped(b []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if _, err := w.Write(b); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// layer returns a compressed layer of n incompressible files of size bytes each.
func layer(seed uint64, n, size int) []byte {
	var files []file
	for i := range n {
		files = append(files, file{fmt.Sprintf("d/%d-%d", seed, i), content(seed<<16+uint64(i), size)})
	}
	return zipped(tarOf(files...))
}

// content returns n bytes that depend on seed.
func content(seed uint64, n int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

func name(b []byte) gear.Name { return sha256.Sum256(b) }

const gzipLayer = "application/vnd.oci.image.layer.v1.tar+gzip"

// pushBlob pushes a blob in one request.
func (b *bed) pushBlob(repo string, data []byte) oci.Digest {
	b.t.Helper()
	d := oci.SHA256(data)
	if _, err := b.reg.PushBlob(context.Background(), repo, d, int64(len(data)), bytes.NewReader(data)); err != nil {
		b.t.Fatalf("push blob to %s: %v", repo, err)
	}
	return d
}

// pushManifest pushes an image of blobs that were pushed before.
func (b *bed) pushManifest(repo string, layers ...oci.Digest) oci.Digest {
	b.t.Helper()
	desc := func(kind string, d oci.Digest) oci.Descriptor {
		got, err := b.cat.Blob(context.Background(), repo, d)
		b.must(err)
		return oci.Descriptor{MediaType: kind, Digest: d, Size: got.Size}
	}
	doc := struct {
		SchemaVersion int              `json:"schemaVersion"`
		MediaType     string           `json:"mediaType"`
		Config        oci.Descriptor   `json:"config"`
		Layers        []oci.Descriptor `json:"layers"`
	}{2, oci.MediaTypeOCIManifest, desc("application/vnd.oci.image.config.v1+json", b.pushBlob(repo, []byte(`{"os":"linux"}`))), []oci.Descriptor{}}
	for _, d := range layers {
		doc.Layers = append(doc.Layers, desc(gzipLayer, d))
	}
	raw, err := json.Marshal(doc)
	b.must(err)
	res, err := b.reg.PutManifest(context.Background(), repo, oci.PutManifest{Bytes: raw})
	b.must(err)
	return res.Digest
}

// push pushes an image of one layer.
func (b *bed) push(repo string, data []byte) (manifest, layer oci.Digest) {
	b.t.Helper()
	layer = b.pushBlob(repo, data)
	return b.pushManifest(repo, layer), layer
}

// index reads the index of a layer, as a client of a repository does.
func (b *bed) index(repo string, d oci.Digest) (*gear.Index, error) {
	c, err := b.svc.Layer(context.Background(), repo, d)
	if err != nil {
		return nil, err
	}
	raw, err := b.content(c)
	if err != nil {
		return nil, err
	}
	return gear.Decode(bytes.NewReader(raw), nil)
}

func (b *bed) content(c *gearregistry.Content) ([]byte, error) {
	var buf bytes.Buffer
	err := c.WriteRange(context.Background(), &buf, 0, c.Size())
	if err == nil && name(buf.Bytes()) != c.Name() {
		err = errors.New("the content has another name")
	}
	return buf.Bytes(), err
}

// read reads a file, as a client of a repository does.
func (b *bed) read(repo string, n gear.Name) ([]byte, error) {
	c, err := b.svc.File(context.Background(), repo, n)
	if err != nil {
		return nil, err
	}
	return b.content(c)
}

// readable checks that a repository can read a layer's index and each file in it.
func (b *bed) readable(repo string, d oci.Digest) {
	b.t.Helper()
	x, err := b.index(repo, d)
	if err != nil {
		b.t.Fatalf("index of %s in %s: %v", d, repo, err)
	}
	for _, f := range x.Files {
		if f.Size == 0 {
			continue
		}
		if _, err := b.read(repo, f.Name); err != nil {
			b.t.Fatalf("file %x of %s in %s: %v", f.Name, d, repo, err)
		}
	}
}

// pending checks that a layer has no index, and that the error names the reason.
func (b *bed) pending(repo string, d oci.Digest, reason string) {
	b.t.Helper()
	_, err := b.svc.Layer(context.Background(), repo, d)
	var p *gear.PendingError
	if !errors.As(err, &p) || p.RetryAfter > 0 != (reason == "") || !strings.Contains(p.Reason, reason) {
		b.t.Errorf("layer %s of %s: got %v, want it to be pending with %q", d, repo, err, reason)
	}
}

// collect removes what no manifest needs.
func (b *bed) collect() {
	b.t.Helper()
	b.pass(2 * time.Minute)
	_, err := b.reg.Collect(context.Background(), registry.CollectOptions{Now: true})
	b.must(err)
	b.must(b.files.Housekeep(context.Background()))
}
