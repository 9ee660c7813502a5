package oci_test

import (
	"strings"
	"testing"

	"example.org/slipway/oci"
)

func TestMatchSegments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a/b", "a/b", true},
		{"a/*", "a/b", true},
		{"a/*", "a/b/c", false},
		{"a/**", "a/b/c", true},
		{"a/**", "a", true},
		{"**", "a/b", true},
		{"**/c", "a/b/c", true},
		{"**/b/**/d", "a/b/b/c/d", true},
		{"**/x", "a/b/c", false},
		{"example.com:5000/t-?/**", "example.com:5000/t-1/x", true},
		{"a/[", "a/b", false},
		{"**/[", "a/b", false},
	} {
		if got := oci.MatchSegments(c.pattern, c.name); got != c.want {
			t.Errorf("%q matches %q: %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
}

func TestMatchSegmentsEnds(t *testing.T) {
	t.Parallel()
	pattern := strings.Repeat("**/a*/", 200) + "b"
	name := strings.Repeat("aa/", 500) + "c"
	if oci.MatchSegments(pattern, name) {
		t.Error("it matches")
	}
}
