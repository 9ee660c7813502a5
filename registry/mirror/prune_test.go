package mirror

import (
	"strings"
	"testing"
)

// TestLiteral checks that everything that matches a pattern begins with its literal part.
func TestLiteral(t *testing.T) {
	for pattern, want := range map[string]string{
		"": "", "**": "", "*/a": "", "a": "a", "a/b": "a/b", "a/b/": "a/b", "a//b*": "a/b", "a/**": "a", "a/**/b": "a", "a/b?": "a/b", "a/[bc]": "a", `a/\b`: "a",
	} {
		if got := literal(pattern); got != want {
			t.Errorf("literal(%q) = %q, want %q", pattern, got, want)
		}
		for _, repo := range []string{"a", "ab", "a/b", "a/bc", "a/x/b", "a/b/c", "b", "x/a"} {
			if matches(pattern, repo) && !strings.HasPrefix(repo, literal(pattern)) {
				t.Errorf("%q matches %q and does not begin with %q", repo, pattern, literal(pattern))
			}
		}
	}
}
