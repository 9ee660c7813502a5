package plan_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/trace"
)

// digest returns a valid digest made from a number.
func digest(n int) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte{byte(n)})) }

// pushes are recorded pushes, as Slipway's log has them, in all ways in which clients
// send content. Each goes to repository "a" or "b" and comes from client "p".
var pushes = map[string][]request{
	"POST, PATCH, PUT": {
		{0, "p", "HEAD", "v2/a/blobs/" + digest(1), 404, 0},
		{1, "p", "POST", "v2/a/blobs/uploads/", 202, 0},
		{2, "p", "PATCH", "v2/a/blobs/uploads/u1", 202, 50_000},
		{3, "p", "PUT", "v2/a/blobs/uploads/u1?digest=" + digest(1), 201, 50_000},
		{4, "p", "POST", "v2/a/blobs/uploads/", 202, 0},
		{5, "p", "PUT", "v2/a/blobs/uploads/u2?digest=" + digest(2), 201, 700},
		{6, "p", "PUT", "v2/a/manifests/t?digest=" + digest(9), 201, 500},
	},
	"PATCHes of several sizes, and the rest in the PUT": {
		{1, "p", "POST", "v2/a/blobs/uploads/", 202, 0},
		{2, "p", "PATCH", "v2/a/blobs/uploads/u1", 202, 10_000},
		{3, "p", "PATCH", "v2/a/blobs/uploads/u1", 416, 999},
		{4, "p", "PATCH", "v2/a/blobs/uploads/u1", 202, 1},
		{5, "p", "PUT", "v2/a/blobs/uploads/u1?digest=" + digest(1), 201, 30_000},
		{6, "p", "PUT", "v2/a/manifests/t?digest=" + digest(9), 201, 400},
	},
	"POST alone": {
		{1, "p", "POST", "v2/a/blobs/uploads/?digest=" + digest(1), 201, 3_000},
		{2, "p", "PUT", "v2/a/manifests/t?digest=" + digest(9), 201, 400},
	},
	"mounted": {
		{1, "p", "POST", "v2/a/blobs/uploads/?digest=" + digest(1), 201, 3_000},
		{2, "p", "POST", "v2/b/blobs/uploads/?digest=" + digest(1), 201, 0},
		{3, "p", "PUT", "v2/b/manifests/t?digest=" + digest(9), 201, 400},
	},
	"one image under two tags": {
		{1, "p", "POST", "v2/a/blobs/uploads/?digest=" + digest(1), 201, 3_000},
		{2, "p", "PUT", "v2/a/manifests/t?digest=" + digest(9), 201, 400},
		{3, "p", "HEAD", "v2/a/blobs/" + digest(1), 200, 0},
		{4, "p", "PUT", "v2/a/manifests/u?digest=" + digest(9), 201, 400},
		{5, "p", "GET", "v2/a/manifests/" + digest(9), 200, 400},
	},
	"refused, then taken": {
		{1, "p", "POST", "v2/a/blobs/uploads/", 202, 0},
		{2, "p", "PUT", "v2/a/blobs/uploads/u1?digest=" + digest(1), 400, 3_000},
		{3, "p", "POST", "v2/a/blobs/uploads/?digest=" + digest(1), 201, 3_000},
		{4, "p", "PUT", "v2/a/manifests/t", 404, 400},
		{5, "p", "PUT", "v2/a/manifests/t?digest=" + digest(9), 201, 400},
	},
	"an index": {
		{1, "p", "POST", "v2/a/blobs/uploads/?digest=" + digest(1), 201, 3_000},
		{2, "p", "PUT", "v2/a/manifests/" + digest(8), 201, 400},
		{3, "p", "POST", "v2/a/blobs/uploads/?digest=" + digest(2), 201, 3_001},
		{4, "p", "PUT", "v2/a/manifests/" + digest(9), 201, 410},
		{5, "p", "PUT", "v2/a/manifests/t?digest=" + digest(10), 201, 600},
	},
}

// TestPushesSendWhatWasPushed checks that a replay sends the bytes that the trace says
// were pushed, in as many requests, and puts nothing in place before. Manifests refer to
// content that came before them and to nothing else.
func TestPushesSendWhatWasPushed(t *testing.T) {
	for name, requests := range pushes {
		var want []int64
		for _, r := range requests {
			if r.status == 201 && r.size > 0 {
				want = append(want, r.size)
			}
		}
		slices.Sort(want)
		for _, level := range []plan.Level{plan.L0, plan.L1, plan.L2} {
			p := newPlan(t, newMemory(requests...), plan.Options{Level: level})
			if w := warmUp(t, p); len(w) > 0 && level != plan.L0 {
				t.Errorf("%s at %s: put in place before: %q", name, level, w)
			}
			if p.Unsized.Blobs+p.Unsized.Manifests > 0 {
				t.Errorf("%s at %s: sizes are not known: %+v", name, level, p.Unsized)
			}
			got := sentSizes(t, tasks(t, p, 0), level)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s at %s: sizes that are pushed (-want +got):\n%s", name, level, d)
			}
		}
	}
}

// TestPushesOfOthers plans pushes as the logs of other registries have them, with what came in each
// request in the place of the size of the whole.
func TestPushesOfOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		last int64
		want []int64
	}{"nothing at the end": {-1, []int64{30_000}}, "the rest at the end": {500, []int64{30_500}}} {
		for _, known := range []bool{true, false} {
			uri := "v2/a/blobs/uploads/u1"
			if known {
				uri += "?digest=" + digest(1)
			}
			for _, level := range []plan.Level{plan.L1, plan.L2} {
				p := newPlan(t, newMemory(
					request{1, "p", "POST", "v2/a/blobs/uploads/", 202, -1},
					request{2, "p", "PATCH", "v2/a/blobs/uploads/u1", 202, 10_000},
					request{3, "p", "PATCH", "v2/a/blobs/uploads/u1", 202, 20_000},
					request{4, "p", "PUT", uri, 201, tc.last},
				), plan.Options{Level: level})
				if d := cmp.Diff(tc.want, sentSizes(t, tasks(t, p, 0), level)); d != "" || p.Unsized.Blobs > 0 {
					t.Errorf("%s at %s: %+v, sizes that are pushed (-want +got):\n%s", name, level, p.Unsized, d)
				}
			}
		}
	}
}

// sentSizes returns the sizes of what the steps push, sorted. It checks that manifests
// refer to pushed content, and that the parts of an upload fit into it.
func sentSizes(t *testing.T, all []*plan.Task, level plan.Level) (sizes []int64) {
	t.Helper()
	there := map[string]int64{}
	parts := map[uint64]int64{}
	for _, k := range all {
		for _, s := range k.Steps {
			switch {
			case s.Op == plan.OpPatch:
				parts[s.Upload] += s.To
				continue
			case s.Op == plan.OpClose && parts[s.Upload] > s.Size:
				t.Errorf("the parts of an upload of %d bytes have %d", s.Size, parts[s.Upload])
			case s.Op == plan.OpPutManifest:
				checkNamed(t, s.Body, there)
			case s.Op == plan.OpPush && s.MountFrom != "":
				if there[s.Ref] == 0 {
					t.Errorf("%s is mounted, and was not pushed", s.Ref)
				}
				continue
			case s.Op != plan.OpPush && s.Op != plan.OpClose:
				continue
			}
			sizes = append(sizes, s.Size)
			there[fmt.Sprintf("sha256:%x", s.Digest)] = s.Size
		}
	}
	slices.Sort(sizes)
	return sizes
}

func checkNamed(t *testing.T, body []byte, there map[string]int64) {
	t.Helper()
	var doc struct {
		Config            ocispec.Descriptor
		Layers, Manifests []ocispec.Descriptor
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	named := append(doc.Layers, doc.Manifests...)
	if len(doc.Manifests) == 0 {
		named = append(named, doc.Config)
	}
	for _, d := range named {
		if there[string(d.Digest)] != d.Size || d.Size == 0 {
			t.Errorf("a manifest names %s of %d bytes, which were not pushed", d.Digest, d.Size)
		}
	}
}

// TestManifestsAlone plans traces that have PUTs of manifests by digest, in any order and
// repeated, but lack the contents that the manifests name. Each could be an index of
// those before it, but none may be one of itself.
func TestManifestsAlone(t *testing.T) {
	put := func(ms int64, n int) request {
		return request{ms, "p", "PUT", "v2/a/manifests/" + digest(n), 201, 400}
	}
	var chain []request
	for i := range 200 {
		chain = append(chain, put(int64(i), i))
	}
	for name, requests := range map[string][]request{
		"twice":             {put(1, 1), put(2, 2), put(3, 1), put(4, 2)},
		"in turn":           {put(1, 1), put(2, 2), put(3, 3), put(4, 1), put(5, 2), put(6, 3), put(7, 2), put(8, 1)},
		"one after another": chain,
	} {
		for _, level := range []plan.Level{plan.L1, plan.L2} {
			p := newPlan(t, newMemory(requests...), plan.Options{Level: level})
			puts := 0
			for _, k := range tasks(t, p, 0) {
				for _, s := range k.Steps {
					if s.Op == plan.OpPutManifest {
						puts++
					}
				}
			}
			if puts != len(requests) {
				t.Errorf("%s at %s: %d PUTs, want %d", name, level, puts, len(requests))
			}
		}
	}
}

// TestCancelledPush checks that the PATCHes of a cancelled upload are sent with their
// sizes.
func TestCancelledPush(t *testing.T) {
	p := newPlan(t, newMemory(
		request{1, "p", "POST", "v2/a/blobs/uploads/", 202, 0},
		request{2, "p", "PATCH", "v2/a/blobs/uploads/u1", 202, 10_000},
		request{3, "p", "PATCH", "v2/a/blobs/uploads/u1", 202, 20_000},
		request{4, "p", "DELETE", "v2/a/blobs/uploads/u1", 204, 0},
	), plan.Options{Level: plan.L1})
	var got []int64
	for _, k := range tasks(t, p, 0) {
		if s := k.Steps[0]; s.Kind == trace.Upload && s.Op == plan.OpPatch {
			got = append(got, s.To)
			if s.Size != 30_000 {
				t.Errorf("the upload has %d bytes, want 30000", s.Size)
			}
		}
	}
	if d := cmp.Diff([]int64{10_000, 20_000}, got); d != "" {
		t.Errorf("PATCHes (-want +got):\n%s", d)
	}
}

// TestUnsized checks that content of unknown size is counted and named.
func TestUnsized(t *testing.T) {
	p := newPlan(t, newMemory(
		request{1, "p", "POST", "v2/a/blobs/uploads/", 202, -1},
		request{2, "p", "PATCH", "v2/a/blobs/uploads/u1", 202, -1},
		request{3, "p", "PUT", "v2/a/blobs/uploads/u1?digest=" + digest(1), 201, -1},
		request{4, "p", "PUT", "v2/a/manifests/t?digest=" + digest(9), 201, -1},
		request{5, "c", "GET", "v2/a/blobs/" + digest(2), 200, 10},
	), plan.Options{Level: plan.L1})
	want := plan.Unsized{Blobs: 1, Manifests: 1, Examples: []string{digest(1), digest(9)}}
	if d := cmp.Diff(want, p.Unsized); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
