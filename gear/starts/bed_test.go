package starts_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/gear/starts"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for a condition.
const patience = 30 * time.Second

const (
	ours   = "ours/app"
	theirs = "theirs/app"
)

// bed is a registry with its Gear side, of which book is a part.
type bed struct {
	t     testing.TB
	cat   *catalog.Catalog
	objs  objstore.Store
	files *filestore.Store
	svc   *gearregistry.Service
	book  *starts.Book
	reg   *registry.Registry

	mu  sync.Mutex
	now time.Time
}

// newBed returns a bed in which repositories have the given owners; nil: all have the same.
func newBed(t testing.TB, owner func(repo string) string) *bed {
	t.Helper()
	ctx := context.Background()
	b := &bed{t: t, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	log := slog.New(slog.DiscardHandler)
	b.objs = memstore.New(&memstore.Options{Now: b.clock})
	var err error
	b.cat, err = catalog.Open(ctx, filepath.Join(t.TempDir(), registry.CatalogFile), &catalog.Options{Clock: b.clock, Grace: time.Minute})
	b.must(err)
	b.files, err = filestore.New(b.cat, b.objs, &filestore.Options{Log: log, Clock: b.clock})
	b.must(err)
	b.svc = gearregistry.New(b.cat, b, b.files, &gearregistry.Options{Logger: log, Clock: b.clock, TempDir: t.TempDir(), Owner: owner})
	b.book = b.svc.Book
	b.reg, err = registry.New(ctx, b.cat, b.objs, &registry.Options{Clock: b.clock, Logger: log, Grace: time.Minute, Tap: b.svc,
		OnEvent: func(ctx context.Context, e registry.Event) error { b.svc.OnEvent(ctx, e); return nil }})
	b.must(err)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- b.svc.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		err := <-done
		b.svc.Close()
		for _, close := range []func() error{func() error { return b.reg.Close(context.Background()) }, b.cat.Close, b.objs.Close} {
			if e := close(); err == nil {
				err = e
			}
		}
		if err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func (b *bed) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// OpenBlob implements gearregistry.Blobs.
func (b *bed) OpenBlob(ctx context.Context, d oci.Digest, off int64) (io.ReadCloser, int64, error) {
	return storage.OpenBlob(ctx, b.cat, b.objs, d, off)
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

func name(b []byte) gear.Name { return sha256.Sum256(b) }

// pushBlob pushes a blob.
func (b *bed) pushBlob(repo string, data []byte) oci.Digest {
	b.t.Helper()
	d := oci.SHA256(data)
	_, err := b.reg.PushBlob(context.Background(), repo, d, int64(len(data)), bytes.NewReader(data))
	b.must(err)
	return d
}

// pushImage pushes an image of files that starts a command, and waits until it is converted.
func (b *bed) pushImage(repo string, command []string, files ...file) oci.Digest {
	b.t.Helper()
	layer := b.pushBlob(repo, zipped(tarOf(files...)))
	config, err := json.Marshal(map[string]any{"os": "linux", "architecture": "amd64", "config": map[string]any{"Entrypoint": command}})
	b.must(err)
	d := b.pushBlob(repo, config)
	blob, err := b.cat.Blob(context.Background(), repo, layer)
	b.must(err)
	raw, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest,
		"config": oci.Descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: d, Size: int64(len(config))},
		"layers": []oci.Descriptor{{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: layer, Size: blob.Size}}})
	b.must(err)
	res, err := b.reg.PutManifest(context.Background(), repo, oci.PutManifest{Bytes: raw})
	b.must(err)
	b.wait(layer)
	return res.Digest
}

// collect removes what no manifest needs.
func (b *bed) collect() {
	b.t.Helper()
	b.mu.Lock()
	b.now = b.now.Add(2 * time.Minute)
	b.mu.Unlock()
	_, err := b.reg.Collect(context.Background(), registry.CollectOptions{Now: true})
	b.must(err)
	b.must(b.files.Housekeep(context.Background()))
}
