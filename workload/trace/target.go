package trace

import "strings"

// Kind is what a request's path points at.
type Kind uint8

// These are the kinds. Their numbers are stored.
const (
	// Other is a path that does not belong to the protocol.
	Other Kind = iota
	// Ping is /v2/ itself.
	Ping
	// Manifest is a manifest by tag or digest.
	Manifest
	// Blob is a blob by digest.
	Blob
	// Upload is an upload, or the request that begins one.
	Upload
	// Tags is a repository's tag list.
	Tags
	// Referrers is the list of manifests that refer to a manifest.
	Referrers
	// Catalog is the list of repositories.
	Catalog
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "invalid"
}

var kindNames = [...]string{"other", "ping", "manifest", "blob", "upload", "tags", "referrers", "catalog"}

// Target holds the parts of a request's path.
type Target struct {
	Kind Kind
	// Repo is the repository's name: everything between "v2" and the last segments,
	// however many. Empty for a ping, the catalogue and other paths.
	Repo string
	// Ref is the tag or digest of a manifest, the digest of a blob or the id of an
	// upload. It is empty for the request that begins an upload.
	Ref string
}

// Namespace returns the first segment of the repository's name: the user, in the IBM
// registry.
func (t Target) Namespace() string {
	ns, _, _ := strings.Cut(t.Repo, "/")
	return ns
}

// ParseURI parses a request's URI. It reads the IBM form, in which all segments but the
// protocol's words are pseudonyms, and plain URIs, with or without a leading slash and a
// query. It looks for the protocol's words from the end, because a repository or a tag
// may be called "manifests" or "blobs", too.
func ParseURI(uri string) Target {
	uri, _, _ = strings.Cut(uri, "?")
	uri = strings.TrimPrefix(uri, "/")
	rest, ok := strings.CutPrefix(uri, "v2")
	if !ok || rest != "" && rest[0] != '/' {
		return Target{}
	}
	rest = strings.TrimPrefix(rest, "/")
	if rest == "" {
		return Target{Kind: Ping}
	}
	if rest == "_catalog" {
		return Target{Kind: Catalog}
	}
	head, id := cutLast(rest)
	repo, word := cutLast(head)
	if repo == "" {
		return Target{}
	}
	switch {
	case word == "uploads": // the upload's id comes last, unless the request begins an upload
		if repo, ok := strings.CutSuffix(repo, "/blobs"); ok && repo != "" {
			return Target{Kind: Upload, Repo: repo, Ref: id}
		}
	case word == "blobs" && id == "uploads":
		return Target{Kind: Upload, Repo: repo}
	case id == "":
	case word == "manifests":
		return Target{Kind: Manifest, Repo: repo, Ref: id}
	case word == "blobs":
		return Target{Kind: Blob, Repo: repo, Ref: id}
	case word == "referrers":
		return Target{Kind: Referrers, Repo: repo, Ref: id}
	case word == "tags" && id == "list":
		return Target{Kind: Tags, Repo: repo}
	}
	return Target{}
}

// cutLast cuts at the last slash. Without a slash, head is empty.
func cutLast(s string) (head, last string) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return "", s
	}
	return s[:i], s[i+1:]
}

// URI returns the target's path in the form that [ParseURI] reads, without the leading
// slash. It is empty for Other, whose path a Target does not keep.
func (t Target) URI() string {
	switch t.Kind {
	case Ping:
		return "v2"
	case Manifest:
		return "v2/" + t.Repo + "/manifests/" + t.Ref
	case Blob:
		return "v2/" + t.Repo + "/blobs/" + t.Ref
	case Upload:
		return "v2/" + t.Repo + "/blobs/uploads/" + t.Ref
	case Tags:
		return "v2/" + t.Repo + "/tags/list"
	case Referrers:
		return "v2/" + t.Repo + "/referrers/" + t.Ref
	case Catalog:
		return "v2/_catalog"
	}
	return ""
}
