package catalog_test

import (
	"strings"
	"testing"

	"example.org/slipway/registry/catalog"
)

// TestHungOn checks that tags which name an image's digest, as signing tools make them, are
// distinguished from other tags.
func TestHungOn(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	short, long := "sha256-"+hex, "sha512-"+hex
	for _, c := range []struct{ tag, want string }{
		{short, short},
		{short + ".sig", short},
		{short + ".att.2", short},
		{short + "-sig", short},
		{short + "_sbom", short},
		{long, long},
		{long + ".sig", long},
		{long + hex[:57], long}, // 128 characters, the most that a tag has
		{long + hex[:53] + ".sig", long},
		{short + "0", ""}, // not a SHA-256
		{short + "0.sig", ""},
		{short[:70], ""},
		{long[:70] + ".sig", ""},
		{short + ".", ""},
		{strings.ToUpper(short), ""},
		{"sha256-" + strings.ToUpper(hex) + ".sig", ""},
		{"sha384-" + hex, ""},
		{"x" + short, ""},
		{"v1.sig", ""},
	} {
		if got := catalog.HungOn(c.tag); got != c.want {
			t.Errorf("%s: got %q, want %q", c.tag, got, c.want)
		}
	}
}
