package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a server in front of a real registry.
type bed struct {
	t    testing.TB
	reg  *registry.Registry
	srv  *server.Server
	http *httptest.Server
	addr string
	log  *logtest.Buffer
}

// setup configures a bed. The zero value is a registry in memory that is open to everybody.
type setup struct {
	store    objstore.Store
	registry registry.Options
	server   server.Options
	tls      bool
}

func newBed(t testing.TB, o setup) *bed {
	t.Helper()
	b := &bed{t: t, log: &logtest.Buffer{}}
	logger := slog.New(slog.NewTextHandler(b.log, nil))
	if o.store == nil {
		o.store = memstore.New(nil)
	}
	cat, err := catalog.Open(t.Context(), filepath.Join(t.TempDir(), registry.CatalogFile), &catalog.Options{Grace: o.registry.Grace})
	if err != nil {
		t.Fatal(err)
	}
	o.registry.Logger, o.server.Logger = logger, logger
	if b.reg, err = registry.New(t.Context(), cat, o.store, &o.registry); err != nil {
		t.Fatal(err)
	}
	b.srv = server.New(b.reg, &o.server)
	b.http = httptest.NewUnstartedServer(b.srv)
	b.http.Config.ReadHeaderTimeout = 2 * time.Second
	b.http.Config.ErrorLog = slog.NewLogLogger(logger.Handler(), slog.LevelDebug)
	if o.tls {
		b.http.EnableHTTP2 = true
		b.http.StartTLS()
	} else {
		b.http.Start()
	}
	b.addr = b.http.Listener.Addr().String()
	t.Cleanup(func() {
		b.http.Close()
		for _, err := range []error{b.reg.Close(context.Background()), cat.Close(), o.store.Close()} {
			if err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if strings.Contains(b.log.String(), "panic") {
			t.Errorf("the server's log tells of a panic:\n%s", b.log)
		}
	})
	return b
}

// conn is a connection on which a test sends requests exactly as written.
type conn struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func (b *bed) dial() *conn {
	b.t.Helper()
	c, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return &conn{b.t, c, bufio.NewReader(c)}
}

func (c *conn) send(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c, format, args...); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// answer is a response that has been read to its end.
type answer struct {
	Status int
	Header http.Header
	Body   []byte
	Close  bool
}

// receive reads an answer to a request with the method.
func (c *conn) receive(method string) answer {
	c.t.Helper()
	a, err := c.tryReceive(method)
	if err != nil {
		c.t.Fatalf("read the answer to %s: %v", method, err)
	}
	return a
}

func (c *conn) tryReceive(method string) (answer, error) {
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body, resp.Close}, err
}

// ask sends one request on a new connection. headers are lines.
func (b *bed) ask(method, target string, body []byte, headers ...string) answer {
	b.t.Helper()
	c := b.dial()
	defer c.Close()
	return c.ask(method, target, body, headers...)
}

func (c *conn) ask(method, target string, body []byte, headers ...string) answer {
	c.t.Helper()
	if body != nil && !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Content-Length") }) {
		headers = append(headers, fmt.Sprintf("Content-Length: %d", len(body)))
	}
	c.send("%s %s HTTP/1.1\r\nHost: registry.test\r\n%s\r\n%s", method, target, strings.Join(append(headers, ""), "\r\n"), body)
	return c.receive(method)
}

// wantError checks that an answer is the given error of the specification.
func (a answer) wantError(t testing.TB, what string, status int, code oci.Code) {
	t.Helper()
	if a.Status != status {
		t.Errorf("%s: got status %d %s, want %d %s", what, a.Status, a.Body, status, code)
		return
	}
	var body struct {
		Errors []struct {
			Code    oci.Code
			Message string
		}
	}
	dec := json.NewDecoder(bytes.NewReader(a.Body))
	if err := dec.Decode(&body); err != nil || len(body.Errors) != 1 {
		t.Errorf("%s: the body %q is not the specification's: %v", what, a.Body, err)
		return
	}
	if e := body.Errors[0]; e.Code != code || e.Message == "" {
		t.Errorf("%s: got %+v, want %s with a message", what, e, code)
	}
	if got := a.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("%s: got Content-Type %q", what, got)
	}
}

// want checks the status and some headers. The value "" means that the header must be absent.
func (a answer) want(t testing.TB, what string, status int, headers map[string]string) {
	t.Helper()
	if a.Status != status {
		t.Errorf("%s: got status %d %s, want %d", what, a.Status, a.Body, status)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(headers)) {
		if got := a.Header.Get(k); got != headers[k] {
			t.Errorf("%s: got %s: %q, want %q", what, k, got, headers[k])
		}
	}
}

// random returns n bytes that depend on seed.
func random(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func (b *bed) push(repo string, data []byte) oci.Digest {
	b.t.Helper()
	d := oci.SHA256(data)
	if _, err := b.reg.PushBlob(context.Background(), repo, d, int64(len(data)), bytes.NewReader(data)); err != nil {
		b.t.Fatalf("push a blob: %v", err)
	}
	return d
}

// imageJSON returns a manifest whose blobs are in the repository.
func (b *bed) imageJSON(repo string, seed byte) []byte {
	b.t.Helper()
	config := []byte(fmt.Sprintf(`{"seed":%d}`, seed))
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[]}`,
		oci.MediaTypeOCIManifest, b.push(repo, config), len(config))
}

func (b *bed) pushImage(repo string, seed byte, tags ...string) (oci.Digest, []byte) {
	b.t.Helper()
	raw := b.imageJSON(repo, seed)
	res, err := b.reg.PutManifest(context.Background(), repo, oci.PutManifest{Bytes: raw, Tags: tags})
	if err != nil {
		b.t.Fatalf("push a manifest: %v", err)
	}
	return res.Digest, raw
}

// waitFor polls a condition.
func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s in vain: %s", what)
		}
	}
}
