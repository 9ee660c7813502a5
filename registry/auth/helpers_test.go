package auth_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/registry/auth"
)

// fakeClock is a clock that stands still until it is moved.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *fakeClock { return &fakeClock{now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is an Auth with its surroundings.
type fixture struct {
	*auth.Auth
	clock *fakeClock
	log   *logtest.Buffer
	audit string // path
	dir   string
}

// newFixture makes an Auth of cfg. clock may be nil.
func newFixture(t testing.TB, cfg auth.Config, clock *fakeClock) *fixture {
	t.Helper()
	if clock == nil {
		clock = newClock()
	}
	f := &fixture{clock: clock, log: &logtest.Buffer{}, dir: t.TempDir()}
	f.audit = filepath.Join(f.dir, "audit.log")
	logger := slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	audit, err := auth.OpenAuditLog(f.audit, &auth.Options{Logger: logger, Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	f.Auth, err = auth.New(cfg, &auth.Options{Logger: logger, Clock: clock.Now, Dir: f.dir, Audit: audit})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := audit.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// htpasswdFile writes a password file for pairs of user and password.
func htpasswdFile(t testing.TB, pairs ...string) *auth.HTPasswdConfig {
	t.Helper()
	path := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, path, htpasswdLines(t, pairs...))
	return &auth.HTPasswdConfig{Realm: "test realm", Path: path}
}

func htpasswdLines(t testing.TB, pairs ...string) string {
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

// writeFile replaces a file as editors do, so that the inode changes.
func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// get makes a request with an Authorization header. An empty one is left out.
func get(target, authorization string) *http.Request {
	r := httptest.NewRequest("GET", "http://registry.test"+target, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return r
}

func basic(user, password string) string {
	r := httptest.NewRequest("GET", "/", nil)
	r.SetBasicAuth(user, password)
	return r.Header.Get("Authorization")
}

// tokenAnswer is an answer of the token endpoint.
type tokenAnswer struct {
	Token        string
	AccessToken  string `json:"access_token"`
	RefreshToken string `json:"refresh_token"`
	ExpiresIn    int    `json:"expires_in"`
	IssuedAt     string `json:"issued_at"`
	Scope        string
	Error        string
	Description  string `json:"error_description"`
	Errors       []struct{ Code, Message string }
}

// exchange sends a request to the token endpoint.
func exchange(t testing.TB, f *fixture, r *http.Request) (*http.Response, tokenAnswer) {
	t.Helper()
	w := httptest.NewRecorder()
	f.TokenHandler().ServeHTTP(w, r)
	resp := w.Result()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var a tokenAnswer
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatalf("token answer %q: %v", b, err)
	}
	return resp, a
}

func post(form url.Values) *http.Request {
	r := httptest.NewRequest("POST", "http://registry.test/token", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

// token fetches a token by GET.
func token(t testing.TB, f *fixture, authorization, scope string) string {
	t.Helper()
	resp, a := exchange(t, f, get("/token?service=slipway&scope="+url.QueryEscape(scope), authorization))
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("token: %d %+v", resp.StatusCode, a)
	}
	return a.Token
}
