package auth_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/auth/passwords"
)

var publicPull = auth.Rule{Repositories: []string{"public/**"}, Subjects: []string{"anonymous"}, Actions: []string{"pull"}}

func TestOpen(t *testing.T) {
	f := newFixture(t, auth.Config{}, nil)
	id, err := f.Authenticate(get("/v2/", basic("any", "thing")))
	if err != nil || !id.Anonymous() || !f.Open() || !f.PingAllowed(id) || f.TokenHandler() != nil {
		t.Errorf("Authenticate: %+v, %v; Open %v, PingAllowed %v", id, err, f.Open(), f.PingAllowed(id))
	}
	if !f.Allowed(id, "a", auth.Pull|auth.Push|auth.Delete|auth.Catalog|auth.Admin) || !f.Listed(id, "a") {
		t.Error("an open registry refuses something")
	}
}

func TestGrants(t *testing.T) {
	f := newFixture(t, auth.Config{
		HTPasswd: htpasswdFile(t, "alice", "x"),
		Access: []auth.Rule{
			publicPull,
			{Repositories: []string{"lib/*"}, Subjects: []string{"*"}, Actions: []string{"pull"}},
			{Repositories: []string{"lib/*", "alice/**"}, Subjects: []string{"alice"}, Actions: []string{"push"}},
			{Repositories: []string{"dev/**"}, Subjects: []string{"group:dev"}, Actions: []string{"*"}},
			{Repositories: []string{"**"}, Subjects: []string{"root"}, Actions: []string{"*"}},
			{Subjects: []string{"group:ops"}, Actions: []string{"catalog", "admin"}},
		},
	}, nil)
	alice, bob := &auth.Identity{Name: "alice"}, &auth.Identity{Name: "bob"}
	dev, ops := &auth.Identity{Name: "d", Groups: []string{"x", "dev"}}, &auth.Identity{Name: "o", Groups: []string{"ops"}}
	for _, c := range []struct {
		who  *auth.Identity
		repo string
		act  auth.Action
		want bool
	}{
		{nil, "public/a/b", auth.Pull, true},
		{&auth.Identity{}, "public/a", auth.Pull, true},
		{nil, "public/a", auth.Push, false},
		{nil, "lib/a", auth.Pull, false},
		{nil, "", auth.Catalog, false},
		{bob, "public/a", auth.Pull, true}, // anonymous is everybody
		{bob, "lib/a", auth.Pull, true},
		{bob, "lib/a", auth.Push, false},
		{alice, "lib/a", auth.Pull | auth.Push, true}, // two rules add up
		{alice, "lib/a", auth.Delete, false},
		{alice, "alice/x/y", auth.Push, true},
		{alice, "alice/x/y", auth.Pull, false},
		{dev, "dev/a", auth.Pull | auth.Push | auth.Delete, true},
		{dev, "", auth.Catalog, false},
		{&auth.Identity{Name: "root"}, "x", auth.Pull | auth.Push | auth.Delete, true},
		{&auth.Identity{Name: "root"}, "", auth.Catalog, true},
		{&auth.Identity{Name: "root"}, "", auth.Admin, false},
		{ops, "", auth.Catalog | auth.Admin, true},
		{ops, "dev/a", auth.Pull, false},
		// Names that look like other kinds of subjects are only names.
		{&auth.Identity{Name: "group:dev"}, "dev/a", auth.Pull, false},
		{&auth.Identity{Name: "", Groups: []string{"dev"}}, "dev/a", auth.Pull, false},
		{alice, "lib/a", 0, false},
	} {
		if got := f.Allowed(c.who, c.repo, c.act); got != c.want {
			t.Errorf("Allowed(%+v, %q, %v): got %v, want %v", c.who, c.repo, c.act, got, c.want)
		}
	}
	if !f.Listed(bob, "lib/a") || f.Listed(bob, "dev/a") || !f.Listed(nil, "public/a") || f.Listed(nil, "lib/a") {
		t.Error("Listed does not follow the right to pull")
	}
}

func TestWithoutRulesTheAuthenticatedMayDoEverything(t *testing.T) {
	f := newFixture(t, auth.Config{HTPasswd: htpasswdFile(t, "alice", "pw")}, nil)
	id, err := f.Authenticate(get("/v2/", basic("alice", "pw")))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("alice htpasswd", id.Name+" "+id.Method); d != "" {
		t.Error(d)
	}
	if !f.Allowed(id, "a/b", auth.Pull|auth.Push|auth.Delete|auth.Catalog|auth.Admin) {
		t.Error("alice may not do everything")
	}
	if f.Allowed(nil, "a/b", auth.Pull) || f.TokenHandler() != nil {
		t.Error("anonymous may pull, or there is a token service nobody asked for")
	}
}

func TestNewRefuses(t *testing.T) {
	yes, no := true, false
	users := htpasswdFile(t, "alice", "pw")
	rule := func(repo, subject, action string) []auth.Rule {
		return []auth.Rule{{Repositories: []string{repo}, Subjects: []string{subject}, Actions: []string{action}}}
	}
	aud := "slipway"
	for want, cfg := range map[string]auth.Config{
		"htpasswd":                        {HTPasswd: &auth.HTPasswdConfig{Path: filepath.Join(t.TempDir(), "none")}},
		"nobody could get in":             {Access: rule("a", "alice", "pull")},
		"configure a method":              {Token: &auth.TokenConfig{Builtin: &yes}},
		"set builtin: true":               {Token: &auth.TokenConfig{Realm: "https://x"}},
		"builtin excludes":                {Token: &auth.TokenConfig{Builtin: &yes, JWKS: "x"}},
		"token.service: required":         {Token: &auth.TokenConfig{JWKS: "x"}},
		"token.issuer: required":          {Token: &auth.TokenConfig{JWKS: "x", Service: "s"}},
		"token.realm: required":           {Token: &auth.TokenConfig{JWKS: "x", Service: "s", Issuer: "i"}},
		"not an http or https URL":        {Token: &auth.TokenConfig{Builtin: &yes, Realm: "/token"}},
		"not between 1m and 24h":          {Token: &auth.TokenConfig{Builtin: &yes, Expiration: time.Second}},
		`"HS256" is not one of`:           {Token: &auth.TokenConfig{JWKS: "x", Service: "s", Issuer: "i", Realm: "https://x", SigningAlgorithms: []string{"HS256"}}},
		"unknown action":                  {HTPasswd: users, Access: rule("a", "alice", "fly")},
		"character that no":               {HTPasswd: users, Access: rule("A", "alice", "pull")},
		"empty subject":                   {HTPasswd: users, Access: rule("a", "group:", "pull")},
		"no repositories for pull":        {HTPasswd: users, Access: []auth.Rule{{Subjects: []string{"a"}, Actions: []string{"pull"}}}},
		"no subjects":                     {HTPasswd: users, Access: []auth.Rule{{Repositories: []string{"a"}, Actions: []string{"pull"}}}},
		"no actions":                      {HTPasswd: users, Access: []auth.Rule{{Repositories: []string{"a"}, Subjects: []string{"a"}}}},
		"mtls.subject":                    {MTLS: &auth.MTLSConfig{Subject: "email"}},
		"audience is required":            {OIDC: []auth.OIDCConfig{{Issuer: "https://x.test"}}},
		"only https":                      {OIDC: []auth.OIDCConfig{{Issuer: "http://x.test", Audience: aud}}},
		"is not a URL":                    {OIDC: []auth.OIDCConfig{{Issuer: "x", Audience: aud}}},
		"has a colon":                     {OIDC: []auth.OIDCConfig{{Issuer: "https://x.test", Audience: aud, Name: "a:b"}}},
		"are of no use":                   {OIDC: []auth.OIDCConfig{{Issuer: "https://x.test", Audience: aud, JWKS: "keys.json", ClientID: "page"}}},
		"read jwks":                       {OIDC: []auth.OIDCConfig{{Issuer: "https://x.test", Audience: aud, JWKS: "/does/not/exist"}}},
		"ca: read certificates: open":     {OIDC: []auth.OIDCConfig{{Issuer: "https://x.test", Audience: aud, CA: "/does/not/exist"}}},
		"configured twice":                {OIDC: []auth.OIDCConfig{{Issuer: "https://x.test", Audience: aud}, {Issuer: "https://x.test", Audience: aud, Name: "b"}}},
		`the name "x.test" is used twice`: {OIDC: []auth.OIDCConfig{{Issuer: "https://x.test", Audience: aud}, {Issuer: "https://x.test/b", Audience: aud}}},
	} {
		if _, err := auth.New(cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): got %v, want an error with %q", cfg, err, want)
		}
	}
	f := newFixture(t, auth.Config{HTPasswd: users, Token: &auth.TokenConfig{Builtin: &no}, Access: []auth.Rule{publicPull}}, nil)
	if f.TokenHandler() != nil {
		t.Error("builtin: false is not respected")
	}
}

func TestConfigIsYAMLInDistributionsShape(t *testing.T) {
	const text = `
htpasswd: {realm: basic-realm, path: /etc/htpasswd}
token:
  autoredirect: true
  autoredirectpath: /auth/token
  realm: https://auth.test/token
  service: registry
  issuer: auth
  rootcertbundle: /etc/bundle.pem
  jwks: /etc/jwks.json
  signingalgorithms: [ES256]
  expiration: 10m
oidc:
  - {name: ci, issuer: https://ci.test, audiences: [slipway], username_claim: repository, required_claims: {owner: acme}}
mtls: {subject: uri}
access:
  - {repositories: ["team/**"], subjects: [alice, "group:dev"], actions: [pull, push]}
max_failures_per_minute: 5
`
	var got auth.Config
	if err := yaml.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := auth.Config{
		HTPasswd: &auth.HTPasswdConfig{Realm: "basic-realm", Path: "/etc/htpasswd"},
		Token: &auth.TokenConfig{
			AutoRedirect: true, AutoRedirectPath: "/auth/token", Realm: "https://auth.test/token", Service: "registry",
			Issuer: "auth", RootCertBundle: "/etc/bundle.pem", JWKS: "/etc/jwks.json", SigningAlgorithms: []string{"ES256"},
			Expiration: 10 * time.Minute,
		},
		OIDC: []auth.OIDCConfig{{
			Name: "ci", Issuer: "https://ci.test", Audiences: []string{"slipway"}, UsernameClaim: "repository",
			RequiredClaims: map[string]string{"owner": "acme"},
		}},
		MTLS:                 &auth.MTLSConfig{Subject: "uri"},
		Access:               []auth.Rule{{Repositories: []string{"team/**"}, Subjects: []string{"alice", "group:dev"}, Actions: []string{"pull", "push"}}},
		MaxFailuresPerMinute: 5,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestPingAndChallenge(t *testing.T) {
	yes, no := true, false
	users := htpasswdFile(t, "alice", "pw")
	public := []auth.Rule{publicPull}
	const bearer = `Bearer realm="http://registry.test/token",service="slipway"`
	for _, c := range []struct {
		name      string
		cfg       auth.Config
		ping      bool
		challenge string
	}{
		{"passwords", auth.Config{HTPasswd: users}, false, `Basic realm="test realm"`},
		{"passwords, anonymous pull: tokens come by themselves", auth.Config{HTPasswd: users, Access: public}, false, bearer},
		{"passwords, anonymous pull, no tokens", auth.Config{HTPasswd: users, Access: public, Token: &auth.TokenConfig{Builtin: &no}}, false, `Basic realm="test realm"`},
		{"tokens", auth.Config{HTPasswd: users, Token: &auth.TokenConfig{Builtin: &yes}}, false, bearer},
		{"tokens, own realm", auth.Config{HTPasswd: users, Token: &auth.TokenConfig{Builtin: &yes, Realm: "https://r.test/t", Service: `a"b`}}, false, `Bearer realm="https://r.test/t",service="a\"b"`},
		{"rules only", auth.Config{Access: public}, true, ""},
		{"certificates", auth.Config{MTLS: &auth.MTLSConfig{}}, false, `Basic realm="slipway"`},
		{"certificates, anonymous pull", auth.Config{MTLS: &auth.MTLSConfig{}, Access: public}, true, ""},
	} {
		f := newFixture(t, c.cfg, nil)
		r := get("/v2/", "")
		id, err := f.Authenticate(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.PingAllowed(id); got != c.ping {
			t.Errorf("%s: PingAllowed = %v, want %v", c.name, got, c.ping)
		}
		if got := f.Challenge(r, "", 0); !c.ping && got != c.challenge {
			t.Errorf("%s: challenge\n got %s\nwant %s", c.name, got, c.challenge)
		}
		if !f.PingAllowed(&auth.Identity{Name: "alice"}) {
			t.Errorf("%s: an authenticated client may not ping", c.name)
		}
	}
}

func TestChallengeScopes(t *testing.T) {
	yes := true
	f := newFixture(t, auth.Config{HTPasswd: htpasswdFile(t, "alice", "pw"), Token: &auth.TokenConfig{Builtin: &yes}}, nil)
	for _, c := range []struct {
		repo string
		act  auth.Action
		want string
	}{
		{"a/b", auth.Pull, `,scope="repository:a/b:pull"`},
		{"a/b", auth.Push, `,scope="repository:a/b:pull,push"`},
		{"a/b", auth.Delete, `,scope="repository:a/b:delete"`},
		{"", auth.Catalog, `,scope="registry:catalog:*"`},
		{"", auth.Admin, `,scope="registry:admin:*"`},
		{"", 0, ``},
	} {
		r := get("/v2/", "")
		r.Header.Set("X-Forwarded-Proto", "https")
		want := `Bearer realm="https://registry.test/token",service="slipway"` + c.want
		if got := f.Challenge(r, c.repo, c.act); got != want {
			t.Errorf("%v on %q:\n got %s\nwant %s", c.act, c.repo, got, want)
		}
	}
	for proto, want := range map[string]string{"https,http": "https", " HTTPS , http": "https", "http,https": "http", "http": "http", "": "http", "wss": "http"} {
		r := get("/v2/", "")
		r.Header.Set("X-Forwarded-Proto", proto)
		if got := f.Challenge(r, "", 0); !strings.HasPrefix(got, `Bearer realm="`+want+`://registry.test/token"`) {
			t.Errorf("X-Forwarded-Proto %q: got %s, want %s", proto, got, want)
		}
	}
	r := get("/v2/", "")
	r.Host = "evil\"\r\nX: y"
	if got := f.Challenge(r, "", 0); strings.ContainsAny(got, "\r\n") || !strings.Contains(got, `evil\"X: y/token"`) {
		t.Errorf("a hostile Host header makes %q", got)
	}
}

func TestRefuse(t *testing.T) {
	f := newFixture(t, auth.Config{
		HTPasswd: htpasswdFile(t, "alice", "pw"),
		Access: []auth.Rule{publicPull,
			{Repositories: []string{"team/**"}, Subjects: []string{"alice"}, Actions: []string{"pull", "push"}}},
	}, nil)
	alice := token(t, f, basic("alice", "pw"), "repository:team/a:pull")
	nobody := token(t, f, "", "repository:team/a:pull")
	const insufficient = `error="insufficient_scope"`
	for _, c := range []struct {
		name, authorization, repo string
		act                       auth.Action
		status                    int
		challenge                 string // contained
	}{
		{"anonymous", "", "team/a", auth.Pull, 401, `scope="repository:team/a:pull"`},
		{"anonymous token", "Bearer " + nobody, "team/a", auth.Pull, 401, insufficient},
		{"password, not granted", basic("alice", "pw"), "other", auth.Pull, 403, ""},
		{"token, a wider one helps", "Bearer " + alice, "team/a", auth.Push, 401, insufficient},
		{"token, no other would help", "Bearer " + alice, "team/a", auth.Delete, 403, ""},
	} {
		r := get("/v2/", c.authorization)
		id, err := f.Authenticate(r)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if f.Allowed(id, c.repo, c.act) {
			t.Errorf("%s: allowed", c.name)
		}
		e, challenge := f.Refuse(r, id, c.repo, c.act)
		if e.HTTPStatus() != c.status || !strings.Contains(challenge, c.challenge) || (c.challenge == "") != (challenge == "") {
			t.Errorf("%s: got %d %s, want %d with %q", c.name, e.HTTPStatus(), challenge, c.status, c.challenge)
		}
	}
	b, err := os.ReadFile(f.audit)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), `"event":"denied","outcome":"denied","subject":"alice"`); n != 2 {
		t.Errorf("%d denials of alice are recorded, want 2:\n%s", n, b)
	}
}

func TestAuthenticateRefusesBadHeaders(t *testing.T) {
	yes := true
	f := newFixture(t, auth.Config{HTPasswd: htpasswdFile(t, "alice", "pw"), Token: &auth.TokenConfig{Builtin: &yes}}, nil)
	for _, h := range []string{"Digest x", "Basic x", "Bearer", "Bearer a.b.c", "Bearer " + strings.Repeat("x", 100_000), basic("alice", "no"), basic("", "pw")} {
		id, err := f.Authenticate(get("/v2/", h))
		if !oci.HasCode(err, oci.CodeUnauthorized) || id != nil {
			t.Errorf("%.30q: got %+v, %v", h, id, err)
		}
	}
	r := get("/v2/", basic("alice", "pw"))
	r.Header.Add("Authorization", basic("alice", "pw"))
	if _, err := f.Authenticate(r); !oci.HasCode(err, oci.CodeUnauthorized) {
		t.Errorf("two headers: %v", err)
	}
	if id, err := f.Authenticate(get("/v2/", basic("", ""))); err != nil || !id.Anonymous() {
		t.Errorf("empty Basic credentials: %+v, %v", id, err)
	}
	if got := f.Challenge(get("/v2/", "Bearer a.b.c"), "", 0); !strings.HasSuffix(got, `,error="invalid_token"`) {
		t.Errorf("challenge for a bad token: %s", got)
	}
}

func TestHTPasswdReload(t *testing.T) {
	cfg := htpasswdFile(t, "alice", "one", "bob", "bpw")
	f := newFixture(t, auth.Config{HTPasswd: cfg}, nil)
	login := func(user, password string, want bool) {
		t.Helper()
		_, err := f.Authenticate(get("/v2/", basic(user, password)))
		if (err == nil) != want {
			t.Errorf("login %s/%s: %v, want success %v", user, password, err, want)
		}
	}
	login("alice", "one", true)
	login("alice", "two", false)
	f.clock.Add(time.Minute)
	login("alice", "one", true)
	if strings.Contains(f.log.String(), "read again") { // it would forget what it has verified
		t.Errorf("an unchanged file is read again:\n%s", f.log)
	}

	writeFile(t, cfg.Path, htpasswdLines(t, "alice", "two"))
	login("alice", "one", true) // within the second for which a check of the file holds
	f.clock.Add(time.Second)
	login("alice", "one", false) // also forgotten in the cache
	login("alice", "two", true)
	login("bob", "bpw", false)

	writeFile(t, cfg.Path, "alice:$apr1$SALT$HASHHASH\n")
	for range 3 {
		f.clock.Add(time.Second)
		login("alice", "two", true) // the old users stay
	}
	if n := strings.Count(f.log.String(), "htpasswd file not usable"); n != 1 || strings.Contains(f.log.String(), "HASHHASH") {
		t.Errorf("the broken file is logged %d times, want once and without the hash:\n%s", n, f.log)
	}
	if err := os.Remove(cfg.Path); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.clock.Add(time.Second)
		login("alice", "two", true)
	}
	if n := strings.Count(f.log.String(), "htpasswd file not usable"); n != 2 {
		t.Errorf("the missing file is logged %d times, want once:\n%s", n-1, f.log)
	}
	writeFile(t, cfg.Path, htpasswdLines(t, "carol", "cpw"))
	f.clock.Add(time.Second)
	login("carol", "cpw", true)
	login("alice", "two", false)
}

func TestWrongPasswordsAreLimited(t *testing.T) {
	f := newFixture(t, auth.Config{HTPasswd: htpasswdFile(t, "alice", "pw", "bob", "bpw"), MaxFailuresPerMinute: 3}, nil)
	try := func(addr, user, password string) error {
		r := get("/v2/", basic(user, password))
		r.RemoteAddr = addr
		_, err := f.Authenticate(r)
		return err
	}
	if err := try("192.0.2.1:1", "alice", "pw"); err != nil {
		t.Fatal(err)
	}
	for i, user := range []string{"alice", "nobody", "bob"} {
		if err := try("192.0.2.1:2", user, "wrong"); !oci.HasCode(err, oci.CodeUnauthorized) {
			t.Fatalf("failure %d: %v", i, err)
		}
	}
	err := try("192.0.2.1:3", "bob", "bpw")
	var retry *passwords.RetryError
	if !oci.HasCode(err, oci.CodeTooManyRequests) || !errors.As(err, &retry) || retry.After != time.Minute {
		t.Errorf("after three failures: %v, retry %+v", err, retry)
	}
	if err := try("192.0.2.1:4", "alice", "pw"); err != nil {
		t.Errorf("a password verified before is refused: %v", err)
	}
	if err := try("192.0.2.2:1", "bob", "bpw"); err != nil {
		t.Errorf("another address is refused: %v", err)
	}
	f.clock.Add(time.Minute)
	if err := try("192.0.2.1:5", "bob", "bpw"); err != nil {
		t.Errorf("after a minute: %v", err)
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	f := newFixture(t, auth.Config{HTPasswd: htpasswdFile(t, "alice", "pw"), Access: []auth.Rule{publicPull}}, nil)
	r := get("/v2/public/a/b/manifests/latest", "")
	n := testing.AllocsPerRun(1000, func() {
		id, err := f.Authenticate(r)
		if err != nil || !f.Allowed(id, "public/a/b", auth.Pull) {
			t.Fatal("refused")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func benchmark(b *testing.B, f *fixture, r *http.Request) {
	b.Helper()
	if _, err := f.Authenticate(r); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id, err := f.Authenticate(r)
			if err != nil || !f.Allowed(id, "public/a/b", auth.Pull) {
				b.Error("refused")
			}
		}
	})
}

func BenchmarkAnonymous(b *testing.B) {
	f := newFixture(b, auth.Config{HTPasswd: htpasswdFile(b, "alice", "pw"), Access: []auth.Rule{publicPull}}, nil)
	benchmark(b, f, httptest.NewRequest("GET", "/v2/public/a/b/blobs/x", nil))
}

func BenchmarkBasicSeenBefore(b *testing.B) {
	f := newFixture(b, auth.Config{HTPasswd: htpasswdFile(b, "alice", "pw"), Access: []auth.Rule{publicPull}}, nil)
	benchmark(b, f, get("/v2/", basic("alice", "pw")))
}

func BenchmarkTokenSeenBefore(b *testing.B) {
	f := newFixture(b, auth.Config{HTPasswd: htpasswdFile(b, "alice", "pw"), Access: []auth.Rule{publicPull}}, nil)
	benchmark(b, f, get("/v2/", "Bearer "+token(b, f, basic("alice", "pw"), "repository:public/a/b:pull")))
}
