package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/catalog"
	"example.org/slipway/objstore"
	"example.org/slipway/objstore/fsstore"
	"example.org/slipway/objstore/memstore"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
)

// gcSeconds is how long TestCollectOracle runs: SLIPWAY_GC_SECONDS, default 5.
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

// TestCollectOracle: eight writers push, mount, tag, move and delete, with layers
// they share, while the collector runs all the time with a short grace period.
// What is acknowledged must be there at once, and at the end exactly what is
// referenced must be left.
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

// oracle knows what must be in the registry.
type oracle struct {
	*registry.Registry
	t        *testing.T
	grace    time.Duration
	untagged bool
	pool     [][]byte // layers that all writers share
	writers  []*gcWriter
}

// gcWriter has repositories of its own, of which it knows everything.
type gcWriter struct {
	o     *oracle
	rng   *rand.Rand
	repos []*gcRepo
	ops   map[string]int
}

type gcRepo struct {
	name      string
	tags      map[string]oci.Digest
	manifests map[oci.Digest]*gcManifest
	// blobs and gone are all that were ever visible here.
	blobs map[oci.Digest][]byte
	gone  map[oci.Digest]bool // manifests that were deleted, or lost their tag
	n     int
}

type gcManifest struct {
	raw      []byte
	blobs    []oci.Digest
	children []oci.Digest
	subject  oci.Digest
}

func runOracle(t *testing.T, store objstore.Store, untagged bool, d time.Duration) {
	o := &oracle{t: t, grace: 500 * time.Millisecond, untagged: untagged}
	cat, err := catalog.Open(t.Context(), filepath.Join(t.TempDir(), registry.CatalogFile), &catalog.Options{Grace: o.grace})
	if err != nil {
		t.Fatal(err)
	}
	o.Registry, err = registry.New(t.Context(), cat, store, &registry.Options{Grace: o.grace, DeleteUntagged: untagged, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{o.Close(context.Background()), cat.Close(), store.Close()} {
			if err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	for i, size := range []int{100, 900, 5000, 16 << 10, 16<<10 + 1, 20_000, 70_000, 150_000} {
		for j := range 3 {
			o.pool = append(o.pool, content(uint64(100*i+j), size))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var busy, collector sync.WaitGroup
	for i := range 8 {
		w := &gcWriter{o: o, rng: rand.New(rand.NewPCG(uint64(i), 7)), ops: map[string]int{}}
		for _, name := range []string{"a", "b"} {
			w.repos = append(w.repos, &gcRepo{name: fmt.Sprintf("w%d/%s", i, name), tags: map[string]oci.Digest{}, manifests: map[oci.Digest]*gcManifest{},
				blobs: map[oci.Digest][]byte{}, gone: map[oci.Digest]bool{}})
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
	var total registry.CollectReport
	stop := make(chan struct{})
	collector.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			rep, err := o.Collect(t.Context(), registry.CollectOptions{})
			if err != nil {
				t.Errorf("collect: %v", err)
			}
			total.Contents += rep.Contents
			total.Manifests += rep.Manifests
			total.Blobs += rep.Blobs
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
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
		if _, err := o.Collect(o.t.Context(), registry.CollectOptions{}); err != nil {
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

// step does one random thing.
func (w *gcWriter) step() {
	r := w.repos[w.rng.IntN(len(w.repos))]
	switch w.rng.IntN(20) {
	case 0, 1, 2, 3, 4, 5, 6:
		w.pushImage(r)
	case 7:
		w.pushIndex(r)
	case 8:
		w.pushArtifact(r)
	case 9:
		w.pushBlob(r, w.layer())
	case 10:
		w.pushManifestAsBlob(r)
	case 11, 12:
		w.deleteTag(r)
	case 13, 14, 15:
		w.deleteManifest(r)
	case 16, 17, 18:
		w.deleteBlob(r)
	case 19:
		w.retag(r)
	}
}

func (w *gcWriter) fail(format string, args ...any) { w.o.t.Errorf(format, args...) }

func (w *gcWriter) layer() []byte { return w.o.pool[w.rng.IntN(len(w.o.pool))] }

// pushBlob makes a blob visible in a repository in one of the ways clients have.
func (w *gcWriter) pushBlob(r *gcRepo, data []byte) oci.Descriptor {
	ctx, d := w.o.t.Context(), oci.SHA256(data)
	r.blobs[d] = data
	desc := oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: d, Size: int64(len(data))}
	switch w.rng.IntN(4) {
	case 0: // ask first
		if _, err := w.o.ResolveBlob(ctx, r.name, d); err == nil {
			w.ops["known"]++
			return desc
		}
	case 1: // mount; whoever has it may lose it at any time
		from := w.o.writers[w.rng.IntN(len(w.o.writers))].repos[w.rng.IntN(2)].name
		_, err := w.o.MountBlob(ctx, r.name, from, d)
		if err == nil {
			w.ops["mount"]++
			return desc
		}
		if !oci.HasCode(err, oci.CodeBlobUnknown) {
			w.fail("mount %s from %s to %s: %v", d, from, r.name, err)
		}
	case 2: // in chunks
		st, err := w.o.StartUpload(ctx, r.name)
		if err == nil {
			half := len(data) / 2
			if _, err = w.o.AppendUpload(ctx, r.name, st.ID, 0, int64(half), bytes.NewReader(data[:half])); err == nil {
				_, err = w.o.CommitUpload(ctx, r.name, st.ID, int64(half), -1, bytes.NewReader(data[half:]), d)
			}
		}
		if err != nil {
			w.fail("push %s to %s in chunks: %v", d, r.name, err)
		}
		w.ops["chunks"]++
		return desc
	}
	if _, err := w.o.PushBlob(ctx, r.name, d, int64(len(data)), bytes.NewReader(data)); err != nil {
		w.fail("push %s to %s: %v", d, r.name, err)
	}
	w.ops["push"]++
	w.readBlob(r, d)
	return desc
}

// readBlob reads back what was just acknowledged.
func (w *gcWriter) readBlob(r *gcRepo, d oci.Digest) {
	got, err := readBlob(w.o.t.Context(), w.o, r.name, d)
	if err != nil || !bytes.Equal(got, r.blobs[d]) {
		w.fail("blob %s of %s, just pushed: got %d bytes, %v", d, r.name, len(got), err)
	}
}

func (w *gcWriter) pushImage(r *gcRepo) {
	begin := time.Now()
	r.n++
	config := w.pushBlob(r, fmt.Appendf(nil, `{"repo":%q,"n":%d}`, r.name, r.n))
	img := imageOf(config)
	if w.rng.IntN(3) == 0 { // too large for a blob to be inline
		img.Annotations = map[string]string{"pad": strings.Repeat("x", 17_000)}
	}
	for range 1 + w.rng.IntN(4) {
		img.Layers = append(img.Layers, w.pushBlob(r, w.layer()))
	}
	w.putManifest(r, img, begin, w.someTags()...)
}

func (w *gcWriter) someTags() []string {
	var tags []string
	for range w.rng.IntN(3) {
		tags = append(tags, fmt.Sprintf("t%d", w.rng.IntN(5)))
	}
	return tags
}

// putManifest pushes a manifest and reads the whole image back.
func (w *gcWriter) putManifest(r *gcRepo, img image, begin time.Time, tags ...string) {
	raw, err := json.Marshal(img)
	if err != nil {
		w.fail("marshal: %v", err)
		return
	}
	res, err := w.o.PutManifest(w.o.t.Context(), r.name, oci.PutManifest{Bytes: raw, Tags: tags})
	took := time.Since(begin)
	if oci.HasCode(err, oci.CodeManifestBlobUnknown) && took > w.o.grace/2 {
		w.ops["too slow"]++ // the machine is busy, and the collector was right
		return
	}
	if err != nil {
		w.fail("put a manifest in %s, %v after the first blob: %v", r.name, took, err)
		return
	}
	m := &gcManifest{raw: raw}
	if img.Config != nil {
		m.blobs = append(m.blobs, img.Config.Digest)
	}
	for _, l := range img.Layers {
		m.blobs = append(m.blobs, l.Digest)
	}
	for _, c := range img.Manifests {
		m.children = append(m.children, c.Digest)
	}
	if img.Subject != nil {
		m.subject = img.Subject.Digest
	}
	r.manifests[res.Digest] = m
	delete(r.gone, res.Digest)
	for _, tag := range tags {
		r.tags[tag] = res.Digest
	}
	w.ops["manifest"]++
	for _, ref := range append(slices.Clone(tags), string(res.Digest)) {
		got, err := w.o.GetManifest(w.o.t.Context(), r.name, ref)
		if err != nil || !bytes.Equal(got.Bytes, raw) {
			w.fail("manifest %s of %s, just pushed: %v", ref, r.name, err)
		}
	}
	for _, b := range m.blobs {
		w.readBlob(r, b)
	}
}

// tagged returns a manifest that a tag keeps, so that the collector cannot take it.
func (w *gcWriter) tagged(r *gcRepo) (oci.Descriptor, bool) {
	tags := slices.Sorted(maps.Keys(r.tags))
	if len(tags) == 0 {
		return oci.Descriptor{}, false
	}
	d := r.tags[tags[w.rng.IntN(len(tags))]]
	return oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: d, Size: int64(len(r.manifests[d].raw))}, true
}

func (w *gcWriter) pushIndex(r *gcRepo) {
	a, ok := w.tagged(r)
	if !ok {
		return
	}
	b, _ := w.tagged(r)
	index := indexOf(a, b)
	index.Annotations = map[string]string{"n": strconv.Itoa(r.n)}
	w.putManifest(r, index, time.Now(), w.someTags()...)
}

func (w *gcWriter) pushArtifact(r *gcRepo) {
	subject, ok := w.tagged(r)
	if !ok {
		return
	}
	begin := time.Now()
	r.n++
	img := imageOf(w.pushBlob(r, fmt.Appendf(nil, `{"artifact":%d,"repo":%q}`, r.n, r.name)), w.pushBlob(r, w.layer()))
	img.Subject = &subject
	w.putManifest(r, img, begin)
}

// pushManifestAsBlob stores the bytes of a manifest as a blob, too.
func (w *gcWriter) pushManifestAsBlob(r *gcRepo) {
	if d, ok := w.tagged(r); ok {
		w.pushBlob(r, r.manifests[d.Digest].raw)
	}
	// And the other way round: first the blob, then the manifest.
	r.n++
	begin := time.Now()
	img := imageOf(w.pushBlob(r, fmt.Appendf(nil, `{"both":%d,"repo":%q}`, r.n, r.name)))
	img.Annotations = map[string]string{"pad": strings.Repeat("y", 20_000)}
	raw, err := json.Marshal(img)
	if err != nil {
		w.fail("marshal: %v", err)
	}
	w.pushBlob(r, raw)
	w.putManifest(r, img, begin, w.someTags()...)
}

func (w *gcWriter) deleteTag(r *gcRepo) {
	tag := fmt.Sprintf("t%d", w.rng.IntN(5))
	err := w.o.DeleteTag(w.o.t.Context(), r.name, tag)
	if _, known := r.tags[tag]; known != (err == nil) || (err != nil && !oci.HasCode(err, oci.CodeManifestUnknown)) {
		w.fail("delete tag %s of %s, known %v: %v", tag, r.name, known, err)
	}
	delete(r.tags, tag)
	w.ops["delete tag"]++
}

// retag points a tag at a manifest that has one, by pushing it again.
func (w *gcWriter) retag(r *gcRepo) {
	d, ok := w.tagged(r)
	if !ok {
		return
	}
	for _, c := range r.manifests[d.Digest].children {
		if r.manifests[c] == nil { // deleted under the index, which cannot be pushed now
			return
		}
	}
	tag := fmt.Sprintf("t%d", w.rng.IntN(5))
	if _, err := w.o.PutManifest(w.o.t.Context(), r.name, oci.PutManifest{Bytes: r.manifests[d.Digest].raw, Tags: []string{tag}}); err != nil {
		w.fail("tag %s of %s again: %v", d.Digest, r.name, err)
		return
	}
	r.tags[tag] = d.Digest
	w.ops["retag"]++
}

func (w *gcWriter) deleteManifest(r *gcRepo) {
	all := slices.Sorted(maps.Keys(r.manifests))
	if len(all) == 0 {
		return
	}
	d := all[w.rng.IntN(len(all))]
	err := w.o.DeleteManifest(w.o.t.Context(), r.name, d)
	// The collector may have been first, where it takes what has no tag.
	if err != nil && !(w.o.untagged && oci.HasCode(err, oci.CodeManifestUnknown) && !slices.Contains(slices.Collect(maps.Values(r.tags)), d)) {
		w.fail("delete manifest %s of %s: %v", d, r.name, err)
	}
	delete(r.manifests, d)
	r.gone[d] = true
	for tag, at := range r.tags {
		if at == d {
			delete(r.tags, tag)
		}
	}
	w.ops["delete manifest"]++
}

func (w *gcWriter) deleteBlob(r *gcRepo) {
	all := slices.Sorted(maps.Keys(r.blobs))
	if len(all) == 0 {
		return
	}
	d := all[w.rng.IntN(len(all))]
	err := w.o.DeleteBlob(w.o.t.Context(), r.name, d)
	manifests, needed := r.kept(w.o.untagged)
	var e *oci.Error
	switch {
	case err == nil && needed[d]:
		w.fail("deleted blob %s of %s, which a manifest needs", d, r.name)
	case err != nil && !errors.As(err, &e):
		w.fail("delete blob %s of %s: %v", d, r.name, err)
	case err != nil && e.Code == oci.CodeBlobUnknown && needed[d]:
		w.fail("blob %s of %s, which a manifest needs, is not there", d, r.name)
	case err != nil && e.Code == oci.CodeDenied && !needed[d] && !r.named(manifests)[d] && !w.o.untagged:
		w.fail("cannot delete blob %s of %s, which nothing needs", d, r.name)
	}
	w.ops["delete blob"]++
}

// kept returns the manifests of a repository that must stay, and the blobs they
// name.
func (r *gcRepo) kept(untagged bool) (manifests map[oci.Digest]bool, blobs map[oci.Digest]bool) {
	manifests, blobs = map[oci.Digest]bool{}, map[oci.Digest]bool{}
	for d := range r.manifests {
		manifests[d] = true
	}
	for changed := untagged; changed; {
		keep := map[oci.Digest]bool{}
		for _, d := range r.tags {
			keep[d] = true
		}
		for d := range manifests {
			m := r.manifests[d]
			for _, c := range m.children {
				keep[c] = true
			}
			if manifests[m.subject] {
				keep[d] = true
			}
		}
		changed = false
		for d := range manifests {
			if !keep[d] {
				delete(manifests, d)
				changed = true
			}
		}
	}
	for d := range manifests {
		for _, b := range r.manifests[d].blobs {
			blobs[b] = true
		}
	}
	return manifests, blobs
}

// named are the digests that indexes name. What was deleted under an index is
// kept as bytes until the index goes, and so is a blob of these bytes.
func (r *gcRepo) named(manifests map[oci.Digest]bool) map[oci.Digest]bool {
	out := map[oci.Digest]bool{}
	for d := range manifests {
		for _, c := range r.manifests[d].children {
			out[c] = true
		}
	}
	return out
}

// compare holds the registry, its catalogue and its store against what must be
// there.
func (o *oracle) compare(cat *catalog.Catalog, store objstore.Store) {
	ctx := o.t.Context()
	contents := map[oci.Digest]int{} // everything that must be stored
	named := map[oci.Digest]bool{}   // and what may be, because an index names it
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
	got, _, err := o.Repositories(ctx, "", 1000)
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
		objects[info.Key] = true
	}
	for d, object := range asObject {
		key := registry.BlobKey(d)
		if object && !objects[key] {
			o.t.Errorf("the object of %s is not in the store", d)
		}
		delete(objects, key)
	}
	for d := range contents { // a manifest that was pushed as a blob, too
		delete(objects, registry.BlobKey(d))
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
