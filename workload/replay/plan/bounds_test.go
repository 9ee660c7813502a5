package plan_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/replay/plan"
)

// TestNameWithoutContent plans a name without content after all other names. The table of
// digests does not reach that far.
func TestNameWithoutContent(t *testing.T) {
	for _, status := range []uint16{404, 0} {
		m := newMemory(request{0, "c", "GET", "v2/a/blobs/d1", 200, 10}, request{1, "c", "HEAD", "v2/a/blobs/d2", status, 0})
		all := tasks(t, newPlan(t, m, plan.Options{Level: plan.L1}), 0)
		if len(all) != 2 || all[1].Steps[0].Size <= 0 {
			t.Errorf("status %d: %d tasks, want the HEAD of a blob of some size among two", status, len(all))
		}
	}
}

func TestWhatIsLeftOutIsCountedOnce(t *testing.T) {
	m := newMemory(request{0, "c", "GET", "v2", 200, 2}, request{1, "c", "PUT", "v2/a/blobs/uploads/", 201, 9},
		request{2, "c", "GET", "v2/a/blobs/d", 200, 1 << 50})
	want := plan.Skip{"not a GET or PUT of a blob or manifest": 1, "no reference": 1, "larger than 1 TiB": 1}
	p := newPlan(t, m, plan.Options{Level: plan.L0})
	for range 2 {
		if n := len(tasks(t, p, 0)); n != 0 || p.Requests != 0 {
			t.Errorf("%d tasks of %d requests, want none", n, p.Requests)
		}
		if d := cmp.Diff(want, p.Skipped); d != "" {
			t.Errorf("left out (-want +got):\n%s", d)
		}
	}
	// With a size limit, the blob can be replayed.
	if p := newPlan(t, m, plan.Options{Level: plan.L0, MaxSize: 100}); p.Requests != 1 || p.BlobBytes != 100 {
		t.Errorf("%d requests and %d bytes, want one blob of 100", p.Requests, p.BlobBytes)
	}
}

func TestOptionsWithoutSense(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, o := range []plan.Options{{Speed: inf}, {Speed: nan}, {Rate: inf}, {Rate: nan}, {SizeScale: inf}, {SizeScale: nan},
		{RepoPrefix: "UPPER/"}, {RepoPrefix: "/"}, {RepoPrefix: "../"}} {
		if _, err := o.Defaults(); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// TestTimesStayInOrder uses options with which times overflow a Duration.
func TestTimesStayInOrder(t *testing.T) {
	m := newMemory(request{0, "c", "GET", "v2", 200, 2}, request{1, "c", "GET", "v2", 200, 2}, request{86_400_000, "c", "GET", "v2", 200, 2},
		request{86_400_001, "c", "GET", "v2", 200, 2})
	for _, o := range []plan.Options{{Speed: 1e-300}, {Rate: 1e-300}, {Rate: 1e-9}, {Speed: 1e-9, Rate: 1e-9}} {
		o.Level = plan.L1
		last := int64(-1)
		for i, k := range tasks(t, newPlan(t, m, o), 0) {
			if int64(k.At) < last || i > 0 && k.At == 0 {
				t.Errorf("speed %g, rate %g: task %d at %s, after one at %d ns", o.Speed, o.Rate, i, k.At, last)
			}
			last = int64(k.At)
		}
	}
}

// TestPushGoesToOneRegistry has several registries share the requests.
func TestPushGoesToOneRegistry(t *testing.T) {
	var rs []request
	for i, c := range []string{"p", "q", "r", "s", "t", "u", "v", "w"} {
		n := int64(10 * i)
		rs = append(rs, request{n, c, "POST", "v2/a/blobs/uploads/", 202, 0}, request{n + 1, c, "PATCH", "v2/a/blobs/uploads/u" + c, 202, 0},
			request{n + 2, c, "PUT", "v2/a/blobs/uploads/u" + c, 201, 100 + n}, request{n + 3, c, "PUT", "v2/a/manifests/t", 201, 300})
	}
	used, first := map[uint8]bool{}, uint8(0)
	for i, k := range tasks(t, newPlan(t, newMemory(rs...), plan.Options{Level: plan.L1, Targets: 4}), 0) {
		used[k.Steps[0].Target] = true
		if i%4 != 0 && k.Steps[0].Target != first {
			t.Errorf("request %d of a push goes to registry %d, its begin went to %d", i%4, k.Steps[0].Target, first)
		}
		first = k.Steps[0].Target
	}
	if len(used) < 2 {
		t.Errorf("all pushes go to one of four registries")
	}
	// By digest, content is pushed to the registry where it is looked for.
	m := newMemory(request{0, "p", "PUT", "v2/a/blobs/uploads/u", 201, 777}, request{1, "q", "GET", "v2/a/blobs/d", 200, 777})
	for seed := range uint64(8) {
		o := plan.Options{Level: plan.L0, Targets: 4, TargetPolicy: plan.ByDigest}
		o.Maker.Seed = seed
		if all := tasks(t, newPlan(t, m, o), 0); all[0].Steps[0].Target != all[1].Steps[0].Target {
			t.Errorf("seed %d: put to registry %d and read from %d", seed, all[0].Steps[0].Target, all[1].Steps[0].Target)
		}
	}
}

func TestCutOffTableIsNotTrusted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	m := newMemory(request{0, "c", "GET", "v2/a/blobs/d1", 200, 1000})
	digest := func() [32]byte {
		p, err := plan.New(t.Context(), m, plan.Options{Level: plan.L1}, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		return tasks(t, p, 0)[0].Steps[0].Digest
	}
	want := digest()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range info.Size() {
		if err := os.Truncate(path, cut); err != nil {
			t.Fatal(err)
		}
		if got := digest(); got != want {
			t.Fatalf("another digest from a table of %d bytes", cut)
		}
	}
}
