package auth_test

import (
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"example.org/slipway/registry/auth"
)

// accountToken returns a token as the API server of Kubernetes makes them for service accounts.
func accountToken(t *testing.T, f *fixture, key *rsa.PrivateKey, issuer, namespace, account string) string {
	now := f.clock.Now()
	return signed(t, key, map[string]any{"kid": "r"}, jwt.MapClaims{
		"iss": issuer, "aud": []string{"registry.test"}, "sub": "system:serviceaccount:" + namespace + ":" + account,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{
			"namespace":      namespace,
			"serviceaccount": map[string]any{"name": account, "uid": "1"},
			"pod":            map[string]any{"name": "a-1", "uid": "2"},
		},
	})
}

// TestServiceAccounts has a cluster as issuer. Its keys are first requested from the cluster,
// whose certificate its own authority signed, and then configured. Rules name namespaces and
// accounts.
func TestServiceAccounts(t *testing.T) {
	t.Parallel()
	key := rsaKey(t)
	set := []map[string]string{jwkOf(t, "r", key.Public())}
	p := startProvider(t, httptest.NewTLSServer)
	p.keys.Store(&set)
	dir := t.TempDir()
	ca, jwks := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "jwks.json")
	writeFile(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw})))
	b, err := json.Marshal(map[string]any{"keys": set})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, jwks, string(b))
	for name, c := range map[string]auth.OIDCConfig{
		"asked":     {Issuer: p.URL, CA: ca},
		"not asked": {Issuer: "https://kubernetes.default.svc.cluster.local", JWKS: jwks},
	} {
		t.Run(name, func(t *testing.T) {
			issuer := c.Issuer
			c.Name, c.Audience, c.GroupsClaim = "prod", "registry.test", "/kubernetes.io/namespace"
			c.RequiredClaims = map[string]string{"/kubernetes.io/serviceaccount/uid": "1"}
			f := newFixture(t, auth.Config{
				OIDC: []auth.OIDCConfig{c},
				Access: []auth.Rule{
					{Repositories: []string{"one/**"}, Subjects: []string{"group:prod:one"}, Actions: []string{"pull"}},
					{Repositories: []string{"two/**"}, Subjects: []string{"group:prod:two"}, Actions: []string{"pull"}},
					{Repositories: []string{"base/**"}, Subjects: []string{"oidc:prod:system:serviceaccount:two:builder"}, Actions: []string{"pull", "push"}},
				},
			}, nil)
			for _, c := range []struct {
				namespace, account string
				one, two, base     bool
			}{
				{"one", "default", true, false, false},
				{"two", "default", false, true, false},
				{"two", "builder", false, true, true},
				{"one", "builder", true, false, false},
				{"three", "default", false, false, false},
			} {
				id, err := f.Authenticate(get("/v2/", basic("kubernetes", accountToken(t, f, key, issuer, c.namespace, c.account))))
				if err != nil {
					t.Errorf("%s/%s: %v", c.namespace, c.account, err)
					continue
				}
				if _, err := f.Authenticate(get("/v2/", basic("kubernetes", accountToken(t, f, rsaKey(t), issuer, c.namespace, c.account)))); err == nil {
					t.Errorf("%s/%s: a token that somebody else signed is taken", c.namespace, c.account)
				}
				got := [3]bool{f.Allowed(id, "one/a", auth.Pull), f.Allowed(id, "two/a", auth.Pull), f.Allowed(id, "base/a", auth.Push)}
				if want := [3]bool{c.one, c.two, c.base}; got != want {
					t.Errorf("%s/%s may pull one, pull two, push base: %v, want %v", c.namespace, c.account, got, want)
				}
			}
		})
	}
}
