package adopt

import (
	"strings"
	"testing"

	"example.org/slipway/registry/storage"
)

func FuzzParseLink(f *testing.F) {
	f.Add("docker/registry/v2/repositories/a/b/_layers/sha256/00/link")
	f.Add("docker/registry/v2/repositories/a/_manifests/revisions/sha256/00/link")
	f.Add("docker/registry/v2/repositories/a/_manifests/tags/v1/current/link")
	f.Add("docker/registry/v2/repositories/a/_manifests/tags/v1/index/sha256/00/link")
	f.Add("docker/registry/v2/repositories//_")
	f.Add("docker/registry/v2/repositories/a/_manifests/revisions/sha256:/00/link")
	f.Fuzz(func(t *testing.T, key string) {
		kind, repo, ref := parseLink(key)
		if kind == linkNone {
			return
		}
		named := kind != linkTag && kind != linkHistory
		found := !named && strings.Contains(key, "/"+ref+"/")
		for i := range ref { // an algorithm or a digest of the key may have a colon, too
			found = found || named && ref[i] == ':' && strings.Contains(key, "/"+ref[:i]+"/"+ref[i+1:]+"/")
		}
		if !found || !strings.HasPrefix(key, storage.RepositoryPrefix+repo+"/_") || !strings.HasSuffix(key, "/link") {
			t.Errorf("key %q is taken for %d, %q, %q", key, kind, repo, ref)
		}
	})
}
