package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/figures"
	"example.org/slipway/workload/trace/ingest"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/tracetest"
)

// TestRealSample imports 725,242 URIs of a real registry and compares every known figure,
// to its last known digit.
func TestRealSample(t *testing.T) {
	shared := os.Getenv("SLIPWAY_TRACES")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "..", "shared", "traces")
	}
	file := filepath.Join(shared, "dal09_3d_get_uris.csv.zst")
	if _, err := os.Stat(file); err != nil {
		t.Skipf("real traces are not here: %v", err)
	}
	dir := t.TempDir()
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := logs.NewInput(&logs.InputOptions{Start: start, Rate: 2.8})
	got, err := ingest.Import(context.Background(), in, []string{file}, w, &ingest.ImportOptions{Zone: "dal09"})
	if err != nil {
		t.Fatal(err)
	}
	counts := store.Counts{Records: 725242, Kinds: map[string]int64{"ping": 333358, "manifest": 132610, "blob": 259274},
		Methods: map[string]int64{"GET": 725242}, Statuses: map[int]int64{0: 725242},
		Mix: map[string]int64{"GET ping": 333358, "GET manifest": 132610, "GET blob": 259274}}
	if diff := cmp.Diff(counts, got.Counts); diff != "" || len(got.Skipped) != 0 {
		t.Errorf("counts differ (-want +got):\n%s\nskipped: %v", diff, got.Skipped)
	}
	s := tracetest.Open(t, dir)
	z := s.Zones()
	if len(z) != 1 || len(z[0].Days) != 3 || !z[0].Days[2].Equal(time.Date(2017, 6, 22, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("zones: %+v", z)
	}
	f, err := figures.Of(context.Background(), s, store.Query{Zone: "dal09"})
	if err != nil {
		t.Fatal(err)
	}
	percent := func(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }
	whole := func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }
	for _, c := range []struct {
		what string
		want string
		got  string
	}{
		{"pings", "46.0 %", percent(float64(f.Pings) / float64(f.GETs))},
		{"blobs", "35.7 %", percent(float64(f.Blobs) / float64(f.GETs))},
		{"manifests", "18.3 %", percent(float64(f.Manifests) / float64(f.GETs))},
		{"others", "0", fmt.Sprint(f.Others)},
		{"blob digests", "81335", fmt.Sprint(f.BlobDigests.Distinct)},
		{"blob URIs", "108325", fmt.Sprint(f.BlobURIs.Distinct)},
		{"blobs, top 1 % by digest", "44.0 %", percent(f.BlobDigests.Top1)},
		{"blobs, top 1 % by URI", "42.9 %", percent(f.BlobURIs.Top1)},
		{"blobs, top 10", "13.3 %", percent(f.BlobDigests.Top10)},
		{"blobs, rank 1", "2.8 %", percent(f.BlobDigests.Rank1)},
		{"blobs, top", "83d6821d 7338", fmt.Sprint(f.BlobDigests.Top, " ", f.BlobDigests.TopRequests)},
		{"blobs, once", "68 %", whole(f.BlobDigests.Once)},
		{"blobs, slope", "0.92", fmt.Sprintf("%.2f", f.BlobDigests.Slope)},
		{"blob GETs per manifest GET", "1.96", fmt.Sprintf("%.2f", f.BlobsPerManifest)},
		{"manifest URIs", "12988", fmt.Sprint(f.ManifestURIs.Distinct)},
		{"manifests, top 1 %", "84.8 %", percent(f.ManifestURIs.Top1)},
		{"manifests, top 10", "42.1 %", percent(f.ManifestURIs.Top10)},
		{"manifests, rank 1", "7.0 %", percent(f.ManifestURIs.Rank1)},
		{"manifests, slope", "1.25", fmt.Sprintf("%.2f", f.ManifestURIs.Slope)},
		{"manifests, once", "84 %", whole(f.ManifestURIs.Once)},
		{"manifest references, top", "817c8a39 64976", fmt.Sprint(f.ManifestRefs.Top, " ", f.ManifestRefs.TopRequests)},
		{"manifest references, rank 1", "49.0 %", percent(f.ManifestRefs.Rank1)},
		{"repositories", "8881", fmt.Sprint(f.Repositories.Distinct)},
		{"repositories, top 10", "28.4 %", percent(f.Repositories.Top10)},
		{"repositories, top 1 %", "55.9 %", percent(f.Repositories.Top1)},
		{"repositories, slope", "1.07", fmt.Sprintf("%.2f", f.Repositories.Slope)},
		{"namespaces", "3162", fmt.Sprint(f.Namespaces.Distinct)},
		{"namespaces, rank 1", "30.6 %", percent(f.Namespaces.Rank1)},
		{"namespaces, top 10", "51.0 %", percent(f.Namespaces.Top10)},
		{"growth", "[{10000 3015} {100000 24259} {259274 81335}]", fmt.Sprint(f.Growth)},
		{"growth, exponent", "1.0", fmt.Sprintf("%.1f", f.GrowthExponent)},
		{"first touches", "31 %", whole(f.FirstTouches)},
		{"first touches after a manifest", "66.7 %", percent(f.FirstTouchesAfterManifest)},
		{"stack distance", "258 2375 7363 34382", fmt.Sprint(int(f.StackDistance.Median), int(f.StackDistance.P75), int(f.StackDistance.P90), int(f.StackDistance.P99))},
		{"followed", "14 % 17 % 20 %", fmt.Sprint(whole(f.Followed[0].Share), " ", whole(f.Followed[1].Share), " ", whole(f.Followed[2].Share))},
		{"layers then, median", "2 to 3", fmt.Sprintf("%.0f to %.0f", f.Followed[0].Layers.Median, f.Followed[2].Layers.Median)},
		{"layers then, p90", "8 to 12", fmt.Sprintf("%.0f to %.0f", f.Followed[0].Layers.P90, f.Followed[2].Layers.P90)},
		{"layers then, mean", "3.4 to 5.1", fmt.Sprintf("%.1f to %.1f", f.Followed[0].Mean, f.Followed[2].Mean)},
		{"single pulls", "3856 48491 2742", fmt.Sprint(f.SinglePulls.Repositories, f.SinglePulls.Spread, f.SinglePulls.Gap)},
		{"run of pings", "2.43", fmt.Sprintf("%.2f", f.PingRun)},
		{"run of pings, independent", "1.85", fmt.Sprintf("%.2f", f.PingRunIndependent)},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, c.got, c.want)
		}
	}
	depths := map[int]int{}
	refs := map[int]int{}
	err = s.Scan(context.Background(), store.Query{Zone: "dal09"}, func(b *store.Batch) error {
		for i, k := range b.Kind {
			if k == trace.Ping {
				continue
			}
			repo := s.Name(store.Repos, b.Repo[i])
			n := 4
			for _, c := range repo {
				if c == '/' {
					n++
				}
			}
			depths[n]++
			if k == trace.Manifest {
				refs[len(s.Name(store.Refs, b.Ref[i]))]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]int{4: 4358, 5: 385970, 6: 1291, 7: 265}, depths); diff != "" {
		t.Errorf("segments per URI differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[int]int{8: 132550, 2: 60}, refs); diff != "" {
		t.Errorf("lengths of manifest references differ (-want +got):\n%s", diff)
	}
}
