package serve_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/config"
	"example.org/slipway/internal/logtest"
	"example.org/slipway/oci"
	"example.org/slipway/serve"
)

func TestMain(m *testing.M) {
	// A server bounds the memory of its process, and here many are in one. TestLimitCountsStacks tests the bound.
	os.Setenv("GOGC", "100")
	// A catalogue on a read-only disk is left alone, and so is its connection.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}

// patience is how long a test waits for something that must happen. It is generous, because it
// costs time only when something is broken.
const patience = 30 * time.Second

// setup describes a server. The zero value is a server with a root of its own and the defaults.
type setup struct {
	// yaml is the configuration without the version.
	yaml string
	// root defaults to a new directory.
	root string
	// keep leaves http.addr and http.debug.addr as yaml sets them.
	keep bool
	// change changes the configuration in ways that a file cannot, for example to intervals too
	// short for production.
	change func(*config.Config)
	opts   serve.Options
}

// configure parses the configuration of a setup.
func configure(t testing.TB, o setup) *config.Config {
	t.Helper()
	over := []config.Override{{Key: "storage.root", Value: o.root}}
	if !o.keep {
		over = append(over, config.Override{Key: "http.addr", Value: "127.0.0.1:0"}, config.Override{Key: "http.debug.addr", Value: "127.0.0.1:0"})
	}
	if !strings.Contains(o.yaml, "accesslog") {
		over = append(over, config.Override{Key: "log.accesslog.disabled", Value: "true"})
	}
	cfg, _, err := config.Parse(strings.NewReader("version: 0.1\n"+o.yaml), &config.Options{Overrides: over})
	if err != nil {
		t.Fatalf("parse the configuration:\n%s\n%v", o.yaml, err)
	}
	if o.change != nil {
		o.change(cfg)
	}
	return cfg
}

// instance is a running server.
type instance struct {
	*serve.Server
	t      testing.TB
	root   string
	cfg    *config.Config
	log    *logtest.Buffer
	client *http.Client
	// url and debug are the addresses it listens on, without a trailing slash.
	url, debug string
	cancel     context.CancelFunc
	done       chan error
	once       sync.Once
	err        error
}

// start runs a server until the test ends or stop is called.
func start(t testing.TB, o setup) *instance {
	t.Helper()
	if o.root == "" {
		o.root = filepath.Join(t.TempDir(), "root")
	}
	s := &instance{t: t, root: o.root, log: &logtest.Buffer{}, done: make(chan error, 1)}
	s.cfg = configure(t, o)
	o.opts.Logger = slog.New(slog.NewTextHandler(s.log, nil))
	var err error
	if s.Server, err = serve.New(t.Context(), s.cfg, &o.opts); err != nil {
		t.Fatalf("New: %v", err)
	}
	scheme := "http"
	if s.cfg.HTTP.TLS.Enabled() {
		scheme = "https"
	}
	s.url = scheme + "://" + s.Addr().String()
	if a := s.DebugAddr(); a != nil {
		s.debug = "http://" + a.String()
	}
	s.client = &http.Client{Transport: &http.Transport{}, Timeout: patience}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.done <- s.Run(ctx) }()
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return s
}

// stop ends the server and returns the errors of Run and Close.
func (s *instance) stop() error {
	s.once.Do(func() {
		s.cancel()
		select {
		case s.err = <-s.done:
		case <-time.After(patience):
			s.err = fmt.Errorf("Run did not end; log:\n%s", s.log)
		}
		if err := s.Close(); s.err == nil {
			s.err = err
		}
		s.client.CloseIdleConnections()
	})
	return s.err
}

// answer is a complete answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request after applying each edit to it.
func (s *instance) do(method, path, body string, edits ...func(*http.Request)) answer {
	s.t.Helper()
	if !strings.Contains(path, "://") {
		path = s.url + path
	}
	req, err := http.NewRequest(method, path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range edits {
		e(req)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: read the answer: %v", method, path, err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// want sends a request and fails the test unless the answer has the given status.
func (s *instance) want(status int, method, path, body string, edits ...func(*http.Request)) answer {
	s.t.Helper()
	a := s.do(method, path, body, edits...)
	if a.status != status {
		s.t.Fatalf("%s %s: got status %d, want %d; body %s", method, path, a.status, status, a.body)
	}
	return a
}

func header(key, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(key, value) }
}

func basic(user, password string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth(user, password) }
}

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (s *instance) pushBlob(repo, content string, edits ...func(*http.Request)) string {
	s.t.Helper()
	d := digestOf(content)
	s.want(http.StatusCreated, "POST", "/v2/"+repo+"/blobs/uploads/?digest="+d, content, edits...)
	return d
}

// imageOf returns a manifest with one layer that also serves as its config. The layer is not a file
// tree.
func imageOf(layer string) string {
	d := digestOf(layer)
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[{"mediaType":"application/vnd.example.text","digest":%q,"size":%d}]}`,
		oci.MediaTypeOCIManifest, d, len(layer), d, len(layer))
}

var isManifest = header("Content-Type", oci.MediaTypeOCIManifest)

// pushImage pushes an image of one layer and returns its digest.
func (s *instance) pushImage(repo, tag, layer string, edits ...func(*http.Request)) string {
	s.t.Helper()
	s.pushBlob(repo, layer, edits...)
	m := imageOf(layer)
	s.want(http.StatusCreated, "PUT", "/v2/"+repo+"/manifests/"+tag, m, append(edits, isManifest)...)
	return digestOf(m)
}

// poll waits until f returns true.
func poll(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not come to that", what)
		}
		pause()
	}
}

// pause lets other goroutines run between two checks of a condition.
func pause() { <-time.After(5 * time.Millisecond) }

// refused reports whether an address refuses connections.
func refused(addr net.Addr) bool {
	c, err := net.DialTimeout(addr.Network(), addr.String(), time.Second)
	if err == nil {
		c.Close()
	}
	return err != nil
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	// Renewals work like this: a new file replaces the old one.
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// socketTransport connects to the administration socket of a root.
func socketTransport(root string) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(root, "admin.sock"))
	}}
}
