package auth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
)

func rsaKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func ecKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// jwkOf returns a key as an entry of a key set.
func jwkOf(t testing.TB, kid string, public crypto.PublicKey) map[string]string {
	t.Helper()
	enc := base64.RawURLEncoding.EncodeToString
	switch k := public.(type) {
	case *rsa.PublicKey:
		return map[string]string{"kty": "RSA", "kid": kid, "alg": "RS256", "use": "sig", "n": enc(k.N.Bytes()), "e": enc(big.NewInt(int64(k.E)).Bytes())}
	case *ecdsa.PublicKey:
		b, err := k.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{"kty": "EC", "kid": kid, "alg": "ES256", "use": "sig", "crv": "P-256", "x": enc(b[1:33]), "y": enc(b[33:])}
	}
	t.Fatalf("no JWK for %T", public)
	return nil
}

func signed(t testing.TB, key crypto.Signer, header map[string]any, claims jwt.MapClaims) string {
	t.Helper()
	var method jwt.SigningMethod = jwt.SigningMethodES256
	if _, ok := key.(*rsa.PrivateKey); ok {
		method = jwt.SigningMethodRS256
	}
	tok := jwt.NewWithClaims(method, claims)
	for k, v := range header {
		tok.Header[k] = v
	}
	s, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// provider is an OpenID Connect issuer.
type provider struct {
	*httptest.Server
	keys  atomic.Pointer[[]map[string]string]
	down  atomic.Bool
	asked atomic.Int64 // for the key set
	// exchange is the login that the token endpoint accepts.
	exchange atomic.Pointer[loginExchange]
}

func newProvider(t testing.TB) *provider { return startProvider(t, httptest.NewServer) }

// startProvider makes an issuer on a server that start makes.
func startProvider(t testing.TB, start func(http.Handler) *httptest.Server) *provider {
	p := &provider{}
	p.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		var doc any
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			doc = map[string]any{
				"issuer": p.URL, "jwks_uri": p.URL + "/keys", "authorization_endpoint": p.URL + "/auth",
				"token_endpoint": p.URL + "/token", "id_token_signing_alg_values_supported": []string{"RS256", "ES256", "none"},
			}
		case "/keys":
			p.asked.Add(1)
			doc = map[string]any{"keys": *p.keys.Load()}
		case "/token":
			w.Header().Set("Content-Type", "application/json")
			doc = p.exchange.Load().token(w, r)
		default:
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(doc); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// oidcFixture is an Auth that accepts the tokens of a provider.
type oidcFixture struct {
	*fixture
	p  *provider
	rk *rsa.PrivateKey   // kid r
	ek *ecdsa.PrivateKey // kid e
}

func newOIDCFixture(t *testing.T) *oidcFixture {
	t.Helper()
	o := &oidcFixture{p: newProvider(t), rk: rsaKey(t), ek: ecKey(t)}
	o.p.keys.Store(&[]map[string]string{jwkOf(t, "r", o.rk.Public()), jwkOf(t, "e", o.ek.Public())})
	o.p.down.Store(true) // starting must not need the issuer
	o.fixture = newFixture(t, auth.Config{
		OIDC: []auth.OIDCConfig{{
			Name: "corp", Issuer: o.p.URL, Audiences: []string{"other", "slipway"}, UsernameClaim: "email", ClientID: "page",
			RequiredClaims: map[string]string{"org": "acme"},
		}},
		Token: &auth.TokenConfig{Builtin: new(true)},
		Access: []auth.Rule{
			{Repositories: []string{"dev/**"}, Subjects: []string{"group:dev"}, Actions: []string{"push"}},
			{Repositories: []string{"bob/**"}, Subjects: []string{"oidc:corp:bob@acme.test"}, Actions: []string{"pull"}},
		},
	}, nil)
	o.p.down.Store(false)
	return o
}

const oidcBob = "oidc:corp:bob@acme.test"

// claims returns good claims. Each pair replaces a claim, or removes it if the value is nil.
func (o *oidcFixture) claims(pairs ...any) jwt.MapClaims {
	now := o.clock.Now()
	c := jwt.MapClaims{
		"iss": o.p.URL, "aud": []string{"slipway"}, "sub": "1", "email": "bob@acme.test", "org": []string{"x", "acme"},
		"groups": []string{"staff", "dev"}, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == nil {
			delete(c, pairs[i].(string))
		} else {
			c[pairs[i].(string)] = pairs[i+1]
		}
	}
	return c
}

// rsa returns a token signed with the RSA key.
func (o *oidcFixture) rsa(t *testing.T, pairs ...any) string {
	t.Helper()
	return signed(t, o.rk, map[string]any{"kid": "r"}, o.claims(pairs...))
}

func TestOIDCAccepts(t *testing.T) {
	o := newOIDCFixture(t)
	good := o.rsa(t)
	for name, h := range map[string]string{
		"RS256": "Bearer " + good, "ES256": "Bearer " + signed(t, o.ek, map[string]any{"kid": "e"}, o.claims()),
		"as password": basic("oidc", good), "as anybody's password": basic("alice", good),
		"verified address": "Bearer " + o.rsa(t, "email_verified", true),
	} {
		id, err := o.Authenticate(get("/v2/", h))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff([]string{oidcBob, "oidc", "corp:staff", "corp:dev"}, append([]string{id.Name, id.Method}, id.Groups...)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if !o.Allowed(id, "dev/a", auth.Push) || !o.Allowed(id, "bob/a", auth.Pull) || o.Allowed(id, "bob/a", auth.Push) {
			t.Errorf("%s: the rules do not apply", name)
		}
	}
}

func TestOIDCRefuses(t *testing.T) {
	o := newOIDCFixture(t)
	r := map[string]any{"kid": "r"}
	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, o.claims()).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	hmac, err := jwt.NewWithClaims(jwt.SigningMethodHS256, o.claims()).SignedString([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	now, stranger := o.clock.Now(), rsaKey(t)
	for name, tok := range map[string]string{
		"wrong audience":     o.rsa(t, "aud", "third"),
		"no audience":        o.rsa(t, "aud", nil),
		"wrong issuer":       o.rsa(t, "iss", "https://evil.test"),
		"issuer with slash":  o.rsa(t, "iss", o.p.URL+"/"),
		"expired":            o.rsa(t, "exp", now.Add(-time.Second).Unix()),
		"no end":             o.rsa(t, "exp", nil),
		"not yet valid":      o.rsa(t, "nbf", now.Add(time.Hour).Unix()),
		"no user name":       o.rsa(t, "email", nil),
		"user name no text":  o.rsa(t, "email", 7),
		"control characters": o.rsa(t, "email", "a\nb"),
		"unverified address": o.rsa(t, "email_verified", false),
		"another org":        o.rsa(t, "org", "evil"),
		"no org":             o.rsa(t, "org", nil),
		"alg none":           unsigned,
		"shared secret":      hmac,
		"another key":        signed(t, stranger, r, o.claims()),
		"key of another alg": signed(t, o.ek, r, o.claims()),
		"unknown kid":        signed(t, stranger, map[string]any{"kid": "new"}, o.claims()),
	} {
		for _, h := range []string{"Bearer " + tok, basic("oidc", tok)} {
			if id, err := o.Authenticate(get("/v2/", h)); !oci.HasCode(err, oci.CodeUnauthorized) {
				t.Errorf("%s: %+v, %v", name, id, err)
			}
		}
	}
	if n := o.p.asked.Load(); n != 1 {
		t.Errorf("the key set was fetched %d times within 10 s, want once", n)
	}
}

func TestOIDCIssuerDownAndNewKeys(t *testing.T) {
	o := newOIDCFixture(t)
	h := "Bearer " + o.rsa(t)
	o.p.down.Store(true)
	if _, err := o.Authenticate(get("/v2/", h)); !oci.HasCode(err, oci.CodeUnavailable) {
		t.Errorf("issuer down: %v", err)
	}
	o.p.down.Store(false)
	if _, err := o.Authenticate(get("/v2/", h)); !oci.HasCode(err, oci.CodeUnavailable) {
		t.Errorf("the issuer is asked again at once: %v", err)
	}
	o.clock.Add(10 * time.Second)
	if _, err := o.Authenticate(get("/v2/", h)); err != nil {
		t.Errorf("issuer up again: %v", err)
	}
	key := rsaKey(t)
	o.p.keys.Store(&[]map[string]string{jwkOf(t, "new", key.Public())})
	o.clock.Add(10 * time.Second)
	o.p.down.Store(true)
	rotated := get("/v2/", "Bearer "+signed(t, key, map[string]any{"kid": "new"}, o.claims()))
	if _, err := o.Authenticate(rotated); !oci.HasCode(err, oci.CodeUnavailable) {
		t.Errorf("new key, issuer down: %v", err)
	}
	o.p.down.Store(false)
	o.clock.Add(10 * time.Second)
	// The result of the last request may be used for a moment longer, because all who ask at the
	// same time share one request.
	deadline := time.Now().Add(10 * time.Second)
	_, err := o.Authenticate(rotated)
	for err != nil && time.Now().Before(deadline) {
		_, err = o.Authenticate(rotated)
	}
	if err != nil {
		t.Errorf("new key: %v", err)
	}
}

// TestOIDCToOwnToken checks that our own token holds the groups that rules name, and that it
// expires with the issuer's.
func TestOIDCToOwnToken(t *testing.T) {
	o := newOIDCFixture(t)
	short := o.rsa(t, "exp", o.clock.Now().Add(90*time.Second).Unix())
	resp, a := exchange(t, o.fixture, get("/token?offline_token=true&scope=repository:dev/a:pull,push", basic("oidc", short)))
	if resp.StatusCode != 200 || a.ExpiresIn != 90 || a.RefreshToken != "" {
		t.Fatalf("token: %d %+v", resp.StatusCode, a)
	}
	_, claims := claimsOf(t, a.Token)
	if d := cmp.Diff([]any{oidcBob, []any{"corp:dev"}}, []any{claims["sub"], claims["groups"]}); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	id, err := o.Authenticate(get("/v2/", "Bearer "+a.Token))
	if err != nil || !o.Allowed(id, "dev/a", auth.Push) || o.Allowed(id, "dev/a", auth.Pull) {
		t.Errorf("our token: %+v, %v", id, err)
	}
	if _, err := o.Authenticate(get("/v2/", basic("oidc", a.Token))); !oci.HasCode(err, oci.CodeUnauthorized) {
		t.Errorf("our own token serves as a password: %v", err)
	}
	o.clock.Add(2 * time.Minute)
	if _, err := o.Authenticate(get("/v2/", basic("oidc", short))); !oci.HasCode(err, oci.CodeUnauthorized) {
		t.Errorf("a cached token outlives its end: %v", err)
	}
}

// ca is a certificate authority, or a certificate it signed.
type ca struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issueCert makes a certificate, signed by parent or, if that is nil, by itself.
func issueCert(t testing.TB, parent *ca, template x509.Certificate) *ca {
	t.Helper()
	c := &ca{key: ecKey(t)}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = newClock().Now().AddDate(-20, 0, 0), newClock().Now().AddDate(20, 0, 0)
	}
	template.BasicConstraintsValid = true
	if parent == nil {
		parent = &ca{&template, c.key}
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, parent.cert, c.key.Public(), parent.key)
	if err != nil {
		t.Fatal(err)
	}
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c
}

func rootCA(t testing.TB) *ca {
	return issueCert(t, nil, x509.Certificate{Subject: pkix.Name{CommonName: "root"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign})
}

func TestExternalTokens(t *testing.T) {
	root := rootCA(t)
	middle := issueCert(t, root, x509.Certificate{Subject: pkix.Name{CommonName: "middle"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign})
	leaf := issueCert(t, middle, x509.Certificate{Subject: pkix.Name{CommonName: "leaf"}})
	old := issueCert(t, middle, x509.Certificate{NotBefore: newClock().Now().AddDate(-2, 0, 0), NotAfter: newClock().Now().AddDate(-1, 0, 0)})
	evil := issueCert(t, rootCA(t), x509.Certificate{Subject: pkix.Name{CommonName: "leaf"}})
	rk := rsaKey(t)
	dir := t.TempDir()
	bundle, jwks := filepath.Join(dir, "bundle.pem"), filepath.Join(dir, "jwks.json")
	writeFile(t, bundle, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.cert.Raw})))
	set, err := json.Marshal(map[string]any{"keys": []any{jwkOf(t, "rsa-1", rk.Public()), map[string]string{"kty": "oct", "k": "c2VjcmV0"}}})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, jwks, string(set))
	f := newFixture(t, auth.Config{
		Token: &auth.TokenConfig{Realm: "https://auth.test/token", Service: "registry", Issuer: "auth.test", RootCertBundle: bundle, JWKS: jwks},
	}, nil)
	if got, want := f.Challenge(get("/v2/", ""), "a", auth.Pull), `Bearer realm="https://auth.test/token",service="registry",scope="repository:a:pull"`; got != want {
		t.Errorf("challenge\n got %s\nwant %s", got, want)
	}
	if f.TokenHandler() != nil || f.PingAllowed(nil) {
		t.Error("there is a token handler, or /v2/ is open")
	}
	chain := func(cs ...*ca) map[string]any {
		var x5c []string
		for _, c := range cs {
			x5c = append(x5c, base64.StdEncoding.EncodeToString(c.cert.Raw))
		}
		return map[string]any{"x5c": x5c}
	}
	kid := func(s string) map[string]any { return map[string]any{"kid": s} }
	sum := sha256.Sum256(root.cert.RawSubjectPublicKeyInfo)
	libtrust := base32.StdEncoding.EncodeToString(sum[:30])
	for i := 44; i > 0; i -= 4 {
		libtrust = libtrust[:i] + ":" + libtrust[i:]
	}
	now := f.clock.Now()
	with := func(key string, value any) jwt.MapClaims {
		c := jwt.MapClaims{
			"iss": "auth.test", "aud": "registry", "sub": "carol", "exp": now.Add(time.Minute).Unix(), "nbf": now.Unix(),
			"access": []any{
				map[string]any{"type": "repository", "name": "a/b", "actions": []string{"pull", "push"}},
				map[string]any{"type": "registry", "name": "catalog", "actions": []string{"*"}},
			},
		}
		c[key] = value
		return c
	}
	claims := with("sub", "carol")
	for name, tok := range map[string]string{
		"x5c":                signed(t, leaf.key, chain(leaf, middle), claims),
		"kid of the bundle":  signed(t, root.key, kid(libtrust), claims),
		"kid of the key set": signed(t, rk, kid("rsa-1"), claims),
		"aud is a list":      signed(t, rk, kid("rsa-1"), with("aud", []string{"x", "registry"})),
		"clock behind":       signed(t, rk, kid("rsa-1"), with("nbf", now.Add(50*time.Second).Unix())),
		"just ended":         signed(t, rk, kid("rsa-1"), with("exp", now.Add(-50*time.Second).Unix())),
	} {
		id, err := f.Authenticate(get("/v2/", "Bearer "+tok))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if id.Name != "carol" || !f.Allowed(id, "a/b", auth.Pull|auth.Push) || f.Allowed(id, "a/b", auth.Delete) ||
			f.Allowed(id, "a/c", auth.Pull) || !f.Allowed(id, "", auth.Catalog) || f.Allowed(id, "", auth.Admin) || !f.Listed(id, "x") {
			t.Errorf("%s: %+v is not worth its access claim", name, id)
		}
	}
	hmac, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tok := range map[string]string{
		"chain without its middle": signed(t, leaf.key, chain(leaf), claims),
		"chain of another root":    signed(t, evil.key, chain(evil), claims),
		"chain of somebody else":   signed(t, evil.key, chain(leaf, middle), claims),
		"expired certificate":      signed(t, old.key, chain(old, middle), claims),
		"broken chain":             signed(t, leaf.key, map[string]any{"x5c": []any{"!!", 7}}, claims),
		"endless chain":            signed(t, leaf.key, chain(leaf, middle, middle, middle, middle, middle, middle, middle, middle), claims),
		"chain not trusted, kid is": signed(t, evil.key, map[string]any{
			"kid": libtrust, "x5c": chain(evil)["x5c"]}, claims),
		"key in the header":  signed(t, evil.key, map[string]any{"jwk": jwkOf(t, "x", evil.key.Public())}, claims),
		"unknown kid":        signed(t, rk, kid("x"), claims),
		"no kid":             signed(t, rk, nil, claims),
		"kid of another key": signed(t, leaf.key, kid(libtrust), claims),
		"shared secret":      hmac,
		"wrong issuer":       signed(t, rk, kid("rsa-1"), with("iss", "x")),
		"wrong audience":     signed(t, rk, kid("rsa-1"), with("aud", "x")),
		"expired":            signed(t, rk, kid("rsa-1"), with("exp", now.Add(-61*time.Second).Unix())),
		"no end":             signed(t, rk, kid("rsa-1"), with("exp", nil)),
		"not yet":            signed(t, rk, kid("rsa-1"), with("nbf", now.Add(61*time.Second).Unix())),
	} {
		if id, err := f.Authenticate(get("/v2/", "Bearer "+tok)); !oci.HasCode(err, oci.CodeUnauthorized) {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	tok := "Bearer " + signed(t, rk, kid("rsa-1"), claims)
	id, err := f.Authenticate(get("/v2/", tok))
	if err != nil {
		t.Fatal(err)
	}
	if e, challenge := f.Refuse(get("/v2/", tok), id, "x", auth.Pull); e.HTTPStatus() != 401 || !strings.Contains(challenge, "insufficient_scope") {
		t.Errorf("a token without scope: %v %s", e, challenge)
	}
}

func TestExternalAutoRedirect(t *testing.T) {
	dir := t.TempDir()
	jwks := filepath.Join(dir, "jwks.json")
	set, err := json.Marshal(map[string]any{"keys": []any{jwkOf(t, "", ecKey(t).Public())}})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, jwks, string(set))
	f := newFixture(t, auth.Config{Token: &auth.TokenConfig{Service: "s", Issuer: "i", JWKS: jwks, AutoRedirect: true, SigningAlgorithms: []string{"ES256"}}}, nil)
	if got, want := f.Challenge(get("/v2/", ""), "", 0), `Bearer realm="http://registry.test/auth/token",service="s"`; got != want {
		t.Errorf("challenge\n got %s\nwant %s", got, want)
	}
}

func TestMTLS(t *testing.T) {
	root := rootCA(t)
	uri, err := url.Parse("spiffe://corp.test/ci")
	if err != nil {
		t.Fatal(err)
	}
	client := func(cn string, more bool) *ca {
		c := x509.Certificate{
			Subject:     pkix.Name{CommonName: cn, OrganizationalUnit: []string{"dev"}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		if more {
			c.URIs, c.DNSNames = []*url.URL{uri}, []string{"node.test", "other.test"}
		}
		return issueCert(t, root, c)
	}
	full, noCN, bare := client("builder", true), client("", true), client("", false)
	// These are names of users of other methods, whose rights a certificate must not take.
	thief, thief2, thief3 := client(oidcBob, false), client("ldap:alice", false), client(auth.RobotPrefix+"ci", false)
	pool := x509.NewCertPool()
	pool.AddCert(root.cert)
	for _, c := range []struct {
		subject string
		cert    *ca
		want    string
	}{
		{"", full, "builder"},
		{"", noCN, "spiffe://corp.test/ci"},
		{"", bare, ""},
		{"cn", full, "builder"},
		{"cn", noCN, ""},
		{"uri", full, "spiffe://corp.test/ci"},
		{"dns", full, "node.test"},
		{"", thief, ""},
		{"", thief2, ""},
		{"", thief3, ""},
		{"", nil, ""},
	} {
		f := newFixture(t, auth.Config{
			MTLS:   &auth.MTLSConfig{Subject: c.subject},
			Access: []auth.Rule{{Repositories: []string{"dev/**"}, Subjects: []string{"group:dev"}, Actions: []string{"push"}}},
		}, nil)
		var got *auth.Identity
		var allowed bool
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var err error
			if got, err = f.Authenticate(r); err != nil {
				t.Error(err)
			}
			allowed = f.Allowed(got, "dev/a", auth.Push)
		}))
		srv.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
		srv.StartTLS()
		conf := srv.Client().Transport.(*http.Transport)
		if c.cert != nil {
			conf.TLSClientConfig.Certificates = []tls.Certificate{{Certificate: [][]byte{c.cert.cert.Raw}, PrivateKey: c.cert.key}}
		}
		resp, err := srv.Client().Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		srv.Close()
		if got.Name != c.want || allowed != (c.want != "") {
			t.Errorf("subject %q: got %+v, allowed %v; want %q", c.subject, got, allowed, c.want)
		}
	}

	// A certificate that was presented but not verified proves nothing.
	f := newFixture(t, auth.Config{MTLS: &auth.MTLSConfig{}}, nil)
	r := get("/v2/", "")
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{full.cert}}
	if id, err := f.Authenticate(r); err != nil || !id.Anonymous() {
		t.Errorf("unverified certificate: %+v, %v", id, err)
	}
}
