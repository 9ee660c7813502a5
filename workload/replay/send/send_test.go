package send

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

const blobSize = 100_000

// getBlob returns a task that reads a blob, all of it or from a byte on.
func getBlob(from int64) *plan.Task {
	s := plan.Step{Method: store.GET, Kind: trace.Blob, Repo: "a/b", Key: 7, Size: blobSize, Digest: content.Maker{}.Digest(7, blobSize)}
	s.Ref = digestName(s.Digest)
	if from > 0 {
		s.From, s.To = from, blobSize
	}
	return &plan.Task{Steps: []plan.Step{s}}
}

func blobBytes(t testing.TB) []byte {
	t.Helper()
	b, err := io.ReadAll(content.Maker{}.Reader(7, 0, blobSize))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// do runs one task and returns its samples.
func do(t testing.TB, target Target, o Options, task *plan.Task) (out []result.Sample) {
	t.Helper()
	s, err := New([]Target{target}, time.Now(), o)
	if err != nil {
		t.Fatal(err)
	}
	s.Run(t.Context(), task, 0, 0, func(sm result.Sample) { out = append(out, sm) })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return out
}

func serve(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestAnswersAreChecked(t *testing.T) {
	good := blobBytes(t)
	flipped := append([]byte(nil), good...)
	flipped[5000] ^= 1
	serveBlob := func(b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(b)))
		}
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		from int64
		want result.Outcome
	}{
		"right":            {serveBlob(good), 0, result.OK},
		"a flipped bit":    {serveBlob(flipped), 0, result.Wrong},
		"too short":        {serveBlob(good[:99_999]), 0, result.Wrong},
		"range":            {serveBlob(good), 77_777, result.OK},
		"flipped before":   {serveBlob(flipped), 77_777, result.OK},
		"flipped in range": {serveBlob(flipped), 4_999, result.Wrong},
		"range ignored":    {func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(good) }, 5, result.OK},
		"an error":         {func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", 500) }, 0, result.BadStatus},
		"not found":        {http.NotFound, 0, result.BadStatus},
		"broken off": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(good[:70_000])
			panic(http.ErrAbortHandler)
		}, 0, result.Broken},
		"announced too large": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100001")
			_, _ = w.Write(good)
		}, 0, result.Broken},
		"never": {func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 0, result.Timeout},
	} {
		got := do(t, Target{Name: "t", URL: serve(t, c.h)}, Options{Timeout: 500 * time.Millisecond}, getBlob(c.from))
		if len(got) != 1 || got[0].Outcome != c.want || !got[0].Last {
			t.Errorf("%s: %+v, want one sample with %s", name, got, c.want)
		}
	}
}

func TestRecordedErrorIsNoError(t *testing.T) {
	task := getBlob(0)
	task.Steps[0].Status = 404
	got := do(t, Target{Name: "t", URL: serve(t, http.NotFound)}, Options{}, task)
	if got[0].Outcome != result.OK || got[0].Status != 404 {
		t.Errorf("got %+v, want the recorded 404 to be fine", got[0])
	}
}

func TestNobodyListens(t *testing.T) {
	srv := httptest.NewServer(nil)
	srv.Close()
	if got := do(t, Target{Name: "t", URL: srv.URL}, Options{}, getBlob(0)); got[0].Outcome != result.Broken {
		t.Errorf("got %+v, want %s", got[0], result.Broken)
	}
}

func TestRedirectIsFollowedWithoutCredentials(t *testing.T) {
	good := blobBytes(t)
	var leaked string
	elsewhere := serve(t, func(w http.ResponseWriter, r *http.Request) {
		leaked = r.Header.Get("Authorization")
		_, _ = w.Write(good)
	})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(401)
			return
		}
		time.Sleep(20 * time.Millisecond)
		http.Redirect(w, r, elsewhere+"/object?signature=x", http.StatusTemporaryRedirect)
	})
	got := do(t, Target{Name: "t", URL: url, Username: "u", Password: "p"}, Options{}, getBlob(0))
	if got[0].Outcome != result.OK || got[0].Redirects != 1 || got[0].RedirectTime < 20_000 {
		t.Errorf("got %+v, want one redirect of 20 ms", got[0])
	}
	if leaked != "" {
		t.Error("credentials went to where the redirect leads")
	}
}

func TestRedirectsForEver(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
	})
	got := do(t, Target{Name: "t", URL: url}, Options{}, getBlob(0))
	if got[0].Outcome != result.BadStatus || got[0].Redirects != maxRedirects {
		t.Errorf("got %+v, want %d redirects and an error", got[0], maxRedirects)
	}
}

func TestTokenFlow(t *testing.T) {
	good := blobBytes(t)
	tokens := 0
	var url string
	url = serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			tokens++
			user, pass, _ := r.BasicAuth()
			if user != "u" || pass != "p" || r.URL.Query().Get("scope") != "repository:a/b:pull" || r.URL.Query().Get("service") != "s,1" {
				t.Errorf("token request %s of %q", r.URL, user)
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"token": "abc", "expires_in": 300})
			return
		}
		if r.Header.Get("Authorization") != "Bearer abc" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s,1",scope="repository:a/b:pull"`, url))
			w.WriteHeader(401)
			return
		}
		_, _ = w.Write(good)
	})
	s, err := New([]Target{{Name: "t", URL: url, Username: "u", Password: "p"}}, time.Now(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		s.Run(t.Context(), getBlob(0), 0, 0, func(sm result.Sample) {
			if sm.Outcome != result.OK {
				t.Errorf("got %+v", sm)
			}
		})
	}
	if tokens != 1 {
		t.Errorf("%d tokens were fetched, want one for all", tokens)
	}
}

func TestTokenServiceWithoutTLSGetsNothing(t *testing.T) {
	asked := false
	plain := serve(t, func(w http.ResponseWriter, r *http.Request) { asked = true })
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token"`, plain))
		w.WriteHeader(401)
	}))
	defer srv.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	got := do(t, Target{Name: "t", URL: srv.URL, CA: ca, Username: "u", Password: "p"}, Options{}, getBlob(0))
	if asked || got[0].Outcome == result.OK {
		t.Errorf("asked %t, got %+v", asked, got[0])
	}
}

func TestTLS(t *testing.T) {
	good := blobBytes(t)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(good) }))
	srv.Config.ErrorLog = nil
	defer srv.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	for name, c := range map[string]struct {
		target Target
		want   result.Outcome
	}{
		"its CA":   {Target{CA: ca}, result.OK},
		"insecure": {Target{Insecure: true}, result.OK},
		"unknown":  {Target{}, result.Broken},
	} {
		c.target.Name, c.target.URL = "t", srv.URL
		if got := do(t, c.target, Options{}, getBlob(0)); got[0].Outcome != c.want {
			t.Errorf("%s: got %+v, want %s", name, got[0], c.want)
		}
	}
}

func TestPushOfWhatIsThere(t *testing.T) {
	var asked []string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method)
		w.Header().Set("Content-Length", fmt.Sprint(blobSize))
	})
	task := getBlob(0)
	task.Steps[0].Op, task.Steps[0].Ask, task.Steps[0].Method = plan.OpPush, true, store.PUT
	if got := do(t, Target{Name: "t", URL: url}, Options{}, task); len(got) != 1 || got[0].Outcome != result.OK || len(asked) != 1 || asked[0] != "HEAD" {
		t.Errorf("asked %v, got %+v; want a HEAD and no more", asked, got)
	}
}

func TestPushSendsTheContent(t *testing.T) {
	var sum string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case "HEAD":
			w.WriteHeader(404)
		case "POST":
			w.Header().Set("Location", "/v2/a/b/blobs/uploads/1?state=x%2By")
			w.WriteHeader(202)
		case "PUT":
			h := sha256.New()
			_, _ = io.Copy(h, r.Body)
			sum = "sha256:" + hex.EncodeToString(h.Sum(nil))
			if r.URL.Query().Get("digest") != sum || r.URL.Query().Get("state") != "x+y" {
				t.Errorf("PUT %s", r.URL)
			}
			w.WriteHeader(201)
		}
	})
	task := getBlob(0)
	task.Steps[0].Op, task.Steps[0].Ask, task.Steps[0].Method = plan.OpPush, true, store.PUT
	got := do(t, Target{Name: "t", URL: url}, Options{}, task)
	if len(got) != 3 || got[2].Outcome != result.OK || got[2].Bytes != blobSize || !got[2].Last || sum != task.Steps[0].Ref {
		t.Errorf("got %+v of %s", got, sum)
	}
}

func TestForgottenUploadsAreCancelled(t *testing.T) {
	cancelled := 0
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "DELETE" && r.URL.Path == "/up/1" {
			cancelled++
			w.WriteHeader(204)
			return
		}
		w.Header().Set("Location", "/up/1")
		w.WriteHeader(202)
	})
	do(t, Target{Name: "t", URL: url}, Options{}, &plan.Task{Steps: []plan.Step{{Op: plan.OpOpen, Method: store.POST, Kind: trace.Upload, Repo: "a"}}})
	if cancelled != 1 {
		t.Errorf("%d uploads were cancelled, want 1", cancelled)
	}
}

func TestFailureEndsASession(t *testing.T) {
	url := serve(t, http.NotFound)
	task := getBlob(0)
	task.Session, task.Parallel = plan.Pull, 3
	layer := task.Steps[0]
	layer.Stage = 1
	task.Steps = []plan.Step{{Method: store.GET, Kind: trace.Manifest, Repo: "a/b", Ref: "x"}, layer, layer}
	got := do(t, Target{Name: "t", URL: url}, Options{}, task)
	want := []result.Outcome{result.BadStatus, result.Failed, result.Failed, result.BadStatus}
	for i, s := range got {
		if s.Outcome != want[i] || s.Last != (i == 3) {
			t.Errorf("sample %d: %+v, want %s", i, s, want[i])
		}
	}
	if len(got) != 4 {
		t.Errorf("%d samples, want 4", len(got))
	}
}

// TestStepWaits checks that a step is not sent before its time, that its latency counts
// from then, and that it delays only later steps of its session.
func TestStepWaits(t *testing.T) {
	data := blobBytes(t)
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	task := getBlob(0)
	task.Session, task.Parallel = plan.Pull, 2
	late := task.Steps[0]
	late.After = 300 * time.Millisecond
	task.Steps = append(task.Steps, late)
	got := do(t, Target{Name: "t", URL: url}, Options{}, task)
	if len(got) != 3 {
		t.Fatalf("%d samples, want 3", len(got))
	}
	for _, s := range got {
		due := int64(0)
		if s.Step == 1 {
			due = 300_000
		}
		if s.Outcome != result.OK || s.Sent < due || s.Step >= 0 && (s.Intended < due || s.Intended > s.Sent) {
			t.Errorf("%+v: want it sent and intended at %d us or later", s, due)
		}
	}
}

func TestBadTargets(t *testing.T) {
	for _, url := range []string{"", "ftp://h", "http://", "http://u:secret@h", "http://h?x=1", "http://%zz"} {
		err := (&Target{Name: "t", URL: url}).Check()
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: error %v, want one without the password", url, err)
		}
	}
	if _, err := New([]Target{{Name: "t", URL: "https://h", CA: []byte("x")}}, time.Now(), Options{}); err == nil {
		t.Error("a CA without a certificate was taken")
	}
}

// TestHubTarget names Docker Hub as people do. Its registry has another name.
func TestHubTarget(t *testing.T) {
	for _, host := range []string{"docker.io", "index.docker.io", "registry-1.docker.io"} {
		u, err := (&Target{Name: "t", URL: "https://" + host}).parse()
		if err != nil || u.Host != "registry-1.docker.io" {
			t.Errorf("%s: %v, %v", host, u, err)
		}
	}
}

// TestSeveralChallenges answers a registry that offers several ways in one header or in several, in
// any order, as nginx in front of a registry does, or names its token service without its host.
func TestSeveralChallenges(t *testing.T) {
	good := blobBytes(t)
	for name, headers := range map[string][]string{
		"one header":         {`Basic realm="r", Bearer realm="URL/token",service="s"`},
		"the other order":    {`Bearer realm="URL/token",service="s", Basic realm="r"`},
		"two headers":        {`Basic realm="r"`, `Bearer realm="URL/token",service="s"`},
		"one that is no use": {`Negotiate`, `NTLM abc=, Bearer realm="URL/token",service="s"`},
		"a path":             {`Bearer realm="/token",service="s"`},
		"capitals":           {`BEARER Realm="URL/token", Service=s`},
	} {
		var url string
		url = serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/token":
				_ = json.NewEncoder(w).Encode(map[string]any{"token": "abc"})
			case r.Header.Get("Authorization") == "Bearer abc":
				_, _ = w.Write(good)
			default:
				for _, h := range headers {
					w.Header().Add("WWW-Authenticate", strings.ReplaceAll(h, "URL", url))
				}
				w.WriteHeader(401)
			}
		})
		if got := do(t, Target{Name: "t", URL: url}, Options{}, getBlob(0)); got[0].Outcome != result.OK {
			t.Errorf("%s: got %+v", name, got[0])
		}
	}
}
