package wire_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/workload/load/wire"
)

// hostOf returns the host of a URL.
func hostOf(t testing.TB, raw string) wire.Host {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	h, err := wire.HostOf(u)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// get sends a request and returns the answer with its body.
func get(t testing.TB, c *wire.Client, h wire.Host, method, target string) (wire.Answer, string) {
	t.Helper()
	var body strings.Builder
	a, err := c.Do(&wire.Request{Host: h, Method: method, Target: []byte(target), Header: []byte("X-Test: yes\r\n")},
		func(p []byte) error { body.Write(p); return nil })
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return a, body.String()
}

// site answers in every way that a server may.
func site(t testing.TB) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/plain", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Test") != "yes" || r.Header.Get("User-Agent") != "test" {
			t.Errorf("headers are %v", r.Header)
		}
		w.Header().Set("Docker-Content-Digest", "sha256:abc")
		fmt.Fprint(w, "hello")
	})
	mux.HandleFunc("/chunked", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 100 {
			fmt.Fprintf(w, "piece %d;", i)
			w.(http.Flusher).Flush()
		}
		w.Header().Set(http.TrailerPrefix+"X-After", "yes")
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(3<<20))
		_, _ = w.Write(bytes.Repeat([]byte("0123456789abcdef"), 3<<16))
	})
	mux.HandleFunc("/close", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		fmt.Fprint(w, "bye")
	})
	mux.HandleFunc("/empty", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/plain")
		w.Header().Set("WWW-Authenticate", "Basic")
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		fmt.Fprint(w, "hinted")
	})
	return mux
}

func TestAnswers(t *testing.T) {
	srv := httptest.NewServer(site(t))
	defer srv.Close()
	c := wire.New(t.Context(), &wire.Options{UserAgent: "test"})
	defer c.Close()
	h := hostOf(t, srv.URL)
	var pieces strings.Builder
	for i := range 100 {
		fmt.Fprintf(&pieces, "piece %d;", i)
	}
	for round := range 2 { // the second round uses the same connection
		for _, test := range []struct {
			method, target string
			want           wire.Answer
			body           string
		}{
			{"GET", "/plain", wire.Answer{Status: 200, Size: 5, Digest: "sha256:abc"}, "hello"},
			{"HEAD", "/plain", wire.Answer{Status: 200, Size: 5, Digest: "sha256:abc"}, ""},
			{"GET", "/chunked", wire.Answer{Status: 200, Size: int64(pieces.Len())}, pieces.String()},
			{"GET", "/large", wire.Answer{Status: 200, Size: 3 << 20}, strings.Repeat("0123456789abcdef", 3<<16)},
			{"GET", "/close", wire.Answer{Status: 200, Size: 3}, "bye"},
			{"GET", "/empty", wire.Answer{Status: 204}, ""},
			{"GET", "/away", wire.Answer{Status: 307, Location: "/plain", Challenge: "Basic"}, ""},
			{"GET", "/hints", wire.Answer{Status: 200, Size: 6}, "hinted"},
			{"GET", "/none", wire.Answer{Status: 404, Size: 19}, "404 page not found\n"},
		} {
			a, body := get(t, c, h, test.method, test.target)
			if a != test.want || body != test.body {
				t.Errorf("round %d: %s %s: got %+v with %d bytes, want %+v with %d", round, test.method, test.target, a, len(body), test.want, len(test.body))
			}
		}
	}
}

// TestKeepsConnections counts the connections.
func TestKeepsConnections(t *testing.T) {
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(site(t))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	c := wire.New(t.Context(), &wire.Options{UserAgent: "test"})
	defer c.Close()
	h := hostOf(t, srv.URL)
	for range 50 {
		get(t, c, h, "GET", "/plain")
		get(t, c, h, "GET", "/chunked")
	}
	if got := opened.Load(); got != 1 {
		t.Errorf("%d connections were opened, want 1", got)
	}
	srv.CloseClientConnections()
	if _, body := get(t, c, h, "GET", "/plain"); body != "hello" { // over a new connection, without an error
		t.Errorf("got %q after the server had closed the connection", body)
	}
	if got := opened.Load(); got != 2 {
		t.Errorf("%d connections were opened, want 2", got)
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(site(t))
	defer srv.Close()
	h := hostOf(t, srv.URL)
	stranger := wire.New(t.Context(), nil)
	defer stranger.Close()
	if _, err := stranger.Do(&wire.Request{Host: h, Method: "GET", Target: []byte("/plain")}, nil); err == nil {
		t.Error("a certificate that nobody vouches for was accepted")
	}
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	c := wire.New(t.Context(), &wire.Options{UserAgent: "test", TLS: &tls.Config{RootCAs: pool}})
	defer c.Close()
	if _, body := get(t, c, h, "GET", "/plain"); body != "hello" {
		t.Errorf("got %q", body)
	}
}

// answering runs a server that answers each connection with the same bytes and then
// closes it.
func answering(t testing.TB, raw string) wire.Host {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			k, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(k))
			_, _ = io.WriteString(k, raw)
			_ = k.Close()
		}
	}()
	return wire.Host{Name: l.Addr().String()}
}

func TestMalformed(t *testing.T) {
	for name, raw := range map[string]string{
		"nothing":           "",
		"no HTTP":           "SSH-2.0-OpenSSH\r\n\r\n",
		"HTTP/2":            "HTTP/2.0 200 OK\r\n\r\n",
		"no status":         "HTTP/1.1 OK 200\r\n\r\n",
		"half a head":       "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
		"half a body":       "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal",
		"negative length":   "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
		"two lengths":       "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nhello",
		"two encodings":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"a chunk too long":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
		"no size of chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nhello\r\n0\r\n\r\n",
		"half a chunk":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
		"no last chunk":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"another protocol":  "HTTP/1.1 101 Switching Protocols\r\n\r\n",
		"a header without":  "HTTP/1.1 200 OK\r\nnothing here\r\n\r\n",
		"an endless line":   "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 100<<10) + "\r\n\r\n",
		"an endless head":   "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: x\r\n", 1<<18) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := wire.New(t.Context(), &wire.Options{Timeout: time.Minute})
			defer c.Close()
			a, err := c.Do(&wire.Request{Host: answering(t, raw), Method: "GET", Target: []byte("/")}, nil)
			if err == nil {
				t.Errorf("got %+v and no error", a)
			}
		})
	}
}

func TestEnds(t *testing.T) {
	stuck := make(chan struct{})
	defer close(stuck)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	r := &wire.Request{Host: hostOf(t, srv.URL), Method: "GET", Target: []byte("/")}
	t.Run("timeout", func(t *testing.T) {
		c := wire.New(t.Context(), &wire.Options{Timeout: 50 * time.Millisecond})
		defer c.Close()
		if _, err := c.Do(r, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a timeout", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := wire.New(ctx, nil)
		defer c.Close()
		time.AfterFunc(50*time.Millisecond, cancel)
		if _, err := c.Do(r, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's error", err)
		}
		if _, err := c.Do(r, nil); err == nil {
			t.Error("a request after the end of the context succeeded")
		}
	})
	t.Run("the reader", func(t *testing.T) {
		fine := httptest.NewServer(site(t))
		defer fine.Close()
		c := wire.New(t.Context(), &wire.Options{UserAgent: "test"})
		defer c.Close()
		enough := errors.New("enough")
		h := hostOf(t, fine.URL)
		a, err := c.Do(&wire.Request{Host: h, Method: "GET", Target: []byte("/large")}, func([]byte) error { return enough })
		if !errors.Is(err, enough) || a.Status != 200 {
			t.Errorf("got %+v and %v, want the reader's error", a, err)
		}
		if _, body := get(t, c, h, "GET", "/plain"); body != "hello" { // not the rest of the other answer
			t.Errorf("got %q afterwards", body)
		}
	})
}

func TestClean(t *testing.T) {
	for target, want := range map[string]bool{"/v2/": true, "/v2/a/manifests/b?ns=c:5": true, "": false, "v2/": false, "/a b": false, "/a\r\nX: y": false, "/\x7f": false} {
		if got := wire.Clean([]byte(target)); got != want {
			t.Errorf("Clean(%q) is %v, want %v", target, got, want)
		}
	}
}

// FuzzAnswer compares the client with net/http. If both accept an answer, they must
// understand it in the same way.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), false)
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n"), false)
	f.Add([]byte("HTTP/1.0 404 Not Found\r\nLocation: /x\r\n\r\nuntil the end"), false)
	f.Add([]byte("HTTP/1.1 103 Early\r\nX: y\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"), false)
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), true)
	f.Fuzz(func(t *testing.T, raw []byte, head bool) {
		method := "GET"
		if head {
			method = "HEAD"
		}
		var body bytes.Buffer
		a, err := wire.ReadAnswer(bufio.NewReaderSize(bytes.NewReader(raw), 4096), method, func(p []byte) error { body.Write(p); return nil })
		if err != nil {
			return
		}
		r := bufio.NewReader(bytes.NewReader(raw))
		var want *http.Response
		for {
			if want, err = http.ReadResponse(r, &http.Request{Method: method}); err != nil || want.StatusCode >= 200 {
				break
			}
		}
		if err != nil {
			return // net/http is stricter where it does not matter here
		}
		b, err := io.ReadAll(want.Body)
		if err != nil {
			return
		}
		if a.Status != want.StatusCode || !bytes.Equal(b, body.Bytes()) || a.Location != want.Header.Get("Location") {
			t.Errorf("got %+v with %q, net/http says %d with %q", a, &body, want.StatusCode, b)
		}
	})
}
