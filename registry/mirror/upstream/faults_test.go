package upstream_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
)

// soon is how long the tests wait for something that must not happen.
const soon = 100 * time.Millisecond

// hang returns a registry that accepts requests and answers only those that pass lets through.
func hang(t *testing.T, pass func(r *http.Request) bool) *server {
	stay := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if pass != nil && pass(r) {
			image(w, r)
			return
		}
		select {
		case <-stay:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(stay) }) // runs before the server is closed
	return s
}

// gone returns the URL of a port on which nobody listens.
func gone(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestSlow(t *testing.T) {
	t.Parallel()
	clk := newClock()
	var healed atomic.Bool
	s := hang(t, func(*http.Request) bool { return healed.Load() })
	u := open(t, s.URL, upstream.Options{HeaderTimeout: 2 * time.Second, Clock: clk.Now})
	for n := range 2 {
		err := getManifest(u, "v1")
		want(t, err, upstream.Unavailable, oci.CodeUnavailable, http.StatusGatewayTimeout)
		if got := s.count("GET "); got != n+1 {
			t.Fatalf("got %d requests, want %d", got, n+1)
		}
		if n == 0 {
			clk.add(time.Minute) // two at the same time would count as one
		}
	}
	// The upstream is known to be slow, and nobody else waits.
	for range 3 {
		err := getManifest(u, "v1")
		want(t, err, upstream.Unavailable, oci.CodeUnavailable, http.StatusServiceUnavailable)
		var e *upstream.Error
		if !errors.As(err, &e) || e.RetryAfter <= 0 || e.RetryAfter > 30*time.Second {
			t.Errorf("got %+v", e)
		}
	}
	if got := s.count("GET "); got != 2 {
		t.Errorf("got %d requests, want 2", got)
	}
	if st := u.Status().Endpoints[0]; st.Healthy || st.LastError == "" || st.Failures != 2 {
		t.Errorf("got %+v", st)
	}
	// One request at intervals finds out whether it is back.
	clk.add(time.Minute)
	want(t, getManifest(u, "v1"), upstream.Unavailable, oci.CodeUnavailable, http.StatusGatewayTimeout)
	want(t, getManifest(u, "v1"), upstream.Unavailable, oci.CodeUnavailable, http.StatusServiceUnavailable)
	healed.Store(true)
	clk.add(time.Minute)
	ok(t, getManifest(u, "v1"))
	ok(t, getBlob(u, 0))
	if st := u.Status().Endpoints[0]; !st.Healthy {
		t.Errorf("got %+v", st)
	}
}

func TestOneProbe(t *testing.T) {
	t.Parallel()
	clk := newClock()
	s := hang(t, nil)
	u := open(t, s.URL, upstream.Options{HeaderTimeout: 2 * time.Second, Clock: clk.Now})
	for range 2 {
		_ = getManifest(u, "v1")
		clk.add(time.Minute)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { _ = getManifest(u, "v1") })
	}
	wg.Wait()
	if got := s.count("GET "); got != 3 {
		t.Errorf("got %d requests, want 3: one of 20", got)
	}
}

// TestBreaks sends blobs that end too early or stall.
func TestBreaks(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w http.ResponseWriter, r *http.Request){
		"closed": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		},
		"reset": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
		},
		"still": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Range") != "" {
					image(w, r)
					return
				}
				w.Header().Set("Content-Length", strconv.Itoa(len(blobBytes)))
				_, _ = io.WriteString(w, blobBytes[:5])
				_ = http.NewResponseController(w).Flush()
				end(w, r)
			})
			u := open(t, s.URL, upstream.Options{StallTimeout: 2 * time.Second})
			b, err := u.Blob(t.Context(), "library/app", blobDigest, 0)
			ok(t, err)
			got, err := io.ReadAll(b)
			if string(got) != blobBytes[:5] || b.Size != int64(len(blobBytes)) {
				t.Fatalf("got %q of %d bytes", got, b.Size)
			}
			if upstream.KindOf(err) != upstream.Unavailable || !strings.Contains(err.Error(), string(blobDigest)) {
				t.Errorf("got %v", err)
			}
			if again, err := b.Read(make([]byte, 1)); again != 0 || upstream.KindOf(err) != upstream.Unavailable {
				t.Errorf("a second read: got %d, %v", again, err)
			}
			ok(t, b.Close())
			if st := u.Status(); st.Failures != 1 || st.Active != 0 {
				t.Errorf("got %+v", st)
			}
			ok(t, getBlob(u, 5))
		})
	}
}

// TestTrickle sends a manifest that never stalls but arrives too slowly to wait for.
func TestTrickle(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", oci.MediaTypeOCIManifest)
		for i := 0; ; i++ {
			if _, err := w.Write([]byte{manifest[i%len(manifest)]}); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(5 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	})
	u := open(t, s.URL, upstream.Options{HeaderTimeout: time.Second, StallTimeout: time.Second})
	begin := time.Now()
	want(t, getManifest(u, "v1"), upstream.Unavailable, oci.CodeUnavailable, http.StatusGatewayTimeout)
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("it took %v", d)
	}
}

// TestAgain makes requests fail once, which succeed at the next try.
func TestAgain(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(w http.ResponseWriter){
		"502": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
		"closed": func(w http.ResponseWriter) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
		},
		"short": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", strconv.Itoa(len(manifest)))
			_, _ = io.WriteString(w, manifest[:10])
		},
		"garbled": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", oci.MediaTypeOCIManifest)
			_, _ = io.WriteString(w, strings.Repeat("?", len(manifest)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int32
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) < 3 {
					fail(w)
					return
				}
				image(w, r)
			})
			u := open(t, s.URL, upstream.Options{})
			ok(t, getManifest(u, string(manifestDigest)))
			if n.Load() != 3 {
				t.Errorf("got %d requests, want 3", n.Load())
			}
		})
	}
}

func TestMirrors(t *testing.T) {
	t.Parallel()
	status := func(code int) func(t *testing.T) string {
		return func(t *testing.T) string {
			return serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }).URL
		}
	}
	for name, mirror := range map[string]func(t *testing.T) string{
		"401": status(401), "403": status(403), "404": status(404), "429": status(429), "500": status(500), "503": status(503),
		"gone": gone,
		"slow": func(t *testing.T) string { return hang(t, nil).URL },
		"page": func(t *testing.T) string {
			return serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hello</html>") }).URL
		},
		"wrong": func(t *testing.T) string {
			return serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", oci.MediaTypeOCIManifest)
				w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))
				_, _ = io.WriteString(w, manifest+" ")
			}).URL
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good := serve(t, image)
			own := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
			u := open(t, own.URL, upstream.Options{Mirrors: []string{mirror(t), good.URL}, HeaderTimeout: 2 * time.Second})
			ok(t, getManifest(u, string(manifestDigest)))
			ok(t, getBlob(u, 0))
			ok(t, getBlob(u, 3))
			if n := len(own.requests()); n != 0 {
				t.Errorf("the upstream was asked %d times", n)
			}
		})
	}
}

// TestOwnWord uses mirrors that contradict the upstream.
func TestOwnWord(t *testing.T) {
	answer := func(code int) string {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }).URL
	}
	for _, tt := range []struct {
		mirror, own int
		want        upstream.Kind
	}{
		{404, 500, upstream.Unavailable},
		{500, 404, upstream.NotFound},
		{404, 403, upstream.Denied},
		{403, 404, upstream.NotFound},
		{404, 429, upstream.Busy},
		{429, 404, upstream.NotFound},
	} {
		u := open(t, answer(tt.own), upstream.Options{Mirrors: []string{answer(tt.mirror)}})
		_, err := u.Blob(t.Context(), "library/app", blobDigest, 0)
		if upstream.KindOf(err) != tt.want {
			t.Errorf("a mirror's %d and the upstream's %d: got %v, want %v", tt.mirror, tt.own, err, tt.want)
		}
	}
}

// TestOwnLists uses a mirror that lists only a part of what the upstream has.
func TestOwnLists(t *testing.T) {
	tags := func(status int, list string) *server {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", oci.MediaTypeOCIIndex)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"tags":[`+list+`],"manifests":[]}`)
		})
	}
	part := tags(200, `"a"`)
	u := open(t, tags(200, `"a","b"`).URL, upstream.Options{Mirrors: []string{part.URL}})
	if got, _, err := u.Tags(t.Context(), "library/app", "", 10); err != nil || len(got) != 2 {
		t.Errorf("got %q, %v, want what the upstream lists", got, err)
	}
	u = open(t, tags(502, "").URL, upstream.Options{Mirrors: []string{part.URL}})
	got, _, err := u.Tags(t.Context(), "library/app", "", 10)
	if upstream.KindOf(err) != upstream.Unavailable {
		t.Errorf("got %q, %v, want the upstream's failure", got, err)
	}
	list, err := u.Referrers(t.Context(), "library/app", manifestDigest)
	if upstream.KindOf(err) != upstream.Unavailable {
		t.Errorf("got %v, %v, want the upstream's failure", list, err)
	}
	if n := len(part.requests()); n > 0 {
		t.Errorf("the mirror was asked %d times", n)
	}
}

// TestOrder uses an endpoint that is tried after the others once it has failed, and in its usual
// turn after a while.
func TestOrder(t *testing.T) {
	clk := newClock()
	var broken atomic.Bool
	first := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		image(w, r)
	})
	own := serve(t, image)
	u := open(t, own.URL, upstream.Options{Mirrors: []string{first.URL}, Clock: clk.Now})
	asked := func(f, o int) {
		t.Helper()
		ok(t, getBlob(u, 0))
		if gf, got := len(first.requests()), len(own.requests()); gf != f || got != o {
			t.Fatalf("the mirror was asked %d times and the upstream %d times, want %d and %d", gf, got, f, o)
		}
	}
	asked(1, 0)
	broken.Store(true)
	asked(2, 1)
	broken.Store(false)
	asked(2, 2)
	clk.add(2 * time.Second)
	asked(3, 2)

	b, err := u.Blob(t.Context(), "library/app", blobDigest, 0)
	ok(t, err)
	b.Blame(errors.New("its digest is another"))
	ok(t, b.Close())
	asked(4, 3)
	clk.add(5 * time.Second)
	asked(4, 4)
	if st := u.Status().Endpoints[0]; st.Healthy || !strings.Contains(st.LastError, "its digest is another") {
		t.Errorf("got %+v", st)
	}
	clk.add(time.Minute)
	asked(5, 4)
	(&upstream.Body{}).Blame(errors.New("of nobody")) // as fakes make them
}

func TestBackOff(t *testing.T) {
	clk := newClock()
	var header atomic.Value
	header.Store("30")
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch after := header.Load().(string); after {
		case "ok":
			image(w, r)
			return
		case "":
		default:
			w.Header().Set("Retry-After", after)
		}
		w.WriteHeader(http.StatusTooManyRequests)
	})
	u := open(t, s.URL, upstream.Options{Clock: clk.Now})
	busy := func(left time.Duration, requests int) {
		t.Helper()
		for _, f := range []func() error{
			func() error { return getBlob(u, 0) },
			func() error { _, err := u.ResolveBlob(t.Context(), "library/app", blobDigest); return err },
		} {
			err := f()
			want(t, err, upstream.Busy, oci.CodeTooManyRequests, http.StatusTooManyRequests)
			var e *upstream.Error
			var o *oci.Error
			if !errors.As(err, &e) || !errors.As(err, &o) || e.RetryAfter != left || o.RetryAfter != left {
				t.Errorf("got %v and %v, want %v", e.RetryAfter, o.RetryAfter, left)
			}
		}
		if n := len(s.requests()); n != requests {
			t.Fatalf("got %d requests, want %d", n, requests)
		}
	}
	busy(30*time.Second, 1)
	clk.add(20 * time.Second)
	busy(10*time.Second, 1)
	if st := u.Status().Endpoints[0]; !st.BackoffUntil.Equal(clk.Now().Add(10*time.Second)) || st.Healthy {
		t.Errorf("got %+v", st)
	}
	clk.add(10 * time.Second)
	header.Store("ok")
	ok(t, getBlob(u, 0))

	header.Store("") // no duration is given
	busy(time.Second, 3)
	clk.add(time.Second)
	busy(2*time.Second, 4)
	clk.add(2 * time.Second)
	header.Store("ok") // for one request, and then it refuses again
	ok(t, getBlob(u, 0))
	_, err := u.ResolveBlob(t.Context(), "library/app", blobDigest)
	ok(t, err)
	header.Store("")
	busy(4*time.Second, 7)
	header.Store("ok")
	clk.add(time.Hour)
	ok(t, getBlob(u, 0))
	header.Store("")
	busy(time.Second, 9) // that was long ago
	clk.add(time.Second)
	header.Store("100000000")
	busy(time.Hour, 10)
	header.Store("ok")
	clk.add(time.Hour)
	ok(t, getBlob(u, 0))
	if !u.Status().Endpoints[0].BackoffUntil.IsZero() {
		t.Errorf("got %+v", u.Status())
	}
}

// TestQuotas checks that a 429 applies to what was counted, and a 503 to everything.
func TestQuotas(t *testing.T) {
	asks := map[string]func(u *upstream.Upstream) error{
		"/manifests/": func(u *upstream.Upstream) error { return getManifest(u, "v1") },
		"/blobs/":     func(u *upstream.Upstream) error { return getBlob(u, 0) },
		"/tags/":      func(u *upstream.Upstream) error { _, _, err := u.Tags(t.Context(), "library/app", "", 1); return err },
		"/token":      nil, // tokens are requested first
	}
	for limited := range asks {
		for _, status := range []int{429, 503} {
			var s *server
			s = serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.Contains(r.URL.Path, limited):
					w.Header().Set("Retry-After", "30")
					w.WriteHeader(status)
				case strings.HasPrefix(r.URL.Path, "/token"):
					_, _ = io.WriteString(w, `{"token":"t"}`)
				case r.Header.Get("Authorization") == "":
					w.Header().Set("Www-Authenticate", `Bearer realm="`+s.URL+`/token"`)
					w.WriteHeader(http.StatusUnauthorized)
				case strings.Contains(r.URL.Path, "/tags/"):
					_, _ = io.WriteString(w, `{"tags":["a"]}`)
				default:
					image(w, r)
				}
			})
			u := open(t, s.URL, upstream.Options{Clock: newClock().Now})
			first := limited
			if limited == "/token" {
				first = "/blobs/"
			}
			for _, ask := range []string{first, "/manifests/", "/blobs/", "/tags/"} {
				err := asks[ask](u)
				if want := ask == limited || status == 503 || limited == "/token"; (upstream.KindOf(err) == upstream.Busy) != want {
					t.Errorf("%d for %s: %s got %v", status, limited, ask, err)
				}
			}
			if n := s.count("GET /v2/library/app" + limited); n > 1 {
				t.Errorf("%d for %s: it was asked %d times", status, limited, n)
			}
			if n := s.count("GET /token"); limited == "/token" && n > 1 {
				t.Errorf("%d for %s: it was asked %d times", status, limited, n)
			}
		}
	}
}

// TestNobodyAsks has many callers while the upstream wants to be left alone.
func TestNobodyAsks(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	u := open(t, s.URL, upstream.Options{Concurrent: 2})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := getManifest(u, "v1"); upstream.KindOf(err) != upstream.Busy {
				t.Errorf("got %v", err)
			}
		})
	}
	wg.Wait()
	if n := len(s.requests()); n > 2 { // those that were running at the same time
		t.Errorf("got %d requests, want 2 at most", n)
	}
}

// TestImpatientCallers has callers whose deadline passes before the upstream is given up. The
// failure becomes known nevertheless. Callers that cancel prove nothing.
func TestImpatientCallers(t *testing.T) {
	s := hang(t, nil)
	clk := newClock()
	u := open(t, s.URL, upstream.Options{Clock: clk.Now})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		until(t, "a request", func() bool { return s.count("GET ") > 0 })
		clk.add(time.Minute)
		cancel()
	}()
	if _, _, _, err := u.Manifest(ctx, "library/app", "v1", ""); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if st := u.Status().Endpoints[0]; st.Failures != 0 {
		t.Errorf("got %+v", st)
	}
	u = open(t, s.URL, upstream.Options{ConnectTimeout: soon})
	until(t, "a failure is noted", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
		defer cancel()
		if _, _, _, err := u.Manifest(ctx, "library/app", "v1", ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		return u.Status().Endpoints[0].Failures > 0
	})
}
