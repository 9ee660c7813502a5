package serve_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/serve"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

func TestDefaults(t *testing.T) {
	s := start(t, setup{})
	s.want(200, "GET", "/v2/", "")
	d := s.pushImage("team/app", "v1", "layer")
	got := s.want(200, "GET", "/v2/team/app/manifests/v1", "")
	if got.header.Get("Docker-Content-Digest") != d || got.body != imageOf("layer") {
		t.Errorf("pulled %s %q, want %s", got.header.Get("Docker-Content-Digest"), got.body, d)
	}
	s.want(200, "GET", "/", "") // the page
	s.want(404, "GET", "/none", "")
	if fi, err := os.Stat(s.root); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("data directory: %v %v, want mode 0700", fi.Mode(), err)
	}
	if err := s.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if strings.Contains(s.log.String(), "level=ERROR") || strings.Contains(s.log.String(), "level=WARN") {
		t.Errorf("complaints in the log of a quiet life:\n%s", s.log)
	}
}

func TestTwoServers(t *testing.T) {
	a, b := start(t, setup{}), start(t, setup{})
	a.pushImage("only/a", "v1", "layer")
	a.want(200, "HEAD", "/v2/only/a/manifests/v1", "")
	b.want(404, "HEAD", "/v2/only/a/manifests/v1", "")
}

func TestCloseWithoutRun(t *testing.T) {
	cfg := configure(t, setup{root: t.TempDir()})
	for range 2 { // the first server must leave everything free for the second
		s, err := serve.New(t.Context(), cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

func TestInMemory(t *testing.T) {
	cfg, _, err := config.Parse(strings.NewReader("version: 0.1\nstorage: {inmemory: {}}\nhttp: {addr: 127.0.0.1:0}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	s, err := serve.New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Errorf("an in-memory registry left %v behind", left)
	}
	if _, err := admin.Open(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), "storage.inmemory") {
		t.Errorf("OpenAdmin: got %v, want an error about storage.inmemory", err)
	}
}

func TestNewErrors(t *testing.T) {
	busy := start(t, setup{})
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	writeFile(t, file, "")
	for _, c := range []struct {
		name string
		o    setup
		is   error
		want []string
	}{
		{"root in use", setup{root: busy.root}, dataroot.ErrInUse, []string{busy.root}},
		{"root is a file", setup{root: file}, nil, []string{"data directory", file}},
		{"root below a file", setup{root: file + "/root"}, nil, []string{"data directory", file}},
		{"port taken", setup{keep: true, yaml: "http: {addr: \"" + busy.Addr().String() + "\"}"}, nil, []string{"http.addr", busy.Addr().String()}},
		{"debug port taken", setup{keep: true, yaml: "http: {addr: \"127.0.0.1:0\", debug: {addr: \"" + busy.Addr().String() + "\"}}"}, nil, []string{"http.debug.addr", busy.Addr().String()}},
		{"no certificate", setup{yaml: "http: {tls: {certificate: /missing.crt, key: /missing.key}}"}, nil, []string{"http.tls.certificate", "/missing.crt"}},
		{"bad rule", setup{yaml: "auth: {access: [{repositories: [a], subjects: [anonymous], actions: [eat]}]}"}, nil, []string{"auth.access[0]", "eat"}},
		{"bad key set", setup{yaml: "auth: {token: {realm: \"http://a/\", service: s, issuer: i, jwks: " + file + "}}"}, nil, []string{"auth.token", file}},
		{"no htpasswd", setup{yaml: "auth: {htpasswd: {path: /missing}}"}, nil, []string{"auth.htpasswd", "/missing"}},
		{"no audit log", setup{yaml: "log: {audit: {file: " + file + "/audit}}"}, nil, []string{"audit log", file}},
		{"no access log", setup{yaml: "log: {accesslog: {file: " + file + "/access}}"}, nil, []string{"access log", file}},
		{"socket is a file", setup{keep: true, yaml: "http: {net: unix, addr: " + file + "}"}, nil, []string{file, "not a socket"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.o.root == "" {
				c.o.root = filepath.Join(dir, "root")
			}
			s, err := serve.New(t.Context(), configure(t, c.o), nil)
			if err == nil {
				s.Close()
				t.Fatal("New: got no error")
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v, want %v", err, c.is)
			}
			if _, err := os.Stat(filepath.Join(dir, "root")); err == nil {
				t.Errorf("a start that failed has made a data directory")
			}
			for _, w := range append(c.want, "") {
				if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %q, want one line with %q", err, w)
				}
			}
		})
	}
	// A failed start must leave nothing behind that hinders the next one.
	start(t, setup{root: filepath.Join(dir, "root")})
	busy.want(200, "GET", "/v2/", "")
}

func TestOpenToNetwork(t *testing.T) {
	for _, c := range []struct {
		http, auth string
		ok         bool
	}{
		{`{addr: "0.0.0.0:0"}`, "{}", false},
		{`{addr: ":0"}`, "{}", false},
		{`{addr: "[::]:0"}`, "{}", false},
		{`{addr: "0.0.0.0:0", insecure_open_to_network: true}`, "{}", true},
		{`{addr: "0.0.0.0:0"}`, `{access: [{repositories: ["**"], subjects: [anonymous], actions: [pull]}]}`, true},
		{`{addr: "localhost:0"}`, "{}", true},
	} {
		_, _, err := config.Parse(strings.NewReader("version: 0.1\nhttp: "+c.http+"\nauth: "+c.auth), nil)
		if (err == nil) != c.ok {
			t.Errorf("http: %s, auth: %s: got error %v, want ok %v", c.http, c.auth, err, c.ok)
		}
		if err != nil && !strings.Contains(err.Error(), "insecure_open_to_network") {
			t.Errorf("%s: the error does not name the way out: %v", c.http, err)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	o := setup{root: t.TempDir(), keep: true, yaml: "http: {net: unix, addr: " + path + "}"}
	for range 2 {
		s := start(t, o)
		s.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}
		s.url = "http://registry"
		s.pushImage("a", "v1", "layer")
		other := o
		other.root = t.TempDir()
		if _, err := serve.New(t.Context(), configure(t, other), nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("second server on the socket: got %v, want an error with its path", err)
		}
		s.want(200, "GET", "/v2/", "")
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}
	// The leftovers of a killed process must not be an obstacle.
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	start(t, o)
}

// rawUpload is an upload whose body the test sends itself.
type rawUpload struct {
	net.Conn
	t testing.TB
}

func (s *instance) rawUpload(method, path string, size int, part string) rawUpload {
	s.t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	u := rawUpload{c, s.t}
	u.send(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", method, path, s.Addr(), size, part))
	return u
}

func (u rawUpload) send(text string) {
	u.t.Helper()
	if _, err := io.WriteString(u, text); err != nil {
		u.t.Fatal(err)
	}
}

// status reads the status of the answer. It is 0 if the connection ended instead.
func (u rawUpload) status() int {
	u.t.Helper()
	u.SetReadDeadline(time.Now().Add(patience))
	resp, err := http.ReadResponse(bufio.NewReader(u), nil)
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			u.t.Fatal("no answer came")
		}
		return 0
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode
}

// TestDrainDelay checks that a server that is stopping serves new connections for some time after
// it has said at /readyz that it is stopping.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	const delay = 5 * time.Second
	s := start(t, setup{yaml: "http: {drain_delay: " + delay.String() + "}"})
	began := time.Now()
	s.cancel()
	poll(t, "the server is not ready", func() bool { return s.do("GET", s.debug+"/readyz", "").status == 503 })
	served, client := 0, http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for ; !refused(s.Addr()); time.Sleep(10 * time.Millisecond) {
		resp, err := client.Get(s.url + "/v2/")
		if err != nil {
			break
		}
		resp.Body.Close()
		served++
	}
	if took := time.Since(began); took < delay || served == 0 {
		t.Errorf("connections were refused after %s and %d requests, not after %s", took, served, delay)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func TestDrain(t *testing.T) {
	s := start(t, setup{})
	const content = "first half, second half"
	u := s.rawUpload("POST", "/v2/a/blobs/uploads/?digest="+digestOf(content), len(content), content[:12])
	s.inFlight(1)
	s.cancel()
	poll(t, "new connections are refused", func() bool { return refused(s.Addr()) })
	a := s.do("GET", s.debug+"/readyz", "")
	if a.status != 503 || !strings.Contains(a.body, "stopping") {
		t.Errorf("readyz while stopping: got %d %q, want 503", a.status, a.body)
	}
	if a := s.do("GET", s.debug+"/livez", ""); a.status != 200 {
		t.Errorf("livez while stopping: got %d, want 200", a.status)
	}
	u.send(content[12:])
	if got := u.status(); got != 201 {
		t.Errorf("upload under way: got status %d, want 201", got)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	again := start(t, setup{root: s.root})
	if got := again.want(200, "GET", "/v2/a/blobs/"+digestOf(content), ""); got.body != content {
		t.Errorf("got %q, want %q", got.body, content)
	}
}

// inFlight waits until n requests are being served.
func (s *instance) inFlight(n int) {
	s.t.Helper()
	want := fmt.Sprintf("registry_http_in_flight_requests %d\n", n)
	poll(s.t, want, func() bool { return strings.Contains(s.do("GET", s.debug+"/metrics", "").body, want) })
}

func TestUploadContinuesAfterRestart(t *testing.T) {
	for _, drain := range []string{"0s", "100ms"} {
		t.Run(drain, func(t *testing.T) {
			o := setup{root: t.TempDir(), yaml: "http: {draintimeout: " + drain + "}"}
			s := start(t, o)
			content := strings.Repeat("0123456789", 1000)
			path := s.want(202, "POST", "/v2/a/blobs/uploads/", "").header.Get("Location")
			s.want(202, "PATCH", path, content[:3000])
			u := s.rawUpload("PATCH", path, 4000, content[3000:5000])
			s.inFlight(1)
			began := time.Now()
			if err := s.stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("stopping took %s although http.draintimeout is %s", took, drain)
			}
			if got := u.status(); got == 202 {
				t.Error("an upload that was cut off was answered 202")
			}
			s = start(t, o)
			var last int
			r := s.want(204, "GET", path, "").header.Get("Range")
			if _, err := fmt.Sscanf(r, "0-%d", &last); err != nil || last < 2999 || last > 4999 {
				t.Fatalf("after the restart Range is %q, want 0-2999 to 0-4999", r)
			}
			s.want(202, "PATCH", path, content[last+1:], header("Content-Range", fmt.Sprintf("%d-%d", last+1, len(content)-1)))
			s.want(201, "PUT", path+"?digest="+digestOf(content), "")
			if got := s.want(200, "GET", "/v2/a/blobs/"+digestOf(content), ""); got.body != content {
				t.Errorf("got %d bytes that are not the content", len(got.body))
			}
		})
	}
}

func TestConnectionLimit(t *testing.T) {
	s := start(t, setup{yaml: "http: {ratelimit: {max_connections: 2}}"})
	var conns []rawUpload
	for range 2 {
		u := s.rawUpload("GET", "/v2/", 0, "")
		if got := u.status(); got != 200 {
			t.Fatalf("got status %d", got)
		}
		conns = append(conns, u) // stays open
	}
	third := s.rawUpload("GET", "/v2/", 0, "")
	third.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := third.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("third connection: got %d bytes and %v, want it to wait", n, err)
	}
	conns[0].Close()
	if got := third.status(); got != 200 {
		t.Errorf("after one was closed: got status %d, want 200", got)
	}
	// All slots are taken. Stopping must not wait for one.
	began := time.Now()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("stopping took %s with all places taken", took)
	}
}
