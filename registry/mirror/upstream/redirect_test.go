package upstream_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
)

// redirecting returns a registry with a manifest v1 and with others that are elsewhere, as their
// tags say.
func redirecting(elsewhere string) http.HandlerFunc {
	port := elsewhere[strings.LastIndexByte(elsewhere, ':')+1:]
	const manifests = "/v2/library/app/manifests/"
	leads := map[string]string{
		"same":      manifests + "v1",
		"n1":        manifests + "v1",
		"away":      elsewhere + "/v2/x/manifests/v1?X-Signature=secret",
		"named":     "http://localhost:" + port + "/v2/x/manifests/v1",
		"linklocal": "http://169.254.169.254/latest/meta-data",
		"mapped":    "http://[::ffff:127.0.0.1]:" + port + "/v2/x/manifests/v1",
		"nobody":    "http://0.0.0.0:" + port + "/v2/x/manifests/v1",
		"circle":    manifests + "circle2",
		"circle2":   manifests + "circle",
		"file":      "file:///etc/passwd",
		"user":      strings.Replace(elsewhere, "//", "//me:secret@", 1),
		"malformed": "http://[secret",
		"expired":   elsewhere + "/expired",
		"lost":      elsewhere + "/lost",
		"nowhere":   "",
	}
	for i := 2; i < 12; i++ {
		leads["n"+strconv.Itoa(i)] = manifests + "n" + strconv.Itoa(i-1)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			w.Header().Set("Www-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		to, ok := leads[strings.TrimPrefix(r.URL.Path, manifests)]
		if !ok {
			image(w, r)
			return
		}
		if to != "" {
			w.Header().Set("Location", to)
		}
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
}

// TestPublicOnly checks an upstream that the configuration did not choose. It is contacted only if
// its address is public or allowed, however the address is written.
func TestPublicOnly(t *testing.T) {
	t.Parallel()
	s := serve(t, image)
	port := s.URL[strings.LastIndexByte(s.URL, ':'):]
	for _, host := range []string{"127.0.0.1", "localhost", "127.1.2.3", "[::ffff:127.0.0.1]", "0.0.0.0"} {
		u := open(t, "http://"+host+port, upstream.Options{PublicOnly: true})
		err := getManifest(u, "v1")
		unavailable(t, err, "a registry that is not listed must have a public one")
		unavailable(t, getBlob(u, 0), "address is refused")
	}
	if got := s.requests(); len(got) != 0 {
		t.Errorf("it was asked: %v", got)
	}
	ok(t, getManifest(open(t, s.URL, upstream.Options{PublicOnly: true, Redirects: here}), "v1"))
	ok(t, getManifest(open(t, s.URL, upstream.Options{}), "v1"))
	// A proxy would resolve the name. Addresses that are visible are refused before that.
	proxy := func(*http.Request) (*url.URL, error) { return url.Parse(s.URL) }
	before := len(s.requests())
	for _, host := range []string{"127.0.0.1", "localhost", "x.localhost", "169.254.169.254", "0x7f.1", "10.0.0.1"} {
		unavailable(t, getManifest(open(t, "http://"+host+port, upstream.Options{PublicOnly: true, Proxy: proxy}), "v1"), "address is refused")
	}
	if got := s.requests(); len(got) != before {
		t.Errorf("it was asked: %v", got[before:])
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	var shown atomic.Int32 // credentials that reached the wrong place
	elsewhere := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			shown.Add(1)
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/expired"):
			w.WriteHeader(http.StatusForbidden)
		case strings.HasSuffix(r.URL.Path, "/lost"):
			w.WriteHeader(http.StatusNotFound)
		default:
			image(w, r)
		}
	})
	s := serve(t, redirecting(elsewhere.URL))
	me := basic("me", "secret")
	strict := open(t, s.URL, upstream.Options{Credential: me})
	loose := open(t, s.URL, upstream.Options{Credential: me, Redirects: here})
	for _, tt := range []struct {
		ref           string
		strict, loose string // what the error says, "" where there is none
	}{
		{"same", "", ""},
		{"n10", "", ""},
		{"n11", "redirect is not followed", "there were 10 before"},
		{"circle", "in a circle", "in a circle"},
		{"away", "is a loopback address", ""},
		{"named", "is a loopback address", ""},
		{"mapped", "is a loopback address", ""},
		{"nobody", "is a link-local, metadata or otherwise special address", "address is refused"},
		{"linklocal", "is a link-local, metadata or otherwise special address", "address is refused"},
		{"file", `a "file" URL`, `a "file" URL`},
		{"user", "a user name", "a user name"},
		{"malformed", "malformed", "malformed"},
		{"nowhere", "without a Location", "without a Location"},
		{"expired", "is a loopback address", "answered 403"},
	} {
		for u, say := range map[*upstream.Upstream]string{strict: tt.strict, loose: tt.loose} {
			err := getManifest(u, tt.ref)
			switch {
			case say == "" && err != nil:
				t.Errorf("%s: %v", tt.ref, err)
			case say != "" && (err == nil || !strings.Contains(err.Error(), say) || upstream.KindOf(err) != upstream.Unavailable):
				t.Errorf("%s: got %v, want one that says %q", tt.ref, err, say)
			case err != nil && strings.Contains(err.Error(), "secret"):
				t.Errorf("%s: a secret is shown: %v", tt.ref, err)
			}
		}
	}
	want(t, getManifest(loose, "lost"), upstream.NotFound, oci.CodeManifestUnknown, 404)
	if shown.Load() != 0 {
		t.Errorf("credentials were shown %d times to who a redirect led to", shown.Load())
	}
	if n := elsewhere.count("GET /v2/x"); n != 3 {
		t.Errorf("the other host was asked %d times, want 3: %q", n, elsewhere.requests())
	}
}

// TestRedirectToOwn uses a mirror that redirects to the upstream itself, which may be at any
// address.
func TestRedirectToOwn(t *testing.T) {
	own := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("a credential for the mirror is shown to the upstream")
		}
		image(w, r)
	})
	mirror := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("Www-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, own.URL+r.URL.Path, http.StatusFound)
	})
	u := open(t, own.URL, upstream.Options{Mirrors: []string{mirror.URL}, Credential: basic("me", "secret")})
	ok(t, getManifest(u, "v1"))
	ok(t, getBlob(u, 0))
	if st := u.Status(); st.Endpoints[0].Requests != 2 || st.Endpoints[1].Requests != 0 {
		t.Errorf("got %+v", st)
	}
}

// TestSecretsStayHidden checks that a credential appears in no error.
func TestSecretsStayHidden(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Www-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token?secret=1",service="s"`, r.Host))
		w.WriteHeader(http.StatusUnauthorized)
	})
	u := open(t, s.URL, upstream.Options{Credential: basic("me", "secret")})
	err := getManifest(u, "v1")
	unavailable(t, err, "token service")
	s.Close()
	for _, err := range []error{err, getManifest(u, "v1")} {
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v", err)
		}
	}
}
