package dedup_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear/dedup"
	"example.org/slipway/oci"
)

func decode(t testing.TB, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

func TestReadCategories(t *testing.T) {
	for in, want := range map[string]map[string]string{
		"":                                      {},
		"web,Web\ndb,Data\n":                    {"web": "Web", "db": "Data"},
		"Series, Category\n# comment\nweb, Web": {"web": "Web"},
		"web,\"Web, and more\"\nweb,\"Web, and more\"": {"web": "Web, and more"},
		"web,Web\nweb,Data":                            nil,
		"web":                                          nil,
		"a,b,c":                                        nil,
	} {
		got, err := dedup.ReadCategories(strings.NewReader(in))
		if diff := cmp.Diff(want, got); diff != "" || (err != nil) != (want == nil) {
			t.Errorf("ReadCategories(%q): error %v (-want +got):\n%s", in, err, diff)
		}
	}
}

func TestReadUsedRefuses(t *testing.T) {
	for in, want := range map[string]string{
		`{"image":"a/1","files":["x"]} {`:       "value 2: unexpected EOF",
		`[]`:                                    "value 1",
		`{"image":1,"files":[]}`:                "image:",
		`{"image":"a/1","files":"x"}`:           "files of a/1",
		`{"image":"a/1"}`:                       "files of a/1",
		`{"a/1":3}`:                             "result of a/1",
		`{"a/1":{"rc":0,"fps":["xyz:1"]}}`:      "no fingerprint",
		`{"a/1":{"rc":0,"fps":["00112233:1"]}}`: "no fingerprint",
	} {
		if got, err := dedup.ReadUsed(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadUsed(%q) = %v, %v; want an error with %q", in, got, err, want)
		}
	}
}

// FuzzReadUsed checks that each image occurs once, under a name that the file gives,
// whatever the file contains.
func FuzzReadUsed(f *testing.F) {
	f.Add(`{"image":"a/1","files":["x"]}{"image":"a/1","files":[]}`)
	f.Add(`{"a/1":{"rc":0,"fps":["00112233445566778899aabbccddeeff:1"]},"b/2":{}}`)
	f.Fuzz(func(t *testing.T, in string) {
		list, err := dedup.ReadUsed(strings.NewReader(in))
		if err != nil && list != nil {
			t.Errorf("got %v with error %v", list, err)
		}
		seen := map[string]bool{}
		for _, u := range list {
			if seen[u.Image] {
				t.Errorf("image %q is there twice", u.Image)
			}
			seen[u.Image] = true
		}
	})
}

// oneManifest is a registry that answers every request with the same manifest. It has one
// blob.
type oneManifest struct {
	bytes []byte
	blob  []byte
}

func (r oneManifest) GetManifest(context.Context, string, string) (*oci.Manifest, error) {
	return &oci.Manifest{Descriptor: oci.Descriptor{Digest: oci.SHA256(r.bytes)}, Bytes: r.bytes}, nil
}

func (r oneManifest) GetBlob(_ context.Context, _ string, d oci.Digest) (oci.Content, error) {
	return blob{strings.NewReader(string(r.blob))}, nil
}

func (oneManifest) Repositories(context.Context, string, int) ([]string, bool, error) {
	return []string{"repo"}, false, nil
}

func (oneManifest) Tags(context.Context, string, string, int) ([]string, bool, error) {
	return []string{"tag"}, false, nil
}

type blob struct{ *strings.Reader }

var _ oci.Content = blob{}

func (blob) Close() error                 { return nil }
func (b blob) Descriptor() oci.Descriptor { return oci.Descriptor{Size: b.Size()} }
func (b blob) WriteTo(w io.Writer) (int64, error) {
	return b.Reader.WriteTo(w)
}

// FuzzManifest checks that an image is counted, reported as a problem or skipped,
// whatever the registry answers.
func FuzzManifest(f *testing.F) {
	c := content{}
	layer := []byte(strings.Repeat("\x00", 1024))
	image := c.image(f, "linux/amd64", layer)
	f.Add(c[image.Digest], layer)
	index := c.index(f, image)
	f.Add(c[index.Digest], layer)
	f.Add([]byte(`{"manifests":null}`), []byte{})
	f.Add([]byte(`{"config":{"mediaType":"application/octet-stream"},"layers":[{"mediaType":"tar","digest":"sha256:../x","size":-1},{"mediaType":"tar","digest":"md5:"}]}`), []byte("{}"))
	f.Add([]byte(`{"fsLayers":[]}`), []byte{})
	f.Fuzz(func(t *testing.T, manifest, layer []byte) {
		set := dedup.Set{AllPlatforms: true}
		if err := set.AddRegistry(t.Context(), oneManifest{manifest, layer}, "host"); err != nil {
			t.Fatal(err)
		}
		rep, err := dedup.Analyse(t.Context(), &set, &dedup.Options{Workers: 1})
		if err != nil {
			return
		}
		if n := rep.Images + rep.LeftOut; n < 1 {
			t.Errorf("%d images counted, %d left out", rep.Images, rep.LeftOut)
		}
		for _, row := range rep.All.Rows {
			if row.StoredBytes < 0 || row.RawBytes < 0 || row.Objects < 0 {
				t.Errorf("negative: %+v", row)
			}
		}
	})
}
