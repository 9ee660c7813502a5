package registry

import (
	"strings"
	"testing"

	"example.org/slipway/oci"
)

func FuzzParseLink(f *testing.F) {
	f.Add("docker/registry/v2/repositories/a/b/_layers/sha256/00/link")
	f.Add("docker/registry/v2/repositories/a/_manifests/revisions/sha256/00/link")
	f.Add("docker/registry/v2/repositories/a/_manifests/tags/v1/current/link")
	f.Add("docker/registry/v2/repositories/a/_manifests/tags/v1/index/sha256/00/link")
	f.Add("docker/registry/v2/repositories//_")
	f.Fuzz(func(t *testing.T, key string) {
		kind, repo, ref := parseLink(key)
		if kind == linkNone {
			return
		}
		alg, hex, _ := strings.Cut(ref, ":")
		if kind == linkTag {
			hex = ref
		}
		if !strings.HasPrefix(key, repositoryPrefix+repo+"/_") || !strings.Contains(key, hex) || !strings.Contains(key, alg) || !strings.HasSuffix(key, "/link") {
			t.Errorf("key %q is taken for %d, %q, %q", key, kind, repo, ref)
		}
	})
}

func FuzzDigestOfKey(f *testing.F) {
	f.Add(BlobKey(oci.SHA256(nil)))
	f.Add(blobPrefix + "sha512/00/00/data")
	f.Fuzz(func(t *testing.T, key string) {
		if d, ok := digestOfKey(key); ok && BlobKey(d) != key {
			t.Errorf("key %q is taken for %s", key, d)
		}
	})
}

func FuzzMatchRepository(f *testing.F) {
	f.Add("a/**/b*", "a/x/bc")
	f.Add("**/**/**", "a")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if checkPattern(pattern) != nil || !oci.ValidName(name) {
			return
		}
		p, n := strings.Split(pattern, "/"), strings.Split(name, "/")
		if got, want := matchRepository(p, n), matchSlowly(p, n); got != want {
			t.Errorf("pattern %q, name %q: %v, want %v", pattern, name, got, want)
		}
	})
}

// matchSlowly is matchRepository by trying everything.
func matchSlowly(p, n []string) bool {
	switch {
	case len(p) == 0:
		return len(n) == 0
	case p[0] == "**":
		return matchSlowly(p[1:], n) || (len(n) > 0 && matchSlowly(p, n[1:]))
	case len(n) == 0:
		return false
	}
	return globSlowly(p[0], n[0]) && matchSlowly(p[1:], n[1:])
}

func globSlowly(p, s string) bool {
	switch {
	case p == "":
		return s == ""
	case p[0] == '*':
		return globSlowly(p[1:], s) || (s != "" && globSlowly(p, s[1:]))
	}
	return s != "" && p[0] == s[0] && globSlowly(p[1:], s[1:])
}
