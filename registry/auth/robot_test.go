package auth_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
)

// tokenMap is a store of API tokens in memory.
type tokenMap struct {
	mu   sync.Mutex
	m    map[string]auth.APIToken
	used map[string]time.Time
	away error
}

func (s *tokenMap) APIToken(_ context.Context, id string) (auth.APIToken, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.m[id]
	return t, ok, s.away
}

func (s *tokenMap) NoteUse(_ context.Context, used map[string]time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range used {
		s.used[id] = at
	}
	return s.away
}

func (s *tokenMap) add(t testing.TB, robot string, now time.Time, lifetime time.Duration, rights ...auth.Right) (token, id string) {
	t.Helper()
	token, stored, err := auth.NewAPIToken(robot, rights, now, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[stored.ID] = stored
	return token, stored.ID
}

func (s *tokenMap) revoke(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, id)
}

// robotBed is an Auth with a store of API tokens.
func robotBed(t testing.TB, cfg auth.Config) (*auth.Auth, *tokenMap, *fakeClock) {
	t.Helper()
	store, clock := &tokenMap{m: map[string]auth.APIToken{}, used: map[string]time.Time{}}, newClock()
	a, err := auth.New(cfg, &auth.Options{Clock: clock.Now, Dir: t.TempDir(), Tokens: store})
	if err != nil {
		t.Fatal(err)
	}
	return a, store, clock
}

func bearer(token string) string { return "Bearer " + token }

// TestRobotRights compares what a robot may do, by each way to use its token, with a table
// of what its rights say.
func TestRobotRights(t *testing.T) {
	a, store, clock := robotBed(t, tokenConfig(t))
	token, _ := store.add(t, "ci", clock.Now(), time.Hour,
		auth.Right{Repositories: []string{"team/**"}, Actions: []string{"pull", "push"}},
		auth.Right{Repositories: []string{"old/?"}, Actions: []string{"*"}})
	repos := map[string]auth.Action{"team/a": auth.Pull | auth.Push, "team/a/b": auth.Pull | auth.Push, "old/x": auth.Pull | auth.Push | auth.Delete,
		"old/xy": 0, "public/a": auth.Pull, "other": 0}
	scope := ""
	for repo := range repos {
		scope += "&scope=" + url.QueryEscape("repository:"+repo+":pull,push,delete")
	}
	signed, _ := requestToken(t, a, "/token?service=slipway"+scope, basic("ci", token))
	for way, header := range map[string]string{"password": basic("ci", token), "bearer": bearer(token), "token of the service": bearer(signed)} {
		id, err := a.Authenticate(get("/v2/", header))
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		if id.Name != "robot:ci" {
			t.Errorf("%s: the robot is %q", way, id.Name)
		}
		for repo, want := range repos {
			for _, act := range []auth.Action{auth.Pull, auth.Push, auth.Delete, auth.Volume, auth.Clone} {
				if got := a.Allowed(id, repo, act); got != (want&act != 0) {
					t.Errorf("%s: %v of %s allowed: %v", way, act, repo, got)
				}
			}
			if got := a.Listed(id, repo); got != (want&auth.Pull != 0) {
				t.Errorf("%s: %s listed: %v", way, repo, got)
			}
		}
		for _, act := range []auth.Action{auth.Catalog, auth.Admin} {
			if a.Allowed(id, "", act) {
				t.Errorf("%s: a robot may %v", way, act)
			}
		}
		if !a.PingAllowed(id) {
			t.Errorf("%s: /v2/ is refused", way)
		}
		if _, _, err := a.NewSession(id, time.Hour); err == nil {
			t.Errorf("%s: a robot got a session, which has the rights of a user", way)
		}
	}
	if _, err := a.Login(get("/", ""), "ci", token); !oci.HasCode(err, oci.CodeUnauthorized) {
		t.Errorf("a robot logs in at the page: %v", err)
	}
}

// requestToken asks the token service for a token.
func requestToken(t testing.TB, a *auth.Auth, target, authorization string) (token string, status int) {
	t.Helper()
	resp, answer := exchange(t, &fixture{Auth: a}, get(target, authorization))
	return answer.Token, resp.StatusCode
}

// TestRobotRefused tries tokens that must not be accepted, by each way to use them.
func TestRobotRefused(t *testing.T) {
	no := false
	off := tokenConfig(t)
	off.Robots = &no
	right := auth.Right{Repositories: []string{"team/**"}, Actions: []string{"pull"}}
	for name, c := range map[string]struct {
		cfg    auth.Config
		user   string
		change func(token string) string
		after  func(*tokenMap, *fakeClock, string)
		code   oci.Code
		signed bool // a token of the service that was given before is refused, too
	}{
		"revoked":           {after: func(s *tokenMap, _ *fakeClock, id string) { s.revoke(id) }, signed: true},
		"expired":           {after: func(_ *tokenMap, c *fakeClock, _ string) { c.Add(time.Hour) }, signed: true},
		"another secret":    {change: func(s string) string { return s[:len(s)-1] + "_" }},
		"a longer secret":   {change: func(s string) string { return s + "A" }},
		"the id alone":      {change: func(s string) string { return s[:strings.LastIndex(s, "_")+1] }},
		"unknown id":        {change: func(s string) string { return strings.Replace(s, s[8:12], "zzzz", 1) }},
		"only the prefix":   {change: func(string) string { return "slipway_" }},
		"another user":      {user: "alice"},
		"not accepted":      {cfg: off},
		"catalogue is away": {after: func(s *tokenMap, _ *fakeClock, _ string) { s.away = errors.New("gone") }, code: oci.CodeUnavailable, signed: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.cfg.HTPasswd == nil {
				c.cfg = tokenConfig(t)
			}
			if c.user == "" {
				c.user = "ci"
			}
			if c.code == "" {
				c.code = oci.CodeUnauthorized
			}
			a, store, clock := robotBed(t, c.cfg)
			token, id := store.add(t, "ci", clock.Now(), time.Minute, right)
			signed, _ := requestToken(t, a, "/token?service=slipway&scope=repository:team/a:pull", basic("ci", token))
			if c.after != nil {
				c.after(store, clock, id)
			}
			if c.change != nil {
				token = c.change(token)
			}
			headers := []string{basic(c.user, token)}
			if c.user == "ci" {
				headers = append(headers, bearer(token))
			}
			if c.signed {
				headers = append(headers, bearer(signed))
			}
			for _, h := range headers {
				if id, err := a.Authenticate(get("/v2/", h)); !oci.HasCode(err, c.code) {
					t.Errorf("%.6s: got %+v, %v; want %s", h, id, err, c.code)
				}
			}
			if _, status := requestToken(t, a, "/token?service=slipway", headers[0]); status == http.StatusOK {
				t.Error("the token service accepts it")
			}
		})
	}
}

// TestRobotNarrowed checks that a token of the service that was given before has only the
// rights that the API token has now.
func TestRobotNarrowed(t *testing.T) {
	a, store, clock := robotBed(t, tokenConfig(t))
	token, id := store.add(t, "ci", clock.Now(), 0, auth.Right{Repositories: []string{"**"}, Actions: []string{"*"}})
	signed, _ := requestToken(t, a, "/token?service=slipway&scope=repository:a:pull,push", basic("ci", token))
	allowed := func() bool {
		who, err := a.Authenticate(get("/v2/", bearer(signed)))
		if err != nil {
			t.Fatal(err)
		}
		return a.Allowed(who, "a", auth.Push)
	}
	if !allowed() {
		t.Fatal("the token permits nothing")
	}
	narrow := store.m[id]
	narrow.Rights = []auth.Right{{Repositories: []string{"**"}, Actions: []string{"pull"}}}
	store.m[id] = narrow
	if allowed() {
		t.Error("the old right stays")
	}
}

// TestRobotChallenge checks that API tokens change no challenge unless the configuration
// says so, and that they can be the only method.
func TestRobotChallenge(t *testing.T) {
	public := []auth.Rule{publicPull}
	a, _, _ := robotBed(t, auth.Config{Access: public})
	if id, err := a.Authenticate(get("/v2/", "")); err != nil || !a.PingAllowed(id) || a.TakesRobots() {
		t.Errorf("a public registry asks for a password: %v", err)
	}
	yes := true
	a, store, clock := robotBed(t, auth.Config{Access: public, Robots: &yes})
	if id, err := a.Authenticate(get("/v2/", "")); err != nil || a.PingAllowed(id) {
		t.Errorf("with robots, /v2/ must ask for a password: %v", err)
	}
	if c := a.Challenge(get("/v2/", ""), "", 0); !strings.HasPrefix(c, "Bearer ") {
		t.Errorf("docker could not pull without a password after the challenge %s", c)
	}
	token, id := store.add(t, "ci", clock.Now(), 0, auth.Right{Repositories: []string{"a"}, Actions: []string{"push"}})
	who, err := a.Authenticate(get("/v2/", basic("ci", token)))
	if err != nil || !a.Allowed(who, "a", auth.Push) {
		t.Errorf("robots alone: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.Run(ctx)
	if !store.used[id].Equal(clock.Now()) {
		t.Errorf("the last use is %v", store.used[id])
	}
	if a, _, _ = robotBed(t, auth.Config{}); !a.Open() {
		t.Error("without a configuration not everything is allowed")
	}
}

func TestNewAPITokenErrors(t *testing.T) {
	ok := []auth.Right{{Repositories: []string{"a"}, Actions: []string{"pull"}}}
	for name, c := range map[string]struct {
		robot  string
		rights []auth.Right
		want   string
	}{
		"no name":   {"", ok, "1 to 64"},
		"colon":     {"a:b", ok, "characters other"},
		"no rights": {"ci", nil, "permit nothing"},
		"admin":     {"ci", []auth.Right{{Repositories: []string{"a"}, Actions: []string{"pull", "admin"}}}, `cannot permit "admin"`},
		"volume":    {"ci", []auth.Right{{Repositories: []string{"a"}, Actions: []string{"volume"}}}, "cannot permit"},
		"nonsense":  {"ci", []auth.Right{{Repositories: []string{"a"}, Actions: []string{"x"}}}, "cannot permit"},
		"pattern":   {"ci", []auth.Right{{Repositories: []string{"A"}, Actions: []string{"pull"}}}, "character"},
	} {
		if _, _, err := auth.NewAPIToken(c.robot, c.rights, time.Now(), 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if _, err := auth.New(auth.Config{HTPasswd: htpasswdFile(t, "a", "b"), Access: []auth.Rule{{Repositories: []string{"**"}, Subjects: []string{"robot:ci"}, Actions: []string{"pull"}}}}, nil); err == nil {
		t.Error("a rule for a robot is accepted, which would have no effect")
	}
}
