package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
)

func TestNewRefuses(t *testing.T) {
	const url = "https://registry.example.com"
	for name, o := range map[string]*upstream.Options{
		"nothing":       nil,
		"no name":       {URL: url},
		"no URL":        {Name: "up"},
		"malformed":     {Name: "up", URL: "https://secret\x7f"},
		"scheme":        {Name: "up", URL: "ftp://registry.example.com"},
		"password":      {Name: "up", URL: "https://me:secret@registry.example.com"},
		"query":         {Name: "up", URL: url + "?secret"},
		"prefix":        {Name: "up", URL: url + "/v2/UPPER"},
		"mirror":        {Name: "up", URL: url, Mirrors: []string{"registry.example.org"}},
		"twice":         {Name: "up", URL: url, Mirrors: []string{url + "/"}},
		"rate":          {Name: "up", URL: url, RequestsPerSecond: -1},
		"no host":       {Name: "up", URL: "https://:443"},
		"only a scheme": {Name: "up", URL: "https://"},
	} {
		_, err := upstream.New(o)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestManifest(t *testing.T) {
	s := serve(t, image)
	u := open(t, s.URL, upstream.Options{})
	ctx := t.Context()
	for _, ref := range []string{"v1", string(manifestDigest)} {
		m, etag, unchanged, err := u.Manifest(ctx, "library/app", ref, "")
		if err != nil || unchanged || string(m.Bytes) != manifest || m.Digest != manifestDigest || m.MediaType != oci.MediaTypeOCIManifest {
			t.Fatalf("%s: got %+v, %t, %v", ref, m, unchanged, err)
		}
		if m, _, unchanged, err = u.Manifest(ctx, "library/app", ref, etag); err != nil || !unchanged || m != nil {
			t.Errorf("%s with its ETag: got %+v, %t, %v", ref, m, unchanged, err)
		}
		// The ETag of another server proves nothing.
		if m, _, unchanged, err = u.Manifest(ctx, "library/app", ref, "http://elsewhere "+etag); err != nil || unchanged || m == nil {
			t.Errorf("%s with another's ETag: got %+v, %t, %v", ref, m, unchanged, err)
		}
		desc, err := u.ResolveManifest(ctx, "library/app", ref)
		if diff := cmp.Diff(oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: manifestDigest, Size: int64(len(manifest))}, desc); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", ref, err, diff)
		}
	}
	for _, ref := range []string{"-", "sha256:0", "a/b"} {
		_, _, _, err := u.Manifest(ctx, "library/app", ref, "")
		if err == nil || upstream.KindOf(err) != 0 {
			t.Errorf("reference %q: got %v", ref, err)
		}
	}
	if _, _, _, err := u.Manifest(ctx, "Library", "v1", ""); !oci.HasCode(err, oci.CodeNameInvalid) {
		t.Errorf("got %v", err)
	}
	if n := s.count("HEAD "); n != 2 {
		t.Errorf("got %d HEAD requests, want 2: %q", n, s.requests())
	}
}

// TestAnswers sends invalid answers and checks how they are classified.
func TestAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	answer := func(status int, header, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for line := range strings.SplitSeq(header, "\n") {
				if k, v, ok := strings.Cut(line, ": "); ok {
					w.Header().Set(k, v)
				}
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	const page = "Content-Type: text/html; charset=utf-8"
	for name, tt := range map[string]struct {
		h      http.HandlerFunc
		kind   upstream.Kind
		code   oci.Code
		status int
	}{
		"404":              {answer(404, "", ""), upstream.NotFound, oci.CodeManifestUnknown, 404},
		"404 page":         {answer(404, page, "<html>"), upstream.NotFound, oci.CodeManifestUnknown, 404},
		"404 name":         {answer(404, "", `{"errors":[{"code":"NAME_UNKNOWN"}]}`), upstream.NotFound, oci.CodeManifestUnknown, 404},
		"400 name":         {answer(400, "", `{"errors":[{"code":"NAME_INVALID"}]}`), upstream.NotFound, oci.CodeManifestUnknown, 404},
		"400":              {answer(400, "", ""), upstream.Unavailable, oci.CodeUnavailable, 502},
		"401":              {answer(401, "", ""), upstream.Denied, oci.CodeDenied, 403},
		"403":              {answer(403, "", ""), upstream.Denied, oci.CodeDenied, 403},
		"451":              {answer(451, "", ""), upstream.Denied, oci.CodeDenied, 403},
		"429":              {answer(429, "Retry-After: 7", ""), upstream.Busy, oci.CodeTooManyRequests, 429},
		"429 without time": {answer(429, "", ""), upstream.Busy, oci.CodeTooManyRequests, 429},
		"503 with time":    {answer(503, "Retry-After: 7", ""), upstream.Busy, oci.CodeTooManyRequests, 429},
		"503":              {answer(503, "", ""), upstream.Unavailable, oci.CodeUnavailable, 502},
		"500":              {answer(500, page, "<html>"), upstream.Unavailable, oci.CodeUnavailable, 502},
		"418":              {answer(418, "", ""), upstream.Unavailable, oci.CodeUnavailable, 502},
		"204":              {answer(204, "", ""), upstream.Unavailable, oci.CodeUnavailable, 502},
		"304 unasked":      {answer(304, "", ""), upstream.Unavailable, oci.CodeUnavailable, 502},
		"page":             {answer(200, page, "<html>please log in</html>"), upstream.Unavailable, oci.CodeUnavailable, 502},
		"error with 200":   {answer(200, "Content-Type: application/json", `{"errors":[{"code":"UNKNOWN"}]}`), upstream.Wrong, oci.CodeUnavailable, 502},
		"other manifest":   {answer(200, "Docker-Content-Digest: "+string(blobDigest), manifest), upstream.Wrong, oci.CodeUnavailable, 502},
		"other type":       {answer(200, "Content-Type: "+oci.MediaTypeDockerIndex, manifest), upstream.Wrong, oci.CodeUnavailable, 502},
		"too large":        {answer(200, "Content-Type: x/y", strings.Repeat(" ", oci.MaxManifestSize+1)), upstream.Wrong, oci.CodeUnavailable, 502},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tt.h)
			u := open(t, s.URL, upstream.Options{})
			_, _, _, err := u.Manifest(t.Context(), "library/app", "v1", "")
			want(t, err, tt.kind, tt.code, tt.status)
			if n := len(s.requests()); name == "too large" && n != 1 {
				t.Errorf("got %d requests for what is as large each time", n)
			}
			var e *upstream.Error
			if !errors.As(err, &e) || (tt.kind == upstream.Busy) != (e.RetryAfter > 0) {
				t.Errorf("got %+v", e)
			}
			if _, err = u.ResolveManifest(t.Context(), "library/app", "v1"); err == nil {
				t.Error("a HEAD got no error")
			} else if k := upstream.KindOf(err); k != tt.kind && tt.kind != upstream.Wrong && name != "400 name" { // a HEAD has no code
				t.Errorf("a HEAD got kind %v, want %v: %v", k, tt.kind, err)
			}
		})
	}
	t.Run("wrong digest", func(t *testing.T) {
		u := open(t, serve(t, image).URL, upstream.Options{})
		_, _, _, err := u.Manifest(t.Context(), "library/app", string(blobDigest), "")
		want(t, err, upstream.Wrong, oci.CodeUnavailable, 502)
	})
}

func TestBlob(t *testing.T) {
	u := open(t, serve(t, image).URL, upstream.Options{})
	for _, off := range []int64{0, 1, int64(len(blobBytes)) - 1} {
		b, err := u.Blob(t.Context(), "library/app", blobDigest, off)
		ok(t, err)
		if b.Off != off {
			t.Errorf("got offset %d, want %d", b.Off, off)
		}
		ok(t, b.Close())
		ok(t, b.Close())
		ok(t, getBlob(u, off))
	}
	err := getBlob(u, int64(len(blobBytes)))
	want(t, err, upstream.Wrong, oci.CodeRangeInvalid, 416)
	if _, err := u.Blob(t.Context(), "library/app", blobDigest, -1); !oci.HasCode(err, oci.CodeRangeInvalid) {
		t.Errorf("got %v", err)
	}
	if _, err := u.Blob(t.Context(), "library/app", "sha256:x", 0); !oci.HasCode(err, oci.CodeDigestInvalid) {
		t.Errorf("got %v", err)
	}
	_, err = u.Blob(t.Context(), "library/app", manifestDigest, 0)
	want(t, err, upstream.NotFound, oci.CodeBlobUnknown, 404)
	desc, err := u.ResolveBlob(t.Context(), "library/app", blobDigest)
	if err != nil || desc.Size != int64(len(blobBytes)) {
		t.Errorf("got %+v, %v", desc, err)
	}
	_, err = u.ResolveBlob(t.Context(), "library/app", manifestDigest)
	want(t, err, upstream.NotFound, oci.CodeBlobUnknown, 404)
	if st := u.Status(); st.Active != 0 || st.Bytes == 0 || st.Requests == 0 || !st.Endpoints[0].Healthy {
		t.Errorf("got %+v", st)
	}
}

// TestBlobAnswers answers requests for a blob from byte 5 on.
func TestBlobAnswers(t *testing.T) {
	part := func(rng, body string, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", rng)
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, body)
		}
	}
	whole := func(headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			_, _ = io.WriteString(w, blobBytes)
		}
	}
	for name, tt := range map[string]struct {
		h    http.HandlerFunc
		kind upstream.Kind // 0: the answer is accepted
		off  int64
		size int64
	}{
		"part":               {part("bytes 5-19/20", blobBytes[5:]), 0, 5, 20},
		"part of unknown":    {part("bytes 5-19/*", blobBytes[5:]), 0, 5, -1},
		"ranges ignored":     {whole(), 0, 0, 20},
		"a page pushed":      {whole("Content-Type", "text/html", "Docker-Content-Digest", string(blobDigest)), 0, 0, 20},
		"other part":         {part("bytes 4-19/20", blobBytes[4:]), upstream.Wrong, 0, 0},
		"shorter part":       {part("bytes 5-18/20", blobBytes[5:19]), upstream.Wrong, 0, 0},
		"wrong length":       {part("bytes 5-19/20", blobBytes[5:18]), upstream.Wrong, 0, 0},
		"no range":           {part("", blobBytes[5:]), upstream.Wrong, 0, 0},
		"malformed range":    {part("bytes 19-5/20", blobBytes[5:]), upstream.Wrong, 0, 0},
		"said to be gzip":    {whole("Content-Encoding", "gzip"), 0, 0, 20},
		"another blob":       {whole("Docker-Content-Digest", string(manifestDigest)), upstream.Wrong, 0, 0},
		"page":               {whole("Content-Type", "text/html"), upstream.Unavailable, 0, 0},
		"page of a range":    {part("bytes 5-19/20", blobBytes[5:], "Content-Type", "text/html"), upstream.Unavailable, 0, 0},
		"sha512 beside ours": {whole("Docker-Content-Digest", "sha512:"+strings.Repeat("0", 128)), 0, 0, 20},
	} {
		t.Run(name, func(t *testing.T) {
			u := open(t, serve(t, tt.h).URL, upstream.Options{})
			b, err := u.Blob(t.Context(), "library/app", blobDigest, 5)
			if tt.kind != 0 {
				if upstream.KindOf(err) != tt.kind {
					t.Fatalf("got %v, want %v", err, tt.kind)
				}
				return
			}
			ok(t, err)
			defer b.Close()
			if got, err := io.ReadAll(b); err != nil || string(got) != blobBytes[tt.off:] || b.Off != tt.off || b.Size != tt.size {
				t.Errorf("got %q from %d of %d, %v", got, b.Off, b.Size, err)
			}
		})
	}
}

func TestLists(t *testing.T) {
	sig := oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: blobDigest, Size: 7, ArtifactType: "application/vnd.example"}
	index := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":7,"artifactType":%q}]}`,
		oci.MediaTypeOCIIndex, sig.MediaType, sig.Digest, sig.ArtifactType)
	for _, api := range []bool{true, false} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/v2/pre/fix/library/app/tags/list":
				_, _ = io.WriteString(w, `{"name":"x","tags":["a","b","c"]}`)
			case "/v2/pre/fix/library/app/referrers/" + string(manifestDigest):
				if !api { // some registries answer with their web interface
					w.Header().Set("Content-Type", "text/html")
				} else {
					w.Header().Set("Content-Type", oci.MediaTypeOCIIndex)
				}
				_, _ = io.WriteString(w, index)
			case "/v2/pre/fix/library/app/manifests/" + oci.ReferrersTag(manifestDigest):
				w.Header().Set("Content-Type", oci.MediaTypeOCIIndex)
				_, _ = io.WriteString(w, index)
			default:
				http.NotFound(w, r)
			}
		})
		u := open(t, s.URL+"/v2/pre/fix/", upstream.Options{})
		tags, more, err := u.Tags(t.Context(), "library/app", "a", 1)
		if err != nil || !more || len(tags) != 1 || tags[0] != "b" {
			t.Errorf("got %q, %t, %v", tags, more, err)
		}
		_, _, err = u.Tags(t.Context(), "library/none", "", 1)
		want(t, err, upstream.NotFound, oci.CodeNameUnknown, 404)
		list, err := u.Referrers(t.Context(), "library/app", manifestDigest)
		if diff := cmp.Diff([]oci.Descriptor{sig}, list); err != nil || diff != "" {
			t.Errorf("API %t: %v (-want +got):\n%s", api, err, diff)
		}
		if list, err := u.Referrers(t.Context(), "library/app", blobDigest); err != nil || len(list) != 0 {
			t.Errorf("API %t: got %v, %v", api, list, err)
		}
	}
	u := open(t, serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{") }).URL, upstream.Options{})
	_, _, err := u.Tags(t.Context(), "library/app", "", 1)
	unavailable(t, err, "tags of library/app")
}

func TestURLs(t *testing.T) {
	s := serve(t, image)
	for _, tt := range []struct{ url, path string }{
		{s.URL, "/v2/library/app/manifests/v1"},
		{s.URL + "/", "/v2/library/app/manifests/v1"},
		{s.URL + "/v2/", "/v2/library/app/manifests/v1"},
		{s.URL + "/base", "/base/v2/library/app/manifests/v1"},
		{s.URL + "/base/v2/docker.io", "/base/v2/docker.io/library/app/manifests/v1"},
	} {
		u := open(t, tt.url, upstream.Options{})
		ok(t, getManifest(u, "v1"))
		list := s.requests()
		if got := list[len(list)-1]; got != "GET "+tt.path {
			t.Errorf("%s: got %s, want %s", tt.url, got, tt.path)
		}
		if _, err := u.ResolveManifest(t.Context(), "library/app", "v1"); err != nil {
			t.Error(err)
		}
	}
}

func TestLimitIsShown(t *testing.T) {
	clk := newClock()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("RateLimit-Limit", "100;w=21600")
		w.Header().Set("RateLimit-Remaining", "76;w=21600")
		image(w, r)
	})
	u := open(t, s.URL, upstream.Options{Clock: clk.Now})
	reg := prometheus.NewRegistry()
	other, err := upstream.New(&upstream.Options{Name: "other", URL: s.URL, Mirrors: []string{s.URL + "/mirror"}})
	ok(t, err)
	for _, c := range append(u.Collectors(), other.Collectors()...) {
		ok(t, reg.Register(c))
	}
	ok(t, getManifest(u, "v1"))
	ok(t, getBlob(u, 0))
	w := upstream.Limit{Known: true, Total: 100, Remaining: 76, Window: 6 * time.Hour, Seen: clk.Now()}
	if diff := cmp.Diff(w, u.Status().Limit); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got := map[string]float64{}
	families, err := reg.Gather()
	ok(t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			got[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for key, want := range map[string]float64{
		"slipway_upstream_limit up":                          100,
		"slipway_upstream_limit_remaining up":                76,
		"slipway_upstream_limit_remaining other":             -1,
		"slipway_upstream_received_bytes_total up":           float64(len(manifest) + len(blobBytes)),
		"slipway_upstream_requests_total ok up":              2,
		"slipway_upstream_requests_total wrong up":           0,
		"slipway_upstream_request_seconds up":                2,
		"slipway_upstream_active_requests up":                0,
		"slipway_upstream_token_requests_total ok up":        0,
		"slipway_upstream_endpoint_healthy " + s.URL + " up": 1,
		"slipway_upstream_backoff_seconds " + s.URL + " up":  0,
	} {
		if value, ok := got[key]; !ok || value != want {
			t.Errorf("%s: got %v (there: %t), want %v", key, value, ok, want)
		}
	}
}

func TestTurns(t *testing.T) {
	s := serve(t, image)
	u := open(t, s.URL, upstream.Options{Concurrent: 1})
	first, err := u.Blob(t.Context(), "library/app", blobDigest, 0)
	ok(t, err)
	second := make(chan error)
	go func() { second <- getBlob(u, 0) }()
	ok(t, getManifest(u, "v1")) // small requests do not wait
	select {
	case err := <-second:
		t.Fatalf("two blobs at once: %v", err)
	default:
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := u.Blob(ctx, "library/app", blobDigest, 0); !errors.Is(err, context.DeadlineExceeded) || upstream.KindOf(err) != 0 {
		t.Errorf("waiting for a turn: got %v", err)
	}
	ok(t, first.Close())
	ok(t, <-second)

	// One request may go now, and the next in a thousand seconds.
	u = open(t, s.URL, upstream.Options{RequestsPerSecond: .001})
	ok(t, getManifest(u, "v1"))
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, _, err = u.Manifest(ctx, "library/app", "v1", "")
	want(t, err, upstream.Busy, oci.CodeTooManyRequests, 429)
	if n := s.count("GET /v2/library/app/manifests/"); n != 2 {
		t.Errorf("got %d requests for manifests, want 2", n)
	}
}

func TestProxy(t *testing.T) {
	var proxied []string
	proxy := serve(t, func(w http.ResponseWriter, r *http.Request) {
		proxied = append(proxied, r.URL.String())
		switch r.URL.Path {
		case "/v2/library/app/manifests/away":
			http.Redirect(w, r, "http://169.254.169.254/v2/x/manifests/v1", http.StatusFound)
		case "/v2/library/app/manifests/local":
			http.Redirect(w, r, "http://localhost:1/v2/x/manifests/v1", http.StatusFound)
		case "/v2/library/app/manifests/number":
			http.Redirect(w, r, "http://2130706433/v2/x/manifests/v1", http.StatusFound)
		default:
			image(w, r)
		}
	})
	through := func(*http.Request) (*url.URL, error) { return url.Parse(proxy.URL) }
	u := open(t, "http://registry.invalid", upstream.Options{Proxy: through})
	ok(t, getManifest(u, "v1"))
	for _, ref := range []string{"away", "local", "number"} {
		unavailable(t, getManifest(u, ref), "address is refused")
	}
	if diff := cmp.Diff("http://registry.invalid/v2/library/app/manifests/v1", proxied[0]); diff != "" || len(proxied) != 4 {
		t.Errorf("got %q", proxied)
	}
	broken := open(t, "http://registry.invalid", upstream.Options{Proxy: func(*http.Request) (*url.URL, error) { return nil, errors.New("no proxy today") }})
	unavailable(t, getManifest(broken, "v1"), "no proxy today")
}

// TestCallerLeaves has callers that no longer want an answer. That counts as nobody's failure.
func TestCallerLeaves(t *testing.T) {
	stay := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			w.Header().Set("Content-Length", strconv.Itoa(len(blobBytes)))
			_, _ = io.WriteString(w, blobBytes[:5])
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-stay:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(stay) })
	u := open(t, s.URL, upstream.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		until(t, "a request", func() bool { return s.count("GET ") > 0 })
		cancel()
	}()
	if _, _, _, err := u.Manifest(ctx, "library/app", "v1", ""); !errors.Is(err, context.Canceled) || upstream.KindOf(err) != 0 {
		t.Errorf("got %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	b, err := u.Blob(ctx, "library/app", blobDigest, 0)
	ok(t, err)
	cancel()
	if _, err = io.ReadAll(b); !errors.Is(err, context.Canceled) || upstream.KindOf(err) != 0 {
		t.Errorf("got %v", err)
	}
	ok(t, b.Close())
	if st := u.Status(); st.Failures != 0 || st.Active != 0 || !st.Endpoints[0].Healthy {
		t.Errorf("got %+v", st)
	}
}
