package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	manifest  = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[]}`
	blobBytes = "0123456789abcdefghij"
)

var (
	manifestDigest = oci.SHA256([]byte(manifest))
	blobDigest     = oci.SHA256([]byte(blobBytes))
	here           = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
)

// server is a registry that records the requests made to it.
type server struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // "METHOD path?query"
}

func record(h http.HandlerFunc) (*server, http.Handler) {
	s := &server{}
	return s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r.Method+" "+r.URL.RequestURI())
		s.mu.Unlock()
		h(w, r)
	})
}

func serve(t testing.TB, h http.HandlerFunc) *server {
	t.Helper()
	s, rec := record(h)
	s.Server = httptest.NewServer(rec)
	t.Cleanup(s.Close)
	return s
}

func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

// count returns how many requests began with prefix.
func (s *server) count(prefix string) int {
	n := 0
	for _, r := range s.requests() {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

// image answers like a registry that has the manifest under every name and tag, and the blob.
func image(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.Contains(r.URL.Path, "/manifests/"):
		w.Header().Set("Content-Type", oci.MediaTypeOCIManifest)
		w.Header().Set("Docker-Content-Digest", string(manifestDigest))
		w.Header().Set("Etag", `"`+string(manifestDigest)+`"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(manifest))
	case strings.HasSuffix(r.URL.Path, "/blobs/"+string(blobDigest)):
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(blobBytes))
	default:
		http.NotFound(w, r)
	}
}

// quiet discards the servers' messages about failed handshakes, which the tests provoke.
var quiet = log.New(io.Discard, "", 0)

// clock is a clock that stands still until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// open returns an upstream named "up" with the other fields of the options.
func open(t testing.TB, url string, o upstream.Options) *upstream.Upstream {
	t.Helper()
	o.Name, o.URL = "up", url
	u, err := upstream.New(&o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

// want checks an error's kind and what a client gets.
func want(t testing.TB, err error, k upstream.Kind, code oci.Code, status int) {
	t.Helper()
	if got := upstream.KindOf(err); got != k {
		t.Fatalf("got kind %v, want %v: %v", got, k, err)
	}
	var o *oci.Error
	if !errors.As(err, &o) {
		t.Fatalf("no error of the protocol: %v", err)
	}
	if o.Code != code || o.HTTPStatus() != status {
		t.Errorf("a client is told %s, %d; want %s, %d: %v", o.Code, o.HTTPStatus(), code, status, err)
	}
	if !strings.HasPrefix(o.Message, "up ") {
		t.Errorf("the message does not begin with the upstream's name: %q", o.Message)
	}
}

func unavailable(t testing.TB, err error, text string) {
	t.Helper()
	want(t, err, upstream.Unavailable, oci.CodeUnavailable, http.StatusBadGateway)
	if !strings.Contains(err.Error(), text) {
		t.Errorf("got error %q, want one that says %q", err, text)
	}
}

func getManifest(u *upstream.Upstream, ref string) error {
	m, _, _, err := u.Manifest(context.Background(), "library/app", ref, "")
	if err == nil && (string(m.Bytes) != manifest || m.Digest != manifestDigest) {
		return fmt.Errorf("got manifest %s, %q", m.Digest, m.Bytes)
	}
	return err
}

func getBlob(u *upstream.Upstream, off int64) error {
	b, err := u.Blob(context.Background(), "library/app", blobDigest, off)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(b)
	if cerr := b.Close(); err == nil {
		err = cerr
	}
	if err == nil && (string(got) != blobBytes[b.Off:] || b.Size != int64(len(blobBytes))) {
		return fmt.Errorf("got %q from %d of %d", got, b.Off, b.Size)
	}
	return err
}

// ok fails the test if there is an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for another goroutine.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("waited too long: %s", what) // also called from goroutines, which must not end the test
			return
		}
	}
}
