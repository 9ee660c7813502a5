package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/registrytest"
	"example.org/slipway/registry/storage"
)

// gcSeconds returns the duration of TestCollectOracle: SLIPWAY_GC_SECONDS, default 5.
func gcSeconds(t *testing.T) time.Duration {
	t.Helper()
	n := 5.0
	if v := os.Getenv("SLIPWAY_GC_SECONDS"); v != "" {
		var err error
		if n, err = strconv.ParseFloat(v, 64); err != nil {
			t.Fatalf("SLIPWAY_GC_SECONDS: %v", err)
		}
	}
	return time.Duration(n * float64(time.Second))
}

// TestCollectOracle runs eight writers that push, mount, tag, move and delete, with layers that
// they share, while the collector runs all the time with a short grace period. What is acknowledged
// must be there at once. At the end, exactly what is referenced must be left.
func TestCollectOracle(t *testing.T) {
	for _, c := range []struct {
		name     string
		untagged bool
		store    func(t *testing.T) objstore.Store
	}{
		{"keep untagged", false, func(*testing.T) objstore.Store { return memstore.New(nil) }},
		{"delete untagged", true, func(t *testing.T) objstore.Store {
			s, err := fsstore.New(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}},
	} {
		t.Run(c.name, func(t *testing.T) { runOracle(t, c.store(t), c.untagged, gcSeconds(t)/2) })
	}
}

// TestReplicasCollectOracle is like TestCollectOracle, with two replicas that both collect. Each
// request of a writer goes to the other replica than the one before.
func TestReplicasCollectOracle(t *testing.T) {
	const grace = 2 * time.Second
	c := newCluster(t, memstore.New(nil), grace)
	hop := &hopping{t: t}
	o := &oracle{Registry: hop, t: t, grace: grace}
	for range 2 {
		r := c.add(registry.Options{Lease: time.Second}, nil, nil)
		hop.list, o.collectors = append(hop.list, r), append(o.collectors, r.Registry)
	}
	o.run(hop.list[0].cat, c.store, gcSeconds(t))
}

// oracle knows what must be in the registry.
type oracle struct {
	oci.Registry
	collectors []*registry.Registry // each of which collects
	t          *testing.T
	grace      time.Duration
	untagged   bool
	mirrors    bool     // mirrored repositories adopt and forget layers meanwhile
	pool       [][]byte // layers that all writers share
	writers    []*gcWriter
}

func runOracle(t *testing.T, store objstore.Store, untagged bool, d time.Duration) {
	runOracleOf(t, store, &oracle{t: t, untagged: untagged}, d)
}

func runOracleOf(t *testing.T, store objstore.Store, o *oracle, d time.Duration) {
	const grace = 500 * time.Millisecond
	cat, err := catalog.Open(t.Context(), filepath.Join(t.TempDir(), registry.CatalogFile), &catalog.Options{Grace: grace})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := registry.New(t.Context(), cat, store, &registry.Options{Grace: grace, DeleteUntagged: o.untagged, Partial: mirrored, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{reg.Close(context.Background()), cat.Close(), store.Close()} {
			if err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	o.Registry, o.collectors, o.grace = reg, []*registry.Registry{reg}, grace
	o.run(cat, store, d)
}

// run lets the writers write and the collectors collect for a time, and compares.
func (o *oracle) run(cat *catalog.Catalog, store objstore.Store, d time.Duration) {
	t := o.t
	if os.Getenv("SLIPWAY_RACE_FOLLOWS") != "" {
		t.Skip("about what happens at once: runs with the race detector")
	}
	for i, size := range []int{100, 900, 5000, 16 << 10, 16<<10 + 1, 20_000, 70_000, 150_000} {
		for j := range 3 {
			o.pool = append(o.pool, registrytest.Content(uint64(100*i+j), size))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var busy, collector sync.WaitGroup
	for i := range 8 {
		w := &gcWriter{o: o, rng: rand.New(rand.NewPCG(uint64(i), 7)), ops: map[string]int{}}
		for _, name := range []string{"a", "b"} {
			w.repos = append(w.repos, &gcRepo{name: fmt.Sprintf("w%d/%s", i, name), tags: map[string]oci.Digest{}, manifests: map[oci.Digest]*gcManifest{},
				blobs: map[oci.Digest][]byte{}, gone: map[oci.Digest]bool{}, parts: map[oci.Digest]bool{}})
		}
		o.writers = append(o.writers, w)
	}
	for _, w := range o.writers {
		busy.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				w.step()
			}
		})
	}
	var mu sync.Mutex
	var total registry.CollectReport
	stop := make(chan struct{})
	for _, reg := range o.collectors {
		collector.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				rep, err := reg.Collect(t.Context(), registry.CollectOptions{})
				if err != nil && !errors.Is(err, engine.ErrLeaseLost) {
					t.Errorf("collect: %v", err)
				}
				mu.Lock()
				total.Contents += rep.Contents
				total.Manifests += rep.Manifests
				total.Blobs += rep.Blobs
				mu.Unlock()
				select {
				case <-stop:
					return
				case <-tick.C:
				}
			}
		})
	}
	if o.mirrors {
		for i, reg := range o.collectors {
			for j := range 2 {
				collector.Go(func() { o.mirror(reg, fmt.Sprintf("up/%d/%d", i, j), stop) })
			}
		}
	}
	busy.Wait()
	close(stop)
	collector.Wait()
	ops := map[string]int{}
	for _, w := range o.writers {
		for k, n := range w.ops {
			ops[k] += n
		}
	}
	t.Logf("operations %v; collected meanwhile %d blobs and %d manifests out of repositories, %d contents", ops, total.Blobs, total.Manifests, total.Contents)
	if total.Contents == 0 && d > 3*time.Second {
		t.Error("nothing was collected while the writers wrote")
	}
	if !t.Failed() {
		o.settle(cat)
		o.compare(cat, store)
	}
}

// settle collects until nothing waits to be looked at.
func (o *oracle) settle(cat *catalog.Catalog) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		if _, err := o.collectors[0].Collect(o.t.Context(), registry.CollectOptions{}); err != nil && !errors.Is(err, engine.ErrLeaseLost) {
			o.t.Fatalf("collect: %v", err)
		}
		n, err := cat.Counts(o.t.Context())
		if err != nil {
			o.t.Fatal(err)
		}
		if n.GCQueue == 0 {
			return
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("%d candidates are still in the queue after a minute", n.GCQueue)
		}
	}
}

// compare compares the registry, its catalogue and its store with what must be there.
func (o *oracle) compare(cat *catalog.Catalog, store objstore.Store) {
	ctx := o.t.Context()
	contents := map[oci.Digest]int{} // everything that must be stored
	named := map[oci.Digest]bool{}   // what may be stored, because an index names it
	asObject := map[oci.Digest]bool{}
	var repos []string
	for _, w := range o.writers {
		for _, r := range w.repos {
			manifests, blobs := r.kept(o.untagged)
			if len(manifests) > 0 {
				repos = append(repos, r.name)
			}
			for d := range manifests {
				contents[d] = len(r.manifests[d].raw)
			}
			for d := range blobs {
				contents[d] = len(r.blobs[d])
				asObject[d] = len(r.blobs[d]) > catalog.InlineMax
			}
			maps.Copy(named, r.named(manifests))
			o.compareRepo(r, manifests, blobs)
		}
	}
	got, err := cat.Repositories(ctx, "", 1000) // also those that no list shows
	if err != nil {
		o.t.Fatal(err)
	}
	if slices.Sort(repos); !slices.Equal(got, repos) {
		o.t.Errorf("repositories: got %q, want %q", got, repos)
	}
	var size int64
	for d := range named {
		if b, err := cat.StoredBlob(ctx, d); err == nil {
			contents[d] = int(b.Size)
		}
	}
	for _, s := range contents {
		size += int64(s)
	}
	n, err := cat.Counts(ctx)
	if err != nil {
		o.t.Fatal(err)
	}
	if n.Blobs != int64(len(contents)) || n.Bytes != size || n.Uploads != 0 {
		o.t.Errorf("the catalogue counts %+v, want %d contents of %d bytes and no upload", n, len(contents), size)
	}
	objects := map[string]bool{}
	for info, err := range store.List(ctx, "", "") {
		if err != nil {
			o.t.Fatal(err)
		}
		if !storage.IsIdentity(info.Key) {
			objects[info.Key] = true
		}
	}
	for d, object := range asObject {
		key := storage.BlobKey(d)
		if object && !objects[key] {
			o.t.Errorf("the object of %s is not in the store", d)
		}
		delete(objects, key)
	}
	for d := range contents { // a manifest that was pushed as a blob, too
		delete(objects, storage.BlobKey(d))
	}
	for key := range objects {
		o.t.Errorf("nothing needs the object %s", key)
	}
	o.t.Logf("at the end %d contents of %d bytes in %d repositories", len(contents), size, len(repos))
}

func (o *oracle) compareRepo(r *gcRepo, manifests, blobs map[oci.Digest]bool) {
	ctx := o.t.Context()
	for d := range manifests {
		m, err := o.GetManifest(ctx, r.name, string(d))
		if err != nil || !bytes.Equal(m.Bytes, r.manifests[d].raw) {
			o.t.Errorf("manifest %s of %s must be there: %v", d, r.name, err)
		}
	}
	for d := range r.manifests {
		if !manifests[d] {
			r.gone[d] = true
		}
	}
	for d := range r.gone {
		if _, err := o.GetManifest(ctx, r.name, string(d)); !oci.HasCode(err, oci.CodeManifestUnknown) {
			o.t.Errorf("manifest %s of %s must not be there: %v", d, r.name, err)
		}
	}
	named := r.named(manifests)
	for d, data := range r.blobs {
		c, err := o.GetBlob(ctx, r.name, d)
		if !blobs[d] && err == nil && (manifests[d] || named[d]) { // its bytes are needed anyway
			c.Close()
			continue
		}
		if !blobs[d] {
			if err == nil {
				c.Close()
			}
			if !oci.HasCode(err, oci.CodeBlobUnknown) {
				o.t.Errorf("blob %s of %s must not be there: %v", d, r.name, err)
			}
			continue
		}
		if err != nil {
			o.t.Errorf("blob %s of %s must be there: %v", d, r.name, err)
			continue
		}
		got, err := io.ReadAll(c)
		if err := errors.Join(err, c.Close()); err != nil || !bytes.Equal(got, data) {
			o.t.Errorf("blob %s of %s: %d bytes, %v", d, r.name, len(got), err)
		}
	}
	tags, _, err := o.Tags(ctx, r.name, "", 100)
	if err != nil && len(manifests) > 0 {
		o.t.Errorf("tags of %s: %v", r.name, err)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(r.tags)), tags); diff != "" && len(manifests) > 0 && len(r.tags)+len(tags) > 0 {
		o.t.Errorf("tags of %s (-want +got):\n%s", r.name, diff)
	}
	for tag, d := range r.tags {
		if m, err := o.ResolveManifest(ctx, r.name, tag); err != nil || m.Digest != d {
			o.t.Errorf("tag %s of %s: got %s, %v, want %s", tag, r.name, m.Digest, err, d)
		}
	}
}
