package upstream_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry/mirror/upstream"
)

func basic(user, password string) client.CredentialFunc {
	return func(context.Context, string) (client.Credential, error) {
		return client.Credential{Username: user, Password: password}, nil
	}
}

// guarded is a registry with a token service.
type guarded struct {
	*server
	password string // of "me", who may have everything; "" lets anybody

	mu     *sync.Mutex
	scope  func(repo string) string // nil: the usual one
	realm  string                   // "" is its own
	basic  string                   // challenge besides Bearer's
	valid  map[string]string        // tokens and their scopes
	issued int
	forms  []string // of POST requests
	answer http.HandlerFunc
}

func newGuarded(t *testing.T, password string) *guarded {
	g := &guarded{password: password, mu: &sync.Mutex{}, valid: map[string]string{}, basic: `Basic realm="x", `}
	g.server = serve(t, g.serveHTTP)
	return g
}

func (g *guarded) serveHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.URL.Path == "/token" {
		g.token(w, r)
		return
	}
	repo := strings.TrimPrefix(r.URL.Path, "/v2/")
	repo, _, _ = strings.Cut(repo, "/manifests/")
	scope := "repository:" + repo + ":pull"
	if g.scope != nil {
		scope = g.scope(repo)
	}
	if g.valid[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")] != scope {
		realm := g.realm
		if realm == "" {
			realm = "http://" + r.Host + "/token"
		}
		w.Header().Add("Www-Authenticate", "Negotiate abc==")
		w.Header().Add("Www-Authenticate", fmt.Sprintf(`%sBearer realm="%s",service="a, \"b\"",scope="%s"`, g.basic, realm, scope))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	image(w, r)
}

func (g *guarded) token(w http.ResponseWriter, r *http.Request) {
	if g.answer != nil {
		g.answer(w, r)
		return
	}
	_ = r.ParseForm()
	service, scope := r.Form.Get("service"), r.Form["scope"]
	if r.Method == http.MethodPost {
		g.forms = append(g.forms, r.PostForm.Encode())
		if r.PostForm.Get("refresh_token") != g.password {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	} else if _, password, _ := r.BasicAuth(); g.password != "" && password != g.password {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if service != `a, "b"` {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	g.issued++
	token := fmt.Sprintf("token-%d", g.issued)
	g.valid[token] = strings.Join(scope, " ")
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"token":%q,"expires_in":300}`, token)
}

// revoke invalidates all tokens.
func (g *guarded) revoke() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.valid)
}

func pull(u *upstream.Upstream, repo string) error {
	_, _, _, err := u.Manifest(context.Background(), repo, "v1", "")
	return err
}

func TestTokens(t *testing.T) {
	clk := newClock()
	g := newGuarded(t, "secret")
	u := open(t, g.URL, upstream.Options{Credential: basic("me", "secret"), Clock: clk.Now})
	counts := func(manifests, tokens int) {
		t.Helper()
		if m, tk := g.count("GET /v2/"), g.count("GET /token"); m != manifests || tk != tokens {
			t.Fatalf("got %d requests for manifests and %d for tokens, want %d and %d", m, tk, manifests, tokens)
		}
	}
	ok(t, pull(u, "a"))
	counts(2, 1)
	ok(t, pull(u, "a"))
	counts(3, 1)
	ok(t, pull(u, "b")) // without a new challenge
	counts(4, 2)
	clk.add(4 * time.Minute)
	ok(t, pull(u, "a"))
	counts(5, 2)
	clk.add(time.Minute) // it has expired
	ok(t, pull(u, "a"))
	counts(6, 3)
	clk.add(time.Minute)
	g.revoke() // it has not expired, and yet is no longer valid
	ok(t, pull(u, "a"))
	counts(8, 4)
	ok(t, func() error { _, err := u.ResolveManifest(t.Context(), "a", "v1"); return err }())
	counts(8, 4)
}

// TestOneToken sends many requests that need the same token.
func TestOneToken(t *testing.T) {
	g := newGuarded(t, "")
	u := open(t, g.URL, upstream.Options{})
	for round := range 2 {
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := pull(u, "a"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := g.count("GET /token"); n != 1 {
			t.Fatalf("round %d: got %d requests for tokens, want 1", round, n)
		}
	}
}

func TestUnusualScopes(t *testing.T) {
	g := newGuarded(t, "")
	g.scope = func(repo string) string { return "repository:proxy/" + repo + ":pull" }
	u := open(t, g.URL, upstream.Options{})
	for _, repo := range []string{"a", "a", "b", "b"} {
		ok(t, pull(u, repo))
	}
	if m, tk := g.count("GET /v2/"), g.count("GET /token"); m != 6 || tk != 2 {
		t.Errorf("got %d requests for manifests and %d for tokens, want 6 and 2", m, tk)
	}
}

func TestDeniedTokens(t *testing.T) {
	clk := newClock()
	g := newGuarded(t, "secret")
	var password atomic.Value
	password.Store("wrong")
	u := open(t, g.URL, upstream.Options{Clock: clk.Now, Credential: func(context.Context, string) (client.Credential, error) {
		return client.Credential{Username: "me", Password: password.Load().(string)}, nil
	}})
	for range 5 {
		err := pull(u, "a")
		want(t, err, upstream.Denied, oci.CodeDenied, http.StatusForbidden)
	}
	if n := g.count("GET /token"); n != 1 { // registries lock accounts after some attempts
		t.Errorf("got %d requests for tokens, want 1", n)
	}
	password.Store("secret")
	clk.add(10 * time.Second)
	ok(t, pull(u, "a"))

	// Many requests get the same refusal at once.
	g = newGuarded(t, "secret")
	u = open(t, g.URL, upstream.Options{Clock: clk.Now, Credential: basic("me", "wrong")})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := pull(u, "a"); upstream.KindOf(err) != upstream.Denied || !strings.Contains(err.Error(), "manifest v1 of a") {
				t.Errorf("got %v", err)
			}
		})
	}
	wg.Wait()
	if n := g.count("GET /token"); n != 1 {
		t.Errorf("got %d requests for tokens, want 1", n)
	}

	// The token service grants something that the registry does not accept.
	g = newGuarded(t, "")
	u = open(t, g.URL, upstream.Options{Clock: clk.Now})
	g.scope = func(repo string) string { return "repository:" + repo + ":pull" }
	g.answer = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"access_token":"useless"}`) }
	for range 3 {
		want(t, pull(u, "a"), upstream.Denied, oci.CodeDenied, http.StatusForbidden)
	}
	if m, tk := g.count("GET /v2/"), g.count("GET /token"); m != 4 || tk != 1 {
		t.Errorf("got %d requests for manifests and %d for tokens, want 4 and 1", m, tk)
	}
}

func TestTokenServiceFails(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for name, tt := range map[string]struct {
		h    http.HandlerFunc
		kind upstream.Kind
	}{
		"429":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, upstream.Busy},
		"500":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, upstream.Unavailable},
		"403":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, upstream.Denied},
		"page":      {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, upstream.Unavailable},
		"none":      {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }, upstream.Unavailable},
		"no header": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"token":"a\nb"}`) }, upstream.Unavailable},
		"away": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://localhost/token", http.StatusFound)
		}, upstream.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, "")
			g.answer = tt.h
			u := open(t, g.URL, upstream.Options{})
			if err := pull(u, "a"); upstream.KindOf(err) != tt.kind {
				t.Errorf("got %v, want %v", err, tt.kind)
			}
			if tt.kind == upstream.Busy && u.Status().Endpoints[0].BackoffUntil.IsZero() {
				t.Errorf("got %+v", u.Status())
			}
		})
	}
}

// TestRealms uses token services at other addresses.
func TestRealms(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	service := newGuarded(t, "secret")
	for _, tt := range []struct {
		realm string
		say   string // what the error says, "" where there is none
	}{
		{service.URL + "/token", ""}, // another port of the upstream's host
		{"http://169.254.169.254/token", "address is refused"},
		{"http://me:secret@127.0.0.1/token", "a user name"},
		{"ftp://127.0.0.1/token", `"ftp" URL`},
		{"/token", ""},
		{"http://[secret", "malformed"},
	} {
		g := newGuarded(t, "secret")
		g.realm, g.valid, g.mu, g.basic = tt.realm, service.valid, service.mu, ""
		u := open(t, g.URL, upstream.Options{Credential: basic("me", "secret")})
		err := pull(u, "a")
		switch {
		case tt.say == "" && err != nil:
			t.Errorf("%s: %v", tt.realm, err)
		case tt.say != "" && (upstream.KindOf(err) != upstream.Unavailable || !strings.Contains(err.Error(), tt.say)):
			t.Errorf("%s: got %v, want one that says %q", tt.realm, err, tt.say)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: a secret is shown: %v", tt.realm, err)
		}
	}
}

// TestBasicInPlaceOfBearer uses registries that also accept a password and name a token service
// which must not see it.
func TestBasicInPlaceOfBearer(t *testing.T) {
	for _, realm := range []string{"", "ftp://127.0.0.1/token", "http://[x"} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user+":"+password != "me:secret" {
				w.Header().Add("Www-Authenticate", `Bearer realm="`+realm+`"`)
				w.Header().Add("Www-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			image(w, r)
		})
		if err := pull(open(t, s.URL, upstream.Options{Credential: basic("me", "secret")}), "a"); err != nil {
			t.Errorf("realm %q: %v", realm, err)
		}
	}
}

func TestRefreshToken(t *testing.T) {
	g := newGuarded(t, "refresh")
	u := open(t, g.URL, upstream.Options{Credential: func(context.Context, string) (client.Credential, error) {
		return client.Credential{RefreshToken: "refresh"}, nil
	}})
	ok(t, pull(u, "a"))
	const form = "client_id=slipway&grant_type=refresh_token&refresh_token=refresh&scope=repository%3Aa%3Apull&service=a%2C+%22b%22"
	if len(g.forms) != 1 || g.forms[0] != form {
		t.Errorf("got %q", g.forms)
	}
	g.valid["mine"] = "repository:b:pull"
	u = open(t, g.URL, upstream.Options{Credential: func(context.Context, string) (client.Credential, error) {
		return client.Credential{AccessToken: "mine"}, nil
	}})
	ok(t, pull(u, "b"))
	want(t, pull(u, "a"), upstream.Denied, oci.CodeDenied, http.StatusForbidden)
}

func TestBasic(t *testing.T) {
	clk := newClock()
	var password atomic.Value
	password.Store("secret")
	var challenges atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("me:"+password.Load().(string))) {
			challenges.Add(1)
			w.Header().Set("Www-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		image(w, r)
	})
	var asked atomic.Int32
	u := open(t, s.URL, upstream.Options{Clock: clk.Now, Credential: func(_ context.Context, host string) (client.Credential, error) {
		asked.Add(1)
		if !strings.HasSuffix(s.URL, "//"+host) {
			return client.Credential{}, errors.New("who is that?")
		}
		return client.Credential{Username: "me", Password: password.Load().(string)}, nil
	}})
	for _, repo := range []string{"a", "b", "c"} {
		ok(t, pull(u, repo))
	}
	if challenges.Load() != 1 || asked.Load() != 1 {
		t.Errorf("got %d challenges and asked %d times who we are, want 1 and 1", challenges.Load(), asked.Load())
	}
	password.Store("changed")
	ok(t, pull(u, "a"))
	if challenges.Load() != 2 || asked.Load() != 2 {
		t.Errorf("got %d challenges and asked %d times who we are, want 2 and 2", challenges.Load(), asked.Load())
	}
	want(t, pull(open(t, s.URL, upstream.Options{}), "a"), upstream.Denied, oci.CodeDenied, http.StatusForbidden)
	broken := open(t, s.URL, upstream.Options{Credential: func(context.Context, string) (client.Credential, error) {
		return client.Credential{}, errors.New("the helper is missing")
	}})
	unavailable(t, pull(broken, "a"), "the helper is missing")
}

// TestManyTokens uses more repositories than the number of tokens kept.
func TestManyTokens(t *testing.T) {
	g := newGuarded(t, "")
	u := open(t, g.URL, upstream.Options{})
	for i := range 600 {
		ok(t, pull(u, fmt.Sprintf("r%d", i)))
	}
	if m, tk := g.count("GET /v2/"), g.count("GET /token"); m != 601 || tk != 600 {
		t.Errorf("got %d requests for manifests and %d for tokens, want 601 and 600", m, tk)
	}
}
