package engine_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/repair"
)

// open opens a catalogue until the test ends.
func open(t *testing.T, b *catalogtest.Bed) *catalog.Catalog {
	t.Helper()
	var c *catalog.Catalog
	var err error
	if b.DSN != "" {
		c, err = catalog.OpenPostgres(t.Context(), b.DSN, nil)
	} else {
		c, err = catalog.Open(t.Context(), b.Path, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func put(ctx context.Context, c *catalog.Catalog, repo string, content []byte) error {
	_, err := c.PutBlob(ctx, repo, catalog.Blob{Digest: oci.SHA256(content), Size: int64(len(content)), Content: content}, "")
	return err
}

// manifest returns a manifest that names a content.
func manifest(name string, d oci.Digest, tags ...string) catalog.NewManifest {
	content := fmt.Appendf(nil, `{"name":%q}`, name)
	return catalog.NewManifest{Manifest: catalog.Manifest{Digest: oci.SHA256(content), MediaType: "application/test", Content: content}, Blobs: []oci.Digest{d}, Tags: tags}
}

// TestChangesAreTold checks that each process learns what others push, delete and repair, and not
// what it changes itself.
func TestChangesAreTold(t *testing.T) {
	base := engine.Servers().Bed(t)
	r := [2]*catalog.Catalog{open(t, base), open(t, base)}
	a, b := engine.Watching(t, r[0].DB), engine.Watching(t, r[1].DB)
	ctx := t.Context()
	content := []byte("content")
	d := oci.SHA256(content)
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	step(put(ctx, r[0], "r", content))
	one, two := manifest("one", d, "t", "u"), manifest("two", d, "t")
	for _, m := range []catalog.NewManifest{one, two} {
		_, err := r[0].PutManifest(ctx, "r", m)
		step(err)
	}
	_, err := r[0].DeleteManifest(ctx, "r", one.Digest, nil)
	step(err)
	step(r[0].DeleteTag(ctx, "r", "t", nil))
	_, err = repair.New(r[0].DB).SetContent(ctx, d, content)
	step(err)
	step(r[1].DB.Sync(ctx))
	want := []engine.Change{{engine.ChangeTag, "r", "t"}, {engine.ChangeTag, "r", "u"}, {engine.ChangeTag, "r", "t"},
		{engine.ChangeTag, "r", "u"}, {engine.ChangeManifest, "r", string(one.Digest)}, {engine.ChangeTag, "r", "t"}, {engine.ChangeBlob, "r", string(d)}}
	if got := b.Take(); !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	step(r[0].DB.Sync(ctx))
	if got := a.Take(); len(got) > 0 {
		t.Errorf("told of its own changes: %v", got)
	}
}

// TestDryRunAmongPushes checks that a dry run undoes itself while pushes share its commit.
func TestDryRunAmongPushes(t *testing.T) { engine.Servers().OnBoth(t, testDryRunAmongPushes) }

func testDryRunAmongPushes(t *testing.T, base *catalogtest.Bed) {
	c := open(t, base)
	content := func(i int) []byte { return fmt.Append(nil, i) }
	if err := put(t.Context(), c, "old", content(-1)); err != nil {
		t.Fatal(err)
	}
	release := c.DB.HoldWriter(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if i%4 == 0 {
				out, _, err := c.Garbage.Collect(t.Context(), catalog.CollectOptions{Before: time.Now().Add(24 * time.Hour), DryRun: true})
				if err != nil || len(out.Dropped) == 0 {
					t.Errorf("dry run: %+v, %v", out, err)
				}
				return
			}
			if err := put(t.Context(), c, "new", content(i)); err != nil {
				t.Errorf("put: %v", err)
			}
		})
	}
	c.DB.Queued(40)
	release()
	wg.Wait()
	for i := -1; i < 40; i++ {
		repo := "new"
		if i < 0 {
			repo = "old"
		} else if i%4 == 0 {
			continue
		}
		if _, err := c.Blob(t.Context(), repo, oci.SHA256(content(i))); err != nil {
			t.Errorf("blob %d: %v", i, err)
		}
	}
}
