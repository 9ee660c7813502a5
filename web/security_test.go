package web_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"example.org/slipway/registry/auth"
	"example.org/slipway/web"
)

// users returns an Auth with root, and with alice, who may only read.
func users(t *testing.T) *auth.Auth {
	t.Helper()
	path := filepath.Join(t.TempDir(), "htpasswd")
	var lines string
	for _, u := range []string{"alice", "root"} {
		hash, err := bcrypt.GenerateFromPassword([]byte("secret of "+u), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		lines += u + ":" + string(hash) + "\n"
	}
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := auth.New(auth.Config{HTPasswd: &auth.HTPasswdConfig{Path: path}, Access: []auth.Rule{
		{Repositories: []string{"**"}, Subjects: []string{"alice"}, Actions: []string{"pull"}},
		{Repositories: []string{"**"}, Subjects: []string{"root"}, Actions: []string{"*", "admin"}}}}, &auth.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// site is a handler behind a real server, with a browser's client.
type site struct {
	*httptest.Server
	client *http.Client
}

func newSite(t *testing.T, o *web.Options) *site {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	h, err := web.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{Server: httptest.NewServer(h)}
	t.Cleanup(s.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.client = &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s
}

func (s *site) do(t *testing.T, r *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func (s *site) get(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest("GET", s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.do(t, r)
}

// post sends a form as a browser does from the page itself, with additional headers.
func (s *site) post(t *testing.T, path string, form url.Values, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest("POST", s.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	return s.do(t, r)
}

func withUsers(t *testing.T) *site {
	a := users(t)
	return newSite(t, &web.Options{Access: a, Logins: a})
}

// events collects the events of an audit log.
type events []auth.Event

func (e *events) Record(ev auth.Event) { *e = append(*e, ev) }

// TestAudit checks that logins and refusals are in the audit log.
func TestAudit(t *testing.T) {
	a, log := users(t), &events{}
	s := newSite(t, &web.Options{Access: a, Logins: a, Audit: log})
	s.post(t, "/ui/login", url.Values{"user": {"alice"}, "password": {"secret of alice"}})
	if resp, _ := s.get(t, "/ui/settings"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("alice gets %d", resp.StatusCode)
	}
	if l := *log; len(l) != 2 || l[0].Event != "login" || l[0].Outcome != "success" || l[1].Event != "denied" || l[1].Subject != "alice" || l[1].Reference != "/ui/settings" {
		t.Errorf("the log has %+v", l)
	}
}

func TestLogin(t *testing.T) {
	s := withUsers(t)
	if resp, _ := s.get(t, "/ui/settings"); resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/ui/login?next=%2Fui%2Fsettings" {
		t.Fatalf("a stranger gets %d, to %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	resp, body := s.post(t, "/ui/login", url.Values{"user": {`<b>"alice`}, "password": {"wrong"}})
	if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(body, `&lt;b&gt;&#34;alice`) || strings.Contains(body, "<b>") {
		t.Fatalf("a wrong password is answered %d %s", resp.StatusCode, body)
	}
	resp, _ = s.post(t, "/ui/login", url.Values{"user": {"alice"}, "password": {"secret of alice"}, "next": {"/ui/repo/a"}})
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/ui/repo/a" {
		t.Fatalf("a login is answered %d, to %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	cookie := resp.Header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Lax", "Path=/ui/", "Expires="} {
		if !strings.Contains(cookie, want) {
			t.Errorf("the session's cookie lacks %s: %s", want, cookie)
		}
	}
	if _, body := s.get(t, "/ui/"); !strings.Contains(body, "alice") || !strings.Contains(body, "Log out") {
		t.Errorf("the page does not know who is logged in: %s", body)
	}
	if resp, _ := s.get(t, "/ui/settings"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("somebody who may only read gets %d", resp.StatusCode)
	}
	if resp, _ := s.post(t, "/ui/logout", nil); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("the logout is answered %d", resp.StatusCode)
	}
	old := strings.TrimPrefix(strings.SplitN(cookie, ";", 2)[0], "slipway_session=")
	r, _ := http.NewRequest("GET", s.URL+"/ui/", nil)
	r.AddCookie(&http.Cookie{Name: "slipway_session", Value: old})
	if _, body := s.do(t, r); strings.Contains(body, "alice") {
		t.Error("a session goes on after the logout")
	}
}

// TestSecureCookie checks that the cookie is sent over TLS only, if the server uses TLS,
// and not to the rest of the server.
func TestSecureCookie(t *testing.T) {
	a := users(t)
	s := newSite(t, &web.Options{Access: a, Logins: a, Host: "https://registry.example.com", Prefix: "/reg", Session: time.Hour})
	resp, _ := s.post(t, "/reg/ui/login", url.Values{"user": {"root"}, "password": {"secret of root"}})
	if c := resp.Header.Get("Set-Cookie"); !strings.Contains(c, "Secure") || !strings.Contains(c, "Path=/reg/ui/") {
		t.Errorf("the cookie is %s", c)
	}
	if l := resp.Header.Get("Location"); l != "/reg/ui/" {
		t.Errorf("the login leads to %s", l)
	}
}

// TestOpenRedirect checks that a login never redirects to another site.
func TestOpenRedirect(t *testing.T) {
	s := withUsers(t)
	for _, next := range []string{"https://evil.example/ui/", "//evil.example/ui/", "/\\evil.example", "/ui/\\..", "javascript:alert(1)",
		"http:/ui/", "/ui\n/", "/v2/", "", "/ui", "https:///ui/", "/ui/../../x\r\nSet-Cookie: a=b"} {
		resp, _ := s.post(t, "/ui/login", url.Values{"user": {"alice"}, "password": {"secret of alice"}, "next": {next}})
		if l := resp.Header.Get("Location"); resp.StatusCode != http.StatusSeeOther || l != "/ui/" || len(resp.Header.Values("Set-Cookie")) != 1 {
			t.Errorf("%q leads to %d %q", next, resp.StatusCode, l)
		}
	}
}

// TestForgery checks that forms of other sites change nothing. The same holds for a site
// that has pointed its own name at this address.
func TestForgery(t *testing.T) {
	s := withUsers(t)
	form := url.Values{"user": {"root"}, "password": {"secret of root"}}
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
		{"Sec-Fetch-Site", "", "Origin", "https://evil.example"}, {"Sec-Fetch-Site", "", "Origin", "null"}} {
		for _, path := range []string{"/ui/login", "/ui/logout"} {
			if resp, _ := s.post(t, path, form, headers...); resp.StatusCode != http.StatusForbidden || resp.Header.Get("Set-Cookie") != "" {
				t.Errorf("%s with %q is answered %d", path, headers, resp.StatusCode)
			}
		}
	}
	open := newSite(t, &web.Options{})
	for host, want := range map[string]int{"evil.example": http.StatusForbidden, "evil.example:5000": http.StatusForbidden, "127.0.0.1.evil.example": http.StatusForbidden,
		"127.0.0.1:5000": http.StatusSeeOther, "[::1]:5000": http.StatusSeeOther, "localhost": http.StatusSeeOther} {
		if resp, _ := open.post(t, "/ui/logout", nil, "Host", host); resp.StatusCode != want {
			t.Errorf("a form sent to %s is answered %d, want %d", host, resp.StatusCode, want)
		}
	}
}

// TestLocal checks that without users only a client on this machine manages the registry,
// and not one that a local proxy forwards.
func TestLocal(t *testing.T) {
	s := newSite(t, &web.Options{})
	for _, header := range []string{"", "X-Forwarded-For", "Forwarded", "Via"} {
		r, _ := http.NewRequest("GET", s.URL+"/ui/storage", nil)
		if header != "" {
			r.Header.Set(header, "192.0.2.1")
		}
		resp, _ := s.do(t, r)
		if denied := resp.StatusCode == http.StatusForbidden; denied != (header != "") {
			t.Errorf("with the header %q the page of the storage is answered %d", header, resp.StatusCode)
		}
	}
}

// TestRebinding checks that without users no other site can read the pages of an
// administrator by pointing its own name at this address.
func TestRebinding(t *testing.T) {
	s := newSite(t, &web.Options{Host: "https://registry.example.com"})
	for host, want := range map[string]int{"evil.example": http.StatusForbidden, "evil.example:5000": http.StatusForbidden, "127.0.0.1.evil.example": http.StatusForbidden,
		"127.0.0.1:5000": http.StatusOK, "[::1]:5000": http.StatusOK, "localhost:5000": http.StatusOK, "registry.example.com": http.StatusOK} {
		for _, page := range []string{"settings", "reports", "caches", "events?topic=caches"} {
			r, err := http.NewRequest("HEAD", s.URL+"/ui/"+page, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = host
			if resp, _ := s.do(t, r); resp.StatusCode != want {
				t.Errorf("%s of %s is answered %d, want %d", page, host, resp.StatusCode, want)
			}
		}
		r, err := http.NewRequest("GET", s.URL+"/ui/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		if resp, body := s.do(t, r); resp.StatusCode != http.StatusOK || strings.Contains(body, "/ui/settings") != (want == http.StatusOK) {
			t.Errorf("the first page of %s is answered %d, with a link to the settings: %v", host, resp.StatusCode, strings.Contains(body, "/ui/settings"))
		}
	}
}

// TestNoStorage checks that without storage there are no events about it.
func TestNoStorage(t *testing.T) {
	s := newSite(t, &web.Options{})
	if _, body := s.get(t, "/ui/events?topic=gear"); strings.Contains(body, "data:") {
		t.Errorf("the stream has %q", body)
	}
}

// TestHeaders checks that every answer forbids frames, foreign scripts and guessing of
// types.
func TestHeaders(t *testing.T) {
	s := withUsers(t)
	for _, path := range []string{"/", "/ui/", "/ui/login", "/ui/none", "/ui/settings", "/ui/static/x/style.css"} {
		resp, _ := s.get(t, path)
		h := resp.Header
		csp := h.Get("Content-Security-Policy")
		if !strings.Contains(csp, "frame-ancestors 'none'") || !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") ||
			h.Get("X-Frame-Options") != "DENY" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s has the headers %v", path, h)
		}
	}
}

// TestPathTricks checks that no path leads anywhere but to pages.
func TestPathTricks(t *testing.T) {
	s := newSite(t, &web.Options{})
	for _, path := range []string{"/ui/../../etc/passwd", "/ui/%2e%2e/%2e%2e/etc/passwd", "/ui/static/../../web.go", "/ui/static/..%2f..%2fweb.go",
		"/ui/static/%2e%2e/style.css", "/ui/%00", "/ui//", "/ui/static/", "/ui/static", "/ui/LOGIN", "/ui/login/..%2fsettings", "/ui/" + strings.Repeat("a/", 4000)} {
		resp, body := s.get(t, path)
		if resp.StatusCode != http.StatusNotFound || strings.Contains(body, "root:") || strings.Contains(body, "package web") {
			t.Errorf("%.60s is answered %d", path, resp.StatusCode)
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "POST"} {
		r, _ := http.NewRequest(method, s.URL+"/ui/", nil)
		if resp, _ := s.do(t, r); resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s is answered %d", method, resp.StatusCode)
		}
	}
}
