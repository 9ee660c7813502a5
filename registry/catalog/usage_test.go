package catalog_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/gearfacts"
)

// TestUsage counts what sets of repositories hold, some of which overlap.
func TestUsage(t *testing.T) { servers.OnBoth(t, testUsage) }

func testUsage(t *testing.T, base *catalogtest.Bed) {
	ctx, c := t.Context(), open(t, base, nil)
	put := func(repo string, i int, size int64) {
		_, d := contentOf(i)
		if err := putBlob(ctx, c, repo, catalog.Blob{Digest: d, Size: size}, ""); err != nil {
			t.Fatal(err)
		}
	}
	put("a/x", 1, 100)
	put("a/y", 1, 100)
	put("a/y", 2, 1000)
	put("b", 2, 1000)
	put("c", 3, 10_000)
	m := manifestOf("one", 1, 2, "one", "two")
	for _, repo := range []string{"a/x", "a/y"} {
		if _, err := c.PutManifest(ctx, repo, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Uploads.Save(ctx, catalog.Upload{ID: "u", Repo: "b", Size: 7, Content: []byte("1234567")}); err != nil {
		t.Fatal(err)
	}
	sets := []string{"a/", "", "b", "none"}
	got, err := c.Usage(ctx, len(sets), func(repo string) (in []int) {
		for i, prefix := range sets {
			if strings.HasPrefix(repo, prefix) {
				in = append(in, i)
			}
		}
		return in
	})
	size := int64(len(m.Content))
	want := []catalog.Usage{{Bytes: 1100 + size, Tags: 4}, {Bytes: 11_107 + size, Tags: 4}, {Bytes: 1007}, {}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("usage: %v (-want +got)\n%s", err, diff)
	}
	_, d := contentOf(2)
	for digest, want := range map[oci.Digest][]string{d: {"a/y", "b"}, m.Digest: {"a/x", "a/y"}} {
		var got []string
		err := c.Holders(ctx, digest, func(repo string) { got = append(got, repo) })
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is held by %v, %v; want %v", digest, got, err, want)
		}
	}
}

// TestUsageOfFiles counts files that clients sent, for as long as they are kept: until they
// expire, or as parts of Gear images. Files that a converted layer has are not counted twice.
func TestUsageOfFiles(t *testing.T) { servers.OnBoth(t, testUsageOfFiles) }

func testUsageOfFiles(t *testing.T, base *catalogtest.Bed) {
	ctx, c := t.Context(), open(t, base, nil)
	files, until := gearfacts.NewFiles(c.DB), time.Now().Add(time.Hour)
	converted, own := gearDigest("a"), gearDigest("b")
	gearStep(t, putBlob(ctx, c, "a/x", catalog.Blob{Digest: converted, Size: 1000, Content: make([]byte, 1000)}, ""))
	gearStep(t, putBlob(ctx, c, "a/y", catalog.Blob{Digest: own, Size: 100, Content: make([]byte, 100)}, ""))
	embedded := gearLayer(own, 1, 5, 6)
	embedded.Embedded = true
	for _, r := range []gearfacts.Record{
		{Packs: []gearfacts.NewPack{gearPack(1, 1, 2)}, Layer: gearLayer(converted, 1, 2)},
		{Packs: []gearfacts.NewPack{gearPack(2, 4, 5)}, Repo: "a/x", Staged: []gearfacts.Name{{1}, {4}, {5}}, Until: until},
		{Packs: []gearfacts.NewPack{gearPack(3, 6)}, Repo: "a/y", Staged: []gearfacts.Name{{4}}, Until: until},
		{Layer: embedded},
	} {
		gearStep(t, files.Record(ctx, r))
	}
	usage := func() []catalog.Usage {
		t.Helper()
		got, err := c.Usage(ctx, 3, func(repo string) []int { return []int{slices.Index([]string{"a/x", "a/y"}, repo), 2} })
		gearStep(t, err)
		return got
	}
	want := []catalog.Usage{{Bytes: 1020}, {Bytes: 110}, {Bytes: 1120}}
	if diff := cmp.Diff(want, usage()); diff != "" {
		t.Errorf("before the repository may use its layer (-want +got)\n%s", diff)
	}
	gearStep(t, gearfacts.NewLayers(c.DB).Grant(ctx, "a/y", own))
	want = []catalog.Usage{{Bytes: 1020}, {Bytes: 130}, {Bytes: 1130}}
	if diff := cmp.Diff(want, usage()); diff != "" {
		t.Errorf("with a Gear image (-want +got)\n%s", diff)
	}
}
