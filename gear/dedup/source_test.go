package dedup_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear/dedup"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/server"
)

// serve returns a registry and a client of it over HTTP.
func serve(t *testing.T) (*client.Client, *registry.Registry) {
	t.Helper()
	cat, err := catalog.Open(t.Context(), filepath.Join(t.TempDir(), registry.CatalogFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	reg, err := registry.New(t.Context(), cat, memstore.New(nil), &registry.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(server.New(reg, &server.Options{Logger: quiet}))
	c, err := client.New(srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := c.Close()
		srv.Close()
		if err := errors.Join(err, reg.Close(context.Background()), cat.Close()); err != nil {
			t.Error(err)
		}
	})
	return c, reg
}

func push(t *testing.T, reg oci.Writer, repo string, c content, image oci.Descriptor, tags ...string) {
	t.Helper()
	for d, b := range c {
		if d == image.Digest {
			continue
		}
		if _, err := reg.PushBlob(t.Context(), repo, d, int64(len(b)), strings.NewReader(string(b))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := reg.PutManifest(t.Context(), repo, oci.PutManifest{Bytes: c[image.Digest], MediaType: image.MediaType, Tags: tags}); err != nil {
		t.Fatal(err)
	}
}

// TestRegistry checks that images in a registry give the same report as images in
// layouts.
func TestRegistry(t *testing.T) {
	c, reg := serve(t)
	contents, images := sample(t)
	push(t, reg, "db", contents["db/1"], images["db/1"], "1")
	push(t, reg, "web", contents["web/1"], images["web/1"], "1")
	push(t, reg, "web", contents["web/2"], images["web/2"], "2", "latest") // one image
	whole, one := dedup.Set{}, dedup.Set{}
	if err := whole.AddRegistry(t.Context(), c, "registry"); err != nil {
		t.Fatal(err)
	}
	rep, err := dedup.Analyse(t.Context(), &whole, sampleOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sampleReport(), rep); diff != "" {
		t.Errorf("the registry (-want +got):\n%s", diff)
	}

	refs := []string{string(images["web/1"].Digest), "2", "none"}
	if err := one.AddRepository(t.Context(), c, "registry", "web", refs); err != nil {
		t.Fatal(err)
	}
	rep, err = dedup.Analyse(t.Context(), &one, &dedup.Options{Categories: map[string]string{"web": "Web"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sampleReport().Series[1:], rep.Series); diff != "" {
		t.Errorf("one repository (-want +got):\n%s", diff)
	}
	if len(rep.Problems) != 1 || rep.LeftOut != 1 || rep.Problems[0].Where != "registry/web:none" {
		t.Errorf("got problems %v, want one for the tag that is not there", rep.Problems)
	}
	if err := one.AddRepository(t.Context(), c, "registry", "none", nil); !oci.HasCode(err, oci.CodeNameUnknown) {
		t.Errorf("a repository that is not there: got %v", err)
	}
}

// TestDamage checks that the report names what is damaged, leaves out what needs it and
// counts the rest.
func TestDamage(t *testing.T) {
	contents, images := sample(t)
	var manifest struct {
		Config oci.Descriptor   `json:"config"`
		Layers []oci.Descriptor `json:"layers"`
	}
	decode(t, contents["web/1"][images["web/1"].Digest], &manifest)
	base, top := manifest.Layers[0].Digest, manifest.Layers[1].Digest
	flip := func(b []byte) []byte { b = slices.Clone(b); b[len(b)/2] ^= 1; return b }
	for name, tt := range map[string]struct {
		damaged oci.Digest
		change  func([]byte) []byte // nil removes the blob
		digest  oci.Digest
		err     string
	}{
		"missing layer":    {top, nil, top, "the blob is missing"},
		"flipped bit":      {top, flip, top, "damaged: 302080 bytes"},
		"truncated":        {top, func(b []byte) []byte { return b[:1000] }, top, "unexpected EOF"},
		"no archive":       {top, func([]byte) []byte { return []byte(strings.Repeat("no ", 700)) }, top, ""},
		"longer":           {top, func(b []byte) []byte { return append(slices.Clone(b), make([]byte, 512)...) }, top, "want 302080 bytes"},
		"missing manifest": {images["web/1"].Digest, nil, images["web/1"].Digest, "the blob is missing"},
		"damaged manifest": {images["web/1"].Digest, flip, images["web/1"].Digest, "damaged: the digest is"},
		"missing config":   {manifest.Config.Digest, nil, images["web/1"].Digest, "read configuration"},
		"base, elsewhere":  {base, nil, base, "the blob is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeSample(t)
			path := filepath.Join(dir, "web/1/blobs/sha256", tt.damaged.Encoded())
			var err error
			if tt.change == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, tt.change(contents["web/1"][tt.damaged]), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			// web/1 comes first, so the analysis looks for a shared layer there first.
			set := dedup.Set{}
			for _, part := range []string{"web", "db"} {
				if err := set.AddLayouts(t.Context(), filepath.Join(dir, part)); err != nil {
					t.Fatal(err)
				}
			}
			rep, err := dedup.Analyse(t.Context(), &set, &dedup.Options{Categories: map[string]string{"db": "Data"}})
			if err != nil {
				t.Fatal(err)
			}
			if len(rep.Problems) != 1 || rep.Problems[0].Digest != tt.digest || !strings.Contains(rep.Problems[0].Err, tt.err) ||
				!slices.Equal(rep.Problems[0].Images, []string{"web/1"}) || rep.Problems[0].Where != filepath.Join(dir, "web/1") {
				t.Errorf("got problems %+v, want one with %s and %q", rep.Problems, tt.digest, tt.err)
			}
			web := group("web", "", 1, [4]int64{1, 2, 2, 4}, [4]int64{311296, 311296, 301000, 301000})
			if diff := cmp.Diff(web, rep.Series[0]); diff != "" || rep.LeftOut != 1 || rep.Images != 2 {
				t.Errorf("%d images, %d left out; web (-want +got):\n%s", rep.Images, rep.LeftOut, diff)
			}
			if diff := cmp.Diff(sampleReport().Categories[:1], rep.Categories[1:]); diff != "" || rep.Categories[0].Name != dedup.NoCategory {
				t.Errorf("categories, the first one for no category (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDamageOfWhatIsShared checks that a shared layer is read once, and that every image
// lacks it when it is missing or truncated.
func TestDamageOfWhatIsShared(t *testing.T) {
	dir := writeSample(t)
	contents, images := sample(t)
	var manifest struct {
		Layers []oci.Descriptor `json:"layers"`
	}
	decode(t, contents["db/1"][images["db/1"].Digest], &manifest)
	base := filepath.Join("blobs/sha256", manifest.Layers[0].Digest.Encoded())
	if err := errors.Join(os.Remove(filepath.Join(dir, "web/1", base)), os.Truncate(filepath.Join(dir, "web/2", base), 5)); err != nil {
		t.Fatal(err)
	}
	rep := analyse(t, dir, dedup.Set{}, nil)
	var got []string
	for _, p := range rep.Problems {
		got = append(got, p.Images[0]+" "+p.Err)
	}
	if diff := cmp.Diff([]string{"web/1 the blob is missing", "web/2 damaged: 5 bytes, want 9216 bytes"}, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	db := sampleReport().Series[:1]
	db[0].Category = ""
	if diff := cmp.Diff(db, rep.Series); diff != "" || rep.LeftOut != 2 {
		t.Errorf("%d left out; series (-want +got):\n%s", rep.LeftOut, diff)
	}
}

func TestNothingLeft(t *testing.T) {
	dir := t.TempDir()
	var set dedup.Set
	if err := set.AddLayouts(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "no OCI image layout") {
		t.Errorf("a directory without a layout: got %v", err)
	}
	if err := set.AddLayouts(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: got %v", err)
	}
	c := content{}
	image := c.image(t, "linux/amd64", []byte("no archive, and too short for one"))
	writeLayout(t, filepath.Join(dir, "a/1"), c, image)
	writeLayout(t, filepath.Join(dir, "a/2"), c, image)
	if err := os.WriteFile(filepath.Join(dir, "a/2/index.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := set.AddLayouts(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := dedup.Analyse(t.Context(), &set, nil); err == nil || !strings.Contains(err.Error(), "2 problems") {
		t.Errorf("only damaged images: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dedup.Analyse(ctx, &set, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: got %v", err)
	}
	if err := set.AddLayouts(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted while looking for layouts: got %v", err)
	}
}
