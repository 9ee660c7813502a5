package registry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/oci"
)

// gcWriter has its own repositories, and knows everything in them.
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
	// blobs and gone hold everything that was ever visible here.
	blobs map[oci.Digest][]byte
	gone  map[oci.Digest]bool // manifests that were deleted, or lost their tag
	parts map[oci.Digest]bool // manifests without a tag that lost their index or subject
	n     int
}

type gcManifest struct {
	raw      []byte
	blobs    []oci.Digest
	children []oci.Digest
	subject  oci.Digest
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

// pushBlob makes a blob visible in a repository in one of the ways that clients use.
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
	got, err := registrytest.ReadBlob(w.o.t.Context(), w.o, r.name, d)
	if err != nil || !bytes.Equal(got, r.blobs[d]) {
		w.fail("blob %s of %s, just pushed: got %d bytes, %v", d, r.name, len(got), err)
	}
}

func (w *gcWriter) pushImage(r *gcRepo) {
	begin := time.Now()
	r.n++
	config := w.pushBlob(r, fmt.Appendf(nil, `{"repo":%q,"n":%d}`, r.name, r.n))
	img := registrytest.ImageOf(config)
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
func (w *gcWriter) putManifest(r *gcRepo, img registrytest.Image, begin time.Time, tags ...string) {
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
	delete(r.parts, res.Digest)
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
	if !w.o.untagged && len(r.manifests[a.Digest].children)+len(r.manifests[b.Digest].children) > 0 {
		return // only the collector knows when an inner index goes, and whether its parts had tags then
	}
	if !r.whole(a.Digest) || !r.whole(b.Digest) {
		return // it is refused
	}
	index := registrytest.IndexOf(a, b)
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
	img := registrytest.ImageOf(w.pushBlob(r, fmt.Appendf(nil, `{"artifact":%d,"repo":%q}`, r.n, r.name)), w.pushBlob(r, w.layer()))
	img.Subject = &subject
	w.putManifest(r, img, begin)
}

// pushManifestAsBlob stores the bytes of a manifest as a blob, too.
func (w *gcWriter) pushManifestAsBlob(r *gcRepo) {
	if d, ok := w.tagged(r); ok {
		w.pushBlob(r, r.manifests[d.Digest].raw)
	}
	// This is the other order: first the blob, then the manifest.
	r.n++
	begin := time.Now()
	img := registrytest.ImageOf(w.pushBlob(r, fmt.Appendf(nil, `{"both":%d,"repo":%q}`, r.n, r.name)))
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

// retag points a tag at a manifest that already has a tag, by pushing it again.
func (w *gcWriter) retag(r *gcRepo) {
	d, ok := w.tagged(r)
	if !ok {
		return
	}
	if !r.whole(d.Digest) { // deleted under the index, which cannot be pushed now
		return
	}
	tag := fmt.Sprintf("t%d", w.rng.IntN(5))
	if _, err := w.o.PutManifest(w.o.t.Context(), r.name, oci.PutManifest{Bytes: r.manifests[d.Digest].raw, Tags: []string{tag}}); err != nil {
		w.fail("tag %s of %s again: %v", d.Digest, r.name, err)
		return
	}
	r.tags[tag] = d.Digest
	delete(r.parts, d.Digest)
	w.ops["retag"]++
}

func (w *gcWriter) deleteManifest(r *gcRepo) {
	all := slices.Sorted(maps.Keys(r.manifests))
	if len(all) == 0 {
		return
	}
	d := all[w.rng.IntN(len(all))]
	kept, _ := r.kept(w.o.untagged)
	err := w.o.DeleteManifest(w.o.t.Context(), r.name, d)
	// The collector may have been first if it takes untagged manifests.
	if err != nil && !(oci.HasCode(err, oci.CodeManifestUnknown) && (!kept[d] || w.o.untagged && !r.tagged(d))) {
		w.fail("delete manifest %s of %s: %v", d, r.name, err)
	}
	r.orphan(d, r.parts)
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
	_, needed := r.kept(w.o.untagged)
	var e *oci.Error
	switch {
	case err == nil && needed[d]:
		w.fail("deleted blob %s of %s, which a manifest needs", d, r.name)
	case err != nil && !errors.As(err, &e):
		w.fail("delete blob %s of %s: %v", d, r.name, err)
	case err != nil && e.Code == oci.CodeBlobUnknown && needed[d]:
		w.fail("blob %s of %s, which a manifest needs, is not there", d, r.name)
	case err != nil && e.Code == oci.CodeDenied && !r.mayNeed(d) && !w.o.untagged:
		w.fail("cannot delete blob %s of %s, which nothing needs", d, r.name)
	}
	w.ops["delete blob"]++
}

// whole reports whether a manifest and all below it are there.
func (r *gcRepo) whole(d oci.Digest) bool {
	m := r.manifests[d]
	return m != nil && !slices.ContainsFunc(m.children, func(c oci.Digest) bool { return !r.whole(c) })
}

func (r *gcRepo) tagged(d oci.Digest) bool {
	return slices.Contains(slices.Collect(maps.Values(r.tags)), d)
}

// orphan notes in parts what loses an index or a subject with a manifest.
func (r *gcRepo) orphan(gone oci.Digest, parts map[oci.Digest]bool) {
	for d, m := range r.manifests {
		if (m.subject == gone || slices.Contains(r.manifests[gone].children, d)) && !r.tagged(d) {
			parts[d] = true
		}
	}
}

// kept returns the manifests of a repository that must stay, and the blobs that they name.
func (r *gcRepo) kept(untagged bool) (manifests map[oci.Digest]bool, blobs map[oci.Digest]bool) {
	manifests, blobs = map[oci.Digest]bool{}, map[oci.Digest]bool{}
	for d := range r.manifests {
		manifests[d] = true
	}
	parts := maps.Clone(r.parts)
	for changed := true; changed; {
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
			if !keep[d] && (untagged || parts[d]) {
				r.orphan(d, parts)
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

// named returns the digests that indexes name. What was deleted under an index is kept as bytes
// until the index goes, and so is a blob with these bytes.
func (r *gcRepo) named(manifests map[oci.Digest]bool) map[oci.Digest]bool {
	out := map[oci.Digest]bool{}
	for d := range manifests {
		for _, c := range r.manifests[d].children {
			out[c] = true
		}
	}
	return out
}

// mayNeed reports whether some manifest names d. That includes manifests that the collector has to
// take and may not have taken yet.
func (r *gcRepo) mayNeed(d oci.Digest) bool {
	for _, m := range r.manifests {
		if slices.Contains(m.blobs, d) || slices.Contains(m.children, d) {
			return true
		}
	}
	return false
}
