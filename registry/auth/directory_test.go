package auth_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/auth/ldap"
)

// away returns the configuration of a directory at whose address nothing listens.
func away(t *testing.T) *ldap.Config {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &ldap.Config{URL: "ldap://" + l.Addr().String(), UserBase: "dc=test", GroupBase: "dc=test"}
}

// TestDirectoryAway checks that a directory that cannot be asked takes nothing from others: users
// of the file log in, a wrong password of theirs is wrong, and only others are told to try again.
func TestDirectoryAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t, auth.Config{HTPasswd: htpasswdFile(t, "alice", "pw"), LDAP: away(t), Access: []auth.Rule{
		{Repositories: []string{"team/**"}, Subjects: []string{"group:ldap:dev"}, Actions: []string{"pull"}},
		{Repositories: []string{"team/**"}, Subjects: []string{"group:dev"}, Actions: []string{"push"}},
	}}, nil)
	id, err := f.Authenticate(get("/", basic("alice", "pw")))
	if err != nil || id.Name != "alice" || id.Method != auth.MethodHTPasswd {
		t.Errorf("a user of the file: %+v, %v", id, err)
	}
	if _, err := f.Authenticate(get("/", basic("alice", "SECRET"))); !oci.HasCode(err, oci.CodeUnauthorized) {
		t.Errorf("a wrong password of a user of the file: %v", err)
	}
	for range 3 {
		if _, err := f.Authenticate(get("/", basic("bob", "SECRET"))); !oci.HasCode(err, oci.CodeUnavailable) {
			t.Errorf("another user: %v", err)
		}
	}
	if _, err := f.Authenticate(get("/", basic("bob", ""))); !oci.HasCode(err, oci.CodeUnauthorized) {
		t.Errorf("another user without a password: %v", err)
	}
	if log := f.log.String(); strings.Contains(log, "SECRET") || strings.Count(log, "the LDAP directory cannot be asked") != 1 {
		t.Errorf("the log has a password, or does not say once what is wrong:\n%s", log)
	}
	// A session needs no directory, and has the groups of the login.
	member := &auth.Identity{Name: "ldap:carol", Groups: []string{"ldap:dev"}, Method: auth.MethodLDAP}
	token, _, err := f.NewSession(member, time.Hour)
	if err != nil || !f.PasswordLogin() {
		t.Fatalf("NewSession: %v; logins with passwords: %t", err, f.PasswordLogin())
	}
	if id, err := f.Session(token); err != nil || id.Name != member.Name || !f.Allowed(id, "team/a", auth.Pull|auth.Push) {
		t.Errorf("Session: %+v, %v", id, err)
	}
}

// TestDirectoryMistake checks that a mistake names the whole key.
func TestDirectoryMistake(t *testing.T) {
	t.Parallel()
	_, err := auth.New(auth.Config{LDAP: &ldap.Config{URL: "ldaps://ldap.test"}}, nil)
	var m *auth.ConfigError
	if !errors.As(err, &m) || m.Key != "auth.ldap.user_base" {
		t.Errorf("got %v", err)
	}
	_, err = auth.New(auth.Config{LDAP: away(t), OIDC: []auth.OIDCConfig{{Name: "ldap", Issuer: "https://id.test", Audience: "x"}}}, nil)
	if err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("an issuer with the name of the directory's groups: %v", err)
	}
}
