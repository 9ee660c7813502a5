package catalog_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/repair"
)

// TestRegistryID checks that all who propose an ID at the same time get the same one, and that a
// settled ID stays, whatever is proposed.
func TestRegistryID(t *testing.T) {
	servers.OnBoth(t, func(t *testing.T, b *catalogtest.Bed) {
		c, ctx := open(t, b, nil), t.Context()
		want := func(id string, settled bool) {
			t.Helper()
			got, is, err := c.Settings.RegistryID(ctx)
			if err != nil || got != id || is != settled {
				t.Fatalf("got %q, settled %t, %v; want %q, settled %t", got, is, err, id, settled)
			}
		}
		want("", false)
		var agreed [4]string
		var wg sync.WaitGroup
		for i := range agreed {
			wg.Go(func() {
				var err error
				if agreed[i], err = c.Settings.ProposeRegistryID(ctx, fmt.Sprintf("id%d", i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, id := range agreed {
			want(id, false)
		}
		if err := c.Settings.SettleRegistryID(ctx, agreed[0]); err != nil {
			t.Fatal(err)
		}
		want(agreed[0], true)
		if id, err := c.Settings.ProposeRegistryID(ctx, "another"); err != nil || id != agreed[0] {
			t.Errorf("proposed again: got %q, %v; want %q", id, err, agreed[0])
		}
		want(agreed[0], true)
	})
}

// TestPutBlobTells checks that PutBlob reports where the content is, and whether it must be added
// again to images that name it.
func TestPutBlobTells(t *testing.T) {
	servers.OnBoth(t, func(t *testing.T, b *catalogtest.Bed) {
		c, ctx := open(t, b, nil), t.Context()
		blob := catalog.Blob{Digest: oci.SHA256([]byte("content")), Size: 7, Tag: "etag"}
		put := func(what string, b catalog.Blob, want catalog.Recorded) {
			t.Helper()
			got, err := c.PutBlob(ctx, "a", b, "")
			if err != nil || got != want {
				t.Errorf("%s: got %+v, %v; want %+v", what, got, err, want)
			}
		}
		put("new", blob, catalog.Recorded{Object: true})
		inline := blob
		inline.Content, inline.Tag = []byte("content"), ""
		put("known as an object", inline, catalog.Recorded{Object: true})
		m := catalog.Blob{Digest: oci.SHA256([]byte("manifest"))}
		if _, err := c.PutManifest(ctx, "a", catalog.NewManifest{Manifest: catalog.Manifest{Digest: m.Digest, MediaType: oci.MediaTypeOCIManifest, Content: []byte("manifest")},
			Blobs: []oci.Digest{blob.Digest}}); err != nil {
			t.Fatal(err)
		}
		put("known and named", blob, catalog.Recorded{Object: true})
		moved := blob
		moved.Tag = "another"
		put("stored anew", moved, catalog.Recorded{Object: true})
		if tag, err := repair.New(c.DB).ObjectTag(ctx, blob.Digest); err != nil || tag != "another" {
			t.Errorf("its tag is %q, %v", tag, err)
		}
		if _, err := repair.New(c.DB).MarkAbsent(ctx, blob.Digest, false); err != nil {
			t.Fatal(err)
		}
		put("absent and named", inline, catalog.Recorded{Named: true})
		put("known here", inline, catalog.Recorded{})
	})
}

// TestTakeBack checks that only contents recorded as absent come back.
func TestTakeBack(t *testing.T) {
	servers.OnBoth(t, func(t *testing.T, b *catalogtest.Bed) {
		c, ctx := open(t, b, nil), t.Context()
		d := oci.SHA256([]byte("a content"))
		if _, err := repair.New(c.DB).TakeBack(ctx, catalog.Blob{Digest: d, Size: 9}); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("without a row: %v", err)
		}
		if err := putBlob(ctx, c, "a", catalog.Blob{Digest: d, Size: 9}, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := repair.New(c.DB).TakeBack(ctx, catalog.Blob{Digest: d, Size: 1}); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("while it is here: %v", err)
		}
		if _, err := repair.New(c.DB).MarkAbsent(ctx, d, false); err != nil {
			t.Fatal(err)
		}
		if absent, err := repair.New(c.DB).Absent(ctx, []oci.Digest{d, oci.SHA256(nil)}); err != nil || len(absent) != 1 || absent[d] {
			t.Errorf("absent: got %v, %v; want the one, as no manifest", absent, err)
		}
		if _, err := repair.New(c.DB).TakeBack(ctx, catalog.Blob{Digest: d, Size: 9}); err != nil {
			t.Fatal(err)
		}
		if is, err := repair.New(c.DB).Presence(ctx, []oci.Digest{d}); err != nil || is[d] != repair.Object {
			t.Errorf("taken back: got %v, %v; want an object", is, err)
		}
		if _, err := c.Blob(ctx, "a", d); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("it is shown without a manifest that names it: %v", err)
		}
	})
}
