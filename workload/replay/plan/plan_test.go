package plan_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

type request struct {
	ms     int64
	client string
	method string
	uri    string
	status uint16
	size   int64
}

// memory is a [plan.Source] with a trace in memory. It repeats its requests, so a trace
// can be as long as a test needs.
type memory struct {
	requests []request
	repeat   int64
	names    [5][]string
	symbols  [5]map[string]store.Symbol
}

func newMemory(requests ...request) *memory {
	m := &memory{requests: requests, repeat: 1}
	for i := range m.names {
		m.names[i], m.symbols[i] = []string{""}, map[string]store.Symbol{"": 0}
	}
	return m
}

func (m *memory) symbol(t store.Table, name string) store.Symbol {
	s, ok := m.symbols[t][name]
	if !ok {
		s = store.Symbol(len(m.names[t]))
		m.names[t], m.symbols[t][name] = append(m.names[t], name), s
	}
	return s
}

func (m *memory) Name(t store.Table, s store.Symbol) string { return m.names[t][s] }

func (m *memory) Scan(ctx context.Context, q store.Query, fn func(*store.Batch) error) error {
	length := m.requests[len(m.requests)-1].ms + 1
	for round := range m.repeat {
		b := &store.Batch{}
		for _, r := range m.requests {
			t := trace.ParseURI(r.uri)
			b.Time = append(b.Time, 1_500_000_000_000_000+(r.ms+round*length)*1000)
			b.Method, b.Kind = append(b.Method, store.ParseMethod(r.method)), append(b.Kind, t.Kind)
			b.Status, b.Size = append(b.Status, r.status), append(b.Size, r.size)
			b.Client, b.Host = append(b.Client, m.symbol(store.Clients, r.client)), append(b.Host, 0)
			b.Repo = append(b.Repo, m.symbol(store.Repos, t.Repo))
			b.Ref = append(b.Ref, m.symbol(store.Refs, t.Ref))
			d := store.None
			if _, named, ok := strings.Cut(r.uri, "digest="); ok { // as in Slipway's log
				d = m.symbol(store.Refs, named)
			} else if t.Kind == trace.Blob || t.Kind == trace.Manifest && oci.IsDigest(t.Ref) {
				d = b.Ref[len(b.Ref)-1]
			}
			b.Digest = append(b.Digest, d)
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func newPlan(t testing.TB, m *memory, o plan.Options) *plan.Plan {
	t.Helper()
	p, err := plan.New(t.Context(), m, o, filepath.Join(t.TempDir(), "table"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func tasks(t testing.TB, p *plan.Plan, skip int64) (out []*plan.Task) {
	t.Helper()
	if err := p.Tasks(t.Context(), skip, func(k *plan.Task) error { out = append(out, k); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func warmUp(t testing.TB, p *plan.Plan) (out []string) {
	t.Helper()
	for round := range plan.WarmRounds {
		err := p.WarmUp(round, func(k *plan.Task) error {
			for _, s := range k.Steps {
				what := fmt.Sprintf("%d %s %s", round, s.Kind, s.Repo)
				switch {
				case len(s.Body) > 0 && s.Op == plan.OpPush:
					what += " configuration"
				case s.Op == plan.OpPutManifest:
					what += ":" + s.Ref
				case s.MountFrom != "":
					what += " from " + s.MountFrom
				}
				out = append(out, what)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestWhatIsPutInPlace(t *testing.T) {
	m := newMemory(
		request{0, "c", "GET", "v2/a/manifests/t", 200, 900},
		request{1, "c", "GET", "v2/a/blobs/d1", 200, 10},
		request{2, "c", "GET", "v2/b/blobs/d1", 200, 10},             // the same blob in another repository
		request{3, "x", "PUT", "v2/c/blobs/uploads/u1", 201, 777},    // becomes d2
		request{4, "x", "PUT", "v2/c/manifests/t", 201, 500},         // the trace itself brings it
		request{5, "y", "GET", "v2/c/manifests/t", 200, 500},         //
		request{6, "y", "GET", "v2/c/blobs/d2", 200, 777},            // its size makes it the content of u1
		request{7, "y", "GET", "v2/c/blobs/d3", 200, 777},            // no upload is left for this one
		request{8, "z", "HEAD", "v2/c/blobs/d4", 404, 0},             // does not exist
		request{9, "z", "GET", "v2/d/blobs/d5", 404, 19},             // nor does this one
		request{70_000, "y", "GET", "v2/c/blobs/d6", 200, 1},         // too late to belong to the manifest
		request{70_001, "z", "GET", "v2/c/blobs/uploads/u9", 204, 0}, // not part of the protocol
	)
	p := newPlan(t, m, plan.Options{Level: plan.L1})
	want := []string{"0 blob a", "0 blob b from a", "0 blob c", "0 blob c", "1 manifest a:t"}
	if d := cmp.Diff(want, warmUp(t, p)); d != "" {
		t.Errorf("put in place (-want +got):\n%s", d)
	}
	if p.Paired != 1 || p.WarmManifests != 1 || p.Requests != 11 || p.Skipped["GET of upload"] != 1 {
		t.Errorf("paired %d, manifests %d, requests %d, skipped %v", p.Paired, p.WarmManifests, p.Requests, p.Skipped)
	}
	all := tasks(t, p, 0)
	upload, read := all[3].Steps[0], all[6].Steps[0]
	if upload.Digest != read.Digest || upload.Size != 777 {
		t.Errorf("the upload's content is not what is read later: %+v and %+v", upload, read)
	}
	var doc ocispec.Manifest
	put := all[4].Steps[0]
	if err := json.Unmarshal(put.Body, &doc); err != nil {
		t.Fatal(err)
	}
	// d3 was fetched with the manifest too, and is in place. One of the two blobs serves
	// as the configuration.
	if len(doc.Layers) != 1 || doc.Config.Size != 777 || doc.SchemaVersion != 2 || len(put.Body) < 500 || put.Digest != sha256.Sum256(put.Body) {
		t.Errorf("a manifest of %d bytes with layers %v", len(put.Body), doc.Layers)
	}
}

func TestManifestHasTheRecordedSize(t *testing.T) {
	m := newMemory(request{0, "c", "PUT", "v2/a/manifests/t", 201, 12_285}, request{1, "c", "PUT", "v2/a/manifests/t", 201, 12_285})
	all := tasks(t, newPlan(t, m, plan.Options{Level: plan.L1}), 0)
	for _, k := range all {
		if n := len(k.Steps[0].Body); n != 12_285 {
			t.Errorf("%d bytes, want the 12285 of the trace", n)
		}
	}
	if all[0].Steps[0].Digest == all[1].Steps[0].Digest {
		t.Error("two versions of a tag are one")
	}
}

func TestSessions(t *testing.T) {
	m := newMemory(
		request{0, "c", "GET", "v2/a/manifests/t", 200, 900},
		request{10, "c", "GET", "v2/a/blobs/d1", 200, 10},
		request{11, "e", "GET", "v2", 200, 2},
		request{12, "c", "GET", "v2/b/blobs/d9", 200, 10}, // another repository, so a task by itself
		request{20, "c", "GET", "v2/a/blobs/d2", 200, 10},
		request{30, "p", "HEAD", "v2/a/blobs/d7", 404, 0},
		request{31, "p", "POST", "v2/a/blobs/uploads/", 202, 0},
		request{32, "p", "PATCH", "v2/a/blobs/uploads/u", 202, 0},
		request{33, "p", "PUT", "v2/a/blobs/uploads/u?digest=d7", 201, 50},
		request{33, "p", "HEAD", "v2/a/blobs/d7", 200, 0},    // checks that it arrived
		request{33, "p", "HEAD", "v2/a/manifests/v", 404, 0}, // checks the tag before
		request{34, "p", "PUT", "v2/a/manifests/v", 201, 300},
		request{61_000, "c", "GET", "v2/a/blobs/d3", 200, 10}, // more than a minute later
		request{61_001, "h", "HEAD", "v2/a/manifests/t", 200, 0},
		request{61_002, "h", "GET", "v2/a/manifests/t", 200, 900}, // the GET after the HEAD
		request{61_003, "h", "GET", "v2/a/blobs/d1", 200, 10},
	)
	p := newPlan(t, m, plan.Options{Level: plan.L2})
	var got []string
	all := tasks(t, p, 0)
	for _, k := range all {
		s := fmt.Sprintf("%d ms:", k.At.Milliseconds())
		for _, st := range k.Steps {
			s += fmt.Sprintf(" %d-%s-%s", st.Stage, st.Method, st.Kind)
		}
		got = append(got, s)
	}
	want := []string{
		"0 ms: 0-GET-manifest 1-GET-blob 1-GET-blob",
		"11 ms: 0-GET-ping",
		"12 ms: 0-GET-blob",
		"30 ms: 0-PUT-blob 0-HEAD-manifest 1-HEAD-blob 2-PUT-manifest",
		"61000 ms: 0-GET-blob",
		"61001 ms: 0-HEAD-manifest 1-GET-manifest 2-GET-blob",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("sessions (-want +got):\n%s", d)
	}
	if d := cmp.Diff(all[3:], tasks(t, p, 3)); d != "" {
		t.Errorf("tasks from the fourth on differ when the others are skipped:\n%s", d)
	}
}

// TestKeepGaps checks that the steps of a pull keep their distance from its beginning, and that
// pushes and single requests do not wait.
func TestKeepGaps(t *testing.T) {
	m := newMemory(
		request{100, "h", "HEAD", "v2/a/manifests/t", 200, 0},
		request{150, "h", "GET", "v2/a/manifests/t", 200, 900},
		request{400, "h", "GET", "v2/a/blobs/d1", 200, 10},
		request{2_400, "h", "GET", "v2/a/blobs/d2", 200, 10},
		request{2_500, "p", "PUT", "v2/a/blobs/uploads/u?digest=d7", 201, 50},
		request{2_600, "p", "PUT", "v2/a/manifests/v", 201, 300},
		request{2_700, "x", "GET", "v2/b/blobs/d9", 200, 10},
	)
	for keep, want := range map[bool][]int64{true: {0, 50, 300, 2_300, 0, 0, 0}, false: make([]int64, 7)} {
		p := newPlan(t, m, plan.Options{Level: plan.L2, KeepGaps: keep, Speed: 10})
		var got []int64
		for _, k := range tasks(t, p, 0) {
			for _, st := range k.Steps {
				got = append(got, st.After.Milliseconds())
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("KeepGaps %v: milliseconds after the begin (-want +got):\n%s", keep, d)
		}
	}
}

func TestTimes(t *testing.T) {
	var rs []request
	for _, ms := range []int64{0, 10, 10, 10, 5000, 5000} {
		rs = append(rs, request{ms, "c", "GET", "v2", 200, 2})
	}
	for name, c := range map[string]struct {
		o    plan.Options
		want []int64
	}{
		"as recorded": {plan.Options{}, []int64{0, 10, 10, 10, 5000, 5000}},
		"twice":       {plan.Options{Speed: 2}, []int64{0, 5, 5, 5, 2500, 2500}},
		"gap":         {plan.Options{MaxGap: 100 * time.Millisecond}, []int64{0, 10, 10, 10, 110, 110}},
		"rate":        {plan.Options{Rate: 100}, []int64{0, 10, 20, 30, 5000, 5010}},
		"requests":    {plan.Options{MaxRequests: 2}, []int64{0, 10}},
		"time":        {plan.Options{MaxTime: time.Second}, []int64{0, 10, 10, 10}},
	} {
		c.o.Level = plan.L1
		var got []int64
		for _, k := range tasks(t, newPlan(t, newMemory(rs...), c.o), 0) {
			got = append(got, k.At.Milliseconds())
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []plan.Options{{Speed: -1}, {MaxGap: -1}, {Targets: 256}, {Level: 9}, {TargetPolicy: "x"}, {LayersAtOnce: 300}, {SizeScale: -1}} {
		if _, err := plan.New(t.Context(), newMemory(request{}), o, filepath.Join(t.TempDir(), "t"), nil); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

func TestTableIsUsedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	m := newMemory(request{0, "c", "GET", "v2/a/blobs/d1", 200, 10 << 20}, request{1, "c", "GET", "v2/a/blobs/d2", 200, 5})
	var first [][32]byte
	for round := range 2 {
		hashed := false
		p, err := plan.New(t.Context(), m, plan.Options{Level: plan.L1}, path, func(doing string, done, total int64) { hashed = hashed || doing == "computing digests" })
		if err != nil {
			t.Fatal(err)
		}
		var got [][32]byte
		for _, k := range tasks(t, p, 0) {
			got = append(got, k.Steps[0].Digest)
		}
		if round == 0 {
			first = got
		} else if d := cmp.Diff(first, got); d != "" {
			t.Errorf("other digests from the table:\n%s", d)
		}
		if hashed != (round == 0) {
			t.Errorf("round %d: digests were computed: %t", round, hashed)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMemoryDoesNotGrowWithRequests plans 200,000 requests of a few objects. Memory kept
// for each request would show.
func TestMemoryDoesNotGrowWithRequests(t *testing.T) {
	m := newMemory(
		request{0, "c", "GET", "v2/a/manifests/t", 200, 900},
		request{1, "c", "GET", "v2/a/blobs/d1", 200, 10},
		request{2, "c", "HEAD", "v2/a/manifests/t", 200, 0},
		request{3, "c", "GET", "v2", 200, 2},
	)
	m.repeat = 50_000
	for _, level := range []plan.Level{plan.L1, plan.L2} {
		p := newPlan(t, m, plan.Options{Level: level})
		var before, now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		most, n := int64(0), int64(0)
		err := p.Tasks(t.Context(), 0, func(k *plan.Task) error {
			if n++; n%40_000 == 0 {
				runtime.GC()
				runtime.ReadMemStats(&now)
				most = max(most, int64(now.HeapAlloc)-int64(before.HeapAlloc))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if most > 8<<20 || n < 100_000 {
			t.Errorf("%s: %d tasks took %d MiB of memory, want less than 8", level, n, most>>20)
		}
	}
}

func TestErrorEndsTheTasks(t *testing.T) {
	boom := errors.New("boom")
	p := newPlan(t, newMemory(request{0, "c", "GET", "v2", 200, 2}), plan.Options{Level: plan.L2})
	if err := p.Tasks(t.Context(), 0, func(*plan.Task) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
}

func FuzzTask(f *testing.F) {
	m := newMemory(request{0, "c", "PUT", "v2/a/manifests/t", 201, 300}, request{1, "c", "GET", "v2/a/blobs/d", 206, 9}, request{2, "c", "PATCH", "v2/a/blobs/uploads/u", 202, 0})
	p := newPlan(f, m, plan.Options{Level: plan.L1})
	for _, k := range tasks(f, p, 0) {
		k.Steps[0].After = time.Second
		f.Add(plan.AppendTask(nil, k))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		k, rest, err := plan.DecodeTask(b)
		if err != nil {
			return
		}
		if len(rest) >= len(b) || len(k.Steps) == 0 {
			t.Fatal("nothing was read")
		}
		again, _, err := plan.DecodeTask(plan.AppendTask(nil, k))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(k, again); d != "" {
			t.Errorf("encoded and decoded again:\n%s", d)
		}
	})
}
