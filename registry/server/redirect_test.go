package server_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server"
)

// sendOff redirects clients for blobs of one repository and records the requests to it.
type sendOff struct {
	repo  string
	err   error
	asked []server.Redirect
}

func (s *sendOff) Redirect(_ context.Context, r server.Redirect) (string, error) {
	s.asked = append(s.asked, r)
	if r.Repo != s.repo {
		return "", nil
	}
	return "https://store.example.com/" + r.Blob.Digest.Encoded() + "?signature=x", s.err
}

func TestRedirect(t *testing.T) {
	off := &sendOff{repo: "away"}
	b := newBed(t, setup{server: server.Options{Redirect: off, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}})
	const content = "0123456789"
	d := string(b.push("away", []byte(content)))
	b.push("here", []byte(content))
	there := "https://store.example.com/" + strings.TrimPrefix(d, "sha256:") + "?signature=x"
	sent := map[string]string{"Location": there, "Docker-Content-Digest": d, "Cache-Control": "no-store", "Content-Length": "0"}
	b.run(t, []exchange{
		{name: "sent away", method: "GET", target: "/v2/away/blobs/" + d, headers: []string{"X-Forwarded-For: 203.0.113.7"}, status: 307, want: sent},
		{name: "a part", method: "GET", target: "/v2/away/blobs/" + d, headers: []string{"Range: bytes=2-4"}, status: 307, want: sent},
		{name: "a part that is not there", method: "GET", target: "/v2/away/blobs/" + d, headers: []string{"Range: bytes=20-"}, status: 416, code: "RANGE_INVALID"},
		{name: "known already", method: "GET", target: "/v2/away/blobs/" + d, headers: []string{`If-None-Match: "` + d + `"`}, status: 304},
		{name: "HEAD", method: "HEAD", target: "/v2/away/blobs/" + d, status: 200, want: map[string]string{"Content-Length": "10"}},
		{name: "kept", method: "GET", target: "/v2/here/blobs/" + d, status: 200, wantBody: content},
		{name: "a part that is kept", method: "GET", target: "/v2/here/blobs/" + d, headers: []string{"Range: bytes=2-4"}, status: 206, wantBody: "234"},
		{name: "not there", method: "GET", target: "/v2/none/blobs/" + d, status: 404, code: "BLOB_UNKNOWN"},
		{name: "manifests stay", method: "GET", target: "/v2/away/manifests/none", status: 404, code: "MANIFEST_UNKNOWN"},
	})
	off.err = errors.New("no key")
	b.run(t, []exchange{{name: "no address", method: "GET", target: "/v2/away/blobs/" + d, status: 200, wantBody: content}})
	if !strings.Contains(b.log.String(), "no address to send a client to") {
		t.Error("the log does not say that there was no address")
	}
	if got, want := off.asked[0].Client, "203.0.113.7"; got != want {
		t.Errorf("asked for a client at %s, want %s", got, want)
	}
	if got := off.asked[0].Blob; string(got.Digest) != d || got.Size != int64(len(content)) {
		t.Errorf("asked about %+v", got)
	}
	if off.asked[0].Part || !off.asked[1].Part || off.asked[1].Offset != 2 {
		t.Errorf("asked about %+v, then about %+v; want the whole, then a part from 2 on", off.asked[0], off.asked[1])
	}
	counts := map[string]float64{"bytes": b.families()["slipway_server_redirected_bytes_total"].GetMetric()[0].GetCounter().GetValue()}
	for _, m := range b.families()["slipway_server_redirects_total"].GetMetric() {
		counts[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	if d := cmp.Diff(map[string]float64{"sent": 2, "kept": 2, "failed": 1, "bytes": 20}, counts); d != "" {
		t.Errorf("metrics (-want +got):\n%s", d)
	}
}

// TestRedirectComesAfterAccess checks that a client that may not have a blob is not redirected to
// it.
func TestRedirectComesAfterAccess(t *testing.T) {
	off := &sendOff{repo: "alice/app"}
	b := newBed(t, setup{server: server.Options{Auth: newAuth(t, auth.Config{}), Redirect: off}})
	d := b.push("alice/app", []byte("secret"))
	b.run(t, []exchange{
		{name: "nobody", method: "GET", target: "/v2/alice/app/blobs/" + string(d), status: 401, code: "UNAUTHORIZED"},
	})
	if len(off.asked) != 0 {
		t.Errorf("asked about %v", off.asked)
	}
}
