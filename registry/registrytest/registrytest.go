// Package registrytest makes a whole registry, with a clock that the test moves, for the tests of
// package registry and of packages that work on a registry.
package registrytest

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

// Clock is a clock that only a test moves.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock stopped at a fixed time.
func NewClock() *Clock {
	return &Clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

// Now returns the time that the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Set sets the clock.
func (c *Clock) Set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = at
}

// Add advances the clock.
func (c *Clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Bed is a registry under test with everything below it.
type Bed struct {
	*registry.Registry
	T     testing.TB
	Root  string
	Cat   *catalog.Catalog
	Store objstore.Store
	Clock *Clock
}

// New makes a registry over store, or over a store in memory if store is nil.
func New(t testing.TB, store objstore.Store, o registry.Options) *Bed {
	t.Helper()
	b := &Bed{T: t, Root: t.TempDir(), Clock: NewClock(), Store: store}
	if b.Store == nil {
		b.Store = memstore.New(&memstore.Options{Now: b.Clock.Now})
	}
	b.Open(o)
	return b
}

// NewOnDisk makes a registry whose objects lie in the data root.
func NewOnDisk(t testing.TB) *Bed {
	t.Helper()
	root := t.TempDir()
	return OpenOnDisk(t, root)
}

// OpenOnDisk is like NewOnDisk, for a given data root.
func OpenOnDisk(t testing.TB, root string) *Bed {
	t.Helper()
	store, err := fsstore.New(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	b := &Bed{T: t, Root: root, Clock: NewClock(), Store: store}
	// The store uses the system's time.
	b.Clock.Set(time.Now().Add(time.Second))
	b.Open(registry.Options{})
	return b
}

// Open opens the catalogue and the registry. They are closed when the test ends.
func (b *Bed) Open(o registry.Options) {
	b.T.Helper()
	var err error
	b.Cat, err = catalog.Open(b.T.Context(), filepath.Join(b.Root, registry.CatalogFile), &catalog.Options{Clock: b.Clock.Now, Grace: o.Grace})
	if err != nil {
		b.T.Fatal(err)
	}
	o.Clock, o.Logger = b.Clock.Now, slog.New(slog.DiscardHandler)
	b.Registry, err = registry.New(b.T.Context(), b.Cat, b.Store, &o)
	if err != nil {
		b.T.Fatal(err)
	}
	reg := b.Registry
	b.T.Cleanup(func() {
		if err := reg.Close(context.Background()); err != nil {
			b.T.Errorf("close the registry: %v", err)
		}
		if err := b.Cat.Close(); err != nil {
			b.T.Errorf("close the catalogue: %v", err)
		}
	})
}

// Chosen reports whether the nth of many combinations is tried. With SLIPWAY_ALL_CASES=1 all of
// them are, and otherwise one in oneIn.
func Chosen(n, oneIn int) bool {
	return os.Getenv("SLIPWAY_ALL_CASES") == "1" || n%oneIn == 0
}

// SQL changes the catalogue's database directly.
func (b *Bed) SQL(statements ...string) {
	b.T.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.Root, registry.CatalogFile)+"?_pragma=busy_timeout(10000)")
	if err != nil {
		b.T.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			b.T.Fatalf("%s: %v", s, err)
		}
	}
}

// Content returns n bytes that depend on seed.
func Content(seed uint64, n int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

// PushBytes pushes a blob, and fails the test if it cannot.
func (b *Bed) PushBytes(repo string, data []byte) oci.Descriptor {
	b.T.Helper()
	d := oci.SHA256(data)
	desc, err := b.PushBlob(b.T.Context(), repo, d, int64(len(data)), bytes.NewReader(data))
	if err != nil {
		b.T.Fatalf("push blob %s to %s: %v", d, repo, err)
	}
	return desc
}

// PushManifest pushes a manifest or index, and fails the test if it cannot.
func (b *Bed) PushManifest(repo string, doc any, tags ...string) oci.Descriptor {
	b.T.Helper()
	raw, err := json.Marshal(doc)
	if err != nil {
		b.T.Fatal(err)
	}
	res, err := b.PutManifest(b.T.Context(), repo, oci.PutManifest{Bytes: raw, Tags: tags})
	if err != nil {
		b.T.Fatalf("push manifest %v to %s: %v", tags, repo, err)
	}
	return res.Descriptor
}

// Image is the JSON of a manifest or index.
type Image struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        *oci.Descriptor   `json:"config,omitempty"`
	Layers        []oci.Descriptor  `json:"layers,omitempty"`
	Manifests     []oci.Descriptor  `json:"manifests,omitempty"`
	Subject       *oci.Descriptor   `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// ImageOf returns an image of a config and layers.
func ImageOf(config oci.Descriptor, layers ...oci.Descriptor) Image {
	return Image{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, Config: &config, Layers: layers}
}

// IndexOf returns an index of manifests.
func IndexOf(manifests ...oci.Descriptor) Image {
	return Image{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: manifests}
}

// PushImage pushes an image with a small config, and a small and a large layer.
func (b *Bed) PushImage(repo string, seed uint64, tags ...string) (manifest, config, small, large oci.Descriptor) {
	b.T.Helper()
	config = b.PushBytes(repo, []byte(fmt.Sprintf(`{"os":"linux","seed":%d}`, seed)))
	small = b.PushBytes(repo, Content(seed, 5000))
	large = b.PushBytes(repo, Content(seed+1<<32, 100_000))
	return b.PushManifest(repo, ImageOf(config, small, large), tags...), config, small, large
}

// ReadBlob returns a blob's bytes, or the error.
func ReadBlob(ctx context.Context, r oci.Reader, repo string, d oci.Digest) ([]byte, error) {
	c, err := r.GetBlob(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return io.ReadAll(c)
}

// Reachable reads everything that can be reached in a registry. It returns a map from "repo:tag" to
// digests, and from "repo@digest" of manifests and blobs to bytes.
func Reachable(t testing.TB, r oci.Registry) map[string]string {
	t.Helper()
	out := map[string]string{}
	ctx := t.Context()
	var blob func(repo string, d oci.Descriptor)
	var manifest func(repo, ref string)
	blob = func(repo string, d oci.Descriptor) {
		b, err := ReadBlob(ctx, r, repo, d.Digest)
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
		var doc Image
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

// Churn is a registry in use: clients push and delete images in the repositories w0, w1 ... while
// the collector runs. Image n of a repository has the tag t<n> and is deleted again if n is
// divisible by 3.
type Churn struct {
	*Bed
	Ctx  context.Context // ends with Stop
	Stop func()          // waits for the end
	// Pushed counts the acknowledged images of each repository.
	Pushed []atomic.Uint64
	// Collected counts the contents that the collector removed.
	Collected atomic.Int64
}

// Churn starts the churn with the given number of writers.
func (b *Bed) Churn(writers int) *Churn {
	ctx, cancel := context.WithCancel(b.T.Context())
	c := &Churn{Bed: b, Ctx: ctx, Pushed: make([]atomic.Uint64, writers)}
	var busy sync.WaitGroup
	for w := range writers {
		busy.Go(func() { c.write(w) })
	}
	busy.Go(c.collect)
	c.Stop = func() {
		cancel()
		busy.Wait()
	}
	return c
}

// Until calls round at least 3 times, and until the collector has removed contents meanwhile.
func (c *Churn) Until(round func()) {
	c.T.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for n := 1; n <= 3 || c.Collected.Load() < 20; n++ {
		if round(); c.T.Failed() {
			return
		}
		if time.Now().After(deadline) {
			c.T.Fatalf("the collector took only %d contents in %d rounds", c.Collected.Load(), n)
		}
	}
}

func (c *Churn) write(w int) {
	repo := fmt.Sprintf("w%d", w)
	for i := uint64(1); c.Ctx.Err() == nil; i++ {
		m, _, _, _ := c.PushImage(repo, i<<8|uint64(w), fmt.Sprintf("t%d", i))
		if i%3 == 0 {
			if err := c.DeleteManifest(c.T.Context(), repo, m.Digest); err != nil {
				c.T.Errorf("delete: %v", err)
			}
		}
		c.Pushed[w].Store(i)
	}
}

func (c *Churn) collect() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	at := make([]uint64, len(c.Pushed))
	for {
		for w := range at {
			// Each writer has pushed two more images since the clock was moved. So a push sees the
			// clock move once, by less than the grace period.
			for c.Pushed[w].Load() < at[w]+2 {
				select {
				case <-tick.C:
				case <-c.Ctx.Done():
					return
				}
			}
		}
		c.Clock.Add(40 * time.Minute)
		for w := range at {
			at[w] = c.Pushed[w].Load()
		}
		rep, err := c.Collect(c.T.Context(), registry.CollectOptions{Untagged: true})
		if err != nil {
			c.T.Errorf("collect: %v", err)
		}
		c.Collected.Add(int64(rep.Contents))
	}
}
