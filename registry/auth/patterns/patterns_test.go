package patterns

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
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
		p, err := Parse(strings.Join(pat, "/"))
		if err != nil {
			t.Fatalf("Parse(%q): %v", pat, err)
		}
		want := naiveMatch(pat, name)
		if got := p.Match(strings.Join(name, "/")); got != want {
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
		p, err := Parse(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(c.name); got != c.want {
			t.Errorf("%q matches %q: got %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
	for _, bad := range []string{"", "/a", "a/", "a//b", "A", "a b", "a:b", "[a]"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q): no error", bad)
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
		p, err := Parse(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if p.Match(c.name) {
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
		p, err := Parse(pat)
		if err != nil || len(pat) > 20 || len(name) > 20 || name == "" {
			return
		}
		want := naiveMatch(strings.Split(pat, "/"), strings.Split(name, "/"))
		if got := p.Match(name); got != want {
			t.Errorf("pattern %q, name %q: got %v, want %v", pat, name, got, want)
		}
	})
}
