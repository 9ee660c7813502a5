package serve_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

func policyNames() []string { return policy.Names() }

// TestRedirectIsFollowed checks that a client which is sent to the store gets the blob there, and
// that its credentials are not sent along.
func TestRedirectIsFollowed(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	s3 := backendtest.S3(t)
	swift := func(t *testing.T) string {
		s := backendtest.Swift(t)
		return fmt.Sprintf("storage:\n  swift: {authurl: %q, username: %q, password: %q, container: redirect}\n", s.AuthURL, s.User, s.Key)
	}
	for _, tc := range []struct {
		name string
		yaml func(*testing.T) string
	}{
		{"s3", func(t *testing.T) string { return s3Yaml(t, s3, s3.Endpoint, "") }},
		{"swift", swift},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "access.log")
			s := start(t, setup{yaml: tc.yaml(t) + "  redirect: {mode: always}\nlog: {accesslog: {file: " + log + "}}\n"})
			small, layer := layerOf(50<<10), layerOf(200<<10)
			s.pushImage("a", "small", small)
			s.pushImage("a", "v1", layer)
			d := digestOf(layer)

			resp := noFollow(t, s, "/v2/a/blobs/"+d)
			if resp.StatusCode != http.StatusTemporaryRedirect || resp.Header.Get("Docker-Content-Digest") != d ||
				resp.Header.Get("Cache-Control") != "no-store" || strings.HasPrefix(resp.Header.Get("Location"), s.url) {
				t.Fatalf("got %s %v", resp.Status, resp.Header)
			}
			if got := noFollow(t, s, "/v2/a/blobs/"+digestOf(small)).StatusCode; got != 200 {
				t.Errorf("a small blob: status %d, want 200", got)
			}
			got := s.want(200, "GET", "/v2/a/blobs/"+d, "") // follows
			if got.body != layer {
				t.Errorf("the address gave %d bytes that are not the layer's", len(got.body))
			}
			if got := s.want(206, "GET", "/v2/a/blobs/"+d, "", header("Range", "bytes=1000-1999")); got.body != layer[1000:2000] {
				t.Errorf("a range gave %d bytes that are not the layer's", len(got.body))
			}
			if got := s.want(200, "HEAD", "/v2/a/blobs/"+d, "").header.Get("Content-Length"); got != fmt.Sprint(len(layer)) {
				t.Errorf("HEAD: length %s", got)
			}
			s.want(404, "GET", "/v2/b/blobs/"+d, "") // a blob of another repository
			wantPulled(t, s.url, d, layer)
			if page := s.want(200, "GET", s.debug+"/metrics", "").body; !strings.Contains(page, `slipway_server_redirects_total{outcome="sent"} 4`) {
				t.Error("the metrics do not count four redirects")
			}
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(log)
			if err != nil || strings.Count(string(b), "\" 307 0 ") != 4 {
				t.Errorf("the access log lacks four redirects: %v\n%s", err, b)
			}
		})
	}
}

// noFollow sends a request and follows no redirect.
func noFollow(t *testing.T, s *instance, path string) *http.Response {
	t.Helper()
	c := *s.client
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := c.Get(s.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp
}

// wantPulled pulls a blob of repository a with the project's client.
func wantPulled(t *testing.T, url, d, layer string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c, err := client.New(url, &client.Options{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	content, err := c.GetBlob(t.Context(), "a", oci.Digest(d))
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if b, err := io.ReadAll(content); err != nil || string(b) != layer {
		t.Errorf("our client got %d bytes, %v", len(b), err)
	}
}

// TestRedirectUncached checks that the server itself sends what its cache holds.
func TestRedirectUncached(t *testing.T) {
	t.Parallel()
	s3 := backendtest.S3(t)
	s := start(t, setup{yaml: s3Yaml(t, s3, s3.Endpoint, withRAM+"  prefetch: {mode: off}\n  redirect: {mode: uncached, min_size: 100KiB}\n")})
	held, other, small := layerOf(200<<10), layerOf(200<<10), layerOf(80<<10)
	for _, l := range []string{held, other, small} {
		s.pushBlob("a", l)
	}
	s.want(200, "GET", "/v2/a/blobs/"+digestOf(held), "")
	a, _ := openAdmin(t, s.cfg)
	drop(t, a, digestOf(other))
	for content, want := range map[string]int{held: 200, other: 307, small: 200} {
		if got := noFollow(t, s, "/v2/a/blobs/"+digestOf(content)).StatusCode; got != want {
			t.Errorf("%d bytes: status %d, want %d", len(content), got, want)
		}
	}
}
