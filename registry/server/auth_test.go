package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/server"
	"example.org/slipway/registry/storage"
)

// newAuth makes these rules: anybody may pull from public/, alice may do everything below alice/
// and pull from shared, and bob may only pull from shared.
func newAuth(t *testing.T, cfg auth.Config) *auth.Auth {
	t.Helper()
	var lines strings.Builder
	for _, user := range []string{"alice", "bob"} {
		hash, err := bcrypt.GenerateFromPassword([]byte(user+"'s password"), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, "%s:%s\n", user, hash)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "htpasswd")
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.HTPasswd = &auth.HTPasswdConfig{Realm: "test", Path: path}
	cfg.Access = []auth.Rule{
		{Repositories: []string{"public/**"}, Subjects: []string{"anonymous"}, Actions: []string{"pull"}},
		{Repositories: []string{"alice/**"}, Subjects: []string{"alice"}, Actions: []string{"*"}},
		{Repositories: []string{"shared"}, Subjects: []string{"alice", "bob"}, Actions: []string{"pull"}},
		{Subjects: []string{"alice", "bob"}, Actions: []string{"catalog"}},
	}
	a, err := auth.New(cfg, &auth.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// newAuthBed is a registry with the rules of newAuth.
func newAuthBed(t *testing.T, cfg auth.Config) *bed {
	t.Helper()
	a := newAuth(t, cfg)
	o := server.Options{Auth: a}
	if h := a.TokenHandler(); h != nil {
		o.Token, o.TokenPath = h, "/token"
	}
	return newBed(t, setup{server: o, registry: registry.Options{}})
}

func basic(user string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+user+"'s password"))
}

func TestAccess(t *testing.T) {
	off := false
	b := newAuthBed(t, auth.Config{Token: &auth.TokenConfig{Builtin: &off}})
	data := []byte("0123456789")
	d := string(b.push("public/a", data))
	b.push("alice/app", data)
	b.push("shared", data)
	b.push("secret", []byte("secret"))
	secret := string(oci.SHA256([]byte("secret")))
	challenge := map[string]string{"Www-Authenticate": `Basic realm="test"`}

	b.run(t, []exchange{
		{name: "anonymous pull", method: "GET", target: "/v2/public/a/blobs/" + d, status: 200},
		{name: "anonymous pull elsewhere", method: "GET", target: "/v2/alice/app/blobs/" + d, status: 401, code: oci.CodeUnauthorized, want: challenge},
		{name: "anonymous pull of what is not there", method: "GET", target: "/v2/none/blobs/" + d, status: 401, code: oci.CodeUnauthorized, want: challenge},
		{name: "anonymous push", method: "POST", target: "/v2/public/a/blobs/uploads/", headers: []string{"Content-Length: 0"}, status: 401, code: oci.CodeUnauthorized, want: challenge},
		{name: "anonymous push with a body", method: "POST", target: "/v2/public/a/blobs/uploads/?digest=" + d, body: "0123456789", status: 401, code: oci.CodeUnauthorized},
		{name: "anonymous delete", method: "DELETE", target: "/v2/public/a/blobs/" + d, status: 401, code: oci.CodeUnauthorized},
		{name: "anonymous catalogue", method: "GET", target: "/v2/_catalog", status: 401, code: oci.CodeUnauthorized},
		{name: "bad password", method: "GET", target: "/v2/public/a/blobs/" + d, headers: []string{"Authorization: Basic YWxpY2U6eA=="}, status: 401, code: oci.CodeUnauthorized, want: challenge},
		{name: "garbage", method: "GET", target: "/v2/public/a/blobs/" + d, headers: []string{"Authorization: Basic %%%"}, status: 401, code: oci.CodeUnauthorized},
		{name: "ping", method: "GET", target: "/v2/", headers: []string{basic("alice")}, status: 200},

		{name: "pull", method: "GET", target: "/v2/shared/blobs/" + d, headers: []string{basic("bob")}, status: 200},
		{name: "push where one may pull", method: "POST", target: "/v2/shared/blobs/uploads/", headers: []string{basic("bob"), "Content-Length: 0"}, status: 403, code: oci.CodeDenied, want: map[string]string{"Www-Authenticate": ""}},
		{name: "pull elsewhere", method: "GET", target: "/v2/alice/app/blobs/" + d, headers: []string{basic("bob")}, status: 403, code: oci.CodeDenied},
		{name: "delete elsewhere", method: "DELETE", target: "/v2/alice/app/manifests/x", headers: []string{basic("bob")}, status: 403, code: oci.CodeDenied},
		{name: "status of an upload elsewhere", method: "GET", target: "/v2/alice/app/blobs/uploads/x", headers: []string{basic("bob")}, status: 403, code: oci.CodeDenied},
		{name: "push", method: "POST", target: "/v2/alice/app/blobs/uploads/?digest=" + d, body: "0123456789", headers: []string{basic("alice")}, status: 201},
		{name: "anonymous again, on the same connection", method: "GET", target: "/v2/alice/app/blobs/" + d, status: 401, code: oci.CodeUnauthorized},

		// Malformed requests stay malformed, whoever sends them.
		{name: "malformed name", method: "GET", target: "/v2/alice//app/blobs/" + d, headers: []string{basic("alice")}, status: 400, code: oci.CodeNameInvalid},
		{name: "encoded slash", method: "GET", target: "/v2/alice%2fapp/blobs/" + d, headers: []string{basic("alice")}, status: 400, code: oci.CodeNameInvalid},
		{name: "dots", method: "PUT", target: "/v2/alice/../secret/manifests/x", body: "{}", headers: []string{basic("alice")}, status: 400, code: oci.CodeNameInvalid},
		{name: "malformed digest", method: "GET", target: "/v2/alice/app/blobs/sha256:abc", headers: []string{basic("alice")}, status: 400, code: oci.CodeDigestInvalid},
		{name: "malformed referrers", method: "GET", target: "/v2/alice/app/referrers/x", headers: []string{basic("alice")}, status: 400, code: oci.CodeDigestInvalid},
		{name: "no endpoint", method: "GET", target: "/v2/alice/app", headers: []string{basic("alice")}, status: 404, code: oci.CodeNameUnknown},
		{name: "malformed name, anonymous", method: "POST", target: "/v2/public//a/blobs/uploads/", headers: []string{"Content-Length: 0"}, status: 400, code: oci.CodeNameInvalid},

		{name: "mount from where one may pull", method: "POST", target: "/v2/alice/new/blobs/uploads/?mount=" + d + "&from=shared", headers: []string{basic("alice"), "Content-Length: 0"}, status: 201},
		{name: "mount from where one may not", method: "POST", target: "/v2/alice/new/blobs/uploads/?mount=" + secret + "&from=secret", headers: []string{basic("alice"), "Content-Length: 0"}, status: 202,
			want: map[string]string{"Docker-Content-Digest": ""}},
		{name: "it is not there", method: "HEAD", target: "/v2/alice/new/blobs/" + secret, headers: []string{basic("alice")}, status: 404, code: oci.CodeBlobUnknown},
		{name: "mount to where one may not push", method: "POST", target: "/v2/shared/blobs/uploads/?mount=" + d + "&from=alice/app", headers: []string{basic("alice"), "Content-Length: 0"}, status: 403, code: oci.CodeDenied},
	})
}

// TestCatalogAccess checks that the catalogue shows what a client may pull. Its pages are full
// although most names are not shown.
func TestCatalogAccess(t *testing.T) {
	off := false
	b := newAuthBed(t, auth.Config{Token: &auth.TokenConfig{Builtin: &off}})
	for i := range 300 {
		b.pushImage(fmt.Sprintf("hidden/r%03d", i), 1)
	}
	want := []string{"alice/a", "alice/z", "public/a", "public/b", "shared"}
	for _, name := range want {
		b.pushImage(name, 1)
	}
	for user, want := range map[string][]string{"alice": want, "bob": want[2:]} {
		for _, n := range []int{1, 2, 100} {
			var got []string
			pages := 0
			for target := fmt.Sprintf("/v2/_catalog?n=%d", n); target != "" && pages < 10; pages++ {
				a := b.ask("GET", target, nil, basic(user))
				var page struct{ Repositories []string }
				if err := json.Unmarshal(a.Body, &page); err != nil || a.Status != 200 {
					t.Fatalf("%s: %d %s", target, a.Status, a.Body)
				}
				if target, _, _ = strings.Cut(strings.TrimPrefix(a.Header.Get("Link"), "<"), ">"); target != "" && len(page.Repositories) != n {
					t.Errorf("%s, n=%d: a page of %d has a next one", user, n, len(page.Repositories))
				}
				got = append(got, page.Repositories...)
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("%s, n=%d: got %q, want %q", user, n, got, want)
			}
		}
	}
}

// TestCatalogWork checks that one request examines a bounded number of names, whoever asks, and
// that its position marker names no repository.
func TestCatalogWork(t *testing.T) {
	off := false
	a := newAuth(t, auth.Config{Token: &auth.TokenConfig{Builtin: &off}})
	reg := &manyRepositories{names: []string{"alice/a"}}
	for i := range 100_000 {
		reg.names = append(reg.names, fmt.Sprintf("hidden/%06d", i))
	}
	reg.names = append(reg.names, "public/a", "shared")
	h := server.New(reg, &server.Options{Auth: a})
	var got []string
	target, pages := "/v2/_catalog?n=50", 0
	for ; target != ""; pages++ {
		before := reg.listed
		r := httptest.NewRequest("GET", target, nil)
		r.SetBasicAuth("alice", "alice's password")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var page struct{ Repositories []string }
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || w.Code != 200 || page.Repositories == nil {
			t.Fatalf("%s: %d %s", target, w.Code, w.Body)
		}
		if work := reg.listed - before; work > 10_200 {
			t.Errorf("%s looked at %d names", target, work)
		}
		if strings.Contains(w.Header().Get("Link"), "hidden") {
			t.Errorf("the link tells of a hidden repository: %s", w.Header().Get("Link"))
		}
		got = append(got, page.Repositories...)
		target, _, _ = strings.Cut(strings.TrimPrefix(w.Header().Get("Link"), "<"), ">")
	}
	if strings.Join(got, " ") != "alice/a public/a shared" || pages < 9 {
		t.Errorf("got %q in %d pages", got, pages)
	}
	for _, last := range []string{"~place.", "~place.xyz", "~place." + strings.Repeat("A", 60), "~place.%"} {
		r := httptest.NewRequest("GET", "/v2/_catalog?last="+url.QueryEscape(last), nil)
		r.SetBasicAuth("alice", "alice's password")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != 400 {
			t.Errorf("last=%s: got %d, want 400", last, w.Code)
		}
	}
}

// manyRepositories only lists sorted names and counts them.
type manyRepositories struct {
	oci.Registry
	names  []string
	listed int
}

func (m *manyRepositories) Repositories(_ context.Context, last string, n int) (names []string, more bool, err error) {
	rest := m.names[sort.Search(len(m.names), func(i int) bool { return m.names[i] > last }):]
	n = min(n, len(rest))
	m.listed += n
	return rest[:n], n < len(rest), nil
}

// TestTokenFlow does what docker does: it is refused, fetches a token and comes back.
func TestTokenFlow(t *testing.T) {
	on := true
	b := newAuthBed(t, auth.Config{Token: &auth.TokenConfig{Builtin: &on}})
	d := string(b.push("alice/app", []byte("0123456789")))
	a := b.ask("GET", "/v2/alice/app/blobs/"+d, nil)
	a.wantError(t, "without a token", 401, oci.CodeUnauthorized)
	m := regexp.MustCompile(`^Bearer realm="http://registry\.test/token",service="slipway",scope="repository:alice/app:pull"`).FindString(a.Header.Get("Www-Authenticate"))
	if m == "" {
		t.Fatalf("got challenge %q", a.Header.Get("Www-Authenticate"))
	}
	token := func(user, scope string) string {
		t.Helper()
		a := b.ask("GET", "/token?service=slipway&scope="+scope, nil, basic(user))
		var got struct{ Token string }
		if err := json.Unmarshal(a.Body, &got); err != nil || a.Status != 200 || got.Token == "" {
			t.Fatalf("token: %d %s", a.Status, a.Body)
		}
		return "Authorization: Bearer " + got.Token
	}
	alice, bob := token("alice", "repository:alice/app:pull"), token("bob", "repository:alice/app:pull,push")
	b.run(t, []exchange{
		{name: "with a token", method: "GET", target: "/v2/alice/app/blobs/" + d, headers: []string{alice}, status: 200},
		{name: "beyond its scope", method: "POST", target: "/v2/alice/app/blobs/uploads/", headers: []string{alice, "Content-Length: 0"}, status: 401, code: oci.CodeUnauthorized},
		{name: "in another repository", method: "GET", target: "/v2/alice/other/blobs/" + d, headers: []string{alice}, status: 401, code: oci.CodeUnauthorized},
		{name: "malformed, with a token", method: "GET", target: "/v2/alice/app/blobs/x", headers: []string{alice}, status: 400, code: oci.CodeDigestInvalid},
		{name: "with the token of somebody else", method: "GET", target: "/v2/alice/app/blobs/" + d, headers: []string{bob}, status: 403, code: oci.CodeDenied},
		{name: "with a broken token", method: "GET", target: "/v2/alice/app/blobs/" + d, headers: []string{alice[:len(alice)-3] + "xxx"}, status: 401, code: oci.CodeUnauthorized},
		{name: "token with a bad password", method: "GET", target: "/token?service=slipway", headers: []string{"Authorization: Basic YWxpY2U6eA=="}, status: 401},
	})
}

func TestRateLimits(t *testing.T) {
	b := newBed(t, setup{server: server.Options{RequestsPerSecond: 0.01, Burst: 3, IdleTimeout: idle}})
	c := b.dial()
	for i := range 3 {
		c.ask("GET", "/v2/", nil).want(t, fmt.Sprintf("request %d", i), 200, nil)
	}
	got := c.ask("GET", "/v2/", nil)
	got.wantError(t, "the fourth", 429, oci.CodeTooManyRequests)
	got.want(t, "the fourth", 429, map[string]string{"Retry-After": "1"})

	b = newBed(t, setup{server: server.Options{MaxUploadsPerClient: 2}, registry: registry.Options{MaxUploads: 9, MaxUploadsPerClient: 3}})
	locs := []string{b.startUpload("a"), b.startUpload("a"), b.startUpload("a")}
	more := b.ask("POST", "/v2/a/blobs/uploads/", []byte{})
	more.wantError(t, "more open uploads than one client may have", 429, oci.CodeTooManyRequests)
	more.want(t, "more open uploads than one client may have", 429, map[string]string{"Retry-After": "1"})
	var hanging []*conn
	for _, loc := range locs[:2] {
		c := b.dial()
		c.send("PATCH %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n0123456789", loc)
		hanging = append(hanging, c)
	}
	waitFor(t, "two uploads are being sent", func() bool { return b.gauge("registry_http_in_flight_requests") == 2 })
	b.ask("PATCH", locs[2], []byte("x")).wantError(t, "a third at once", 429, oci.CodeTooManyRequests)
	b.ask("GET", "/v2/", nil).want(t, "reading is free", 200, nil)
	hanging[0].Close()
	waitFor(t, "the place of one that ended is free", func() bool { return b.ask("PATCH", locs[2], []byte("x")).Status == 202 })
}

// TestHeadOfLostLayer checks which clients get an answer that a manifest with a lost layer does
// not exist: those that may push it again. A node's token may only pull, and that decides, not
// what its user may do.
func TestHeadOfLostLayer(t *testing.T) {
	layer := bytes.Repeat([]byte("layer"), 10_000)
	lose := func(o server.Options, repos ...string) *bed {
		store := memstore.New(nil)
		b := newBed(t, setup{server: o, store: store})
		for _, repo := range repos {
			d := b.push(repo, layer)
			m := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"x/y","digest":%q,"size":%d},"layers":[]}`,
				oci.MediaTypeOCIManifest, d, len(layer))
			if _, err := b.reg.PutManifest(t.Context(), repo, oci.PutManifest{Bytes: m, Tags: []string{"v1"}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := store.Delete(t.Context(), storage.BlobKey(oci.SHA256(layer))); err != nil {
			t.Fatal(err)
		}
		return b
	}
	open := lose(server.Options{}, "app")
	open.run(t, []exchange{
		{name: "open to everybody", method: "HEAD", target: "/v2/app/manifests/v1", status: 404, code: oci.CodeManifestUnknown},
		{name: "open to everybody", method: "GET", target: "/v2/app/manifests/v1", status: 200},
	})
	a := newAuth(t, auth.Config{})
	b := lose(server.Options{Auth: a, Token: a.TokenHandler(), TokenPath: "/token"}, "alice/app", "shared", "public/app")
	token := func(scope string) string {
		var answer struct{ Token string }
		if err := json.Unmarshal(b.ask("GET", "/token?service=slipway&scope="+scope, nil, basic("alice")).Body, &answer); err != nil || answer.Token == "" {
			t.Fatalf("no token for %s: %v", scope, err)
		}
		return "Authorization: Bearer " + answer.Token
	}
	b.run(t, []exchange{
		{name: "who may push", method: "HEAD", target: "/v2/alice/app/manifests/v1", headers: []string{basic("alice")}, status: 404, code: oci.CodeManifestUnknown},
		{name: "who may push", method: "GET", target: "/v2/alice/app/manifests/v1", headers: []string{basic("alice")}, status: 200},
		{name: "token to push", method: "HEAD", target: "/v2/alice/app/manifests/v1", headers: []string{token("repository:alice/app:pull,push")}, status: 404, code: oci.CodeManifestUnknown},
		{name: "token to pull", method: "HEAD", target: "/v2/alice/app/manifests/v1", headers: []string{token("repository:alice/app:pull")}, status: 200},
		{name: "who may pull", method: "HEAD", target: "/v2/shared/manifests/v1", headers: []string{basic("bob")}, status: 200},
		{name: "anonymous", method: "HEAD", target: "/v2/public/app/manifests/v1", status: 200},
	})
}
