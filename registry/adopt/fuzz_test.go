package adopt

import (
	"strings"
	"testing"

	"example.org/slipway/registry"
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
		if !strings.HasPrefix(key, registry.RepositoryPrefix+repo+"/_") || !strings.Contains(key, hex) || !strings.Contains(key, alg) || !strings.HasSuffix(key, "/link") {
			t.Errorf("key %q is taken for %d, %q, %q", key, kind, repo, ref)
		}
	})
}
