package replay_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/server"
	"example.org/slipway/workload/replay"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/replay/send"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newRegistry starts a registry in memory that records each request before it is served,
// and returns its URL. wrap, if not nil, wraps the handler.
func newRegistry(t testing.TB, wrap func(http.Handler) http.Handler) (url string, seen *seen) {
	t.Helper()
	objects := memstore.New(nil)
	cat, err := catalog.Open(t.Context(), filepath.Join(t.TempDir(), registry.CatalogFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	reg, err := registry.New(t.Context(), cat, objects, &registry.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	seen = newSeen()
	var h http.Handler = server.New(reg, &server.Options{Logger: quiet})
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.add(r)
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		srv.Close()
		for _, err := range []error{reg.Close(context.Background()), cat.Close(), objects.Close()} {
			if err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return srv.URL, seen
}

// seen records the requests that a registry got.
type seen struct {
	mu    sync.Mutex
	count map[string]int // by "METHOD path"
	at    []time.Time
}

func newSeen() *seen { return &seen{count: map[string]int{}} }

func (s *seen) add(r *http.Request) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[r.Method+" "+r.URL.Path]++
	s.at = append(s.at, now)
}

func (s *seen) get(request string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[request]
}

func (s *seen) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.at)
}

// day is the time at which the traces of the tests begin.
var day = time.Date(2017, 6, 20, 1, 0, 0, 0, time.UTC)

// request is a request of a trace: a time in milliseconds, a client and the rest.
type request struct {
	ms     int
	client string
	method string
	uri    string
	status int
	size   int64
}

// newStore writes a trace to a store.
func newStore(t testing.TB, requests []request) *store.Store {
	t.Helper()
	dir := t.TempDir()
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range requests {
		rec := &trace.Record{Host: "h1", Method: r.method, RemoteAddr: r.client, URI: r.uri, Status: r.status, Written: r.size,
			ID: fmt.Sprintf("%010x", i), Time: day.Add(time.Duration(r.ms) * time.Millisecond)}
		if r.method == http.MethodPut || r.method == http.MethodPatch {
			rec.Received = r.size
		}
		if err := w.Add("dal", rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// images returns a trace of two pulls of one image by two clients, the push of another
// image and its pull, and other requests that registries get.
func images() []request {
	const a, b = "v2/a7e6b589/one", "v2/a7e6b589/deep/er/two"
	return []request{
		{0, "c1", "GET", "v2", 200, 2},
		{5, "c9", "GET", "v2", 301, 39},
		{10, "c1", "GET", a + "/manifests/817c8a39", 200, 1500},
		{20, "c1", "GET", a + "/blobs/11111111", 200, 1000},
		{21, "c1", "GET", a + "/blobs/22222222", 200, 70_000},
		{22, "c1", "GET", a + "/blobs/33333333", 200, 7},
		{30, "c2", "HEAD", a + "/manifests/817c8a39", 200, 0},
		{31, "c2", "GET", a + "/manifests/817c8a39", 200, 1500},
		{33, "c2", "GET", a + "/blobs/22222222", 206, 30_000},
		{40, "c3", "HEAD", b + "/blobs/44444444", 404, 157},
		{41, "c3", "POST", b + "/blobs/uploads/", 202, 0},
		{42, "c3", "PATCH", b + "/blobs/uploads/aaaa0001", 202, 0},
		{43, "c3", "PATCH", b + "/blobs/uploads/aaaa0001", 202, 0},
		{50, "c3", "PUT", b + "/blobs/uploads/aaaa0001", 201, 50_001},
		{60, "c3", "HEAD", b + "/blobs/11111111", 200, 0},
		{80, "c3", "PUT", b + "/manifests/817c8a39", 201, 700},
		{3000, "c4", "GET", b + "/manifests/817c8a39", 200, 700},
		{3010, "c4", "GET", b + "/blobs/55555555", 200, 50_001},
		{3011, "c4", "GET", b + "/blobs/11111111", 200, 1000},
		{3020, "c5", "GET", a + "/tags/list", 200, 40},
		{3021, "c5", "DELETE", a + "/manifests/817c8a39", 202, 0},
		{3022, "c5", "GET", "favicon.ico", 404, 9},
	}
}

// options returns the options of a replay of the zone of a store to registries.
func options(t testing.TB, level plan.Level, urls ...string) replay.Options {
	o := replay.Options{Plan: plan.Options{Level: level, Zone: "dal"}, Dir: filepath.Join(t.TempDir(), "result"), Version: "test",
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)), MaxLag: 10 * time.Second} // the tests must not depend on the speed of a shared machine
	for i, u := range urls {
		o.Targets = append(o.Targets, send.Target{Name: fmt.Sprintf("t%d", i), URL: u})
	}
	return o
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}

// run replays a trace and reads the result back.
func run(t testing.TB, s *store.Store, o replay.Options) (*result.Summary, []result.Sample) {
	t.Helper()
	sum, err := replay.Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	return sum, samples(t, o.Dir)
}

func samples(t testing.TB, dir string) (all []result.Sample) {
	t.Helper()
	if err := result.Read(dir, func(s *result.Sample) error { all = append(all, *s); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// drain reads the body of a request.
func drain(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
