package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry/server"
	"example.org/slipway/serve"
)

// talk sends the requests whose records the access log tests examine. It returns the sizes of the
// layer and the manifest.
func talk(s *instance) (layer, manifest int) {
	content := strings.Repeat("x", 1234)
	m := imageOf(content)
	s.pushBlob("a", content)
	s.want(201, "PUT", "/v2/a/manifests/v1", m, isManifest, header("User-Agent", "quoted \" agent"))
	s.want(200, "GET", "/v2/a/blobs/"+digestOf(content), "", header("X-Request-Id", "id-1"))
	s.want(200, "HEAD", "/v2/a/blobs/"+digestOf(content), "")
	s.want(206, "GET", "/v2/a/blobs/"+digestOf(content), "", header("Range", "bytes=10-19"))
	s.want(404, "GET", "/v2/a/manifests/none?x=y", "")
	return len(content), len(m)
}

func TestAccessLogCombined(t *testing.T) {
	out := filepath.Join(t.TempDir(), "stdout")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := start(t, setup{yaml: "log: {accesslog: {format: clf}}", opts: serve.Options{Stdout: f}})
	layer, _ := talk(s)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(readFile(t, out)), "\n")
	form := regexp.MustCompile(`^127\.0\.0\.1 - - \[[^]]+\] "([A-Z]+) (\S+) HTTP/1\.1" (\d+) (\d+) "-" "(.*)"$`)
	var got []string
	for _, l := range lines {
		m := form.FindStringSubmatch(l)
		if m == nil {
			t.Fatalf("not a line of Combined Log Format: %s", l)
		}
		got = append(got, m[1]+" "+m[3]+" "+m[4])
	}
	// The bytes are those of the answer's body, even if the request had a body.
	notFound := len(s404(t))
	want := []string{"POST 201 0", "PUT 201 0", fmt.Sprint("GET 200 ", layer), "HEAD 200 0", "GET 206 10", fmt.Sprint("GET 404 ", notFound)}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if !strings.Contains(lines[1], `"quoted \" agent"`) || !strings.Contains(lines[5], "/manifests/none?x=y ") {
		t.Errorf("agent or query is not as it should be:\n%s", strings.Join(lines, "\n"))
	}
	if fi, err := os.Stat(out); err != nil || fi.Size() == 0 {
		t.Errorf("standard output: %v", err)
	}
	if _, err := f.WriteString("still open\n"); err != nil {
		t.Errorf("the server closed standard output: %v", err)
	}
}

// s404 returns the body of the 404 answer that talk gets.
func s404(t testing.TB) string {
	s := start(t, setup{})
	s.pushImage("a", "v1", "layer")
	return s.do("GET", "/v2/a/manifests/none?x=y", "").body
}

func TestAccessLogTrace(t *testing.T) {
	out := filepath.Join(t.TempDir(), "trace")
	s := start(t, setup{yaml: "log: {accesslog: {format: trace, file: " + out + "}}"})
	layer, manifest := talk(s)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	var got []string
	text := readFile(t, out)
	for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
		var rec map[string]any
		if err := json.Unmarshal([]byte(l), &rec); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		fields := 10
		if m := rec["http.request.method"]; m == "POST" || m == "PUT" { // the digest of the content
			fields++
			if !strings.HasPrefix(fmt.Sprint(rec["digest"]), "sha256:") {
				t.Errorf("no digest: %s", l)
			}
		}
		if len(rec) != fields || rec["id"] == "" || rec["http.request.duration"].(float64) <= 0 {
			t.Errorf("not a record of ten fields: %s", l)
		}
		got = append(got, fmt.Sprintf("%v %v %v", rec["http.request.method"], rec["http.response.status"], rec["http.response.written"]))
	}
	// The bytes are those of the content, in either direction.
	want := []string{fmt.Sprint("POST 201 ", layer), fmt.Sprint("PUT 201 ", manifest), fmt.Sprint("GET 200 ", layer), "HEAD 200 0", "GET 206 10", fmt.Sprint("GET 404 ", len(s404(t)))}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if !strings.Contains(text, `"id":"id-1"`) || !strings.Contains(text, `"http.request.uri":"v2/a/manifests/none"`) {
		t.Errorf("id or URI is not as it should be:\n%s", text)
	}
	if fi, err := os.Stat(out); err != nil || fi.Mode().Perm()&0o007 != 0 {
		t.Errorf("the access log is open to everybody: %v %v", fi.Mode(), err)
	}
}

// broken is a registry that panics.
type broken struct {
	oci.Registry
	value any
}

func (b broken) ResolveManifest(context.Context, string, string) (oci.Descriptor, error) {
	panic(b.value)
}

func TestPanic(t *testing.T) {
	for _, c := range []struct {
		name    string
		value   any
		logged  bool
		aborted bool
	}{
		{"value", "the matter is broken", true, false},
		{"error", os.ErrInvalid, true, false},
		{"abort", http.ErrAbortHandler, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log, inner logtest.Buffer
			srv := server.New(broken{value: c.value}, &server.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			h := httptest.NewUnstartedServer(srv)
			h.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(&inner, nil), slog.LevelError)
			h.Start()
			defer h.Close()
			client := h.Client()
			resp, err := client.Head(h.URL + "/v2/a/manifests/v1")
			if c.aborted {
				if err == nil {
					t.Errorf("got %s, want the connection to be cut", resp.Status)
				}
			} else if err != nil || resp.StatusCode != 500 {
				t.Errorf("got %v %v, want status 500", resp, err)
			}
			if err == nil {
				resp.Body.Close()
			}
			text := log.String()
			if logged := strings.Contains(text, "level=ERROR") && strings.Contains(text, fmt.Sprint(c.value)) && strings.Contains(text, "ResolveManifest"); logged != c.logged {
				t.Errorf("logged: got %v, want %v:\n%s", logged, c.logged, text)
			}
			if inner.String() != "" {
				t.Errorf("net/http complained: %s", inner.String())
			}
			resp, err = client.Get(h.URL + "/v2/")
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("the next request: got %v %v", resp, err)
			}
			resp.Body.Close()
		})
	}
}

// brokenBody is a registry whose blobs panic halfway.
type brokenBody struct{ oci.Registry }

func (brokenBody) GetBlob(_ context.Context, _ string, d oci.Digest) (oci.Content, error) {
	return brokenContent{d: d}, nil
}

type brokenContent struct {
	io.ReadCloser
	d oci.Digest
}

func (c brokenContent) Descriptor() oci.Descriptor { return oci.Descriptor{Digest: c.d, Size: 10} }
func (brokenContent) Close() error                 { return nil }
func (brokenContent) WriteTo(w io.Writer) (int64, error) {
	io.WriteString(w, "half")
	panic("half way")
}

// TestPanicInBody wants an answer that has begun to be cut off, so that no client takes it for
// complete.
func TestPanicInBody(t *testing.T) {
	var log logtest.Buffer
	srv := server.New(brokenBody{}, &server.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	h := httptest.NewServer(srv)
	defer h.Close()
	resp, err := h.Client().Get(h.URL + "/v2/a/blobs/" + digestOf("x"))
	if err == nil {
		defer resp.Body.Close()
		var b bytes.Buffer
		if _, err = b.ReadFrom(resp.Body); err == nil {
			t.Errorf("got %s with a whole body %q", resp.Status, b.String())
		}
	}
	if !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("the panic is not logged:\n%s", log.String())
	}
}
