package auth_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"example.org/slipway/registry/auth"
)

// TestGroupsDoNotMix uses three sources with the same group names. A rule applies only to its own
// source, whatever names a source gives its groups, also through our own tokens and sessions.
func TestGroupsDoNotMix(t *testing.T) {
	key := ecKey(t)
	issuer := func() *provider {
		p := newProvider(t)
		p.keys.Store(&[]map[string]string{jwkOf(t, "e", key.Public())})
		return p
	}
	a, b := issuer(), issuer()
	sources := []string{"a", "b", "mtls"}
	var rules []auth.Rule
	for _, s := range sources {
		rules = append(rules, auth.Rule{Repositories: []string{"of-" + s + "/**"}, Subjects: []string{"group:" + s + ":admins"}, Actions: []string{"pull"}})
	}
	f := newFixture(t, auth.Config{
		OIDC: []auth.OIDCConfig{{Name: "a", Issuer: a.URL, Audience: "slipway", ClientID: "page"}, {Name: "b", Issuer: b.URL, Audience: "slipway"}},
		MTLS: &auth.MTLSConfig{}, Token: &auth.TokenConfig{Builtin: new(true)}, Access: rules,
	}, nil)
	groups := []string{"admins", "a:admins", "b:admins", "mtls:admins", "group:a:admins", ":admins", "a:b:admins", "ADMINS"}
	ask := map[string]func(group string) *http.Request{"mtls": func(group string) *http.Request {
		r := get("/v2/", "")
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: "carl", OrganizationalUnit: []string{group}}, NotAfter: f.clock.Now().Add(time.Hour)}
		r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}
		return r
	}}
	for name, p := range map[string]*provider{"a": a, "b": b} {
		ask[name] = func(group string) *http.Request {
			now := f.clock.Now()
			return get("/v2/", "Bearer "+signed(t, key, map[string]any{"kid": "e"}, jwt.MapClaims{"iss": p.URL, "aud": "slipway", "sub": "carl",
				"groups": []string{group}, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}))
		}
	}
	for _, from := range sources {
		for _, group := range groups {
			id, err := f.Authenticate(ask[from](group))
			if err != nil {
				t.Fatalf("%s, group %s: %v", from, group, err)
			}
			session, _, err := f.NewSession(id, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			again, err := f.Session(session)
			if err != nil {
				t.Fatal(err)
			}
			for _, of := range sources {
				want := of == from && group == "admins"
				for how, id := range map[string]*auth.Identity{"request": id, "session": again} {
					if got := f.Allowed(id, "of-"+of+"/x", auth.Pull); got != want {
						t.Errorf("%s by %s, group %q, on what group:%s:admins may: got %t", from, how, group, of, got)
					}
				}
			}
		}
	}
}

// TestAmbiguousGroups checks that a rule must name the source of a group as soon as there are two.
func TestAmbiguousGroups(t *testing.T) {
	corp, ci := auth.OIDCConfig{Name: "corp", Issuer: "https://corp.test", Audience: "x"}, auth.OIDCConfig{Issuer: "https://ci.test", Audience: "x"}
	certs := &auth.MTLSConfig{}
	for _, c := range []struct {
		name  string
		oidc  []auth.OIDCConfig
		mtls  *auth.MTLSConfig
		group string
		ok    bool
	}{
		{"one issuer", []auth.OIDCConfig{corp}, nil, "dev", true}, {"one issuer, named", []auth.OIDCConfig{corp}, nil, "corp:dev", true},
		{"one issuer, a colon in the group", []auth.OIDCConfig{corp}, nil, "team:dev", true}, {"certificates", nil, certs, "dev", true},
		{"two issuers", []auth.OIDCConfig{corp, ci}, nil, "dev", false}, {"two issuers, named", []auth.OIDCConfig{corp, ci}, nil, "ci.test:dev", true},
		{"two issuers, another", []auth.OIDCConfig{corp, ci}, nil, "team:dev", false},
		{"an issuer and certificates", []auth.OIDCConfig{corp}, certs, "dev", false}, {"an issuer and certificates, named", []auth.OIDCConfig{corp}, certs, "mtls:dev", true},
		{"an issuer named as certificates", []auth.OIDCConfig{{Name: "mtls", Issuer: "https://x.test", Audience: "x"}}, certs, "mtls:dev", false},
	} {
		_, err := auth.New(auth.Config{OIDC: c.oidc, MTLS: c.mtls, Access: []auth.Rule{{Repositories: []string{"**"}, Subjects: []string{"group:" + c.group}, Actions: []string{"pull"}}}}, nil)
		if (err == nil) != c.ok {
			t.Errorf("%s, group:%s: got %v", c.name, c.group, err)
		}
		if c.group == "dev" && err != nil && !strings.Contains(fmt.Sprint(err), "group:corp:dev") {
			t.Errorf("%s: the error does not say how to write it: %v", c.name, err)
		}
	}
}
