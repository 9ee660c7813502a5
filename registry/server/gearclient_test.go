package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server"
)

func gearClient(t *testing.T, url string, o client.Options) *client.Client {
	t.Helper()
	if o.RetryWait = time.Millisecond; o.Retries == 0 {
		o.Retries = 3
	}
	c, err := client.New(url, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func readContent(t *testing.T, r io.ReadCloser, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("after %d bytes: %v", len(b), err)
	}
	return string(b)
}

func wantCode(t *testing.T, what string, err error, code oci.Code) {
	t.Helper()
	if !oci.HasCode(err, code) {
		t.Errorf("%s: got error %v, want %s", what, err, code)
	}
}

// TestGearClient tests package client against this server, with tokens.
func TestGearClient(t *testing.T) {
	on := true
	a := newAuth(t, auth.Config{Token: &auth.TokenConfig{Builtin: &on}})
	b, _ := newGearBed(t, server.Options{Auth: a, Token: a.TokenHandler(), TokenPath: "/token"})
	const repo = "alice/app"
	alice := gearClient(t, b.http.URL, client.Options{Username: "alice", Password: "alice's password"})
	ctx := t.Context()

	info, err := alice.GearInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := &client.GearInfo{Version: 1, Index: []string{client.MediaTypeGearIndex}, Stream: []string{client.MediaTypeGearStream}, Chunks: []string{client.MediaTypeGearChunks},
		Limits: client.GearLimits{Names: 100_000, ProfileNames: 20_000, FileBytes: 64 << 30, UploadBytes: 1 << 30}}
	if diff := cmp.Diff(want, info); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}

	one, two := random(1, 2<<20), []byte("two")
	n1, n2, absent := name(sha256.Sum256(one)), name(sha256.Sum256(two)), name{1}
	if err := alice.GearPutFile(ctx, repo, n1, int64(len(one)), bytes.NewReader(one)); err != nil {
		t.Error(err)
	}
	wantCode(t, "put another content", alice.GearPutFile(ctx, repo, n2, -1, strings.NewReader("too")), oci.CodeDigestInvalid)
	missing, err := alice.GearQuery(ctx, repo, []name{n1, absent, n2})
	if err != nil || !slices.Equal(missing, []name{absent, n2}) {
		t.Errorf("query: got %x, %v", missing, err)
	}
	stream := appendFrame(appendFrame(nil, n2, two), name(sha256.Sum256(nil)), nil)
	for _, size := range []int64{int64(len(stream)), -1} {
		// A reader that cannot seek is sent once.
		if n, err := alice.GearPutFiles(ctx, repo, size, iotest.OneByteReader(bytes.NewReader(stream))); n != 2 || err != nil {
			t.Errorf("put files of size %d: got %d, %v", size, n, err)
		}
	}
	_, err = alice.GearPutFiles(ctx, repo, 50, bytes.NewReader(stream[:50]))
	wantCode(t, "put a broken stream", err, oci.CodeSizeInvalid)

	f, err := alice.GearFile(ctx, repo, n1, 0, -1)
	if got := readContent(t, f, err); got != string(one) {
		t.Error("file: got another content")
	}
	f, err = alice.GearFile(ctx, repo, n1, 1<<20, 5)
	if got := readContent(t, f, err); got != string(one[1<<20:1<<20+5]) || f.Descriptor().Size != 2<<20 {
		t.Errorf("range: got %x of %d bytes", got, f.Descriptor().Size)
	}
	f, err = alice.GearFile(ctx, repo, name(sha256.Sum256(nil)), 0, -1)
	if got := readContent(t, f, err); got != "" {
		t.Errorf("empty file: got %x", got)
	}
	_, err = alice.GearFile(ctx, repo, n2, 3, 1)
	wantCode(t, "range behind the end", err, oci.CodeRangeInvalid)
	_, err = alice.GearFile(ctx, repo, absent, 0, -1)
	wantCode(t, "absent", err, oci.CodeBlobUnknown)

	s, err := alice.GearFetch(ctx, repo, []name{n2, n1, n2})
	if got := readContent(t, s, err); got != string(appendFrame(appendFrame(appendFrame(nil, n2, two), n1, one), n2, two)) {
		t.Errorf("fetch: got another stream, of %d bytes", len(got))
	}
	_, err = alice.GearFetch(ctx, repo, []name{absent})
	wantCode(t, "fetch what is absent", err, oci.CodeBlobUnknown)
	_, err = alice.GearFetch(ctx, repo, make([]name, 100_001))
	wantCode(t, "fetch too many", err, oci.CodeSizeInvalid)
	_, err = alice.GearQuery(ctx, repo, make([]name, 1_000_000))
	wantCode(t, "query a million", err, oci.CodeSizeInvalid)

	manifest := oci.SHA256([]byte("m"))
	_, err = alice.GearProfile(ctx, repo, manifest)
	wantCode(t, "no profile", err, oci.CodeManifestUnknown)
	if err := alice.GearReportProfile(ctx, repo, manifest, []name{n2, n1}, true); err != nil {
		t.Error(err)
	}
	if p, err := alice.GearProfile(ctx, repo, manifest); err != nil || !slices.Equal(p.Names, []name{n2, n1}) || p.Origins != "" || p.Donor != "" {
		t.Errorf("profile: got %+v, %v", p, err)
	}
	other := oci.SHA256([]byte("another manifest"))
	if err := alice.GearReportProfile(ctx, "alice/inferred", other, []name{n2}, true); err != nil {
		t.Error(err)
	}
	if p, err := alice.GearProfile(ctx, "alice/inferred", other); err != nil || !slices.Equal(p.Names, []name{n2}) || p.Origins != "s" || p.Donor != oci.SHA256([]byte("donor")) {
		t.Errorf("inferred profile: got %+v, %v", p, err)
	}
	wantCode(t, "report too many", alice.GearReportProfile(ctx, repo, manifest, make([]name, 20_001), true), oci.CodeSizeInvalid)

	bob := gearClient(t, b.http.URL, client.Options{Username: "bob", Password: "bob's password"})
	_, err = bob.GearFile(ctx, repo, n1, 0, -1)
	wantCode(t, "bob", err, oci.CodeDenied)
	_, err = bob.GearFile(ctx, "shared", n1, 0, -1)
	wantCode(t, "bob, of alice's", err, oci.CodeBlobUnknown)
	_, err = bob.GearQuery(ctx, "shared", []name{n1})
	wantCode(t, "bob's query", err, oci.CodeDenied)
	_, err = gearClient(t, b.http.URL, client.Options{}).GearFetch(ctx, repo, []name{n1})
	wantCode(t, "anonymous", err, oci.CodeUnauthorized)
}

func TestGearClientLayers(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	c := gearClient(t, b.http.URL, client.Options{})
	ctx := t.Context()
	layer, soon, failed := oci.SHA256([]byte("layer")), oci.SHA256([]byte("soon")), oci.SHA256([]byte("failed"))
	index := random(1, 100_000)
	want := m.addLayer("alice/app", layer, index)
	got, l, err := c.GearLayer(ctx, "alice/app", layer)
	if s := readContent(t, got, err); s != string(index) || l.Name != want || l.DiffID != reversed(want) {
		t.Errorf("got %d bytes, name %x", len(s), l.Name)
	}
	if d := got.Descriptor(); d.MediaType != client.MediaTypeGearIndex || d.Size != 100_000 || string(d.Digest) != digestOf(want) {
		t.Errorf("got %+v", d)
	}
	_, _, err = c.GearLayer(ctx, "bob/app", layer)
	wantCode(t, "elsewhere", err, oci.CodeBlobUnknown)
	var p *client.GearPendingError
	if errors.As(err, &p) {
		t.Errorf("elsewhere: got %v", err)
	}
	m.pending[soon] = &server.GearPendingError{RetryAfter: 1500 * time.Millisecond}
	m.pending[failed] = &server.GearPendingError{Reason: "no tar"}
	_, _, err = c.GearLayer(ctx, "alice/app", soon)
	wantCode(t, "soon", err, oci.CodeBlobUnknown)
	if !errors.As(err, &p) || p.RetryAfter != 2*time.Second {
		t.Errorf("soon: got %#v", err)
	}
	_, _, err = c.GearLayer(ctx, "alice/app", failed)
	if !errors.As(err, &p) || p.RetryAfter != 0 || p.Reason != "no tar" || !strings.Contains(err.Error(), "no tar") {
		t.Errorf("failed: got %v", err)
	}
	m.mu.Lock()
	m.files["alice/app"][want] = []byte("another content")
	m.mu.Unlock()
	got, _, err = c.GearLayer(ctx, "alice/app", layer)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	_, err = io.ReadAll(got)
	wantCode(t, "another content", err, oci.CodeDigestInvalid)
}

// breaker cuts off the bodies of answers.
type breaker struct {
	next  http.RoundTripper
	after int64
	times atomic.Int32
}

func (b *breaker) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil && resp.StatusCode/100 == 2 && b.times.Add(-1) >= 0 {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(resp.Body, b.after), iotest.ErrReader(errors.New("connection reset"))), resp.Body}
	}
	return resp, err
}

// TestGearClientResumes checks that files and indexes continue where a connection broke. A stream
// does not, and returns an error.
func TestGearClientResumes(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	br := &breaker{next: transport, after: 40_000}
	c := gearClient(t, b.http.URL, client.Options{Transport: br})
	data := random(1, 100_000)
	layer := oci.SHA256([]byte("layer"))
	n := m.addLayer("alice/app", layer, data)
	br.times.Store(2)
	f, err := c.GearFile(t.Context(), "alice/app", n, 0, -1)
	if got := readContent(t, f, err); got != string(data) {
		t.Error("file: got another content")
	}
	br.times.Store(2)
	f, _, err = c.GearLayer(t.Context(), "alice/app", layer)
	if got := readContent(t, f, err); got != string(data) {
		t.Error("layer: got another content")
	}
	br.times.Store(1)
	s, err := c.GearFetch(t.Context(), "alice/app", []name{n})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, err := io.ReadAll(s); err == nil || len(got) != 40_000 {
		t.Errorf("stream: got %d bytes, %v", len(got), err)
	}
	m.breakAt = 200_000
	s, err = c.GearFetch(t.Context(), "alice/app", []name{n, n, n})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, err := io.ReadAll(s); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a stream that the server broke off: got %d bytes, %v", len(got), err)
	}
}

// TestGearClientStall checks that a stalled stream is given up.
func TestGearClientStall(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	m.hold = make(chan struct{})
	n := m.add("alice/app", []byte("x"))
	c := gearClient(t, b.http.URL, client.Options{StallTimeout: idle})
	s, err := c.GearFetch(t.Context(), "alice/app", []name{n})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, err := io.ReadAll(s); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

func TestGearClientElsewhere(t *testing.T) {
	b := newBed(t, setup{})
	c := gearClient(t, b.http.URL, client.Options{})
	_, err := c.GearInfo(t.Context())
	wantCode(t, "info", err, oci.CodeUnsupported)
	_, _, err = c.GearLayer(t.Context(), "a", oci.SHA256(nil))
	wantCode(t, "layer", err, oci.CodeUnsupported)
	var p *client.GearPendingError
	if errors.As(err, &p) {
		t.Errorf("layer: got %v", err)
	}
	_, err = c.GearFile(t.Context(), "No", name{}, 0, -1)
	wantCode(t, "repository", err, oci.CodeNameInvalid)
	_, _, err = c.GearLayer(t.Context(), "a", "sha256:x")
	wantCode(t, "layer's digest", err, oci.CodeDigestInvalid)
	_, err = c.GearQuery(t.Context(), "../a", nil)
	wantCode(t, "query", err, oci.CodeNameInvalid)
	wantCode(t, "put", c.GearPutFile(t.Context(), "a//b", name{}, 0, nil), oci.CodeNameInvalid)
	wantCode(t, "report", c.GearReportProfile(t.Context(), "a", "latest", nil, true), oci.CodeDigestInvalid)
}
