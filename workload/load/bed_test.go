package load_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/workload/load"
	"example.org/slipway/workload/load/imageset"
)

// proxy serves what a registry serves. change, if not nil, gets each answer before it is
// sent on and may modify it.
func proxy(t testing.TB, registry string, change func(*http.Response) error) *httptest.Server {
	t.Helper()
	to, err := url.Parse(registry)
	if err != nil {
		t.Fatal(err)
	}
	p := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ModifyResponse: change,
		Transport:      &http.Transport{MaxIdleConnsPerHost: 64},
	}
	srv := httptest.NewServer(p)
	t.Cleanup(srv.Close)
	return srv
}

// before serves h behind a check. The check returns false if it has answered the request
// itself.
func before(t testing.TB, h http.Handler, check func(w http.ResponseWriter, r *http.Request) bool) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if check(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

// password returns the URL of a proxy that requires a password for every request.
func password(t testing.TB, registry, user, secret string) string {
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+secret))
	return before(t, proxy(t, registry, nil).Config.Handler, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == want {
			r.Header.Del("Authorization")
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}).URL
}

// tokens returns the URL of a proxy that requires a token for each repository. A token is
// valid for the given number of requests.
func tokens(t testing.TB, registry string, requests int) string {
	grants := make(chan map[string]int, 1)
	grants <- map[string]int{}
	issued := 0
	var self string
	check := func(w http.ResponseWriter, r *http.Request) bool {
		g := <-grants
		defer func() { grants <- g }()
		if r.URL.Path == "/token" {
			issued++
			token := fmt.Sprintf("%d-%s", issued, base64.RawURLEncoding.EncodeToString([]byte(strings.Join(r.URL.Query()["scope"], " "))))
			g[token] = requests
			_ = json.NewEncoder(w).Encode(map[string]string{"token": token})
			return false
		}
		repo, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/manifests/")
		repo, _, _ = strings.Cut(repo, "/blobs/")
		repo, _, _ = strings.Cut(repo, "/tags/")
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		_, scope, _ := strings.Cut(token, "-")
		text, _ := base64.RawURLEncoding.DecodeString(scope)
		if g[token] > 0 && (repo == "" || strings.Contains(string(text), "repository:"+repo+":")) {
			g[token]--
			r.Header.Del("Authorization")
			return true
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="test",scope="repository:%s:pull,push"`, self+"/token", repo))
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}
	self = before(t, proxy(t, registry, nil).Config.Handler, check).URL
	return self
}

// distribution starts Distribution's registry and returns its URL. It mirrors upstream,
// unless that is empty.
func distribution(t *testing.T, upstream string) string {
	t.Helper()
	more := ""
	if upstream != "" {
		more = "proxy:\n  remoteurl: " + upstream + "\n"
	}
	return "http://" + backendtest.Distribution(t, more)
}

// measure runs a load that must complete.
func measure(t testing.TB, o load.Options) *load.Result {
	t.Helper()
	res, err := load.Run(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// short returns the options of a run of some hundred milliseconds.
func short(url string) load.Options {
	return load.Options{Target: load.Target{URL: url}, Set: imageset.Options{Images: 12, Batches: 3, Prefix: "load/"},
		Step: 100 * time.Millisecond, Tally: 20 * time.Millisecond}
}
