package auth_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
)

func session(t *testing.T, f *fixture, user, password string) string {
	t.Helper()
	id, err := f.Login(get("/", ""), user, password)
	if err != nil {
		t.Fatal(err)
	}
	token, expires, err := f.NewSession(id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if want := f.clock.Now().Add(time.Hour); !expires.Equal(want) {
		t.Errorf("the session ends %v, want %v", expires, want)
	}
	return token
}

// TestSession checks that a session stands for its user until it expires, is ended, or the password
// changes.
func TestSession(t *testing.T) {
	users := htpasswdFile(t, "alice", "secret", "bob", "hidden")
	f := newFixture(t, auth.Config{HTPasswd: users, Access: []auth.Rule{{Repositories: []string{"team/**"}, Subjects: []string{"alice"}, Actions: []string{"pull"}}}}, nil)
	token := session(t, f, "alice", "secret")
	id, err := f.Session(token)
	if err != nil || id.Name != "alice" || !f.Allowed(id, "team/app", auth.Pull) || f.Allowed(id, "team/app", auth.Push) {
		t.Fatalf("%+v %v", id, err)
	}
	for _, bad := range []string{"", "x", token + "x", token[:len(token)-2], strings.Repeat("a.", 1<<20)} {
		if _, err := f.Session(bad); err == nil {
			t.Errorf("the token %.20q is taken", bad)
		}
	}
	if _, err := f.Authenticate(get("/v2/", "Bearer "+token)); err == nil {
		t.Error("a session's token is taken as a bearer token")
	}
	other := session(t, f, "alice", "secret")
	f.EndSession(token)
	if _, err := f.Session(token); err == nil {
		t.Error("a session that was ended goes on")
	}
	if _, err := f.Session(token[:len(token)-1] + string(token[len(token)-1]+1)); err == nil { // other unused bits
		t.Error("a session that was ended goes on with its signature written otherwise")
	}
	if _, err := f.Session(other); err != nil {
		t.Errorf("another session ended along: %v", err)
	}
	f.clock.Add(time.Minute)
	writeFile(t, users.Path, htpasswdLines(t, "alice", "changed", "bob", "hidden"))
	f.clock.Add(time.Minute)
	if _, err := f.Session(other); err == nil {
		t.Error("a session outlives the password")
	}
	late := session(t, f, "bob", "hidden")
	f.clock.Add(time.Hour + time.Second)
	if _, err := f.Session(late); err == nil {
		t.Error("a session has no end")
	}
	if _, err := f.Login(get("/", ""), "bob", "wrong"); err == nil {
		t.Error("a wrong password is taken")
	}
}

// TestLoginTakesPasswordsOnly enters at the login form what requests may have in place of a
// password. A session must not come from it: it would outlive the token.
func TestLoginTakesPasswordsOnly(t *testing.T) {
	o := newOIDCFixture(t)
	f := newFixture(t, auth.Config{HTPasswd: htpasswdFile(t, "alice", "secret"), OIDC: []auth.OIDCConfig{{Name: "corp", Issuer: o.p.URL, Audiences: []string{"slipway"}}}}, o.clock)
	short := o.rsa(t, "exp", o.clock.Now().Add(time.Minute).Unix())
	for _, user := range []string{"alice", "oidc", ""} {
		if _, err := f.Authenticate(get("/v2/", basic(user, short))); err != nil {
			t.Fatalf("a request of %q with the token: %v", user, err)
		}
		if id, err := f.Login(get("/", ""), user, short); !oci.HasCode(err, oci.CodeUnauthorized) {
			t.Errorf("%q logs in with a token that lasts a minute: %+v, %v", user, id, err)
		}
	}
	session(t, f, "alice", "secret")
}

// TestSessionEndsWithItsMethod takes each method of logging in out of the configuration, while
// the key stays. The sessions of that method end, and those of the others go on.
func TestSessionEndsWithItsMethod(t *testing.T) {
	full := auth.Config{
		HTPasswd: htpasswdFile(t, "alice", "secret"), LDAP: away(t),
		OIDC: []auth.OIDCConfig{
			{Name: "corp", Issuer: "https://corp.test", Audiences: []string{"slipway"}, ClientID: "page"},
			{Name: "corp2", Issuer: "https://corp2.test", Audiences: []string{"slipway"}, ClientID: "page"},
		},
		Token: &auth.TokenConfig{Builtin: new(true), Key: filepath.Join(t.TempDir(), "key")},
	}
	first := newFixture(t, full, nil)
	sessions := map[string]string{}
	for name, method := range map[string]string{"alice": auth.MethodHTPasswd, "ldap:ann": auth.MethodLDAP, "oidc:corp:bob": auth.MethodOIDC, "oidc:corp2:eve": auth.MethodOIDC} {
		var err error
		if sessions[name], _, err = first.NewSession(&auth.Identity{Name: name, Method: method}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for gone, without := range map[string]func(*auth.Config){
		"": func(*auth.Config) {}, "alice": func(c *auth.Config) { c.HTPasswd = nil }, "ldap:ann": func(c *auth.Config) { c.LDAP = nil },
		"oidc:corp:bob": func(c *auth.Config) { c.OIDC = c.OIDC[1:] }, "oidc:corp2:eve": func(c *auth.Config) { c.OIDC = c.OIDC[:1] },
	} {
		cfg := full
		without(&cfg)
		f := newFixture(t, cfg, nil)
		for name, token := range sessions {
			if id, err := f.Session(token); (err == nil) != (name != gone) {
				t.Errorf("without the method of %q, the session of %s is %+v, %v", gone, name, id, err)
			}
		}
	}
}

// TestNoSession checks that tokens of the token service are not sessions, and that nobody can log
// in when no login method is configured.
func TestNoSession(t *testing.T) {
	yes := true
	f := newFixture(t, auth.Config{HTPasswd: htpasswdFile(t, "alice", "secret"), Token: &auth.TokenConfig{Builtin: &yes}}, nil)
	rec := httptest.NewRecorder()
	r := get("/token?service=slipway&offline_token=true", "")
	r.SetBasicAuth("alice", "secret")
	f.TokenHandler().ServeHTTP(rec, r)
	for _, part := range strings.Split(rec.Body.String(), `"`) {
		if strings.Count(part, ".") == 2 {
			if _, err := f.Session(part); err == nil {
				t.Errorf("a token of the token service is taken for a session")
			}
		}
	}
	if !strings.Contains(rec.Body.String(), "token") {
		t.Fatalf("no token: %s", rec.Body)
	}
	open := newFixture(t, auth.Config{}, nil)
	if _, err := open.Login(get("/", ""), "a", "b"); err == nil || open.PasswordLogin() || len(open.LoginIssuers()) > 0 {
		t.Error("somebody logs in where there are no users")
	}
	if _, err := os.Stat(filepath.Join(open.dir, "token.key")); err == nil {
		t.Error("a key was made that nothing is signed with")
	}
}

// login goes through the issuer's page and returns the result with which the browser comes back.
func (o *oidcFixture) login(t *testing.T, change func(claims jwt.MapClaims, answer url.Values)) (*auth.Identity, string, error) {
	t.Helper()
	const redirect = "https://registry.test/ui/login/done"
	address, state, err := o.BeginLogin(t.Context(), "corp", redirect, "/ui/repo/x")
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	if q.Get("client_id") != "page" || q.Get("redirect_uri") != redirect || q.Get("code_challenge_method") != "S256" || !strings.HasPrefix(q.Get("scope"), "openid") {
		t.Fatalf("the address is %s", address)
	}
	claims := jwt.MapClaims{"iss": o.p.URL, "aud": "page", "sub": "1", "email": "ann@corp", "email_verified": true, "nonce": q.Get("nonce"),
		"groups": []string{"dev"}, "org": "acme", "exp": o.clock.Now().Add(5 * time.Minute).Unix()}
	answer := url.Values{"state": {q.Get("state")}, "code": {"the-code"}}
	change(claims, answer)
	token := signed(t, o.rk, map[string]any{"kid": "r"}, claims)
	o.p.exchange.Store(&loginExchange{code: "the-code", challenge: q.Get("code_challenge"), idToken: token})
	return o.FinishLogin(get("/", ""), state, answer, redirect)
}

// loginExchange is the login for which a provider gives a token.
type loginExchange struct{ code, challenge, idToken string }

// token answers at the token endpoint. SPEC: RFC 6749 4.1.3, RFC 7636 4.6.
func (e *loginExchange) token(w http.ResponseWriter, r *http.Request) any {
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if e == nil || r.PostFormValue("code") != e.code || base64.RawURLEncoding.EncodeToString(sum[:]) != e.challenge {
		w.WriteHeader(http.StatusBadRequest)
		return map[string]any{"error": "invalid_grant"}
	}
	return map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": e.idToken}
}

func TestLoginAtIssuer(t *testing.T) {
	o := newOIDCFixture(t)
	o.p.down.Store(false)
	if got := o.LoginIssuers(); len(got) != 1 || got[0] != "corp" {
		t.Fatalf("issuers %v", got)
	}
	id, next, err := o.login(t, func(jwt.MapClaims, url.Values) {})
	if err != nil || id.Name != "oidc:corp:ann@corp" || next != "/ui/repo/x" {
		t.Fatalf("%+v %q %v", id, next, err)
	}
	token, _, err := o.NewSession(id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := o.Session(token); err != nil || again.Name != id.Name || len(again.Groups) != 1 {
		t.Fatalf("%+v %v", again, err)
	}
	for name, change := range map[string]func(jwt.MapClaims, url.Values){
		"state of another login": func(_ jwt.MapClaims, a url.Values) { a.Set("state", "other") },
		"no state":               func(_ jwt.MapClaims, a url.Values) { a.Del("state") },
		"nonce of another login": func(c jwt.MapClaims, _ url.Values) { c["nonce"] = "other" },
		"no nonce":               func(c jwt.MapClaims, _ url.Values) { delete(c, "nonce") },
		"token for the API":      func(c jwt.MapClaims, _ url.Values) { c["aud"] = "slipway" },
		"expired":                func(c jwt.MapClaims, _ url.Values) { c["exp"] = o.clock.Now().Add(-time.Minute).Unix() },
		"other code":             func(_ jwt.MapClaims, a url.Values) { a.Set("code", "guessed") },
		"refused":                func(_ jwt.MapClaims, a url.Values) { a.Set("error", "access_denied") },
	} {
		_, _, err := o.login(t, change)
		var wire *oci.Error
		if !errors.As(err, &wire) || wire.Code != oci.CodeUnauthorized {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := o.BeginLogin(t.Context(), "nobody", "https://registry.test/", ""); err == nil {
		t.Error("a login at an unknown issuer begins")
	}
	if _, _, err := o.FinishLogin(get("/", ""), token, url.Values{}, ""); err == nil {
		t.Error("a session's token is taken for a login")
	}
}
