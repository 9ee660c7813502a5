package mirror_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/route"
	"example.org/slipway/registry/mirror/upstream"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/server"
)

// ring starts n registries, each of which mirrors the repositories m/... of the next one
// under the same names, and the last one those of the first one.
func ring(t *testing.T, n int) (urls []string, stored []*registry.Registry) {
	t.Helper()
	servers := make([]*httptest.Server, n)
	handlers := make([]http.Handler, n)
	for i := range n {
		servers[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handlers[i].ServeHTTP(w, r) }))
		t.Cleanup(servers[i].Close)
		urls = append(urls, servers[i].URL)
	}
	for i := range n {
		up, err := upstream.New(&upstream.Options{Name: "m", URL: urls[(i+1)%n] + "/v2/m", HeaderTimeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(up.Close)
		store := newRegistry(t, memstore.New(nil), &registry.Options{Partial: func(string) bool { return true }})
		m, err := mirror.New(store, &mirror.Options{Dir: t.TempDir(), Sources: []mirror.Source{{Name: "m", Upstream: up, TTL: -1, NegativeTTL: -1}}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close(context.Background()) })
		handlers[i] = route.Receive(server.New(m, &server.Options{Logger: slog.New(slog.DiscardHandler)}))
		stored = append(stored, store)
	}
	return urls, stored
}

func get(t *testing.T, url string) int {
	t.Helper()
	return ask(t, http.MethodGet, url)
}

// ask returns the status of the answer, and fails the test if it took long.
func ask(t *testing.T, method, url string) int {
	t.Helper()
	began := time.Now()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("GET %s: %v", url, err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("GET %s took %v", url, took)
	}
	return resp.StatusCode
}

// TestRing asks registries that mirror one another in a ring, or themselves, for what none
// of them has and for what one of them has.
func TestRing(t *testing.T) {
	const absent = "sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
	for n := 1; n <= 3; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			urls, stored := ring(t, n)
			for _, path := range []string{"manifests/none", "manifests/" + absent, "blobs/" + absent} {
				if got := get(t, urls[0]+"/v2/m/a/"+path); got != http.StatusNotFound {
					t.Errorf("%s, which no registry has: status %d, want 404", path, got)
				}
			}
			for _, path := range []string{"tags/list", "referrers/" + absent} {
				if got := get(t, urls[0]+"/v2/m/a/"+path); got != http.StatusOK && got != http.StatusNotFound {
					t.Errorf("%s: status %d, want 200 or 404", path, got)
				}
			}
			// What the last one has is found by all of them, and stays although the registry
			// that it mirrors does not have it, because that one asks this one.
			d, err := stored[n-1].PutManifest(t.Context(), "m/a", oci.PutManifest{
				Bytes: []byte(`{"schemaVersion":2,"mediaType":"` + oci.MediaTypeOCIIndex + `","manifests":[]}`), Tags: []string{"here"},
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range append([]string{urls[n-1]}, urls...) {
				for _, ref := range []string{"here", string(d.Digest)} {
					if got := get(t, u+"/v2/m/a/manifests/"+ref); got != http.StatusOK {
						t.Errorf("GET %s from %s: status %d, want 200", ref, u, got)
					}
				}
			}
			if _, err := stored[n-1].ResolveManifest(t.Context(), "m/a", "here"); err != nil {
				t.Errorf("the registry that had the tag: %v", err)
			}
		})
	}
}

// TestBackGoesOn puts a mirror before an upstream that says that the question has come back. A
// client hears that there is no such thing, and a mirror that the question has come back, also
// when the mirror remembers what the client heard.
func TestBackGoesOn(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusLoopDetected)
		_, _ = io.WriteString(w, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`)
	}))
	t.Cleanup(up.Close)
	u, err := upstream.New(&upstream.Options{Name: "m", URL: up.URL + "/v2/m"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	store := newRegistry(t, memstore.New(nil), &registry.Options{Partial: func(string) bool { return true }})
	m, err := mirror.New(store, &mirror.Options{Dir: t.TempDir(), Sources: []mirror.Source{{Name: "m", Upstream: u, TTL: -1, NegativeTTL: time.Hour}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	s := httptest.NewServer(route.Receive(server.New(m, &server.Options{Logger: slog.New(slog.DiscardHandler)})))
	t.Cleanup(s.Close)
	absent := string(oci.SHA256([]byte("absent")))
	for _, path := range []string{"manifests/none", "manifests/" + absent, "blobs/" + absent} {
		for _, c := range []struct {
			way  string
			want int
		}{{"other", http.StatusLoopDetected}, {"", http.StatusNotFound}, {"other", http.StatusLoopDetected}, {"another,other", http.StatusLoopDetected}, {"", http.StatusNotFound}} {
			for _, method := range []string{http.MethodHead, http.MethodGet} {
				req, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/v2/m/a/"+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if c.way != "" {
					req.Header.Set(route.Header, c.way)
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != c.want {
					t.Errorf("%s %s of a request that came through %q: status %d, want %d", method, path, c.way, resp.StatusCode, c.want)
				}
			}
		}
	}
}

// TestRingAtOnce asks all registries of a ring at the same moment for what none of them has,
// and for what one of them has. Each is then already asking the next one when it is asked.
func TestRingAtOnce(t *testing.T) {
	t.Parallel()
	for n := 2; n <= 4; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			urls, stored := ring(t, n)
			all := func(what, path string, want ...int) {
				t.Helper()
				var wg sync.WaitGroup
				for _, u := range urls {
					for _, method := range []string{http.MethodGet, http.MethodHead} {
						wg.Go(func() {
							if got := ask(t, method, u+"/v2/m/a/"+path); !slices.Contains(want, got) {
								t.Errorf("%s, %s %s from %s: status %d, want %v", what, method, path, u, got, want)
							}
						})
					}
				}
				wg.Wait()
			}
			for i := range 2 {
				absent := oci.SHA256(fmt.Append(nil, "absent", i))
				for _, path := range []string{fmt.Sprint("manifests/none", i), "manifests/" + string(absent), "blobs/" + string(absent)} {
					all("which no registry has", path, http.StatusNotFound)
				}
			}
			content := bytes.Repeat([]byte("x"), 100<<10)
			d := oci.SHA256(content)
			if _, err := stored[n-1].PushBlob(t.Context(), "m/a", d, int64(len(content)), bytes.NewReader(content)); err != nil {
				t.Fatal(err)
			}
			all("which one has", "blobs/"+string(d), http.StatusOK)
			m, err := stored[0].PutManifest(t.Context(), "m/a", oci.PutManifest{
				Bytes: []byte(`{"schemaVersion":2,"mediaType":"` + oci.MediaTypeOCIIndex + `","manifests":[]}`), Tags: []string{"here"},
			})
			if err != nil {
				t.Fatal(err)
			}
			all("which one has", "manifests/here", http.StatusOK)
			all("which one has", "manifests/"+string(m.Digest), http.StatusOK)
		})
	}
}
