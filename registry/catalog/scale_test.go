package catalog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/engine"
)

// big reports whether to run the large variants. They take minutes with the race detector.
func big() bool { return os.Getenv("SLIPWAY_BIG_TESTS") == "1" }

// fill makes n blobs of 100 bytes in 100 repositories, and a tagged manifest for every ten of them.
func fill(c *catalog.Catalog, t testing.TB, n int) {
	t.Helper()
	err := c.DB.Write(t.Context(), func(t *engine.Tx) error {
		for _, s := range []struct {
			query string
			args  []any
		}{
			{`WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM s WHERE i < 100)
				INSERT INTO repositories (id, name, created_at) SELECT i, printf('repo/r%03d', i), 0 FROM s`, nil},
			{`WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM s WHERE i < ?)
				INSERT INTO blobs (id, digest, size, state, content, created_at) SELECT i, printf('sha256:%064x', i), 100, 1, zeroblob(100), 0 FROM s`, []any{n + n/10}},
			{`INSERT INTO manifests (id, repo_id, blob_id, media_type, artifact_type, created_at, pulled_at)
				SELECT id - ?1, 1 + (id - ?1) % 100, id, 'application/vnd.oci.image.manifest.v1+json', '', 0, 0 FROM blobs WHERE id > ?1`, []any{n}},
			{`INSERT INTO links SELECT 1 + ((id - 1) / 10 + 1) % 100, id, 0 FROM blobs WHERE id <= ?`, []any{n}},
			{`INSERT INTO refs SELECT 1 + ((id - 1) / 10 + 1) % 100, id, (id - 1) / 10 + 1 FROM blobs WHERE id <= ?`, []any{n}},
			{`INSERT INTO tags SELECT repo_id, printf('t%d', id), id, 0, 0 FROM manifests`, nil},
		} {
			if _, err := t.Exec(s.query, s.args...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("fill the catalogue: %v", err)
	}
}

// TestCollectCost checks that the cost of 100 deletions depends on them and not on the store.
func TestCollectCost(t *testing.T) {
	sizes, rounds := []int{3_000, 30_000}, 3
	switch {
	case big():
		sizes = []int{10_000, 200_000}
	case raceDetector:
		sizes, rounds = []int{1_000, 10_000}, 1
	}
	var examined []int
	var took []time.Duration
	for _, n := range sizes {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		c := openTest(t, &catalog.Options{Clock: func() time.Time { return now }})
		fill(c, t, n)
		var times []time.Duration
		for round := range rounds {
			var wg sync.WaitGroup
			for i := range 100 {
				id := n + 1 + (round*100+i)*(n/(1000*rounds))
				wg.Go(func() { deleteByID(c, t, id) })
			}
			wg.Wait()
			now = now.Add(2 * time.Hour)
			begin := time.Now()
			sum, dropped := 0, 0
			for {
				out, _, err := c.Garbage.Collect(t.Context(), catalog.CollectOptions{Before: now})
				if err != nil {
					t.Fatal(err)
				}
				if out.Examined == 0 {
					break
				}
				sum += out.Examined
				dropped += len(out.Dropped)
			}
			times = append(times, time.Since(begin))
			if dropped != 1100 {
				t.Errorf("at %d blobs: dropped %d contents, want 1100", n, dropped)
			}
			examined = append(examined, sum)
		}
		took = append(took, slices.Min(times))
		t.Logf("%d blobs: 100 deletions cost %v, and %v in all", n, slices.Min(times), times)
	}
	if slices.Min(examined) != slices.Max(examined) || examined[0] != 1100 {
		t.Errorf("examined %v candidates, want 1100 each", examined)
	}
	if took[1] > 3*took[0] {
		t.Errorf("took %v at %d blobs and %v at %d: that grows with the store", took[0], sizes[0], took[1], sizes[1])
	}
}

func deleteByID(c *catalog.Catalog, t *testing.T, blobID int) {
	var repo string
	var d oci.Digest
	err := c.DB.Row(t.Context(), `SELECT r.name, b.digest FROM manifests m JOIN repositories r ON r.id = m.repo_id
		JOIN blobs b ON b.id = m.blob_id WHERE m.blob_id = ?`, []any{blobID}, &repo, &d)
	if err == nil {
		_, err = c.DeleteManifest(t.Context(), repo, d, nil)
	}
	if err != nil {
		t.Errorf("delete the manifest with id %d: %v", blobID, err)
	}
}

// TestMeasureCost checks that the cost of measuring an image depends on the image and not on the
// store.
func TestMeasureCost(t *testing.T) {
	sizes := []int{3_000, 60_000}
	if raceDetector {
		sizes = []int{1_000, 20_000}
	}
	var took []time.Duration
	for _, n := range sizes {
		c := openTest(t, nil)
		fill(c, t, n)
		best := time.Hour
		for range 20 {
			began := time.Now()
			u, err := browse.New(c.DB).ManifestUse(t.Context(), "repo/r002", oci.Digest(fmt.Sprintf("sha256:%064x", n+1)), 10)
			best = min(best, time.Since(began))
			if err != nil || u.Size != 1100 || u.Missing != 0 {
				t.Fatalf("the use is %+v, %v", u, err)
			}
		}
		took = append(took, best)
	}
	t.Logf("of %v contents: %v", sizes, took)
	if took[1] > 3*took[0]+time.Millisecond {
		t.Errorf("%v, of %v contents", took, sizes)
	}
}

// TestManyTags checks that a catalogue with a million tags opens in a second, and that listing a
// page of them costs one page.
func TestManyTags(t *testing.T) {
	n := 100_000
	switch {
	case big():
		n = 1_000_000
	case raceDetector: // the race detector makes SQLite ten times slower
		n = 20_000
	}
	path := filepath.Join(t.TempDir(), "catalog.db")
	c, err := catalog.Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(c, t, 100)
	err = c.DB.Write(t.Context(), func(t *engine.Tx) error {
		_, err := t.Exec(`WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM s WHERE i < ?)
			INSERT INTO tags SELECT 1, printf('v%08d', i), 1 + i % 10, i, 0 FROM s`, n)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if c, err = catalog.Open(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Tag(t.Context(), "repo/r001", "v00000001"); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("from opening to the first answer: %v", took)
	}

	page := func(repo, last string) time.Duration {
		best := time.Hour
		for range 20 {
			begin := time.Now()
			tags, err := c.Tags(t.Context(), repo, last, 100)
			best = min(best, time.Since(begin))
			if err != nil || len(tags) == 0 || (repo == "repo/r001" && len(tags) != 100) {
				t.Fatalf("page of %s behind %s: %d tags, %v", repo, last, len(tags), err)
			}
		}
		return best
	}
	first, middle, end := page("repo/r001", ""), page("repo/r001", fmt.Sprintf("v%08d", n/2)), page("repo/r001", fmt.Sprintf("v%08d", n-200))
	t.Logf("%d tags: pages of 100 take %v at the begin, %v in the middle, %v near the end", n, first, middle, end)
	if worst := max(middle, end); worst > 3*first+time.Millisecond {
		t.Errorf("a page takes %v at the begin and %v further on", first, worst)
	}
}
