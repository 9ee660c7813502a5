package catalog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/gearfacts"
)

// TestRepositorySizes measures repositories by what they show, what only they show, and what their
// manifests name.
func TestRepositorySizes(t *testing.T) { servers.OnBoth(t, testRepositorySizes) }

func testRepositorySizes(t *testing.T, base *catalogtest.Bed) {
	ctx, c := t.Context(), open(t, base, nil)
	put := func(repo string, i int, size int64) {
		_, d := contentOf(i)
		if err := putBlob(ctx, c, repo, catalog.Blob{Digest: d, Size: size}, ""); err != nil {
			t.Fatal(err)
		}
	}
	push := func(repo, name string, from, to int) int64 {
		m := manifestOf(name, from, to, name)
		if _, err := c.PutManifest(ctx, repo, m); err != nil {
			t.Fatal(err)
		}
		return int64(len(m.Content))
	}
	put("a", 1, 100)
	put("a", 2, 1000)
	one, two := push("a", "one", 1, 3), push("a", "two", 1, 2)
	put("a-b", 2, 1000)
	put("a-b", 3, 10_000)
	three := push("a-b", "three", 2, 4)
	want := []browse.RepositorySize{
		{Name: "a", Manifests: 2, Bytes: 1100 + one + two, OnlyBytes: 100 + one + two, NamedBytes: 1200},
		{Name: "a-b", Manifests: 1, Bytes: 11_000 + three, OnlyBytes: 10_000 + three, NamedBytes: 11_000},
	}
	for n := 1; n <= 3; n++ {
		var got []browse.RepositorySize
		for last := ""; ; last = got[len(got)-1].Name {
			page, err := browse.New(c.DB).RepositorySizes(ctx, last, n)
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, page...); len(page) < n {
				break
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%d at a time: %s", n, d)
		}
	}
	if n, err := gearfacts.NewLayers(c.DB).IndexedBytes(ctx); err != nil || n != 0 {
		t.Errorf("layers with an index: %d %v", n, err)
	}
}

// BenchmarkRepositorySizes measures 10,000 repositories with 10 links each.
func BenchmarkRepositorySizes(b *testing.B) {
	c, ctx := openTest(b, nil), b.Context()
	for i := range 10_000 {
		for j := range 10 {
			d := oci.SHA256(fmt.Appendf(nil, "%d", (i*7+j)%50_000))
			if err := putBlob(ctx, c, fmt.Sprintf("team/app-%05d", i), catalog.Blob{Digest: d, Size: 1000}, ""); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		began := time.Now()
		for last, n := "", 200; n == 200; {
			page, err := browse.New(c.DB).RepositorySizes(ctx, last, 200)
			if err != nil {
				b.Fatal(err)
			}
			if n = len(page); n > 0 {
				last = page[n-1].Name
			}
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/all")
	}
}
