package serve_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// siteServer is a server of one kind, with the answers that a request from another site may get.
type siteServer struct {
	name, yaml string
	// open means that clients need not identify themselves. Foreign host names are therefore
	// refused for reads, too.
	open bool
	// edits add the ambient credentials that a browser would send.
	edits []func(*http.Request)
}

func siteServers(t *testing.T) []siteServer {
	users := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, users, htpasswd(t, "alice", "pw"))
	return []siteServer{
		{name: "open", open: true},
		{name: "open to the network", yaml: "http: {addr: '0.0.0.0:0', insecure_open_to_network: true, debug: {addr: '127.0.0.1:0'}}", open: true},
		{name: "password that the browser keeps", yaml: tokenYAML(users, ""), edits: []func(*http.Request){basic("alice", "pw")}},
		{name: "anonymous pushes", yaml: "auth:\n  htpasswd: {path: " + users + "}\n  access:\n    - {repositories: ['**'], subjects: [anonymous], actions: ['*']}\ngear: {anonymous_reports: true}\n"},
	}
}

// TestOtherSites sends the requests that pages of other sites can make a browser send: every method
// to every kind of endpoint, with headers of the page's own origin and of others. The standard
// library decides which of these come from another site.
func TestOtherSites(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	const named = "registry.test"
	d := digestOf("page")
	endpoints := []string{"/v2/", "/v2/a/blobs/uploads/", "/v2/a/blobs/uploads/?digest=" + d, "/v2/a/blobs/uploads/x", "/v2/a/blobs/" + d, "/v2/a/manifests/v1",
		"/v2/a/_slipway/gear/nodes", "/v2/a/_slipway/gear/profiles/" + d, "/v2/a/_slipway/gear/fetch", "/v2/a/_slipway/gear/files", "/v2/a/_slipway/volumes/" + d,
		"/v2/a/_slipway/volumes/" + d + "/credential", "/token", "/ui/login", "/ui/repo/a", "/ui/jobs"}
	for _, kind := range siteServers(t) {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			y := kind.yaml
			if !strings.Contains(y, "http:") {
				y += "http: {names: [" + named + "], headers: {Access-Control-Allow-Origin: ['https://ui.test']}}\n"
			} else {
				y = strings.Replace(y, "http: {", "http: {names: ["+named+"], headers: {Access-Control-Allow-Origin: ['https://ui.test']}, ", 1)
			}
			s := start(t, setup{yaml: y, keep: strings.Contains(kind.yaml, "0.0.0.0")})
			own := strings.TrimPrefix(s.url, "http://")
			port := own[strings.LastIndexByte(own, ':')+1:]
			oracle := http.NewCrossOriginProtection()
			if err := oracle.AddTrustedOrigin("https://ui.test"); err != nil {
				t.Fatal(err)
			}
			for _, host := range []string{own, "localhost:" + port, "x.localhost", named, strings.ToUpper(named) + ".:" + port, "page.example:" + port, "127.0.0.1.page.example"} {
				known := !strings.Contains(host, "page.example")
				for _, origin := range []string{"", "http://" + host, "https://page.example", "null", "https://ui.test", "http://127.0.0.1:1"} {
					for _, site := range []string{"", "none", "same-origin", "same-site", "cross-site"} {
						for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"} {
							path := endpoints[len(host+origin+site+method)%len(endpoints)]
							for _, path := range []string{path, endpoints[2], endpoints[5]} {
								r := request{method, path, host, origin, site}
								a := s.do(method, path, "", append(kind.edits, r.edit)...)
								other := oracle.Check(r.plain(t)) != nil
								refused := a.status == http.StatusForbidden || a.status == http.StatusMisdirectedRequest
								switch {
								case other && !refused:
									t.Errorf("%+v of another site: got %d", r, a.status)
								case !other && kind.open && !known && a.status != http.StatusMisdirectedRequest:
									t.Errorf("%+v under a foreign name: got %d", r, a.status)
								case !other && known && path != "/ui/jobs" && refused && !strings.HasPrefix(path, "/ui/"):
									t.Errorf("%+v is the server's own: got %d %s", r, a.status, a.body)
								}
							}
						}
					}
				}
			}
			a := s.do("DELETE", "/v2/a/manifests/v1", "", append(kind.edits, header("Origin", "https://page.example"))...)
			if !strings.Contains(a.body, "Access-Control-Allow-Origin") {
				t.Errorf("the refusal does not say which setting admits a site: %s", a.body)
			}
		})
	}
}

// TestAnonymousUnderForeignName checks a server to which anonymous clients may push. A page whose
// site took over this server's address may not push, and docker may push under any name.
func TestAnonymousUnderForeignName(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: siteServers(t)[3].yaml})
	host := func(r *http.Request) { r.Host = "registry.internal" }
	d := digestOf("layer")
	a := s.do("POST", "/v2/a/blobs/uploads/?digest="+d, "layer", host, header("Origin", "http://registry.internal"))
	if a.status != http.StatusMisdirectedRequest || !strings.Contains(a.body, "http.names") {
		t.Errorf("a page under a foreign name: got %d %s", a.status, a.body)
	}
}

// TestForwardedNames checks requests that claim to be forwarded. A browser may run beside a trusted
// proxy, and its page may claim that. Both names of a request must be the server's.
func TestForwardedNames(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: "http: {names: [registry.test], trusted_proxies: [127.0.0.1]}"})
	for sentTo, ok := range map[string]bool{"": true, "localhost": true, "registry.test": true, "page.example": false} {
		for forwarded, also := range map[string]bool{"": true, "localhost": true, "registry.test:443": true, "page.example": false} {
			for _, path := range []string{"/v2/", "/v2/_catalog", "/ui/"} {
				a := s.do("GET", path, "", func(r *http.Request) {
					if sentTo != "" {
						r.Host = sentTo
					}
					if forwarded != "" {
						r.Header.Set("X-Forwarded-Host", forwarded)
					}
				})
				if got := a.status != http.StatusMisdirectedRequest; got != (ok && also) {
					t.Errorf("GET %s of %q, forwarded for %q: got %d", path, sentTo, forwarded, a.status)
				}
			}
		}
	}
}

// TestDebugUnderForeignName checks that the debug listener shows nothing to a page whose site took
// over this machine's address.
func TestDebugUnderForeignName(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	s := start(t, setup{yaml: "http: {names: ['registry.test:5000']}"})
	for _, path := range []string{"/metrics", "/livez", "/readyz", "/debug/health", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/heap"} {
		for host, want := range map[string]int{"": 200, "localhost": 200, "registry.test:1": 200, "page.example": 421, "127.0.0.1.page.example": 421} {
			a := s.do("GET", s.debug+path, "", func(r *http.Request) {
				if host != "" {
					r.Host = host
				}
			})
			if a.status != want {
				t.Errorf("GET %s under %q: got %d, want %d", path, host, a.status, want)
			}
		}
	}
}

// request is a request that a page makes a browser send.
type request struct{ method, path, host, origin, site string }

func (q request) edit(r *http.Request) {
	r.Host = q.host
	for name, v := range map[string]string{"Origin": q.origin, "Sec-Fetch-Site": q.site} {
		if v != "" {
			r.Header.Set(name, v)
		}
	}
}

// plain returns the request in the form that the standard library judges.
func (q request) plain(t *testing.T) *http.Request {
	t.Helper()
	r, err := http.NewRequest(q.method, "http://"+q.host+q.path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	q.edit(r)
	return r
}
