package auth_test

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
)

func events(t testing.TB, path string) []auth.Event {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []auth.Event
	for line := range strings.Lines(string(b)) {
		var e auth.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		out = append(out, e)
	}
	return out
}

func TestAuditEvents(t *testing.T) {
	f := newFixture(t, tokenConfig(t), nil)
	r := get("/token?scope=repository:team/a:push", basic("alice", "pw"))
	exchange(t, f, r.WithContext(oci.WithActor(context.Background(), &oci.Actor{Addr: "198.51.100.7:1", RequestID: "req-1"})))
	exchange(t, f, get("/token", basic("alice", "wrong")))
	exchange(t, f, get("/token", basic("typed-password", "x")))
	if _, err := f.Authenticate(get("/v2/", "Bearer a.b.c")); err == nil {
		t.Error("a bad token is accepted")
	}
	at := f.clock.Now()
	want := []auth.Event{
		{Time: at, Event: "token", Outcome: "issued", Subject: "alice", Method: "htpasswd", Addr: "198.51.100.7:1", Action: "repository:team/a:push", RequestID: "req-1"},
		{Time: at, Event: "login", Outcome: "failure", Subject: "alice", Addr: "192.0.2.1:1234", Reason: "UNAUTHORIZED"},
		{Time: at, Event: "login", Outcome: "failure", Addr: "192.0.2.1:1234", Reason: "UNAUTHORIZED"},
		{Time: at, Event: "login", Outcome: "failure", Addr: "192.0.2.1:1234", Reason: "token"},
	}
	got := events(t, f.audit)
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(auth.Event{}, "Reference")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got[0].Reference == "" {
		t.Error("the issued token's id is missing")
	}
}

func TestAuditLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	clock := newClock()
	l, err := auth.OpenAuditLog(path, &auth.Options{Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	l.Record(auth.Event{Event: "push", Repo: "a", Reference: strings.Repeat("é", 1000) + "\n"})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v, %v", info.Mode(), err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	l.Record(auth.Event{Event: "tag", Time: clock.Now().In(time.FixedZone("x", 3600))})
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Record(auth.Event{Event: "delete"})
	for p, want := range map[string][]string{path + ".1": {"push", "tag"}, path: {"delete"}} {
		var names []string
		for _, e := range events(t, p) {
			names = append(names, e.Event)
			if len(e.Reference) > 520 || !e.Time.Equal(clock.Now()) || e.Time.Location() != time.UTC {
				t.Errorf("%s: %+v", p, e)
			}
		}
		if d := cmp.Diff(want, names); d != "" {
			t.Errorf("%s (-want +got):\n%s", p, d)
		}
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := l.Reopen(); err == nil {
		t.Error("a closed log can be reopened")
	}
	var none *auth.AuditLog
	none.Record(auth.Event{})
	if none.Reopen() != nil || none.Close() != nil {
		t.Error("a nil log is not silent")
	}
}

// TestSecretsStayOutOfLogs checks that no secret ever gets into a log, an audit line or an error.
func TestSecretsStayOutOfLogs(t *testing.T) {
	p := newProvider(t)
	key := ecKey(t)
	p.keys.Store(&[]map[string]string{jwkOf(t, "k", key.Public())})
	cfg := tokenConfig(t)
	cfg.OIDC = []auth.OIDCConfig{{Name: "corp", Issuer: p.URL, Audience: "slipway"}}
	cfg.HTPasswd = htpasswdFile(t, "alice", "RIGHT-SECRET")
	cfg.Token.RefreshExpiration = time.Hour
	f := newFixture(t, cfg, nil)
	claims := func(aud string) map[string]any {
		return map[string]any{"iss": p.URL, "aud": aud, "sub": "u", "exp": f.clock.Now().Add(time.Hour).Unix()}
	}
	kid := map[string]any{"kid": "k"}
	oidcGood, oidcBad := signed(t, key, kid, claims("slipway")), signed(t, ecKey(t), kid, claims("slipway"))
	_, a := exchange(t, f, get("/token?offline_token=true&scope=repository:team/a:push", basic("alice", "RIGHT-SECRET")))
	secrets := []string{"RIGHT-SECRET", "WRONG-SECRET", "TYPED-SECRET", "$2a$", "PRIVATE KEY", oidcGood, oidcBad, a.Token, a.RefreshToken}
	var said strings.Builder
	for _, h := range []string{
		basic("alice", "RIGHT-SECRET"), basic("alice", "WRONG-SECRET"), basic("TYPED-SECRET", "x"), "Basic WRONG-SECRET",
		"Bearer " + a.Token, "Bearer " + a.Token + "x", "Bearer " + a.RefreshToken, "Bearer " + oidcGood, "Bearer " + oidcBad,
		basic("x", oidcGood), basic("x", oidcBad), "Bearer x." + strings.Split(oidcGood, ".")[1] + ".WRONG-SECRET", "Digest WRONG-SECRET",
	} {
		r := get("/v2/", h)
		id, err := f.Authenticate(r)
		for e := err; e != nil; {
			said.WriteString(e.Error() + "\n")
			u, ok := e.(interface{ Unwrap() error })
			if !ok {
				break
			}
			e = u.Unwrap()
		}
		if err == nil {
			e, challenge := f.Refuse(r, id, "nope", auth.Delete)
			said.WriteString(e.Error() + challenge + "\n")
		} else {
			said.WriteString(f.Challenge(r, "nope", auth.Delete) + "\n")
		}
	}
	for _, form := range []url.Values{
		{"grant_type": {"password"}, "username": {"TYPED-SECRET"}, "password": {"WRONG-SECRET"}},
		{"grant_type": {"refresh_token"}, "refresh_token": {a.RefreshToken}},
		{"grant_type": {"refresh_token"}, "refresh_token": {a.Token}},
		{"grant_type": {"WRONG-SECRET"}},
	} {
		_, answer := exchange(t, f, post(form))
		said.WriteString(answer.Description + "\n")
	}
	writeFile(t, cfg.HTPasswd.Path, "alice:WRONG-SECRET\n$2a$hash\n")
	f.clock.Add(time.Second)
	if _, err := f.Authenticate(get("/v2/", basic("alice", "RIGHT-SECRET"))); err != nil {
		t.Error(err)
	}
	audit, err := os.ReadFile(f.audit)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"log": f.log.String(), "audit log": string(audit), "answers": said.String()} {
		if text == "" {
			t.Errorf("%s: empty, so the test shows nothing", name)
		}
		for _, s := range secrets {
			// A part of a token is as bad as the whole. The search therefore includes signatures.
			if i := strings.LastIndexByte(s, '.'); i > 0 && strings.Contains(text, s[i+1:]) || strings.Contains(text, s) {
				t.Errorf("%s: holds the secret %.20q...:\n%s", name, s, text)
			}
		}
	}
}
