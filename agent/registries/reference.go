package registries

import (
	"fmt"
	"strings"

	"example.org/slipway/oci"
)

// Reference is an image in the form that containerd uses, with the registry in front.
type Reference struct {
	Host, Repo string
	// Ref is the tag or digest. If there are both, it is the digest.
	Ref string
}

// Name returns the registry and the repository.
func (r Reference) Name() string { return r.Host + "/" + r.Repo }

// Parse parses HOST/REPOSITORY[:TAG][@DIGEST].
func Parse(s string) (Reference, error) {
	host, rest, ok := strings.Cut(s, "/")
	if !ok || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return Reference{}, fmt.Errorf("%q names no registry; write an image as REGISTRY/REPOSITORY:TAG", s)
	}
	r := Reference{Host: host, Repo: rest, Ref: "latest"}
	if repo, digest, ok := strings.Cut(rest, "@"); ok {
		if !oci.ValidDigest(oci.Digest(digest)) {
			return Reference{}, fmt.Errorf("%q: %q is not a digest", s, digest)
		}
		r.Repo, r.Ref = repo, digest
	}
	if i := strings.LastIndexByte(r.Repo, ':'); i >= 0 {
		tag := r.Repo[i+1:]
		if !oci.ValidTag(tag) {
			return Reference{}, fmt.Errorf("%q: %q is not a tag", s, tag)
		}
		r.Repo = r.Repo[:i]
		if !oci.IsDigest(r.Ref) {
			r.Ref = tag
		}
	}
	if !oci.ValidName(r.Repo) {
		return Reference{}, fmt.Errorf("%q: %q is not a repository name", s, r.Repo)
	}
	return r, nil
}
