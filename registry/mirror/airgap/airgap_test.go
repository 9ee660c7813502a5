package airgap_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/mirror/airgap"
	"example.org/slipway/registry/objstore/memstore"
)

// store is a stored registry in which the repositories below docker.io are mirrors.
type store struct {
	*registry.Registry
	t testing.TB
}

func newStore(t testing.TB) store {
	t.Helper()
	cat, err := catalog.Open(t.Context(), filepath.Join(t.TempDir(), registry.CatalogFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	objects := memstore.New(nil)
	reg, err := registry.New(t.Context(), cat, objects, &registry.Options{Partial: func(repo string) bool { return strings.HasPrefix(repo, "docker.io/") }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{reg.Close(context.Background()), cat.Close(), objects.Close()} {
			if err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return store{reg, t}
}

// OpenBlob makes a store an airgap.Source.
func (s store) OpenBlob(ctx context.Context, repo string, d oci.Digest) (io.ReadCloser, error) {
	return s.GetBlob(ctx, repo, d)
}

func (s store) push(repo string, data []byte) oci.Descriptor {
	s.t.Helper()
	d, err := s.PushBlob(s.t.Context(), repo, oci.SHA256(data), int64(len(data)), bytes.NewReader(data))
	if err != nil {
		s.t.Fatalf("push a blob: %v", err)
	}
	return oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: d.Digest, Size: d.Size}
}

func (s store) put(repo string, doc any, mediaType string, tags ...string) oci.Descriptor {
	s.t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := s.PutManifest(s.t.Context(), repo, oci.PutManifest{Bytes: b, MediaType: mediaType, Tags: tags})
	if err != nil {
		s.t.Fatalf("put a manifest: %v", err)
	}
	return oci.Descriptor{MediaType: mediaType, Digest: r.Digest, Size: int64(len(b))}
}

// image stores an image with a large and a small layer that depend on seed.
func (s store) image(repo string, seed byte, subject *oci.Descriptor, tags ...string) oci.Descriptor {
	s.t.Helper()
	large := make([]byte, 300<<10)
	rand.NewChaCha8([32]byte{seed}).Read(large)
	config := s.push(repo, fmt.Appendf(nil, `{"seed":%d}`, seed))
	config.MediaType = "application/vnd.oci.image.config.v1+json"
	doc := map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "config": config,
		"layers": []oci.Descriptor{s.push(repo, large), s.push(repo, []byte("shared by all"))}}
	if subject != nil {
		doc["subject"] = subject
	}
	return s.put(repo, doc, oci.MediaTypeOCIManifest, tags...)
}

// index stores an index of manifests.
func (s store) index(repo string, list []oci.Descriptor, tags ...string) oci.Descriptor {
	s.t.Helper()
	return s.put(repo, map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIIndex, "manifests": list}, oci.MediaTypeOCIIndex, tags...)
}

func write(t testing.TB, s store, images ...airgap.Image) []byte {
	t.Helper()
	b, p, err := export(t, s, images...)
	if err != nil || len(p.LeftOut) > 0 {
		t.Fatalf("Write: %v, left out %v", err, p.LeftOut)
	}
	return b
}

// export writes images into memory.
func export(t testing.TB, s airgap.Source, images ...airgap.Image) ([]byte, airgap.Progress, error) {
	t.Helper()
	var buf bytes.Buffer
	p, err := airgap.Write(t.Context(), func() (io.Writer, error) { buf.Reset(); return &buf, nil }, s, images, nil)
	return buf.Bytes(), p, err
}

func open(t testing.TB, b []byte) *airgap.Archive {
	t.Helper()
	a, err := airgap.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return a
}

// wantWhole wants the complete image at dst to equal that at src.
func wantWhole(t *testing.T, src, dst store, im airgap.Image) {
	t.Helper()
	want, err := src.GetManifest(t.Context(), im.Repo, im.Ref)
	if err != nil {
		t.Fatalf("%s at the source: %v", im, err)
	}
	got, err := dst.GetManifest(t.Context(), im.Repo, im.Ref)
	if err != nil || !bytes.Equal(got.Bytes, want.Bytes) || got.MediaType != want.MediaType {
		t.Errorf("%s: got %+v, %v, want %+v", im, got, err, want)
		return
	}
	var doc struct{ Manifests, Layers []oci.Descriptor }
	if err := json.Unmarshal(got.Bytes, &doc); err != nil {
		t.Fatal(err)
	}
	for _, l := range doc.Layers {
		c, err := dst.GetBlob(t.Context(), im.Repo, l.Digest)
		if err != nil {
			t.Errorf("%s: layer %s: %v", im, l.Digest, err)
			continue
		}
		b, err := io.ReadAll(c)
		if err != nil || oci.SHA256(b) != l.Digest {
			t.Errorf("%s: layer %s: %d other bytes, %v", im, l.Digest, len(b), err)
		}
		c.Close()
	}
	for _, m := range doc.Manifests {
		if _, err := src.ResolveManifest(t.Context(), im.Repo, string(m.Digest)); err == nil {
			wantWhole(t, src, dst, airgap.Image{Repo: im.Repo, Ref: string(m.Digest)})
		}
	}
}

func TestRoundTrip(t *testing.T) {
	const nginx, tool = "docker.io/library/nginx", "docker.io/org/tool"
	src, dst := newStore(t), newStore(t)
	amd, arm := src.image(nginx, 1, nil), src.image(nginx, 2, nil)
	gone := oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256([]byte("a platform that was not fetched")), Size: 31}
	top := src.index(nginx, []oci.Descriptor{amd, arm, gone}, "1.27", "latest")
	sig := src.image(nginx, 3, &top)
	src.image(nginx, 4, nil, strings.Replace(string(amd.Digest), ":", "-", 1)+".sig")
	only := src.image(tool, 1, nil) // without a tag
	images := []airgap.Image{{Repo: nginx, Ref: "1.27"}, {Repo: nginx, Ref: "latest"}, {Repo: tool, Ref: string(only.Digest)}}

	b := write(t, src, images...)
	if again := write(t, src, images...); !bytes.Equal(b, again) {
		t.Error("the same images gave another file")
	}
	a := open(t, b)
	if n := len(a.Images()); n != 5 { // with the signature and the tag of cosign
		t.Errorf("got %d images, want 5: %v", n, a.Images())
	}
	var last airgap.Progress
	p, err := a.Import(t.Context(), dst, func(p airgap.Progress) { last = p })
	if err != nil {
		t.Fatalf("Import: %v", err)
	}
	want := airgap.Progress{Images: 5, ImagesTotal: 5, Manifests: p.Manifests, Blobs: 9, Present: 3, Absent: p.Absent, Bytes: p.Bytes, BytesTotal: p.BytesTotal}
	if d := cmp.Diff(want, p); d != "" || p.Absent == 0 || cmp.Diff(last, p) != "" {
		t.Errorf("progress (-want +got):\n%s\nlast %+v", d, last)
	}
	for _, im := range a.Images() {
		wantWhole(t, src, dst, im)
	}
	list, _, err := dst.Referrers(t.Context(), nginx, top.Digest, "", "", 10)
	if err != nil || len(list) != 1 || list[0].Digest != sig.Digest {
		t.Errorf("the signature is not there: %v, %v", list, err)
	}
	// A second import sends nothing.
	if p, err = a.Import(t.Context(), dst, nil); err != nil || p.Blobs != 0 {
		t.Errorf("a second import sent %d blobs: %v", p.Blobs, err)
	}
}

func TestWriteWhatIsNotWhole(t *testing.T) {
	const repo = "docker.io/library/a"
	s := newStore(t)
	config := s.push(repo, []byte("{}"))
	lacks := oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.SHA256([]byte("x")), Size: 1}
	foreign := lacks
	foreign.URLs = []string{"https://elsewhere.example.com/x"}
	doc := func(l oci.Descriptor) map[string]any {
		return map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "config": config, "layers": []oci.Descriptor{l}}
	}
	s.put(repo, doc(lacks), oci.MediaTypeOCIManifest, "lacks")
	s.put(repo, doc(foreign), oci.MediaTypeOCIManifest, "foreign")
	for ref, want := range map[string]string{"lacks": "has not been fetched", "foreign": "", "none": "MANIFEST_UNKNOWN"} {
		b, _, err := export(t, s, airgap.Image{Repo: repo, Ref: ref})
		if (want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), "first, image docker.io/library/a:"+ref) || !strings.Contains(err.Error(), want) || len(b) > 0) {
			t.Errorf("%s: got error %v and %d bytes, want %q", ref, err, len(b), want)
		}
	}
}

// entries are the entries of a tar file.
type entries []struct{ name, body string }

func (e entries) tar(t testing.TB) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range e {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: 0o644, Size: int64(len(f.body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

const layout = `{"imageLayoutVersion":"1.0.0"}`

// indexOf returns an index.json with one image.
func indexOf(d oci.Digest, name string) string {
	return fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":%q,"digest":%q,"size":2,"annotations":{"org.opencontainers.image.ref.name":%q}}]}`, oci.MediaTypeOCIManifest, d, name)
}

func TestOpenProblems(t *testing.T) {
	d := oci.SHA256([]byte("{}"))
	for _, tc := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "the tar file has no oci-layout"},
		{"no tar", bytes.Repeat([]byte("x"), 1024), "read the tar file"},
		{"another tar", entries{{"a", "b"}}.tar(t), "the tar file has no oci-layout: it is no OCI image layout"},
		{"cut off", entries{{"oci-layout", layout}, {"x", strings.Repeat("x", 4096)}}.tar(t)[:2048], "the tar file is cut off"},
		{"of the future", entries{{"oci-layout", `{"imageLayoutVersion":"2.0.0"}`}}.tar(t), "the layout has version \"2.0.0\""},
		{"no index", entries{{"./oci-layout", layout}}.tar(t), "the tar file has no index.json"},
		{"malformed", entries{{"oci-layout", layout}, {"index.json", "{"}}.tar(t), "index.json is malformed"},
		{"no name", entries{{"oci-layout", layout}, {"index.json", indexOf(d, "")}}.tar(t), "index.json does not say what the image " + string(d) + " is called"},
		{"a bad name", entries{{"oci-layout", layout}, {"index.json", indexOf(d, "../x:1")}}.tar(t), "the name of the image"},
		{"a bad digest", entries{{"oci-layout", layout}, {"index.json", indexOf("md5:1", "docker.io/a:1")}}.tar(t), "index.json: DIGEST_INVALID"},
		{"another digest", entries{{"oci-layout", layout}, {"index.json", indexOf(d, "docker.io/a@"+string(oci.SHA256(nil)))}}.tar(t), "is named by another digest"},
	} {
		_, err := airgap.Open(bytes.NewReader(tc.file), int64(len(tc.file)))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got error %v, want %q", tc.name, err, tc.want)
		}
	}
}

// TestImportDamaged checks that one damaged image does not keep the others out and that nothing
// wrong is imported.
func TestImportDamaged(t *testing.T) {
	src, dst := newStore(t), newStore(t)
	src.image("docker.io/a", 1, nil, "1")
	src.image("docker.io/b", 2, nil, "1")
	whole := write(t, src, airgap.Image{Repo: "docker.io/a", Ref: "1"}, airgap.Image{Repo: "docker.io/b", Ref: "1"})
	large := make([]byte, 300<<10)
	rand.NewChaCha8([32]byte{1}).Read(large)
	at := bytes.Index(whole, large[:64])
	if at < 0 {
		t.Fatal("the layer is not in the file")
	}
	damaged := slices.Clone(whole)
	damaged[at+100] ^= 1
	p, err := open(t, damaged).Import(t.Context(), dst, nil)
	if err == nil || !strings.Contains(err.Error(), "image docker.io/a:1: blob") || p.Images != 1 {
		t.Errorf("got error %v and %d images", err, p.Images)
	}
	wantWhole(t, src, dst, airgap.Image{Repo: "docker.io/b", Ref: "1"})
	if _, err := dst.GetManifest(t.Context(), "docker.io/a", "1"); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("the damaged image is there: %v", err)
	}
	// Importing the whole file then repairs it.
	if _, err := open(t, whole).Import(t.Context(), dst, nil); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, src, dst, airgap.Image{Repo: "docker.io/a", Ref: "1"})

	manifest := `{"schemaVersion":2}`
	d := oci.SHA256([]byte(manifest))
	for name, e := range map[string]entries{
		"lacks the manifest": {{"oci-layout", layout}, {"index.json", indexOf(d, "docker.io/x:1")}},
		"is damaged":         {{"oci-layout", layout}, {"index.json", indexOf(d, "docker.io/x:1")}, {"blobs/sha256/" + d.Encoded(), "{}"}},
	} {
		if _, err := open(t, e.tar(t)).Import(t.Context(), dst, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got error %v, want %q", err, name)
		}
	}
}

// decode reads JSON.
func decode(t testing.TB, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

func FuzzOpen(f *testing.F) {
	layer := "layer"
	image := fmt.Sprintf(`{"mediaType":%q,"layers":[{"digest":%q,"size":5}]}`, oci.MediaTypeOCIManifest, oci.SHA256([]byte(layer)))
	f.Add(entries{{"oci-layout", layout}, {"index.json", indexOf(oci.SHA256([]byte(image)), "docker.io/a:1")},
		{"blobs/sha256/" + oci.SHA256([]byte(image)).Encoded(), image}, {"blobs/sha256/" + oci.SHA256([]byte(layer)).Encoded(), layer}}.tar(f))
	d := oci.SHA256([]byte("{}"))
	f.Add(entries{{"oci-layout", layout}, {"index.json", indexOf(d, "docker.io/a:1")}, {"blobs/sha256/" + d.Encoded(), "{}"}}.tar(f))
	f.Add([]byte{0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := airgap.Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		var got nowhere
		_, _ = a.Import(t.Context(), &got, nil) // must neither panic nor send anything wrong
		if got.wrong != nil {
			t.Error(got.wrong)
		}
	})
}

// nowhere is a registry that checks what it gets and stores nothing.
type nowhere struct{ wrong error }

func (*nowhere) ResolveBlob(context.Context, string, oci.Digest) (oci.Descriptor, error) {
	return oci.Descriptor{}, oci.Errorf(oci.CodeBlobUnknown, "nothing is here")
}

func (*nowhere) MountBlob(context.Context, string, string, oci.Digest) (oci.Descriptor, error) {
	return oci.Descriptor{}, oci.Errorf(oci.CodeBlobUnknown, "nothing is here")
}

func (*nowhere) PushBlob(_ context.Context, _ string, d oci.Digest, _ int64, r io.Reader) (oci.Descriptor, error) {
	_, err := io.Copy(io.Discard, r)
	return oci.Descriptor{Digest: d}, err
}

func (n *nowhere) PutManifest(_ context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	if v := m.Digest.Verifier(); !oci.ValidName(repo) {
		n.wrong = fmt.Errorf("a manifest came for %q", repo)
	} else if _, _ = v.Write(m.Bytes); !v.Verified() {
		n.wrong = fmt.Errorf("%s came with other bytes", m.Digest)
	}
	return oci.PutResult{}, nil
}

// TestRenameMeets checks that if two images have different names in other tools and the same name here,
// neither is lost silently.
func TestRenameMeets(t *testing.T) {
	src, dst := newStore(t), newStore(t)
	first := src.image("docker.io/library/app", 1, nil, "v1")
	src.image("docker.io/app", 2, nil, "v1")
	src.image("docker.io/library/app", 3, nil, "v2")
	b := write(t, src, airgap.Image{Repo: "docker.io/library/app", Ref: "v1"}, airgap.Image{Repo: "docker.io/app", Ref: "v1"}, airgap.Image{Repo: "docker.io/library/app", Ref: "v2"})
	a := open(t, b)
	a.Rename(func(airgap.Image) (string, error) { return "docker.io/library/app", nil })
	p, err := a.Import(t.Context(), dst, nil)
	if err == nil || !strings.Contains(err.Error(), "two images are called docker.io/library/app:v1") {
		t.Errorf("import: %v", err)
	}
	if p.Images != 2 || p.ImagesTotal != 3 {
		t.Errorf("%d of %d images were imported", p.Images, p.ImagesTotal)
	}
	if d, err := dst.ResolveManifest(t.Context(), "docker.io/library/app", "v1"); err != nil || d.Digest != first.Digest {
		t.Errorf("the first image: %+v, %v", d, err)
	}
}
