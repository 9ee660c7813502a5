package send

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// TestUnsent expects a sample for each step without one, and one for the session.
func TestUnsent(t *testing.T) {
	pull := getBlob(0)
	pull.ID, pull.Session = 5, plan.Pull
	pull.Steps = append(pull.Steps, pull.Steps[0], pull.Steps[0])
	for name, c := range map[string]struct {
		task *plan.Task
		done []int32
		want []string
	}{
		"alone":               {getBlob(0), nil, []string{"0 blob last"}},
		"alone, after a POST": {getBlob(0), []int32{0}, []string{"0 blob last"}},
		"a pull":              {pull, nil, []string{"0 blob", "1 blob", "2 blob", "-1 pull last"}},
		"the rest of a pull":  {pull, []int32{0, 2}, []string{"1 blob", "-1 pull last"}},
		"the end of a pull":   {pull, []int32{0, 1, 2}, []string{"-1 pull last"}},
	} {
		var got []string
		for _, s := range Unsent(c.task, result.Lost, 7000, 9000, 0, c.done) {
			if s.Outcome != result.Lost || s.Intended != 7000 || s.Sent != 7000 || s.End != 9000 || s.Task != c.task.ID {
				t.Errorf("%s: %+v", name, s)
			}
			text := fmt.Sprint(s.Step, " ", s.Object)
			if s.Last {
				text += " last"
			}
			got = append(got, text)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// tokenRegistry requires a token for each repository. It grants the token for a when
// release is closed. It does not accept the token in refused.
type tokenRegistry struct {
	url     string
	release chan struct{}
	asked   chan struct{} // closed when the token for a is requested
	mu      sync.Mutex
	given   map[string]int // number of tokens by scope
	refused string
}

func newTokenRegistry(t *testing.T) *tokenRegistry {
	r := &tokenRegistry{release: make(chan struct{}), asked: make(chan struct{}), given: map[string]int{}}
	var once sync.Once
	r.url = serve(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/token" {
			scope := q.URL.Query().Get("scope")
			if strings.HasPrefix(scope, "repository:a:") {
				once.Do(func() { close(r.asked) })
				<-r.release
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.given[scope]++
			_ = json.NewEncoder(w).Encode(map[string]any{"token": fmt.Sprintf("%s.%d", scope, r.given[scope]), "expires_in": 1 << 60})
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		got := strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer ")
		if got == "" || got == r.refused {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s"`, r.url))
			w.WriteHeader(401)
		}
	})
	return r
}

func getTags(repo string) *plan.Task {
	return &plan.Task{Steps: []plan.Step{{Method: store.GET, Kind: trace.Tags, Repo: repo}}}
}

// TestSlowTokenHoldsUpItsScopeOnly checks that a slow token service for one repository
// does not add to the times of others.
func TestSlowTokenHoldsUpItsScopeOnly(t *testing.T) {
	r := newTokenRegistry(t)
	s, err := New([]Target{{Name: "t", URL: r.url, Username: "u", Password: "p"}}, time.Now(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ask := func(repo string) {
		s.Run(t.Context(), getTags(repo), 0, 0, func(sm result.Sample) {
			if sm.Outcome != result.OK {
				t.Errorf("%s: %+v", repo, sm)
			}
		})
	}
	var wg sync.WaitGroup
	wg.Go(func() { ask("a") })
	<-r.asked
	ask("b") // hangs if it waits for a's token
	ask("b")
	close(r.release)
	wg.Wait()
	if d := cmp.Diff(map[string]int{"repository:a:pull": 1, "repository:b:pull": 1}, r.given); d != "" {
		t.Errorf("tokens (-want +got):\n%s", d)
	}
}

// TestRefusedTokenIsFetchedAnew checks a registry that forgets tokens before they expire.
func TestRefusedTokenIsFetchedAnew(t *testing.T) {
	r := newTokenRegistry(t)
	s, err := New([]Target{{Name: "t", URL: r.url, Username: "u", Password: "p"}}, time.Now(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 3 {
		s.Run(t.Context(), getTags("b"), 0, 0, func(sm result.Sample) {
			if sm.Outcome != result.OK {
				t.Errorf("request %d: %+v", i, sm)
			}
		})
		r.mu.Lock()
		r.refused = "repository:b:pull.1"
		r.mu.Unlock()
	}
	if n := r.given["repository:b:pull"]; n != 2 {
		t.Errorf("%d tokens were fetched, want one and another after it was refused", n)
	}
}

// TestUploadStaysWhereItWasBegun checks that all parts of an upload go to one server,
// although the trace may record another one for a part.
func TestUploadStaysWhereItWasBegun(t *testing.T) {
	var got []string
	var targets []Target
	for _, name := range []string{"one", "two"} {
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			got = append(got, name+" "+r.Method)
			w.Header().Set("Location", "/up/1")
			w.WriteHeader(http.StatusAccepted)
		})
		targets = append(targets, Target{Name: name, URL: url})
	}
	s, err := New(targets, time.Now(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	part := plan.Step{Method: store.PATCH, Kind: trace.Upload, Op: plan.OpPatch, Repo: "a", Upload: 3, Parts: 2, Key: 7, Size: blobSize}
	last := part
	last.Method, last.Op, last.Target = store.PUT, plan.OpClose, 1
	for _, st := range []plan.Step{part, last} {
		s.Run(t.Context(), &plan.Task{Steps: []plan.Step{st}}, 0, 0, func(sm result.Sample) {
			if sm.Target != 0 || sm.Outcome != result.OK {
				t.Errorf("%+v, want it at the first registry", sm)
			}
		})
	}
	if d := cmp.Diff([]string{"one POST", "one PATCH", "one PUT"}, got); d != "" {
		t.Errorf("requests (-want +got):\n%s", d)
	}
}
