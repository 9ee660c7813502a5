package auth_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
)

// TestReloadRules replaces rules while a session, a token of the service and a password are
// in use, and checks that all three have the new rights at once.
func TestReloadRules(t *testing.T) {
	cfg := tokenConfig(t)
	f := newFixture(t, cfg, nil)
	signed := token(t, f, basic("alice", "pw"), "repository:team/a:pull,push")
	alice, err := f.Authenticate(get("/", basic("alice", "pw")))
	if err != nil {
		t.Fatal(err)
	}
	session, _, err := f.NewSession(alice, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, want bool) {
		t.Helper()
		for name, h := range map[string]string{"password": basic("alice", "pw"), "token": bearer(signed)} {
			id, err := f.Authenticate(get("/", h))
			if err != nil || f.Allowed(id, "team/a", auth.Push) != want {
				t.Errorf("%s, by %s: %v; push allowed, want %v", when, name, err, want)
			}
		}
		if id, err := f.Session(session); err != nil || f.Allowed(id, "team/a", auth.Push) != want {
			t.Errorf("%s, by a session: %v; push allowed, want %v", when, err, want)
		}
	}
	check("before", true)
	narrow := cfg
	narrow.Access = []auth.Rule{publicPull, {Repositories: []string{"team/**"}, Subjects: []string{"alice"}, Actions: []string{"pull"}}}
	rep, err := f.Reload(narrow)
	if err != nil || !rep.RulesChanged || rep.Rules != 2 || rep.UsersChanged || rep.Users != 2 || rep.Restart {
		t.Errorf("Reload: %+v, %v", rep, err)
	}
	check("narrowed", false)
	if rep, err := f.Reload(narrow); err != nil || rep.RulesChanged {
		t.Errorf("Reload of the same: %+v, %v", rep, err)
	}
	if rep, err := f.Reload(cfg); err != nil || !rep.RulesChanged {
		t.Errorf("Reload of the old: %+v, %v", rep, err)
	}
	check("as before", true)
	others := cfg
	others.MaxFailuresPerMinute = 7
	if rep, err := f.Reload(others); err != nil || !rep.Restart || rep.RulesChanged {
		t.Errorf("Reload with another key: %+v, %v", rep, err)
	}
	if audit, err := os.ReadFile(f.audit); err != nil || strings.Count(string(audit), `"reload rules"`) != 2 {
		t.Errorf("the audit log has not both changes: %v\n%s", err, audit)
	}
}

// TestReloadKeeps tries rules that cannot replace those in use. They must stay.
func TestReloadKeeps(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*auth.Config)
		want   string
	}{
		"unknown action":   {func(c *auth.Config) { c.Access[1].Actions = []string{"fly"} }, "auth.access[1]"},
		"no rules left":    {func(c *auth.Config) { c.Access = nil }, "every user could do everything"},
		"nobody anonymous": {func(c *auth.Config) { c.Access = c.Access[1:] }, "token service"},
	} {
		cfg := tokenConfig(t)
		cfg.Token = nil // the service is there because of what is granted to anonymous
		f := newFixture(t, cfg, nil)
		bad := cfg
		bad.Access = append([]auth.Rule{}, cfg.Access...)
		c.change(&bad)
		if _, err := f.Reload(bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		id, err := f.Authenticate(get("/", basic("alice", "pw")))
		if err != nil || !f.Allowed(id, "team/a", auth.Push) || !f.Allowed(nil, "public/a", auth.Pull) || f.Allowed(id, "other", auth.Pull) {
			t.Errorf("%s: the rules before the change do not count any more: %v", name, err)
		}
		if got := stale(t, f.Auth, "rules"); got != 1 {
			t.Errorf("%s: slipway_auth_stale is %v", name, got)
		}
		if _, err := f.Reload(cfg); err != nil || stale(t, f.Auth, "rules") != 0 {
			t.Errorf("%s: after the mend: %v, stale %v", name, err, stale(t, f.Auth, "rules"))
		}
	}
	f := newFixture(t, auth.Config{}, nil)
	if _, err := f.Reload(tokenConfig(t)); err == nil || !f.Open() {
		t.Errorf("an open registry got rules that it cannot enforce: %v", err)
	}
}

// TestReloadUsers checks that a user who is removed loses the tokens at once, and that a
// bad file changes nothing.
func TestReloadUsers(t *testing.T) {
	cfg := tokenConfig(t)
	f := newFixture(t, cfg, nil)
	alice, root := token(t, f, basic("alice", "pw"), ""), token(t, f, basic("root", "rootpw"), "")
	writeFile(t, cfg.HTPasswd.Path, "alice without a hash")
	for range 2 { // also when nothing has changed since the first error
		if _, err := f.Reload(cfg); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("Reload with a bad file: %v", err)
		}
	}
	if _, err := f.Authenticate(get("/", basic("alice", "pw"))); err != nil || stale(t, f.Auth, "users") != 1 {
		t.Errorf("a bad file: %v, stale %v", err, stale(t, f.Auth, "users"))
	}
	writeFile(t, cfg.HTPasswd.Path, htpasswdLines(t, "root", "rootpw"))
	if rep, err := f.Reload(cfg); err != nil || !rep.UsersChanged || rep.Users != 1 || stale(t, f.Auth, "users") != 0 {
		t.Errorf("Reload: %+v, %v", rep, err)
	}
	if _, err := f.Authenticate(get("/", bearer(alice))); !oci.HasCode(err, oci.CodeUnauthorized) {
		t.Errorf("the token of a user who is gone: %v", err)
	}
	if _, err := f.Authenticate(get("/", bearer(root))); err != nil {
		t.Errorf("the token of a user who stays: %v", err)
	}
}

// TestUsersFileInParts writes a users file in place, as htpasswd does, and looks at it after
// each byte. Whoever is in the old file and in the new one can always log in and has a valid
// token and session. Whoever is removed is gone a second after the last byte.
func TestUsersFileInParts(t *testing.T) {
	cfg := tokenConfig(t)
	cfg.Token.Expiration = time.Hour
	f := newFixture(t, cfg, nil)
	path := cfg.HTPasswd.Path
	users := htpasswdLines(t, "root", "rootpw", "alice", "pw")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, f.clock.Now(), f.clock.Now()); err != nil {
			t.Fatal(err)
		}
	}
	write(users)
	f.clock.Add(time.Second)
	signed := map[string]string{}
	for name, password := range map[string]string{"alice": "pw", "root": "rootpw"} {
		signed[name] = bearer(token(t, f, basic(name, password), ""))
	}
	alice, err := f.Authenticate(get("/", basic("alice", "pw")))
	if err != nil {
		t.Fatal(err)
	}
	session, _, err := f.NewSession(alice, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	without := users[strings.IndexByte(users, '\n')+1:] // of root
	for _, content := range []string{users, users + "\n", without} {
		for n := range len(content) + 1 {
			f.clock.Add(time.Second)
			write(content[:n])
			for _, h := range []string{basic("alice", "pw"), signed["alice"]} {
				if _, err := f.Authenticate(get("/", h)); err != nil {
					t.Fatalf("with %d of %d bytes written, %.6s...: %v", n, len(content), h, err)
				}
			}
			if _, err := f.Session(session); err != nil {
				t.Fatalf("with %d of %d bytes written, the session: %v", n, len(content), err)
			}
		}
	}
	f.clock.Add(time.Second)
	for _, h := range []string{basic("root", "rootpw"), signed["root"]} {
		if _, err := f.Authenticate(get("/", h)); !oci.HasCode(err, oci.CodeUnauthorized) {
			t.Errorf("a user who was removed, %.6s...: %v", h, err)
		}
	}
	if _, err := f.Session(session); err != nil {
		t.Errorf("a user who stays: %v", err)
	}
}

// stale returns the value of slipway_auth_stale.
func stale(t testing.TB, a *auth.Auth, what string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(a.Metrics()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "slipway_auth_stale" && m.GetLabel()[0].GetValue() == what {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatal("there is no gauge")
	return 0
}
