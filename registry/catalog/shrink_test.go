package catalog_test

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
)

// TestShrink fills a catalogue and collects a part of it. The file returns its free space if that
// is much, also repeatedly, and the remaining content is unchanged.
func TestShrink(t *testing.T) {
	for _, tt := range []struct {
		delete  int // of 400 contents
		smaller bool
	}{{400, true}, {320, true}, {40, false}} {
		now := int64(1e12)
		b := &catalogtest.Bed{Path: t.TempDir() + "/catalog.db"}
		open := func() *catalog.Catalog {
			c, err := try(t, b, &catalog.Options{Grace: time.Second, Clock: func() time.Time { return time.UnixMilli(now) }})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := open()
		content := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%07d ", i), 2000) }
		for round := range 2 {
			var g errgroup.Group // so that they share commits
			for i := range 400 {
				g.Go(func() error {
					data := content(i)
					return putBlob(t.Context(), c, fmt.Sprintf("r%d", i%7), catalog.Blob{Digest: oci.SHA256(data), Size: int64(len(data)), Content: data}, "")
				})
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			size := func() int64 { // after the log was merged into it
				t.Helper()
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				st, err := os.Stat(b.Path)
				if err != nil {
					t.Fatal(err)
				}
				c = open()
				return st.Size()
			}
			full := size()
			for i := range tt.delete {
				g.Go(func() error { return c.DeleteBlob(t.Context(), fmt.Sprintf("r%d", i%7), oci.SHA256(content(i))) })
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			now += 10_000
			for {
				out, _, err := c.Garbage.Collect(t.Context(), catalog.CollectOptions{Max: 256, Before: time.UnixMilli(now),
					Keep: func(_ string, d oci.Digest) (time.Time, bool) { return time.UnixMilli(now + 1000), true }})
				if err != nil {
					t.Fatal(err)
				}
				if out.Examined == 0 {
					break
				}
			}
			if err := c.DB.Shrink(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := size(); (after < full*3/4) != tt.smaller {
				t.Errorf("round %d, %d of 400 deleted: %d bytes of %d are left, smaller %v", round, tt.delete, after, full, tt.smaller)
			}
			for i := tt.delete; i < 400; i++ {
				data := content(i)
				if got, err := c.StoredBlob(t.Context(), oci.SHA256(data)); err != nil || !bytes.Equal(got.Content, data) {
					t.Fatalf("content %d afterwards: %v", i, err)
				}
			}
			if complaints, err := c.DB.Integrity(t.Context(), false, 10); err != nil || len(complaints) > 0 {
				t.Errorf("the file is damaged: %v, %v", complaints, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
