package airgap_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/airgap"
)

// spoilt is a store in which some contents cannot be read or have wrong bytes.
type spoilt struct {
	store
	bad map[oci.Digest]string
}

// OpenBlob implements airgap.Source.
func (s spoilt) OpenBlob(ctx context.Context, repo string, d oci.Digest) (io.ReadCloser, error) {
	how := s.bad[d]
	if how == "lost" {
		return nil, errors.New("the object is gone")
	}
	c, err := s.store.OpenBlob(ctx, repo, d)
	if err != nil || how == "" {
		return c, err
	}
	b, err := io.ReadAll(c)
	c.Close()
	switch how {
	case "short":
		b = b[:len(b)/2]
	case "other":
		b[0] ^= 1
	case "unreadable":
		return io.NopCloser(io.MultiReader(bytes.NewReader(b[:len(b)/2]), failing{})), err
	}
	return io.NopCloser(bytes.NewReader(b)), err
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("input/output error") }

// TestExportWhatIsWhole makes a random registry with everything that can be wrong with an image. It
// wants an export of everything to contain exactly the whole images.
func TestExportWhatIsWhole(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { exportWhole(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// world is a registry under construction, with the expected content of its export.
type world struct {
	spoilt
	r     *rand.Rand
	n     int
	whole map[oci.Digest]bool
}

// blob makes a blob that may be missing, and reports whether it can be read.
func (w *world) blob(repo string, sick int) (oci.Descriptor, bool) {
	w.n++
	data := fmt.Appendf(nil, "blob %d of %d", w.n, w.r.Uint64())
	how := "there"
	if w.r.IntN(100) < sick {
		how = []string{"missing", "lost", "short", "other", "unreadable"}[w.r.IntN(5)]
	}
	if how == "missing" {
		return oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.SHA256(data), Size: int64(len(data))}, false
	}
	d := w.push(repo, data)
	if how != "there" {
		w.bad[d.Digest] = how
	}
	return d, how == "there"
}

// image makes an image and records whether it is whole.
func (w *world) image(repo string, sick int, tags ...string) oci.Descriptor {
	config, whole := w.blob(repo, sick)
	var layers []oci.Descriptor
	for range w.r.IntN(3) {
		l, there := w.blob(repo, sick)
		layers, whole = append(layers, l), whole && there
	}
	d := w.put(repo, map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "config": config, "layers": layers}, oci.MediaTypeOCIManifest, tags...)
	w.whole[d.Digest] = whole
	return d
}

// index makes an index of images, of missing manifests, and sometimes of an index.
func (w *world) index(repo string, depth int, tags ...string) oci.Descriptor {
	var list []oci.Descriptor
	whole := false
	for i := range 1 + w.r.IntN(3) {
		var d oci.Descriptor
		switch k := w.r.IntN(10); {
		case k < 2:
			d = oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256(fmt.Append(nil, w.r.Uint64())), Size: 10}
		case k < 4 && depth < 2:
			d = w.index(repo, depth+1)
		default:
			d = w.image(repo, 30)
		}
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: fmt.Sprint("a", i)}
		if w.r.IntN(5) == 0 {
			d.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"}
		} else {
			whole = whole || w.whole[d.Digest]
		}
		list = append(list, d)
	}
	if !slices.ContainsFunc(list, func(d oci.Descriptor) bool { return d.Platform.OS != "unknown" }) {
		whole = true // it has no image that could be missing
	}
	d := w.put(repo, map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIIndex, "manifests": list, "annotations": map[string]string{"n": fmt.Sprint(w.r.Uint64())}}, oci.MediaTypeOCIIndex, tags...)
	w.whole[d.Digest] = whole
	return d
}

func exportWhole(t *testing.T, r *rand.Rand) {
	w := &world{spoilt: spoilt{newStore(t), map[oci.Digest]string{}}, r: r, whole: map[oci.Digest]bool{}}
	var all []airgap.Image
	want := map[string]bool{}
	for i := range 6 {
		im := airgap.Image{Repo: fmt.Sprintf("docker.io/team/r%d", r.IntN(3)), Ref: fmt.Sprint("v", i)}
		var d oci.Descriptor
		if r.IntN(2) == 0 {
			d = w.image(im.Repo, 25, im.Ref)
		} else {
			d = w.index(im.Repo, 0, im.Ref)
		}
		all = append(all, im)
		want[im.String()] = w.whole[d.Digest]
	}
	sound := w.image("docker.io/team/sound", 0, "v")
	all, want["docker.io/team/sound:v"] = append(all, airgap.Image{Repo: "docker.io/team/sound", Ref: "v"}), true
	b, p, err := export(t, w, all...)
	if err != nil {
		t.Fatalf("Write: %v", err)
	}
	got := map[string]bool{}
	for _, l := range p.LeftOut {
		if l.Reason == "" {
			t.Errorf("%s is left out, and nothing says why", l.Image)
		}
		if _, asked := want[l.Image]; asked {
			got[l.Image] = false
		}
	}
	a := open(t, b)
	for _, im := range a.Images() {
		if _, both := got[im.String()]; both {
			t.Errorf("%s is in the file, and said to be left out", im)
		}
		got[im.String()] = true
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("whole images (-want +got):\n%s", d)
	}
	for d := range w.bad {
		if bytes.Contains(b, []byte(d.Encoded()+"\x00")) {
			t.Errorf("the damaged blob %s is in the file", d)
		}
	}
	dst := newStore(t)
	if in, err := a.Import(t.Context(), dst, nil); err != nil || in.Images != p.Images {
		t.Errorf("Import: %d of %d images, %v", in.Images, p.Images, err)
	}
	for _, m := range a.Images() {
		whole(t, w, dst, m.Repo, m.Ref)
	}
	whole(t, w, dst, "docker.io/team/sound", string(sound.Digest))
}

// whole wants an image at dst with every part that is whole at the source.
func whole(t *testing.T, w *world, dst store, repo, ref string) {
	t.Helper()
	m, err := dst.GetManifest(t.Context(), repo, ref)
	if err != nil {
		t.Errorf("%s:%s was imported: %v", repo, ref, err)
		return
	}
	var doc struct{ Manifests, Layers []oci.Descriptor }
	decode(t, m.Bytes, &doc)
	for _, l := range doc.Layers {
		if _, err := dst.GetBlob(t.Context(), repo, l.Digest); err != nil {
			t.Errorf("%s:%s lacks a layer: %v", repo, ref, err)
		}
	}
	for _, c := range doc.Manifests {
		if w.whole[c.Digest] {
			whole(t, w, dst, repo, string(c.Digest))
		}
	}
}

// TestIndexesThatShareIndexes exports and imports indexes that name the same indexes, so that there
// are exponentially more ways to a manifest than manifests. What is absent is counted once for each
// entry that names it, so whoever follows an index twice counts too much.
func TestIndexesThatShareIndexes(t *testing.T) {
	const repo, wide, deep = "docker.io/team/many", 3, 5
	for _, here := range []bool{true, false} { // whether the images' layers are in the file
		t.Run(fmt.Sprint(here), func(t *testing.T) {
			src := newStore(t)
			gone := oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256([]byte("never fetched")), Size: 13}
			image := src.image(repo, 1, nil)
			below, entries := []oci.Descriptor{image, gone}, 0
			for level := range deep {
				var made []oci.Descriptor
				for i := range wide {
					doc := map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIIndex, "manifests": below, "annotations": map[string]string{"n": fmt.Sprint(level, i)}}
					made, entries = append(made, src.put(repo, doc, oci.MediaTypeOCIIndex)), entries+len(below)
				}
				below = made
			}
			src.index(repo, below, "top")
			entries += len(below)
			b, p, err := export(t, src, airgap.Image{Repo: repo, Ref: "top"})
			if err != nil || p.Images != 1 || p.Absent != wide {
				t.Fatalf("Write: %+v, %v; want 1 image, and %d entries for what is absent", p, err, wide)
			}
			if want := 1 + wide*deep + 1; p.Manifests != want {
				t.Errorf("got %d manifests in the file, want %d", p.Manifests, want)
			}
			if !here { // as if a tool had left out the layers
				b = without(t, b, image.Digest)
			}
			dst := newStore(t)
			in, err := open(t, b).Import(t.Context(), dst, nil)
			if (err == nil) != here || in.Absent > entries {
				t.Errorf("Import: %+v, %v; want it to succeed: %v, and to count at most the %d entries of all indexes as absent", in, err, here, entries)
			}
			if here {
				wantWhole(t, src, dst, airgap.Image{Repo: repo, Ref: "top"})
			}
		})
	}
}

// without returns a tar file without one content.
func without(t *testing.T, b []byte, d oci.Digest) []byte {
	t.Helper()
	var out bytes.Buffer
	r, w := tar.NewReader(bytes.NewReader(b)), tar.NewWriter(&out)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(h.Name, d.Encoded()) {
			continue
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
