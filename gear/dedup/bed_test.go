package dedup_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/gear/dedup"
	"example.org/slipway/oci"
)

// noise returns n bytes that no compressor makes smaller. Each seed gives different ones.
func noise(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// member is one member of a layer. A name that ends in "/" is a directory. A link that
// begins with "=" is a hard link.
type member struct{ name, content, link string }

// layerOf makes a layer. It is a plain tar, so its size is known: 512 bytes for each
// member, its content padded to a multiple of 512, and 1,024 bytes at the end.
func layerOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(m.content)), Format: tar.FormatUSTAR}
		target, hard := strings.CutPrefix(m.link, "=")
		switch {
		case hard:
			h.Typeflag, h.Linkname = tar.TypeLink, target
		case m.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, m.link
		case strings.HasSuffix(m.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(m.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// content maps digests to blobs, manifests among them.
type content map[oci.Digest][]byte

func (c content) add(mediaType string, b []byte) oci.Descriptor {
	d := oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256(b), Size: int64(len(b))}
	c[d.Digest] = b
	return d
}

func (c content) addJSON(t testing.TB, mediaType string, v any) oci.Descriptor {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return c.add(mediaType, b)
}

// image adds an image for a platform, which is given as os/architecture.
func (c content) image(t testing.TB, platform string, layers ...[]byte) oci.Descriptor {
	t.Helper()
	osName, arch, _ := strings.Cut(platform, "/")
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeOCIManifest,
		Config: c.addJSON(t, ocispec.MediaTypeImageConfig, ocispec.Platform{OS: osName, Architecture: arch}),
	}
	for _, l := range layers {
		mediaType := ocispec.MediaTypeImageLayer
		if bytes.HasPrefix(l, []byte{0x1f, 0x8b}) {
			mediaType = ocispec.MediaTypeImageLayerGzip
		}
		m.Layers = append(m.Layers, c.add(mediaType, l))
	}
	return c.addJSON(t, m.MediaType, m)
}

// index adds an index of the manifests.
func (c content) index(t testing.TB, manifests ...oci.Descriptor) oci.Descriptor {
	t.Helper()
	return c.addJSON(t, oci.MediaTypeOCIIndex, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeOCIIndex, Manifests: manifests})
}

// writeLayout writes a layout whose index.json lists the manifests.
func writeLayout(t testing.TB, dir string, c content, manifests ...oci.Descriptor) {
	t.Helper()
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: manifests})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index}
	for d, b := range c {
		files["blobs/sha256/"+d.Encoded()] = b
	}
	for name, b := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// analyse runs the analysis over the layouts below dir.
func analyse(t testing.TB, dir string, set dedup.Set, o *dedup.Options) *dedup.Report {
	t.Helper()
	if err := set.AddLayouts(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if o == nil {
		o = &dedup.Options{Workers: 2}
	}
	rep, err := dedup.Analyse(t.Context(), &set, o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// sample returns three images of two series. Every number of their report can be computed
// in advance, because the layers are plain tar and nothing in them compresses.
//
//	web/1: base, 302,080 bytes with big (chunks c1 c2 c3) and a link
//	web/2: base, 302,080 bytes with big2 (chunks c1 c4 c3), without d/two
//	db/1:  base, 41,984 bytes with a copy of d/one, an empty file, and c3
//
// base has 9,216 bytes: d/, d/one (1,000), d/two (5,000), and a hard link.
func sample(t testing.TB) (c map[string]content, d map[string]oci.Descriptor) {
	one, two := noise(1, 1000), noise(2, 5000)
	c1, c2, c3, c4 := noise(3, 131072), noise(4, 131072), noise(5, 37856), noise(6, 131072)
	base := layerOf(t, member{name: "d/"}, member{name: "d/one", content: one}, member{name: "d/two", content: two}, member{name: "hard", link: "=d/one"})
	layers := map[string][]byte{
		"web/1": layerOf(t, member{name: "big", content: c1 + c2 + c3}, member{name: "link", link: "d"}),
		"web/2": layerOf(t, member{name: "big2", content: c1 + c4 + c3}, member{name: "d/.wh.two"}),
		"db/1":  layerOf(t, member{name: "x/"}, member{name: "x/one", content: one}, member{name: "x/empty"}, member{name: "x/c3", content: c3}),
	}
	c, d = map[string]content{}, map[string]oci.Descriptor{}
	for name, l := range layers {
		c[name] = content{}
		d[name] = c[name].image(t, "linux/amd64", base, l)
	}
	return c, d
}

func writeSample(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	c, d := sample(t)
	for name := range c {
		writeLayout(t, filepath.Join(dir, name), c[name], d[name])
	}
	return dir
}

// sampleOptions returns a category for each series, and the files that two of the images
// need.
func sampleOptions(t testing.TB) *dedup.Options {
	t.Helper()
	one := oci.SHA256([]byte(noise(1, 1000))).Encoded()[:32]
	used, err := dedup.ReadUsed(strings.NewReader(`
		{"image":"web/1","files":["/link/one","/big","/proc/stat"]}
		{"image":"web/2","files":["big2","d/one","/hard"]}
		{"db/1":{"rc":0,"fps":["` + one + `:1000","00000000000000000000000000000000:1"]},
		 "web/2":{"rc":1,"fps":[]},"other/1":{"rc":0,"fps":["` + one + `:1000"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	return &dedup.Options{Workers: 2, Categories: map[string]string{"web": "Web", "db": "Data"}, Used: used}
}
