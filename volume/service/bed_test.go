package service_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/gear/filestore"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/internal/backendtest"
	"example.org/slipway/internal/logtest"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/storage"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/file"
	volumeregistry "example.org/slipway/volume/service"
)

// servers are the servers that the tests of this package share.
var servers backendtest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	servers.Close()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// patience is how long a test waits for something that must happen.
const patience = 30 * time.Second

// place holds what servers share: an object store, a catalogue and a directory of volumes.
type place struct {
	objects, volumes string
	// dsn is set for a catalogue that servers share, path for one that only one server uses.
	dsn, path string
}

func newPlace(t *testing.T) *place {
	dir := t.TempDir()
	p := &place{objects: filepath.Join(dir, "objects"), volumes: filepath.Join(dir, "volumes"), path: filepath.Join(dir, "catalog.db")}
	for _, d := range []string{p.objects, p.volumes} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// setup configures a bed. The zero value builds everything that is pushed.
type setup struct {
	opts volumeregistry.Options
	// store wraps the storage of volumes.
	store func(block.Store) block.Store
	// open replaces the function that opens the storage.
	open func(context.Context) (block.Store, error)
	// idle keeps the queues from being processed, noGear only the queue of Gear.
	idle, noGear bool
	grace        time.Duration
}

// bed is a registry with its Gear and volume services, wired as package serve does it.
type bed struct {
	t     *testing.T
	p     *place
	cat   *catalog.Catalog
	objs  objstore.Store
	files *filestore.Store
	gear  *gearregistry.Service
	svc   *volumeregistry.Service
	reg   *registry.Registry
	log   *logtest.Buffer
	run   sync.WaitGroup
	stop  context.CancelFunc
	once  sync.Once
}

func newBed(t *testing.T, p *place, o setup) *bed {
	t.Helper()
	b := &bed{t: t, p: p, log: &logtest.Buffer{}}
	log := slog.New(slog.NewTextHandler(b.log, nil))
	if o.grace == 0 {
		o.grace = time.Millisecond
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	co := &catalog.Options{Grace: o.grace}
	if p.dsn != "" {
		b.cat, err = catalog.OpenPostgres(t.Context(), p.dsn, co)
	} else {
		b.cat, err = catalog.Open(t.Context(), p.path, co)
	}
	must(err)
	b.objs, err = fsstore.New(p.objects, nil)
	must(err)
	b.files, err = filestore.New(b.cat, b.objs, &filestore.Options{Log: log})
	must(err)
	b.gear = gearregistry.New(b.cat, b, b.files, &gearregistry.Options{Logger: log, TempDir: t.TempDir()})
	if o.opts.Build == nil {
		o.opts.Build = func(string) bool { return true }
	}
	o.opts.Logger = log
	if o.opts.CollectEvery == 0 {
		o.opts.CollectEvery = time.Hour
	}
	if o.open == nil {
		o.open = func(context.Context) (block.Store, error) {
			s, err := file.Open(p.volumes, nil)
			if err != nil || o.store == nil {
				return s, err
			}
			return o.store(s), nil
		}
	}
	b.svc = volumeregistry.New(b.cat, b.gear, beside{b}, o.open, &o.opts)
	b.reg, err = registry.New(t.Context(), b.cat, b.objs, &registry.Options{Logger: log, Grace: o.grace, Tap: b.gear,
		OnEvent: func(ctx context.Context, e registry.Event) error {
			b.gear.OnEvent(ctx, e)
			b.svc.OnEvent(ctx, e)
			return nil
		}})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	if !o.idle {
		if !o.noGear {
			b.run.Go(func() { _ = b.gear.Run(ctx) })
		}
		b.run.Go(func() { _ = b.svc.Run(ctx) })
	}
	t.Cleanup(b.close)
	return b
}

// beside stores records beside images.
type beside struct{ b *bed }

func (x beside) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	return x.b.reg.PushBlob(ctx, repo, d, size, r)
}

func (x beside) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	return x.b.reg.PutManifest(ctx, repo, m)
}

func (x beside) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	return x.b.reg.DeleteManifest(ctx, repo, d)
}

// OpenBlob implements gearregistry.Blobs.
func (b *bed) OpenBlob(ctx context.Context, d oci.Digest, off int64) (io.ReadCloser, int64, error) {
	return storage.OpenBlob(ctx, b.cat, b.objs, d, off)
}

func (b *bed) close() {
	b.once.Do(func() {
		b.stop()
		b.run.Wait()
		err := b.svc.Close()
		b.gear.Close()
		for _, e := range []error{err, b.reg.Close(context.Background()), b.cat.Close(), b.objs.Close()} {
			if e != nil {
				b.t.Errorf("close: %v", e)
			}
		}
		if b.t.Failed() {
			b.t.Logf("log:\n%s", b.log)
		}
	})
}

// layer returns a tar of files with contents.
func layer(t *testing.T, files ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := 0; i < len(files); i += 2 {
		err := w.WriteHeader(&tar.Header{Name: files[i], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[i+1])), Format: tar.FormatPAX})
		if err == nil {
			_, err = io.WriteString(w, files[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

const layerType = "application/vnd.oci.image.layer.v1.tar"

func (b *bed) blob(repo, mediaType string, content []byte) oci.Descriptor {
	b.t.Helper()
	d := oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256(content), Size: int64(len(content))}
	if _, err := b.reg.PushBlob(b.t.Context(), repo, d.Digest, d.Size, bytes.NewReader(content)); err != nil {
		b.t.Fatal(err)
	}
	return d
}

// push pushes an image and returns the digest of its manifest.
func (b *bed) push(repo, tag string, layers ...[]byte) oci.Digest {
	b.t.Helper()
	m := map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest,
		"config": b.blob(repo, "application/vnd.oci.image.config.v1+json", []byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}}`))}
	var list []oci.Descriptor
	for _, l := range layers {
		list = append(list, b.blob(repo, layerType, l))
	}
	m["layers"] = list
	body, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	put, err := b.reg.PutManifest(b.t.Context(), repo, oci.PutManifest{Bytes: body, MediaType: oci.MediaTypeOCIManifest, Tags: []string{tag}})
	if err != nil {
		b.t.Fatal(err)
	}
	return put.Digest
}

func poll(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not come to that", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func (b *bed) image(repo string, d oci.Digest) volumeregistry.ImageStatus {
	b.t.Helper()
	st, err := b.svc.Image(b.t.Context(), repo, d)
	if err != nil {
		b.t.Fatal(err)
	}
	return st
}

// built waits until an image has records and nothing remains to be done, and returns the records.
func (b *bed) built(repo string, d oci.Digest) []volref.Record {
	b.t.Helper()
	var st volumeregistry.ImageStatus
	poll(b.t, "the image is built", func() bool {
		st = b.image(repo, d)
		if st.State == volumeregistry.StateFailed {
			b.t.Fatalf("the build failed: %s", st.Reason)
		}
		return st.State == "" && len(st.Records) > 0
	})
	out := make([]volref.Record, len(st.Records))
	for i, raw := range st.Records {
		if err := json.Unmarshal(raw, &out[i]); err != nil {
			b.t.Fatal(err)
		}
		if err := out[i].Check(); err != nil || out[i].Manifest != d {
			b.t.Fatalf("record %s: %v", raw, err)
		}
	}
	return out
}

// volumes lists the volumes in the storage.
func (b *bed) volumes() []string {
	b.t.Helper()
	s, err := file.Open(b.p.volumes, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	list, err := s.List(b.t.Context(), "")
	if err = errors.Join(err, s.Close()); err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, v := range list {
		out = append(out, v.ID)
	}
	return out
}

// referrers lists the records beside an image.
func (b *bed) referrers(repo string, d oci.Digest) []oci.Descriptor {
	b.t.Helper()
	list, _, err := b.reg.Referrers(b.t.Context(), repo, d, volumeregistry.ArtifactType, "", 100)
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}
