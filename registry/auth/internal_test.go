package auth

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"

	"example.org/slipway/oci"
)

// naiveMatch implements the definition of patterns literally.
func naiveMatch(pat, name []string) bool {
	if len(pat) == 0 {
		return len(name) == 0
	}
	if pat[0] == "**" {
		return naiveMatch(pat[1:], name) || len(name) > 0 && naiveMatch(pat, name[1:])
	}
	return len(name) > 0 && naiveGlob(pat[0], name[0]) && naiveMatch(pat[1:], name[1:])
}

func naiveGlob(pat, s string) bool {
	if pat == "" {
		return s == ""
	}
	if pat[0] == '*' {
		return naiveGlob(pat[1:], s) || s != "" && naiveGlob(pat, s[1:])
	}
	return s != "" && (pat[0] == '?' || pat[0] == s[0]) && naiveGlob(pat[1:], s[1:])
}

func TestPatternAgainstDefinition(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	word := func(letters []string, n int) string {
		var b strings.Builder
		for range 1 + rnd.IntN(n) {
			b.WriteString(letters[rnd.IntN(len(letters))])
		}
		return b.String()
	}
	path := func(letters []string) []string {
		var segments []string
		for range 1 + rnd.IntN(5) {
			segments = append(segments, word(letters, 4))
		}
		return segments
	}
	matched := 0
	for range 50_000 {
		pat, name := path([]string{"a", "b", "*", "*", "?"}), path([]string{"a", "b"})
		p, err := parsePattern(strings.Join(pat, "/"))
		if err != nil {
			t.Fatalf("parsePattern(%q): %v", pat, err)
		}
		want := naiveMatch(pat, name)
		if got := p.match(strings.Join(name, "/")); got != want {
			t.Fatalf("pattern %q, name %q: got %v, want %v", strings.Join(pat, "/"), strings.Join(name, "/"), got, want)
		}
		if want {
			matched++
		}
	}
	if matched < 1_000 {
		t.Errorf("only %d of the pairs match, the test says little", matched)
	}
}

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a/b", "a/b", true},
		{"a/b", "a/bc", false},
		{"lib/*", "lib/nginx", true},
		{"lib/*", "lib", false},
		{"lib/*", "lib/a/b", false},
		{"lib/*", "library/a", false},
		{"team/**", "team/a/b/c", true},
		{"team/**", "team", true},
		{"team/**", "teams/a", false},
		{"**/base", "base", true},
		{"**/base", "x/y/base", true},
		{"**/base", "x/database", false},
		{"a/**/z", "a/z", true},
		{"a/**/z/**/z", "a/b/z/c", false},
		{"v?", "v1", true},
		{"v?", "v12", false},
		{"**", "a/b", true},
		{"**", "", false},
		{"*-dev", "x-y-dev", true},
	} {
		p, err := parsePattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.match(c.name); got != c.want {
			t.Errorf("%q matches %q: got %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
	for _, bad := range []string{"", "/a", "a/", "a//b", "A", "a b", "a:b", "[a]"} {
		if _, err := parsePattern(bad); err == nil {
			t.Errorf("parsePattern(%q): no error", bad)
		}
	}
}

// TestPatternIsNotExponential checks that the time of a pattern made to be slow is bounded by the
// product of the lengths.
func TestPatternIsNotExponential(t *testing.T) {
	for _, c := range []struct{ pattern, name string }{
		{strings.Repeat("*a", 60) + "b", strings.Repeat("a", 255)},
		{strings.Repeat("**/a/", 30) + "b", strings.Repeat("a/", 127) + "a"},
		{strings.Repeat("**/*a*a*/", 20) + "b", strings.Repeat("aaa/", 63) + "a"},
	} {
		p, err := parsePattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if p.match(c.name) {
			t.Errorf("%q matches %q", c.pattern, c.name)
		}
		if d := time.Since(start); d > 2*time.Second { // measured: 0.1 ms
			t.Errorf("%q took %v", c.pattern, d)
		}
	}
}

func FuzzPattern(f *testing.F) {
	f.Add("team/**/x?", "team/a/b/xy")
	f.Add("*", "")
	f.Fuzz(func(t *testing.T, pat, name string) {
		p, err := parsePattern(pat)
		if err != nil || len(pat) > 20 || len(name) > 20 || name == "" {
			return
		}
		want := naiveMatch(strings.Split(pat, "/"), strings.Split(name, "/"))
		if got := p.match(name); got != want {
			t.Errorf("pattern %q, name %q: got %v, want %v", pat, name, got, want)
		}
	})
}

func TestParseScopes(t *testing.T) {
	many := make([]string, maxScopes+1)
	for i := range many {
		many[i] = "repository:r" + strings.Repeat("x", i) + ":pull"
	}
	for _, c := range []struct {
		name   string
		params []string
		want   []scope
		ok     bool
	}{
		{"none", nil, nil, true},
		{"one", []string{"repository:a/b:pull,push"}, []scope{{"a/b", Pull | Push}}, true},
		{"star", []string{"repository:a:*"}, []scope{{"a", contentActions}}, true},
		{"merged", []string{"repository:a:pull repository:b:pull", "repository:a:push"}, []scope{{"a", Pull | Push}, {"b", Pull}}, true},
		{"class", []string{"repository(plugin):a:pull"}, []scope{{"a", Pull}}, true},
		{"catalog and admin", []string{"registry:catalog:* registry:admin:*"}, []scope{{"", Catalog | Admin}}, true},
		{"catalog is no repository action", []string{"repository:a:catalog,admin,pull"}, []scope{{"a", Pull}}, true},
		{"unknown", []string{"repository:a:fly", "thing:a:pull", "registry:x:*", "registry:catalog:pull", "", "::", "a", "repository:a"}, nil, true},
		{"impossible names", []string{"repository:A:pull", "repository:host:5000/a:pull", "repository:../x:pull", "repository:*:pull"}, nil, true},
		{"too many", []string{strings.Join(many, " ")}, nil, false},
	} {
		got, ok := parseScopes(c.params)
		if ok != c.ok {
			t.Errorf("%s: ok = %v, want %v", c.name, ok, c.ok)
		}
		if d := cmp.Diff(c.want, got, cmp.AllowUnexported(scope{})); d != "" {
			t.Errorf("%s: %q (-want +got):\n%s", c.name, c.params, d)
		}
	}
}

func FuzzParseScopes(f *testing.F) {
	f.Add("repository:a/b:pull,push registry:catalog:*")
	f.Add("repository(x):a:*  ::: repository:a")
	f.Fuzz(func(t *testing.T, s string) {
		scopes, ok := parseScopes([]string{s})
		if !ok {
			return
		}
		var texts []string
		for _, sc := range scopes {
			if sc.actions == 0 {
				t.Errorf("%q: scope without actions for %q", s, sc.repo)
			}
			texts = append(texts, sc.String())
		}
		again, _ := parseScopes(texts)
		if d := cmp.Diff(scopes, again, cmp.AllowUnexported(scope{})); d != "" {
			t.Errorf("%q does not survive its own notation (-first +again):\n%s", s, d)
		}
	})
}

func TestParseAuthorization(t *testing.T) {
	for _, c := range []struct {
		header string
		want   credentials
		err    error
	}{
		{"Basic YWxpY2U6c2VjcmV0", credentials{user: "alice", secret: "secret"}, nil},
		{"basic YWxpY2U6YTpi", credentials{user: "alice", secret: "a:b"}, nil},
		{"Basic Og==", credentials{}, nil},
		{"BEARER a.b.c", credentials{bearer: true, secret: "a.b.c"}, nil},
		{"Bearer ", credentials{}, errHeaderBearer},
		{"Bearer a b", credentials{}, errHeaderBearer},
		{"Bearer a\"b", credentials{}, errHeaderBearer},
		{"Basic !!!", credentials{}, errHeaderBasic},
		{"Basic YWxpY2U=", credentials{}, errHeaderBasic},
		{"Basic YQpiOmM=", credentials{}, errHeaderBasic}, // "a\nb:c"
		{"Digest x", credentials{}, errHeaderScheme},
		{"", credentials{}, errHeaderScheme},
		{"Bearer " + strings.Repeat("x", maxCredentialBytes), credentials{}, errHeaderLong},
	} {
		got, err := parseAuthorization(c.header)
		if got != c.want || err != c.err {
			t.Errorf("%.40q: got %+v, %v; want %+v, %v", c.header, got, err, c.want, c.err)
		}
	}
}

func FuzzParseAuthorization(f *testing.F) {
	f.Add("Basic YWxpY2U6c2VjcmV0")
	f.Add("Bearer a.b.c==")
	f.Fuzz(func(t *testing.T, h string) {
		c, err := parseAuthorization(h)
		if err != nil {
			if c != (credentials{}) {
				t.Errorf("%q: error and %+v", h, c)
			}
			return
		}
		if c.bearer && (c.user != "" || !strings.Contains(h, c.secret)) {
			t.Errorf("%q: %+v", h, c)
		}
		if !c.bearer && (strings.ContainsAny(c.user, ":\n\x00") || strings.Contains(c.secret, "\n")) {
			t.Errorf("%q: %+v", h, c)
		}
	})
}

const testHash = "$2y$04$" + "abcdefghijklmnopqrstuOABCDEFGHIJKLMNOPQRSTUVWXYZ01234"

func TestParseHTPasswd(t *testing.T) {
	secret := "$apr1$SECRETSALT$SECRETHASH"
	for _, c := range []struct{ name, file, err string }{
		{"good", "# comment\n\nalice:" + testHash + "\r\n bob:" + testHash + " \n", ""},
		{"empty", "", ""},
		{"apr1", "alice:" + testHash + "\nbob:" + secret, `line 2: user "bob": the password is not hashed with bcrypt`},
		{"sha", "bob:{SHA}SECRETHASH", `line 1: user "bob": the password is not hashed with bcrypt`},
		{"plain", "bob:SECRETHASH", `line 1: user "bob": the password is not hashed with bcrypt`},
		{"old bcrypt bug", "bob:$2x$" + testHash[4:], "not hashed with bcrypt"},
		{"short", "bob:" + testHash[:59], "damaged"},
		{"bad letter", "bob:" + testHash[:30] + "!" + testHash[31:], "damaged"},
		{"cost too high", "bob:$2y$31" + testHash[6:], "cost is not between"},
		{"twice", "bob:" + testHash + "\nbob:" + testHash, `line 2: user "bob" is there twice`},
		{"no colon", secret, "line 1: not of the form"},
		{"no user", ":" + secret, "line 1: not of the form"},
		{"hash first", secret + ":bob", "line 1: not of the form"},
		{"long line", "bob:" + strings.Repeat("x", 1<<17), "token too long"},
	} {
		users, err := parseHTPasswd(strings.NewReader(c.file))
		if c.err == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.err) || users != nil {
			t.Errorf("%s: got %v, %v; want an error with %q", c.name, users, err, c.err)
			continue
		}
		if strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), testHash[7:30]) {
			t.Errorf("%s: the error shows the hash: %v", c.name, err)
		}
	}
}

func FuzzParseHTPasswd(f *testing.F) {
	f.Add("alice:" + testHash + "\n#x\nbob:{SHA}x")
	f.Fuzz(func(t *testing.T, s string) {
		users, err := parseHTPasswd(strings.NewReader(s))
		if err != nil {
			return
		}
		for name, u := range users {
			if _, err := bcrypt.Cost(u.hash); err != nil || name == "" || strings.Contains(name, ":") {
				t.Errorf("accepted user %q with hash %q: %v", name, u.hash, err)
			}
		}
	})
}

// TestDecoyCosts checks that an unknown user's password is compared with a hash that costs as much
// as those of known users.
func TestDecoyCosts(t *testing.T) {
	h := &htpasswd{}
	f := &userFile{costs: []int{5, 5, 5, 12}}
	seen := map[int]int{}
	for i := range 400 {
		name := "user" + strings.Repeat("x", i)
		hash := h.decoy(f, name)
		if err := checkBcrypt(string(hash)); err != nil {
			t.Fatalf("decoy %q: %v", hash, err)
		}
		if string(hash) != string(h.decoy(f, name)) {
			t.Fatal("two decoys for one name differ")
		}
		cost, err := bcrypt.Cost(hash)
		if err != nil {
			t.Fatal(err)
		}
		seen[cost]++
	}
	if seen[5]+seen[12] != 400 || seen[12] < 40 || seen[12] > 180 {
		t.Errorf("costs of decoys: got %v, want about 300 of 5 and 100 of 12", seen)
	}
	if cost, err := bcrypt.Cost(h.decoy(&userFile{}, "x")); err != nil || cost != bcrypt.DefaultCost {
		t.Errorf("decoy of an empty file: cost %d, %v", cost, err)
	}
}

func TestLoginsQueueIsBounded(t *testing.T) {
	h := &htpasswd{slots: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	if err := h.acquire(ctx); err != nil {
		t.Fatal(err)
	}
	// The slot is taken. One more request waits until the slot is free.
	done := make(chan error)
	go func() { done <- h.acquire(ctx) }()
	for deadline := time.Now().Add(5 * time.Second); h.waiting.Load() != 1; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("nobody waits")
		}
	}
	h.waiting.Add(bcryptQueue - 1) // as many as allowed
	err := h.acquire(ctx)
	var retry *RetryError
	if !oci.HasCode(err, oci.CodeTooManyRequests) || !errors.As(err, &retry) || retry.After != time.Second {
		t.Errorf("one too many: %v", err)
	}
	cancel()
	if err := <-done; !oci.HasCode(err, oci.CodeUnavailable) {
		t.Errorf("request gone: %v", err)
	}
	if n := h.waiting.Load(); n != bcryptQueue-1 {
		t.Errorf("%d wait, want %d", n, bcryptQueue-1)
	}
}
