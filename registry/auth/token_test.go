package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
)

func tokenConfig(t testing.TB) auth.Config {
	yes := true
	return auth.Config{
		HTPasswd: htpasswdFile(t, "alice", "pw", "root", "rootpw"),
		Token:    &auth.TokenConfig{Builtin: &yes},
		Access: []auth.Rule{
			publicPull,
			{Repositories: []string{"team/**"}, Subjects: []string{"alice"}, Actions: []string{"pull", "push"}},
			{Repositories: []string{"**"}, Subjects: []string{"root"}, Actions: []string{"*"}},
		},
	}
}

// claimsOf decodes a token without checking its signature.
func claimsOf(t testing.TB, token string) (header map[string]any, claims jwt.MapClaims) {
	t.Helper()
	parsed, _, err := jwt.NewParser().ParseUnverified(token, jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Header, parsed.Claims.(jwt.MapClaims)
}

func TestTokenEndpoint(t *testing.T) {
	f := newFixture(t, tokenConfig(t), nil)
	alice, root := basic("alice", "pw"), basic("root", "rootpw")
	form := func(pairs ...string) url.Values {
		v := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			v.Add(pairs[i], pairs[i+1])
		}
		return v
	}
	long := post(form("grant_type", "password", "username", "alice", "password", strings.Repeat("x", 70<<10)))
	for _, c := range []struct {
		name   string
		r      *http.Request
		status int
		sub    string
		access string // JSON of the access claim, or the error code
	}{
		{"login: no scope", get("/token?account=alice&client_id=docker&offline_token=true&service=slipway", alice), 200, "alice", `[]`},
		{"no service", get("/token?scope=repository:team/a:pull", alice), 200, "alice", `[{"actions":["pull"],"name":"team/a","type":"repository"}]`},
		{"asked for more than granted", get("/token?scope=repository:team/a:pull,push,delete", alice), 200, "alice", `[{"actions":["pull","push"],"name":"team/a","type":"repository"}]`},
		{"star", get("/token?scope=repository:team/a:*", alice), 200, "alice", `[{"actions":["pull","push"],"name":"team/a","type":"repository"}]`},
		{"several scopes", get("/token?scope=repository:team/a:push&scope=repository:public/x:pull%20repository:other:pull", alice), 200, "alice", `[{"actions":["push"],"name":"team/a","type":"repository"},{"actions":["pull"],"name":"public/x","type":"repository"}]`},
		{"unknown scopes", get("/token?scope=repository:UPPER:pull&scope=thing:x:y&scope=%3A%3A", alice), 200, "alice", `[]`},
		{"catalogue not granted", get("/token?scope=registry:catalog:*", alice), 200, "alice", `[]`},
		{"catalogue", get("/token?scope=registry:catalog:*", root), 200, "root", `[{"actions":["*"],"name":"catalog","type":"registry"}]`},
		{"admin is not in *", get("/token?scope=registry:admin:*", root), 200, "root", `[]`},
		{"anonymous", get("/token?scope=repository:public/a:pull,push", ""), 200, "", `[{"actions":["pull"],"name":"public/a","type":"repository"}]`},
		{"empty credentials", get("/token?scope=repository:public/a:pull", basic("", "")), 200, "", `[{"actions":["pull"],"name":"public/a","type":"repository"}]`},
		{"wrong password", get("/token", basic("alice", "no")), 401, "", `UNAUTHORIZED invalid_grant`},
		{"unknown user", get("/token", basic("mallory", "no")), 401, "", `UNAUTHORIZED invalid_grant`},
		{"a token for a token", get("/token", "Bearer "+token(t, f, alice, "")), 401, "", `UNAUTHORIZED invalid_grant`},
		{"wrong service", get("/token?service=other", alice), 400, "", `UNSUPPORTED invalid_request`},
		{"bad query", get("/token?scope=%zz", alice), 400, "", `UNSUPPORTED invalid_request`},
		{"other method", httptest.NewRequest("PUT", "/token", nil), 405, "", `UNSUPPORTED invalid_grant`},
		{"password grant", post(form("grant_type", "password", "username", "alice", "password", "pw", "service", "slipway", "client_id", "c", "scope", "repository:team/a:pull repository:other:pull")), 200, "alice", `[{"actions":["pull"],"name":"team/a","type":"repository"}]`},
		{"password grant, wrong", post(form("grant_type", "password", "username", "alice", "password", "no")), 401, "", `UNAUTHORIZED invalid_grant`},
		{"password grant, empty", post(form("grant_type", "password")), 401, "", `UNAUTHORIZED invalid_grant`},
		{"refresh grant, rubbish", post(form("grant_type", "refresh_token", "refresh_token", "a.b.c")), 401, "", `UNAUTHORIZED invalid_grant`},
		{"unknown grant", post(form("grant_type", "magic")), 400, "", `UNSUPPORTED unsupported_grant_type`},
		{"too large", long, 400, "", `UNSUPPORTED invalid_request`},
		{"query is no form", httptest.NewRequest("POST", "/token?grant_type=password&username=alice&password=pw", nil), 400, "", `UNSUPPORTED unsupported_grant_type`},
	} {
		resp, a := exchange(t, f, c.r)
		if resp.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d: %+v", c.name, resp.StatusCode, c.status, a)
			continue
		}
		if resp.Header.Get("Cache-Control") != "no-store" || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: headers %v", c.name, resp.Header)
		}
		if c.status != 200 {
			if got := a.Errors[0].Code + " " + a.Error; got != c.access || a.Token != "" {
				t.Errorf("%s: got %s, want %s", c.name, got, c.access)
			}
			if challenge := resp.Header.Get("WWW-Authenticate"); (challenge == `Basic realm="test realm"`) != (c.status == 401) {
				t.Errorf("%s: challenge %q", c.name, challenge)
			}
			continue
		}
		if a.Token != a.AccessToken || a.ExpiresIn != 300 || a.IssuedAt != "2030-01-02T03:04:05Z" {
			t.Errorf("%s: answer %+v", c.name, a)
		}
		_, claims := claimsOf(t, a.Token)
		access, _ := json.Marshal(claims["access"])
		if claims["sub"] != c.sub || string(access) != c.access {
			t.Errorf("%s:\n got %v %s\nwant %s %s", c.name, claims["sub"], access, c.sub, c.access)
		}
	}
}

func TestTokenClaims(t *testing.T) {
	f := newFixture(t, tokenConfig(t), nil)
	header, claims := claimsOf(t, token(t, f, basic("alice", "pw"), ""))
	now := f.clock.Now().Unix()
	jti, kid := claims["jti"], header["kid"]
	if s, _ := jti.(string); len(s) < 20 {
		t.Errorf("jti %v", jti)
	}
	want := jwt.MapClaims{
		"iss": "slipway", "aud": "slipway", "sub": "alice", "jti": jti, "method": "htpasswd", "access": []any{},
		"iat": float64(now), "nbf": float64(now - 60), "exp": float64(now + 300),
	}
	if d := cmp.Diff(want, claims); d != "" {
		t.Errorf("claims (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]any{"alg": "EdDSA", "typ": "JWT", "kid": kid}, header); d != "" || kid == "" {
		t.Errorf("header (-want +got):\n%s", d)
	}
}

func TestTokenIsWorthItsScopeWithinTheRules(t *testing.T) {
	f := newFixture(t, tokenConfig(t), nil)
	id, err := f.Authenticate(get("/v2/", "Bearer "+token(t, f, basic("alice", "pw"), "repository:team/a:pull")))
	if err != nil {
		t.Fatal(err)
	}
	if id.Name != "alice" || id.Method != "token" || !f.PingAllowed(id) {
		t.Errorf("identity %+v", id)
	}
	for _, c := range []struct {
		repo string
		act  auth.Action
		want bool
	}{
		{"team/a", auth.Pull, true},
		{"team/a", auth.Push, false},
		{"team/b", auth.Pull, false},
		{"public/a", auth.Pull, true},
		{"", auth.Catalog, false},
	} {
		if got := f.Allowed(id, c.repo, c.act); got != c.want {
			t.Errorf("%v on %q: got %v, want %v", c.act, c.repo, got, c.want)
		}
	}
	if !f.Listed(id, "team/b") || f.Listed(id, "other") {
		t.Error("the catalogue is not what alice may pull")
	}

	// The key is the same and the rules are narrower. The access claim alone grants nothing.
	cfg := tokenConfig(t)
	cfg.Token.Key = filepath.Join(f.dir, "token.key")
	cfg.Access = []auth.Rule{publicPull}
	narrow := newFixture(t, cfg, f.clock)
	id, err = narrow.Authenticate(get("/v2/", "Bearer "+token(t, f, basic("alice", "pw"), "repository:team/a:pull")))
	if err != nil || narrow.Allowed(id, "team/a", auth.Pull) {
		t.Errorf("a token from before outlives the rule: %v", err)
	}
}

func TestTokenExpires(t *testing.T) {
	f := newFixture(t, tokenConfig(t), nil)
	r := get("/v2/", "Bearer "+token(t, f, basic("alice", "pw"), ""))
	unseen := get("/v2/", "Bearer "+token(t, f, basic("alice", "pw"), ""))
	if _, err := f.Authenticate(r); err != nil { // now it is in the cache
		t.Fatal(err)
	}
	f.clock.Add(5*time.Minute - time.Second)
	if _, err := f.Authenticate(r); err != nil {
		t.Errorf("a second before the end: %v", err)
	}
	f.clock.Add(time.Second)
	for _, r := range []*http.Request{r, unseen} {
		_, err := f.Authenticate(r)
		if !oci.HasCode(err, oci.CodeUnauthorized) || !strings.Contains(err.Error(), "expired") {
			t.Errorf("at the end: %v", err)
		}
	}
}

func TestForgedTokens(t *testing.T) {
	f := newFixture(t, tokenConfig(t), nil)
	good := token(t, f, basic("alice", "pw"), "")
	header, claims := claimsOf(t, good)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(method jwt.SigningMethod, key any, kid any) string {
		tok := jwt.NewWithClaims(method, claims)
		tok.Header["kid"] = kid
		s, err := tok.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	parts := strings.Split(good, ".")
	other := newFixture(t, tokenConfig(t), f.clock) // another key, the same names
	for name, tok := range map[string]string{
		"alg none":        sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, header["kid"]),
		"shared secret":   sign(jwt.SigningMethodHS256, []byte("x"), header["kid"]),
		"our kid":         sign(jwt.SigningMethodES256, key, header["kid"]),
		"unknown kid":     sign(jwt.SigningMethodES256, key, "x"),
		"no kid":          sign(jwt.SigningMethodES256, key, nil),
		"another key":     token(t, other, basic("alice", "pw"), ""),
		"no signature":    parts[0] + "." + parts[1] + ".",
		"changed claims":  parts[0] + "." + strings.Split(token(t, f, basic("root", "rootpw"), ""), ".")[1] + "." + parts[2],
		"two parts":       parts[0] + "." + parts[1],
		"not base64":      parts[0] + ".!!!." + parts[2],
		"claims not JSON": parts[0] + ".eyJh." + parts[2],
	} {
		if id, err := f.Authenticate(get("/v2/", "Bearer "+tok)); !oci.HasCode(err, oci.CodeUnauthorized) {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
}

func TestRefreshToken(t *testing.T) {
	cfg := tokenConfig(t)
	const lifetime = 90 * 24 * time.Hour
	cfg.Token.RefreshExpiration = lifetime
	f := newFixture(t, cfg, nil)
	refresh := func(token string) (int, tokenAnswer) {
		resp, a := exchange(t, f, post(url.Values{
			"grant_type": {"refresh_token"}, "refresh_token": {token}, "service": {"slipway"},
			"client_id": {"docker"}, "scope": {"repository:team/a:push"},
		}))
		return resp.StatusCode, a
	}
	_, a := exchange(t, f, get("/token?offline_token=true", basic("alice", "pw")))
	if a.RefreshToken == "" {
		t.Fatal("no refresh token")
	}
	status, again := refresh(a.RefreshToken)
	if status != 200 || again.Scope != "repository:team/a:push" || again.RefreshToken != "" {
		t.Fatalf("refresh: %d %+v", status, again)
	}
	if _, claims := claimsOf(t, again.AccessToken); claims["sub"] != "alice" {
		t.Errorf("claims %v", claims)
	}
	if _, err := f.Authenticate(get("/v2/", "Bearer "+a.RefreshToken)); !oci.HasCode(err, oci.CodeUnauthorized) {
		t.Errorf("a refresh token serves as access token: %v", err)
	}
	if status, _ := refresh(a.AccessToken); status != 401 {
		t.Errorf("an access token serves as refresh token: %d", status)
	}
	for name, r := range map[string]*http.Request{
		"not asked for": get("/token", basic("alice", "pw")),
		"anonymous":     get("/token?offline_token=true", ""),
	} {
		if _, a := exchange(t, f, r); a.RefreshToken != "" {
			t.Errorf("%s: a refresh token", name)
		}
	}
	f.clock.Add(lifetime - time.Second)
	if status, _ := refresh(a.RefreshToken); status != 200 {
		t.Errorf("a second before the end: %d", status)
	}
	f.clock.Add(time.Second)
	if status, _ := refresh(a.RefreshToken); status != 401 {
		t.Errorf("at the end: %d", status)
	}
	_, b := exchange(t, f, get("/token?offline_token=true", basic("alice", "pw")))
	if status, _ := refresh(b.RefreshToken); status != 200 {
		t.Errorf("a new one: %d", status)
	}
	writeFile(t, cfg.HTPasswd.Path, htpasswdLines(t, "alice", "changed"))
	f.clock.Add(time.Second)
	if status, _ := refresh(b.RefreshToken); status != 401 {
		t.Errorf("the password was changed: %d", status)
	}
}

// TestRefreshTokensAreForWhoConfiguresThem checks that without a configured lifetime nobody gets a
// refresh token, however the request is made. A token from an earlier configuration stays valid
// until it expires.
func TestRefreshTokensAreForWhoConfiguresThem(t *testing.T) {
	cfg := tokenConfig(t)
	cfg.Token.Key = filepath.Join(t.TempDir(), "token.key")
	password := func(more ...string) *http.Request {
		f := url.Values{"grant_type": {"password"}, "service": {"slipway"}, "client_id": {"docker"}, "username": {"alice"}, "password": {"pw"}}
		for i := 0; i < len(more); i += 2 {
			f.Set(more[i], more[i+1])
		}
		return post(f)
	}
	refresh := func(f *fixture, token string) (*http.Response, tokenAnswer) {
		return exchange(t, f, post(url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}, "service": {"slipway"}, "access_type": {"offline"}}))
	}
	configured := cfg
	token := *cfg.Token
	token.RefreshExpiration = time.Hour
	configured.Token = &token
	given := ""
	for _, c := range []struct {
		name string
		cfg  auth.Config
		want bool
	}{{"configured", configured, true}, {"by default", cfg, false}} {
		f := newFixture(t, c.cfg, nil)
		for name, r := range map[string]*http.Request{
			"GET offline_token=true":                 get("/token?service=slipway&account=alice&client_id=docker&offline_token=true", basic("alice", "pw")),
			"GET offline_token=1, with a scope":      get("/token?offline_token=1&scope=repository:team/a:pull", basic("alice", "pw")),
			"POST access_type=offline":               password("access_type", "offline"),
			"POST access_type=offline, with a scope": password("access_type", "offline", "scope", "repository:team/a:pull"),
		} {
			resp, a := exchange(t, f, r)
			if resp.StatusCode != 200 || a.AccessToken == "" || (a.RefreshToken != "") != c.want {
				t.Errorf("%s, %s: got %d %+v, want a refresh token: %t", c.name, name, resp.StatusCode, a, c.want)
			}
			if a.RefreshToken != "" {
				given = a.RefreshToken
			}
		}
		if resp, a := refresh(f, given); resp.StatusCode != 200 || a.AccessToken == "" || a.RefreshToken != "" {
			t.Errorf("%s, a token of before: got %d %+v", c.name, resp.StatusCode, a)
		}
	}
}

func TestTokenEndpointLimitsWrongPasswords(t *testing.T) {
	cfg := tokenConfig(t)
	cfg.MaxFailuresPerMinute = 1
	f := newFixture(t, cfg, nil)
	exchange(t, f, get("/token", basic("alice", "no")))
	resp, a := exchange(t, f, get("/token", basic("alice", "no")))
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "60" || a.Errors[0].Code != "TOOMANYREQUESTS" {
		t.Errorf("got %d, Retry-After %q, %+v", resp.StatusCode, resp.Header.Get("Retry-After"), a)
	}
}

func TestAnonymousGetsNoTokenWithoutGrants(t *testing.T) {
	cfg := tokenConfig(t)
	cfg.Access = nil
	f := newFixture(t, cfg, nil)
	resp, _ := exchange(t, f, get("/token?scope=repository:public/a:pull", ""))
	if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("got %d %v", resp.StatusCode, resp.Header)
	}
}

func TestTokenKeyFile(t *testing.T) {
	yes := true
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "token.key")
	cfg := auth.Config{HTPasswd: htpasswdFile(t, "alice", "pw"), Token: &auth.TokenConfig{Builtin: &yes, Key: path}}

	// Replicas that start at the same time agree on one key.
	fixtures := make([]*fixture, 4)
	var wg sync.WaitGroup
	for i := range fixtures {
		a, clock := &fixture{}, newClock()
		fixtures[i] = a
		wg.Go(func() {
			var err error
			if a.Auth, err = auth.New(cfg, &auth.Options{Clock: clock.Now}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	tok := token(t, fixtures[0], basic("alice", "pw"), "")
	for i, f := range fixtures {
		if _, err := f.Authenticate(get("/v2/", "Bearer "+tok)); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("key file: %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("files left behind: %v, %v", entries, err)
	}

	// Rotation: a new key in front signs, and the old one still verifies.
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))+string(old))
	rotated := newFixture(t, cfg, nil)
	fresh := token(t, rotated, basic("alice", "pw"), "")
	if header, _ := claimsOf(t, fresh); header["alg"] != "ES256" {
		t.Errorf("signed with %v", header)
	}
	for _, tok := range []string{tok, fresh} {
		if _, err := rotated.Authenticate(get("/v2/", "Bearer "+tok)); err != nil {
			t.Error(err)
		}
	}
	for content, want := range map[string]string{
		"": "no private key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n": "cannot be parsed",
	} {
		writeFile(t, path, content)
		if _, err := auth.New(cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("key file %q: %v, want %q", content, err, want)
		}
	}
}

func FuzzBearer(f *testing.F) {
	fx := newFixture(f, auth.Config{HTPasswd: htpasswdFile(f, "alice", "pw"), Access: []auth.Rule{publicPull}}, nil)
	good := token(f, fx, basic("alice", "pw"), "repository:public/a:pull")
	f.Add(good)
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIn0.eyJpc3MiOiJzbGlwd2F5In0.x")
	f.Fuzz(func(t *testing.T, token string) {
		if id, err := fx.Authenticate(get("/v2/", "Bearer "+token)); err == nil && strings.TrimSpace(token) != good {
			// Only another encoding of the same three parts may be accepted.
			_, claims := claimsOf(t, strings.TrimSpace(token))
			if claims["sub"] != "alice" {
				t.Errorf("accepted %q as %+v", token, id)
			}
		}
	})
}
