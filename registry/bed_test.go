package registry_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
)

// fakeClock is a clock that only a test moves.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// bed is a registry under test with all that lies below it.
type bed struct {
	*registry.Registry
	t     testing.TB
	root  string
	cat   *catalog.Catalog
	store objstore.Store
	clock *fakeClock
}

// newBed makes a registry over a store in memory, unless one is given.
func newBed(t testing.TB, store objstore.Store, o registry.Options) *bed {
	t.Helper()
	b := &bed{t: t, root: t.TempDir(), clock: newFakeClock(), store: store}
	if b.store == nil {
		b.store = memstore.New(&memstore.Options{Now: b.clock.Now})
	}
	b.open(o)
	return b
}

// newDiskBed makes a registry whose objects lie in the data root.
func newDiskBed(t testing.TB) *bed {
	t.Helper()
	root := t.TempDir()
	return openDiskBed(t, root)
}

func openDiskBed(t testing.TB, root string) *bed {
	t.Helper()
	store, err := fsstore.New(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	b := &bed{t: t, root: root, clock: newFakeClock(), store: store}
	// The store tells the system's time.
	b.clock.now = time.Now().Add(time.Second)
	b.open(registry.Options{})
	return b
}

func (b *bed) open(o registry.Options) {
	b.t.Helper()
	var err error
	b.cat, err = catalog.Open(b.t.Context(), filepath.Join(b.root, registry.CatalogFile), &catalog.Options{Clock: b.clock.Now, Grace: o.Grace})
	if err != nil {
		b.t.Fatal(err)
	}
	o.Clock, o.Logger = b.clock.Now, slog.New(slog.DiscardHandler)
	b.Registry, err = registry.New(b.t.Context(), b.cat, b.store, &o)
	if err != nil {
		b.t.Fatal(err)
	}
	reg := b.Registry
	b.t.Cleanup(func() {
		if err := reg.Close(context.Background()); err != nil {
			b.t.Errorf("close the registry: %v", err)
		}
		if err := b.cat.Close(); err != nil {
			b.t.Errorf("close the catalogue: %v", err)
		}
	})
}

// isIdentity reports whether a key is of the objects that say whose the store is.
func isIdentity(key string) bool {
	return key == "slipway/registry" || key == "docker/registry/v2/blobs/sha256/slipway-registry"
}

// chosen reports whether the nth of many combinations is tried: all of them with
// SLIPWAY_ALL_CASES=1, and otherwise one in so many.
func chosen(n, oneIn int) bool {
	return os.Getenv("SLIPWAY_ALL_CASES") == "1" || n%oneIn == 0
}

// sql changes the catalogue behind its back.
func (b *bed) sql(statements ...string) {
	b.t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.root, registry.CatalogFile)+"?_pragma=busy_timeout(10000)")
	if err != nil {
		b.t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			b.t.Fatalf("%s: %v", s, err)
		}
	}
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

func (b *bed) pushBlob(repo string, data []byte) oci.Descriptor {
	b.t.Helper()
	d := oci.SHA256(data)
	desc, err := b.PushBlob(b.t.Context(), repo, d, int64(len(data)), bytes.NewReader(data))
	if err != nil {
		b.t.Fatalf("push blob %s to %s: %v", d, repo, err)
	}
	return desc
}

func (b *bed) pushManifest(repo string, doc any, tags ...string) oci.Descriptor {
	b.t.Helper()
	raw, err := json.Marshal(doc)
	if err != nil {
		b.t.Fatal(err)
	}
	res, err := b.PutManifest(b.t.Context(), repo, oci.PutManifest{Bytes: raw, Tags: tags})
	if err != nil {
		b.t.Fatalf("push manifest %v to %s: %v", tags, repo, err)
	}
	return res.Descriptor
}

// image is the JSON of a manifest or index.
type image struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        *oci.Descriptor   `json:"config,omitempty"`
	Layers        []oci.Descriptor  `json:"layers,omitempty"`
	Manifests     []oci.Descriptor  `json:"manifests,omitempty"`
	Subject       *oci.Descriptor   `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

func imageOf(config oci.Descriptor, layers ...oci.Descriptor) image {
	return image{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, Config: &config, Layers: layers}
}

func indexOf(manifests ...oci.Descriptor) image {
	return image{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: manifests}
}

// pushImage pushes an image with a small config, and a small and a large layer.
func (b *bed) pushImage(repo string, seed uint64, tags ...string) (manifest, config, small, large oci.Descriptor) {
	b.t.Helper()
	config = b.pushBlob(repo, []byte(fmt.Sprintf(`{"os":"linux","seed":%d}`, seed)))
	small = b.pushBlob(repo, content(seed, 5000))
	large = b.pushBlob(repo, content(seed+1<<32, 100_000))
	return b.pushManifest(repo, imageOf(config, small, large), tags...), config, small, large
}

// readBlob returns a blob's bytes, or the error.
func readBlob(ctx context.Context, r oci.Reader, repo string, d oci.Digest) ([]byte, error) {
	c, err := r.GetBlob(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return io.ReadAll(c)
}

// contents reads everything that can be reached in a registry: a map from
// "repo:tag" to digests, from "repo@digest" of manifests and blobs to bytes.
func contents(t testing.TB, r oci.Registry) map[string]string {
	t.Helper()
	out := map[string]string{}
	ctx := t.Context()
	var blob func(repo string, d oci.Descriptor)
	var manifest func(repo, ref string)
	blob = func(repo string, d oci.Descriptor) {
		b, err := readBlob(ctx, r, repo, d.Digest)
		if err != nil {
			t.Errorf("read blob %s of %s: %v", d.Digest, repo, err)
		} else if oci.SHA256(b) != d.Digest {
			t.Errorf("blob %s of %s has digest %s", d.Digest, repo, oci.SHA256(b))
		}
		out[repo+"@"+string(d.Digest)] = string(b)
	}
	manifest = func(repo, ref string) {
		m, err := r.GetManifest(ctx, repo, ref)
		if err != nil {
			t.Errorf("read manifest %s of %s: %v", ref, repo, err)
			return
		}
		out[repo+"@"+string(m.Digest)] = string(m.Bytes)
		if !oci.IsDigest(ref) {
			out[repo+":"+ref] = string(m.Digest)
		}
		var doc image
		if err := json.Unmarshal(m.Bytes, &doc); err != nil {
			t.Errorf("manifest %s of %s: %v", ref, repo, err)
		}
		if doc.Config != nil {
			blob(repo, *doc.Config)
		}
		for _, l := range doc.Layers {
			blob(repo, l)
		}
		for _, c := range doc.Manifests {
			manifest(repo, string(c.Digest))
		}
		referrers, _, err := r.Referrers(ctx, repo, m.Digest, "", "", 1000)
		if err != nil {
			t.Errorf("referrers of %s: %v", m.Digest, err)
		}
		for _, c := range referrers {
			manifest(repo, string(c.Digest))
		}
	}
	repos, _, err := r.Repositories(ctx, "", 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, repo := range repos {
		tags, _, err := r.Tags(ctx, repo, "", 100_000)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range tags {
			manifest(repo, tag)
		}
	}
	return out
}

// churn is a registry in use: clients push and delete images in the
// repositories w0, w1 ... and the collector runs, all at once. Image n of a
// repository has the tag t<n> and is deleted again if n is divisible by 3.
type churn struct {
	*bed
	ctx  context.Context // ends with stop
	stop func()          // waits for the end
	// pushed are the images of each repository that are acknowledged.
	pushed []atomic.Uint64
	// collected are the contents the collector took.
	collected atomic.Int64
}

func (b *bed) churn(writers int) *churn {
	ctx, cancel := context.WithCancel(b.t.Context())
	c := &churn{bed: b, ctx: ctx, pushed: make([]atomic.Uint64, writers)}
	var busy sync.WaitGroup
	for w := range writers {
		busy.Go(func() { c.write(w) })
	}
	busy.Go(c.collect)
	c.stop = func() {
		cancel()
		busy.Wait()
	}
	return c
}

// until calls round until the collector has taken contents in the midst of it,
// and at least 3 times.
func (c *churn) until(round func()) {
	c.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for n := 1; n <= 3 || c.collected.Load() < 20; n++ {
		if round(); c.t.Failed() {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the collector took only %d contents in %d rounds", c.collected.Load(), n)
		}
	}
}

func (c *churn) write(w int) {
	repo := fmt.Sprintf("w%d", w)
	for i := uint64(1); c.ctx.Err() == nil; i++ {
		m, _, _, _ := c.pushImage(repo, i<<8|uint64(w), fmt.Sprintf("t%d", i))
		if i%3 == 0 {
			if err := c.DeleteManifest(c.t.Context(), repo, m.Digest); err != nil {
				c.t.Errorf("delete: %v", err)
			}
		}
		c.pushed[w].Store(i)
	}
}

func (c *churn) collect() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	at := make([]uint64, len(c.pushed))
	for {
		for w := range at {
			// Two more of each since the clock was moved: so a push sees the
			// clock move once, by less than the grace period.
			for c.pushed[w].Load() < at[w]+2 {
				select {
				case <-tick.C:
				case <-c.ctx.Done():
					return
				}
			}
		}
		c.clock.Add(40 * time.Minute)
		for w := range at {
			at[w] = c.pushed[w].Load()
		}
		rep, err := c.Collect(c.t.Context(), registry.CollectOptions{Untagged: true})
		if err != nil {
			c.t.Errorf("collect: %v", err)
		}
		c.collected.Add(int64(rep.Contents))
	}
}
