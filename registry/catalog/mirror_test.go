package catalog_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/repair"
)

// partialOf is like manifestOf, with everything optional, as mirrors need it.
func partialOf(name string, from, to int, tags ...string) catalog.NewManifest {
	m := manifestOf(name, from, to, tags...)
	for _, d := range m.Blobs {
		m.Optional = append(m.Optional, oci.Descriptor{Digest: d, Size: 10})
	}
	m.Blobs = nil
	return m
}

// mirror calls the methods that mirrored repositories need.
func (s *script) mirror() {
	ctx := s.t.Context()
	adopt := func(repo string, i int) {
		b, d := contentOf(i)
		blob := catalog.Blob{Digest: d, Size: int64(len(b)), Content: b}
		if i%2 == 0 {
			blob.Content = nil
		}
		added, err := s.c.AdoptBlob(ctx, repo, blob, "")
		s.note("adopt", err, added)
	}
	put := func(repo string, m catalog.NewManifest) {
		replaced, err := s.c.PutManifest(ctx, repo, m)
		s.note("partial", err, replaced)
		s.now = s.now.Add(time.Second)
	}
	list := func(q browse.ImageQuery) {
		images, err := browse.New(s.c.DB).Images(ctx, q)
		for i := range images { // IDs differ
			images[i].ID = 0
		}
		s.note("images", err, images)
	}
	put("up/a", partialOf("one", 500, 505, "v1"))
	put("up/a", partialOf("two", 503, 508))
	put("up/b", partialOf("one", 500, 505, "v1", "v2"))
	index := catalog.NewManifest{Manifest: catalog.Manifest{MediaType: oci.MediaTypeOCIIndex, Content: []byte("the index")}, Tags: []string{"multi"}}
	index.Digest = oci.SHA256(index.Content)
	for _, name := range []string{"two", "absent"} {
		m := manifestOf(name, 0, 0)
		index.Optional = append(index.Optional, oci.Descriptor{Digest: m.Digest, Size: 100})
	}
	put("up/a", index)
	for i := range 8 {
		adopt("up/a", 500+i)
	}
	adopt("up/a", 501)
	_, d := contentOf(504)
	b, err := s.c.LinkStored(ctx, "up/b", d)
	s.note("link stored", err, b)
	_, err = s.c.LinkStored(ctx, "up/b", oci.SHA256([]byte("nowhere")))
	s.note("link what is not stored", err)
	_, d = contentOf(507)
	_, err = s.c.MountBlob(ctx, "own/x", "up/a", d)
	s.note("mount", err)
	named, err := s.c.Naming(ctx, "up/a", d, 5)
	s.note("naming", err, named)
	var all []oci.Digest
	for i := range 20 {
		_, d := contentOf(498 + i)
		all = append(all, d)
	}
	linked, err := s.c.Linked(ctx, "up/b", all)
	s.note("linked", err, linked)
	s.note("pulls", s.c.RecordPulls(ctx, []catalog.Pull{{"up/a", string(manifestOf("two", 0, 0).Digest), s.now.UnixMilli() + 5000}, {"up/b", "v2", s.now.UnixMilli() + 9000}}))
	list(browse.ImageQuery{Prefix: "up/", Limit: 10})
	list(browse.ImageQuery{Prefix: "up/", Limit: 10, LeastUsed: true})
	list(browse.ImageQuery{Prefix: "up/", Limit: 10, UsedBefore: s.now.Add(7 * time.Second)})
	list(browse.ImageQuery{Prefix: "up/b", Limit: 1, AfterRepo: "up/a", AfterID: 1 << 40})
	u, err := browse.New(s.c.DB).Usage(ctx, "up/")
	s.note("usage", err, u)
	u, err = browse.New(s.c.DB).Usage(ctx, "up/a", "up/b")
	s.note("usage", err, u)
	u, err = browse.New(s.c.DB).Usage(ctx)
	s.note("usage of nothing", err, u)

	_, d = contentOf(503)
	gone, err := s.c.Garbage.DropBlob(ctx, "up/a", d)
	s.note("drop blob", err, gone)
	_, err = s.c.Garbage.DropBlob(ctx, "up/a", d)
	s.note("drop it again", err)
	out, err := s.c.Garbage.DropImages(ctx, "up/b", s.now, manifestOf("one", 0, 0).Digest)
	s.note("spared", err, out)
	out, err = s.c.Garbage.DropImages(ctx, "up/a", time.Time{}, index.Digest, oci.SHA256([]byte("nothing")))
	s.note("drop index", err, out)
	out, err = s.c.Garbage.DropImages(ctx, "up/none", time.Time{}, index.Digest)
	s.note("drop of no repository", err, out)
	list(browse.ImageQuery{Prefix: "up/", Limit: 10})
	leaks, err := repair.New(s.c.DB).Leaks(ctx, 0, 100)
	s.note("leaks", err, len(leaks))
	out, err = s.c.Garbage.DropImages(ctx, "up/a", time.Time{}, manifestOf("one", 0, 0).Digest)
	s.note("drop the last", err, out)
	repos, err := s.c.Repositories(ctx, "up/", 10)
	s.note("repositories", err, repos)
	repos, err = s.c.Listed(ctx, "up/", 10)
	s.note("listed repositories", err, repos)
}

// TestAdoptIsNotQueued checks that a content which a manifest already names adds no entry to the
// collector's queue, and that an unnamed one does.
func TestAdoptIsNotQueued(t *testing.T) {
	servers.OnBoth(t, func(t *testing.T, b *catalogtest.Bed) {
		ctx := t.Context()
		c := open(t, b, nil)
		if _, err := c.PutManifest(ctx, "up/a", partialOf("m", 0, 3, "v1")); err != nil {
			t.Fatal(err)
		}
		queued := func() int64 {
			t.Helper()
			n, err := c.Counts(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return n.GCQueue
		}
		before := queued()
		for i := range 4 {
			content, d := contentOf(i)
			if _, err := c.AdoptBlob(ctx, "up/a", catalog.Blob{Digest: d, Size: int64(len(content)), Content: content}, ""); err != nil {
				t.Fatal(err)
			}
			want := before
			if i == 3 {
				want++
			}
			if got := queued(); got != want {
				t.Errorf("content %d: %d entries in the queue, want %d", i, got, want)
			}
		}
	})
}

// TestUntaggedIsKept checks that the collector keeps manifests without a tag where it is configured
// to.
func TestUntaggedIsKept(t *testing.T) {
	ctx := t.Context()
	now := time.UnixMilli(1_700_000_000_000)
	c := openTest(t, &catalog.Options{Clock: func() time.Time { return now }, Grace: time.Hour})
	for _, repo := range []string{"up/a", "own/a"} {
		if _, err := c.PutManifest(ctx, repo, partialOf(repo, 0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(3 * time.Hour)
	out, _, err := c.Garbage.Collect(ctx, catalog.CollectOptions{Before: now, Untagged: true, KeepUntagged: func(repo string) bool { return repo == "up/a" }})
	want := []catalog.Unlinked{{Repo: "own/a", Digest: manifestOf("own/a", 0, 0).Digest, Manifest: true}}
	if diff := cmp.Diff(want, out.Unlinked); err != nil || diff != "" {
		t.Errorf("collected (-want +got): %v\n%s", err, diff)
	}
}

// BenchmarkAdopt records small contents that a manifest names, by many callers at once.
func BenchmarkAdopt(b *testing.B) {
	ctx := context.Background()
	bb := catalogtest.Bed{Path: b.TempDir() + "/catalog.db"}
	c := open(b, &bb, nil)
	const image = 8
	b.SetParallelism(5)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for n := 0; pb.Next(); n++ {
			m := catalog.NewManifest{Manifest: catalog.Manifest{MediaType: oci.MediaTypeOCIManifest, Content: fmt.Appendf(nil, "manifest %d of %p", n, pb)}, Tags: []string{"latest"}}
			m.Digest = oci.SHA256(m.Content)
			repo := "up/" + m.Digest.Encoded()[:12]
			var blobs []catalog.Blob
			for i := range image {
				content := fmt.Appendf(nil, "content %d of %s", i, m.Digest)
				blobs = append(blobs, catalog.Blob{Digest: oci.SHA256(content), Size: int64(len(content)), Content: content})
				m.Optional = append(m.Optional, oci.Descriptor{Digest: blobs[i].Digest, Size: blobs[i].Size})
			}
			if _, err := c.PutManifest(ctx, repo, m); err != nil {
				b.Error(err)
			}
			done := make(chan error, image)
			for _, blob := range blobs {
				go func() {
					_, err := c.AdoptBlob(ctx, repo, blob, "")
					done <- err
				}()
			}
			for range image {
				if err := <-done; err != nil {
					b.Error(err)
				}
			}
		}
	})
}
