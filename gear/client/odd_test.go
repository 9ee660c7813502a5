package client_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/gear"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/gear/export"
	"example.org/slipway/oci"
)

// oddImage is an image as other programs may push it, either valid or nearly so.
type oddImage struct {
	layers int  // how many of oddLayers, chosen by the seed
	null   bool // the list of layers is null
	diffs  int  // number of diff IDs minus number of layers
	label  bool // the image claims to be a Gear image
	config string
}

// valid reports whether every command must take the image.
func (o oddImage) valid() bool { return !o.label && o.diffs == 0 && o.config == "" }

// oddLayers returns the smallest possible layers and others with hardly any content.
func oddLayers(t testing.TB) [][]byte {
	return [][]byte{
		layer(t), // no entries
		layer(t, dir(".")),
		layer(t, file(".wh.gone", "")),
		layer(t, file(".wh..wh..opq", "")),
		layer(t, file("empty", "")),
		layer(t, file("a/b/c", "c")),
	}
}

func (b *bed) pushOdd(t testing.TB, o oddImage, layers [][]byte, tag string) {
	t.Helper()
	m := ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest, Layers: []oci.Descriptor{}}
	diffs := []oci.Digest{}
	for _, l := range layers {
		m.Layers = append(m.Layers, b.pushBlob("odd", ocispec.MediaTypeImageLayer, l))
		diffs = append(diffs, oci.SHA256(l))
	}
	if o.null {
		m.Layers = nil
	}
	switch {
	case o.diffs > 0:
		diffs = append(diffs, oci.SHA256(nil))
	case o.diffs < 0 && len(diffs) > 0:
		diffs = diffs[1:]
	}
	config := o.config
	if config == "" {
		raw, err := json.Marshal(diffs)
		must(t, err)
		labels := ""
		if o.label {
			labels = fmt.Sprintf(`"Labels":{%q:"1"}`, gear.LabelVersion)
		}
		config = fmt.Sprintf(`{"os":"linux","architecture":"amd64","config":{%s},"rootfs":{"type":"layers","diff_ids":%s}}`, labels, raw)
	}
	m.Config = b.pushBlob("odd", ocispec.MediaTypeImageConfig, []byte(config))
	b.pushManifest("odd", tag, m.MediaType, m)
}

// TestOddImages runs what the commands do over images of few and strange layers. A valid
// image is handled like any other, and none causes a panic.
func TestOddImages(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t)
	all := oddLayers(t)
	rnd := rand.New(rand.NewPCG(7, 7))
	odd := []oddImage{{}, {null: true}, {label: true}, {null: true, label: true}, {layers: 1, label: true}, {layers: 2, label: true},
		{diffs: 1}, {layers: 1, diffs: 1}, {layers: 1, diffs: -1}, {layers: 2, diffs: -1}, {config: "{}"}, {config: "null"},
		{layers: 1, config: `{"config":null,"rootfs":null}`}, {layers: 1, config: `[]`}}
	for range 30 {
		odd = append(odd, oddImage{layers: rnd.IntN(5)})
	}
	for i, o := range odd {
		var layers [][]byte
		for range o.layers {
			layers = append(layers, all[rnd.IntN(len(all))])
		}
		tag := fmt.Sprintf("t%d", i)
		b.pushOdd(t, o, layers, tag)
		if err := b.walk(t, tag); err != nil && o.valid() {
			t.Errorf("image %d, %+v: %v", i, o, err)
		}
	}
}

// walk does with an image what the commands do.
func (b *bed) walk(t testing.TB, tag string) error {
	img, err := b.One(t.Context(), "odd", tag, &oci.Platform{OS: "linux", Architecture: "amd64"})
	if err != nil {
		return err
	}
	r, err := b.Inspect(t.Context(), img, gearclient.InspectOptions{})
	if err != nil {
		return err
	}
	if _, err := json.Marshal(r); err != nil {
		return err
	}
	for range gearclient.Tree(r.Index()) { // it must not panic
	}
	if err := b.CompareTags(t.Context(), r, img, 3); err != nil {
		return err
	}
	x, err := b.Index(t.Context(), img)
	if err != nil {
		return err
	}
	if err := export.Tree(t.Context(), x, b.Files(img, x), filepath.Join(t.TempDir(), "out"), nil); err != nil {
		return err
	}
	_, err = b.Convert(t.Context(), "odd", tag, gearclient.ConvertOptions{})
	return err
}

// TestLeftOut checks that the client reports what a mounted tree will lack.
func TestLeftOut(t *testing.T) {
	b := newBed(t)
	f := file("f", "x")
	f.PAXRecords = map[string]string{"SCHILY.xattr.com.apple.provenance": "\x01", "SCHILY.xattr.user.ok": "1", "LIBARCHIVE.xattr.user.bad": "!!"}
	b.pushImage("odd", "attributes", "linux/amd64", [][]byte{layer(t, f)})
	r, err := b.Inspect(t.Context(), b.image("odd", "attributes"), gearclient.InspectOptions{})
	must(t, err)
	var got []string
	for _, l := range r.LeftOut {
		got = append(got, l.Path+" "+l.What)
	}
	if len(got) != 2 || !strings.Contains(got[0], "LIBARCHIVE.xattr.user.bad") || !strings.Contains(got[1], "com.apple.provenance") {
		t.Errorf("left out: got %q", got)
	}
}

// TestIndexesThatShareIndexes resolves an index through which exponentially more ways lead to the
// image than there are indexes. Each index must be read once.
func TestIndexesThatShareIndexes(t *testing.T) {
	const repo, wide, deep = "team/many", 3, 3
	b := newBed(t)
	below := []oci.Descriptor{b.pushImage(repo, "", "linux/amd64", [][]byte{layer(t, file("a", "a"))})}
	below[0].Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	for level := range deep {
		var made []oci.Descriptor
		for i := range wide {
			made = append(made, b.pushManifest(repo, "", oci.MediaTypeOCIIndex, ocispec.Index{MediaType: oci.MediaTypeOCIIndex, Manifests: below,
				Annotations: map[string]string{"n": fmt.Sprint(level, i)}}))
		}
		below = made
	}
	b.pushManifest(repo, "top", oci.MediaTypeOCIIndex, ocispec.Index{MediaType: oci.MediaTypeOCIIndex, Manifests: below})
	var mu sync.Mutex
	reads := map[string]int{}
	counted := b.throughProxy(nil, func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(r.URL.Path, "/manifests/") {
			reads[r.Method+" "+r.URL.Path]++
		}
		return false
	}, nil)
	counted.image(repo, "top")
	mu.Lock()
	defer mu.Unlock()
	if len(reads) < 1+wide*deep {
		t.Errorf("%d manifests were read, want the %d indexes at least", len(reads), 1+wide*deep)
	}
	for what, n := range reads {
		if n > 1 {
			t.Errorf("%s: %d times", what, n)
		}
	}
}
