package serve_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/crypto/bcrypt"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// htpasswd returns the lines of a password file for pairs of user and password.
func htpasswd(t testing.TB, pairs ...string) string {
	t.Helper()
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		hash, err := bcrypt.GenerateFromPassword([]byte(pairs[i+1]), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(pairs[i] + ":" + string(hash) + "\n")
	}
	return b.String()
}

func TestHTPasswdReload(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, path, htpasswd(t, "alice", "old"))
	s := start(t, setup{yaml: "auth: {max_failures_per_minute: -1, htpasswd: {path: " + path + ", realm: here}}"})
	a := s.want(401, "GET", "/v2/", "")
	if got := a.header.Get("WWW-Authenticate"); got != `Basic realm="here"` {
		t.Errorf("challenge: got %s", got)
	}
	s.want(200, "GET", "/v2/", "", basic("alice", "old"))
	s.pushImage("a", "v1", "layer", basic("alice", "old"))
	s.want(401, "GET", "/v2/a/manifests/v1", "", basic("alice", "wrong"))
	s.want(401, "GET", "/v2/a/manifests/v1", "")
	writeFile(t, path, htpasswd(t, "alice", "new", "bob", "b"))
	poll(t, "the new password is taken", func() bool { return s.do("GET", "/v2/", "", basic("alice", "new")).status == 200 })
	s.want(200, "GET", "/v2/a/manifests/v1", "", basic("bob", "b"))
	s.want(401, "GET", "/v2/", "", basic("alice", "old"))
	writeFile(t, path, "not a password file")
	poll(t, "the broken file is complained about", func() bool {
		s.want(200, "GET", "/v2/", "", basic("alice", "new"))
		return strings.Contains(s.log.String(), "htpasswd file not usable")
	})
}

// tokenYAML returns a configuration in which everybody may pull public/** and alice may do
// everything.
func tokenYAML(path, more string) string {
	return `
auth:
  htpasswd: {path: ` + path + `}
  access:
    - {repositories: ["public/**"], subjects: [anonymous], actions: [pull]}
    - {repositories: ["**"], subjects: [alice], actions: [pull, push, delete]}
` + more
}

func TestTokenService(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "htpasswd")
	writeFile(t, path, htpasswd(t, "alice", "secret-word", "bob", "b"))
	audit, access := filepath.Join(dir, "audit"), filepath.Join(dir, "access")
	s := start(t, setup{yaml: tokenYAML(path, "log: {audit: {file: "+audit+"}, accesslog: {file: "+access+"}}\n")})

	s.want(401, "GET", "/v2/public/app/manifests/v1", "", basic("alice", "wrong"))
	s.want(403, "POST", "/v2/public/app/blobs/uploads/", "", basic("bob", "b"))
	a := s.want(401, "GET", "/v2/", "")
	if got, want := a.header.Get("WWW-Authenticate"), `Bearer realm="`+s.url+`/token",service="slipway"`; got != want {
		t.Errorf("challenge: got %s, want %s", got, want)
	}
	m := oci.PutManifest{Tags: []string{"v1"}, MediaType: oci.MediaTypeOCIManifest, Bytes: []byte(imageOf("layer"))}
	push := func(o *client.Options, repo string) error {
		c := s.registry(o)
		if _, err := c.PushBlob(t.Context(), repo, oci.Digest(digestOf("layer")), 5, strings.NewReader("layer")); err != nil {
			return err
		}
		_, err := c.PutManifest(t.Context(), repo, m)
		return err
	}
	alice := &client.Options{Username: "alice", Password: "secret-word"}
	for _, repo := range []string{"public/app", "private/app"} {
		if err := push(alice, repo); err != nil {
			t.Fatalf("alice pushes %s: %v", repo, err)
		}
	}
	if err := push(&client.Options{}, "public/app"); !oci.HasCode(err, oci.CodeUnauthorized) && !oci.HasCode(err, oci.CodeDenied) {
		t.Errorf("anonymous push: got %v, want it refused", err)
	}
	if err := push(&client.Options{Username: "alice", Password: "guess"}, "public/app"); !oci.HasCode(err, oci.CodeUnauthorized) {
		t.Errorf("push with a wrong password: got %v, want UNAUTHORIZED", err)
	}
	anonymous := s.registry(nil)
	if got, err := anonymous.GetManifest(t.Context(), "public/app", "v1"); err != nil || string(got.Bytes) != imageOf("layer") {
		t.Errorf("anonymous pull: %v", err)
	}
	if _, err := anonymous.GetManifest(t.Context(), "private/app", "v1"); !oci.HasCode(err, oci.CodeUnauthorized) && !oci.HasCode(err, oci.CodeDenied) {
		t.Errorf("anonymous pull of what is private: got %v, want it refused", err)
	}
	if err := s.registry(alice).DeleteTag(t.Context(), "private/app", "v1"); err != nil {
		t.Errorf("alice deletes: %v", err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	checkAudit(t, readFile(t, audit))
	for name, log := range map[string]string{"audit": readFile(t, audit), "access": readFile(t, access), "server": s.log.String()} {
		if strings.Contains(log, "secret-word") || strings.Contains(log, "eyJ") {
			t.Errorf("the %s log holds a credential:\n%s", name, log)
		}
	}
}

// registry returns a client of the server.
func (s *instance) registry(o *client.Options) *client.Client {
	s.t.Helper()
	c, err := client.New(s.url, o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// checkAudit checks that the audit log is valid line by line and records what TestTokenService did.
func checkAudit(t *testing.T, text string) {
	t.Helper()
	found := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var e struct{ Time, Event, Outcome, Subject, Addr, Repo, Reference string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("audit line %q: %v", line, err)
		}
		if _, err := time.Parse(time.RFC3339Nano, e.Time); err != nil || !strings.HasPrefix(e.Addr, "127.0.0.1:") {
			t.Errorf("audit line %s: time or address is wrong", line)
		}
		e.Reference, _, _ = strings.Cut(e.Reference, "@")
		if len(e.Reference) > 20 { // a token's ID or a digest
			e.Reference = "*"
		}
		found[strings.Join([]string{e.Event, e.Outcome, e.Subject, e.Repo, e.Reference}, " ")]++
	}
	for _, want := range []string{
		"login failure alice  ", "token issued alice  *", "push success alice public/app v1", "push success alice private/app *",
		"delete success alice private/app v1", "denied denied bob public/app ",
	} {
		if found[want] == 0 {
			t.Errorf("the audit log lacks %q; it has %v", want, found)
		}
	}
}

// TestTokenRealm follows the challenge of a server that is not at the root of the host that the
// request names.
func TestTokenRealm(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, path, htpasswd(t, "alice", "pw"))
	s := start(t, setup{yaml: tokenYAML(path, "http: {prefix: /registry/}\n")})
	realm := regexp.MustCompile(`realm="([^"]*)"`)
	a := s.want(401, "GET", "/registry/v2/", "")
	m := realm.FindStringSubmatch(a.header.Get("WWW-Authenticate"))
	if m == nil || m[1] != s.url+"/registry/token" {
		t.Fatalf("challenge below a prefix: got %s", a.header.Get("WWW-Authenticate"))
	}
	s.want(200, "GET", m[1]+"?service=slipway", "", basic("alice", "pw"))
	s.want(404, "GET", "/v2/", "")
	d := digestOf("layer")
	a = s.want(201, "POST", "/registry/v2/a/blobs/uploads/?digest="+d, "layer", basic("alice", "pw"))
	if got := a.header.Get("Location"); got != "/registry/v2/a/blobs/"+d {
		t.Errorf("Location below a prefix: got %s", got)
	}
	c, err := client.New(s.url+"/registry", &client.Options{Username: "alice", Password: "pw"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.ResolveBlob(t.Context(), "a", oci.Digest(d)); err != nil {
		t.Errorf("the whole flow below a prefix: %v", err)
	}

	s = start(t, setup{yaml: tokenYAML(path, "http: {host: \"https://registry.example.com/\"}\n")})
	a = s.want(401, "GET", "/v2/", "")
	if m := realm.FindStringSubmatch(a.header.Get("WWW-Authenticate")); m == nil || m[1] != "https://registry.example.com/token" {
		t.Errorf("challenge with http.host: got %s", a.header.Get("WWW-Authenticate"))
	}
	a = s.want(201, "POST", "/v2/a/blobs/uploads/?digest="+d, "layer", basic("alice", "pw"))
	if got := a.header.Get("Location"); got != "https://registry.example.com/v2/a/blobs/"+d {
		t.Errorf("Location with http.host: got %s", got)
	}
}

func TestOIDC(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	enc := base64.RawURLEncoding.EncodeToString
	mux := http.NewServeMux()
	provider := httptest.NewServer(mux)
	defer provider.Close()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"issuer":"`+provider.URL+`","jwks_uri":"`+provider.URL+`/keys","authorization_endpoint":"`+provider.URL+`/a","token_endpoint":"`+provider.URL+`/t","id_token_signing_alg_values_supported":["ES256"]}`)
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"keys":[{"kty":"EC","kid":"k","alg":"ES256","use":"sig","crv":"P-256","x":"`+enc(public[1:33])+`","y":"`+enc(public[33:])+`"}]}`)
	})
	token := func(k *ecdsa.PrivateKey, sub, aud string) string {
		tok := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"iss": provider.URL, "aud": aud, "sub": sub,
			"groups": []string{"dev"}, "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix()})
		tok.Header["kid"] = "k"
		text, err := tok.SignedString(k)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	s := start(t, setup{yaml: `
auth:
  oidc: [{name: corp, issuer: "` + provider.URL + `", audience: registry}]
  access:
    - {repositories: ["dev/**"], subjects: ["group:dev"], actions: [pull]}
    - {repositories: ["dev/**"], subjects: ["oidc:corp:bob"], actions: [push]}
`})
	bob := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token(key, "bob", "registry")) }
	eve := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token(key, "eve", "registry")) }
	s.pushImage("dev/app", "v1", "layer", bob)
	s.want(200, "GET", "/v2/dev/app/manifests/v1", "", eve)
	s.want(403, "POST", "/v2/dev/app/blobs/uploads/", "", eve)
	s.want(200, "GET", "/v2/dev/app/manifests/v1", "", basic("bob", token(key, "bob", "registry")))
	s.want(401, "GET", "/v2/dev/app/manifests/v1", "")
	for name, bad := range map[string]string{"audience": token(key, "bob", "elsewhere"), "signature": token(newKey(t), "bob", "registry")} {
		a := s.do("GET", "/v2/dev/app/manifests/v1", "", header("Authorization", "Bearer "+bad))
		if a.status != 401 || a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("wrong %s: got %d, want 401 with a challenge", name, a.status)
		}
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
