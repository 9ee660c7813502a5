package send

import (
	"crypto/sha256"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// TestAPushKeepsItsOrder runs the tasks of one client's push in any order. They must
// reach the registry in the order in which they were announced, where one needs the
// other.
func TestAPushKeepsItsOrder(t *testing.T) {
	blob := plan.Step{Kind: trace.Upload, Repo: "a", Key: 7, Size: 3000, Digest: content.Maker{}.Digest(7, 3000), Upload: 5}
	blob.Ref = digestName(blob.Digest)
	with := func(op plan.Op, method store.Method) plan.Step {
		s := blob
		s.Op, s.Method, s.To = op, method, 1000
		return s
	}
	manifest := func(ref, mediaType string) plan.Step {
		return plan.Step{Op: plan.OpPutManifest, Method: store.PUT, Kind: trace.Manifest, Repo: "a", Ref: ref, MediaType: mediaType,
			Body: []byte(ref), Digest: sha256.Sum256([]byte(ref))}
	}
	steps := []plan.Step{{Op: plan.OpOpen, Method: store.POST, Kind: trace.Upload, Repo: "a"}, with(plan.OpPatch, store.PATCH), with(plan.OpPatch, store.PATCH),
		with(plan.OpClose, store.PUT), {Method: store.HEAD, Kind: trace.Blob, Repo: "a", Ref: blob.Ref, Size: 3000, Status: 200},
		manifest("child", "application/vnd.oci.image.manifest.v1+json"), manifest("index", indexType),
		{Method: store.HEAD, Kind: trace.Manifest, Repo: "a", Ref: "index", Status: 200}}
	want := []string{"POST", "PATCH", "PATCH", "PUT", "HEAD", "PUT", "PUT", "HEAD"}

	var mu sync.Mutex
	var got []string // in the order of the answers
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(5 * time.Millisecond) // gives another request time to overtake
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Method)
		status := map[string]int{"POST": 202, "PATCH": 202, "PUT": 201, "HEAD": 200}[r.Method]
		w.Header().Set("Location", "/v2/a/blobs/uploads/x")
		w.Header().Set("Content-Length", map[bool]string{true: "3000", false: "0"}[r.Method == "HEAD"])
		w.WriteHeader(status)
	})
	s, err := New([]Target{{Name: "t", URL: url}}, time.Now(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var all []*plan.Task
	for i, st := range steps {
		all = append(all, &plan.Task{ID: int64(i), Client: 3, Steps: []plan.Step{st}})
		s.Announce(all[i])
	}
	var wg sync.WaitGroup
	for i := range all { // start with the last one
		wg.Go(func() {
			s.Run(t.Context(), all[len(all)-1-i], 0, 0, func(sm result.Sample) {
				if sm.Outcome != result.OK || sm.Extra {
					t.Errorf("step %d: %+v", len(all)-1-i, sm)
				}
			})
		})
	}
	wg.Wait()
	for i := range want {
		// The HEAD of the blob and the PUT of the manifest both need the upload, but not
		// each other.
		if i >= len(got) || got[i] != want[i] && !(i >= 4 && i <= 6) {
			t.Fatalf("requests were answered in the order %q, want %q", got, want)
		}
	}
	if len(s.turns.tasks)+len(s.turns.under) > 0 {
		t.Errorf("%d turns and %d keys are left", len(s.turns.tasks), len(s.turns.under))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestDroppedTasksHoldNobodyUp checks that dropped tasks do not block the tasks after
// them.
func TestDroppedTasksHoldNobodyUp(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Location", "/v2/a/blobs/uploads/x")
		w.WriteHeader(map[string]int{"POST": 202, "PUT": 201}[r.Method])
	})
	s, err := New([]Target{{Name: "t", URL: url}}, time.Now(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	open := &plan.Task{ID: 0, Client: 3, Steps: []plan.Step{{Op: plan.OpOpen, Method: store.POST, Kind: trace.Upload, Repo: "a"}}}
	end := &plan.Task{ID: 1, Client: 3, Steps: []plan.Step{{Op: plan.OpClose, Method: store.PUT, Kind: trace.Upload, Repo: "a", Key: 7, Size: 10,
		Digest: content.Maker{}.Digest(7, 10), Upload: 5}}}
	patch := &plan.Task{ID: 2, Client: 3, Steps: []plan.Step{end.Steps[0]}}
	for _, k := range []*plan.Task{open, end, patch} {
		s.Announce(k)
	}
	s.Drop(open)
	s.Drop(end)
	n := 0
	s.Run(t.Context(), patch, 0, 0, func(sm result.Sample) {
		if n++; sm.Outcome != result.OK {
			t.Errorf("%+v", sm)
		}
	})
	if n != 2 { // the upload is opened again
		t.Errorf("%d requests, want a POST and a PUT", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
