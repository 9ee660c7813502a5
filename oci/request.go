package oci

import (
	"net/url"
	"strings"
)

// Kind says what a request is about. Together with the HTTP method it identifies the
// specification's endpoint (end-1 to end-13).
type Kind uint8

// The kinds of request.
const (
	// KindNone is a path outside /v2/.
	KindNone Kind = iota
	// KindPing is /v2/. SPEC: end-1.
	KindPing
	// KindCatalog is /v2/_catalog, Docker's list of repositories.
	KindCatalog
	// KindBlob is /v2/<name>/blobs/<digest>. SPEC: end-2 GET and HEAD, end-10 DELETE.
	KindBlob
	// KindManifest is /v2/<name>/manifests/<reference>. SPEC: end-3 GET and
	// HEAD, end-7 PUT, end-9 DELETE.
	KindManifest
	// KindUploads is /v2/<name>/blobs/uploads/. SPEC: end-4a and end-4b POST,
	// end-11 POST with mount.
	KindUploads
	// KindUpload is /v2/<name>/blobs/uploads/<id>. SPEC: end-5 PATCH, end-6
	// PUT, end-13 GET, and DELETE to cancel.
	KindUpload
	// KindTags is /v2/<name>/tags/list. SPEC: end-8a, end-8b.
	KindTags
	// KindReferrers is /v2/<name>/referrers/<digest>. SPEC: end-12a, end-12b.
	KindReferrers
	// KindExtension is /v2/<name>/_<extension>/..., or /v2/_<extension>/...
	// for the whole registry (Repo is then empty).
	KindExtension
)

// String returns the kind's name as used in metrics and logs.
func (k Kind) String() string {
	names := [...]string{"none", "base", "catalog", "blob", "manifest", "blob_upload", "blob_upload_chunk", "tags", "referrers", "extension"}
	if int(k) < len(names) {
		return names[k]
	}
	return "none"
}

// Request holds the parts of a registry request's path. Server and client use the same
// table, so they cannot drift.
type Request struct {
	Kind Kind
	// Repo is the repository name.
	Repo string
	// Ref is what follows the name: a digest (KindBlob, KindReferrers), a tag or digest
	// (KindManifest), an upload id (KindUpload), the rest of the path from the underscore
	// on (KindExtension).
	Ref string
}

// Parse splits a request's URL. ok is false for a path that is not below /v2/ at all. A
// malformed path below it is an error with the code that the specification wants:
// NAME_INVALID or DIGEST_INVALID. Tags are not checked: a tag that cannot exist is
// answered like any other missing one.
//
// Paths are never cleaned: "..", empty segments and encoded slashes make a name invalid
// instead of giving it another meaning.
func Parse(u *url.URL) (r Request, ok bool, err error) {
	p, ok := strings.CutPrefix(u.Path, "/v2")
	if !ok || (p != "" && p[0] != '/') {
		return Request{}, false, nil
	}
	if p == "" || p == "/" {
		return Request{Kind: KindPing}, true, nil
	}
	if u.RawPath != "" && hidesSlashOrDot(u.RawPath) {
		return Request{}, true, Errorf(CodeNameInvalid, "the path %q has an encoded slash or dot; write it plainly", clip(u.RawPath))
	}
	r, err = parsePath(p[1:])
	return r, true, err
}

// hidesSlashOrDot reports whether a raw path has %2f or %2e, which Path no longer shows.
func hidesSlashOrDot(raw string) bool {
	for i := 0; i+2 < len(raw); i++ {
		if raw[i] == '%' && raw[i+1] == '2' {
			switch raw[i+2] {
			case 'f', 'F', 'e', 'E':
				return true
			}
		}
	}
	return false
}

// parsePath splits what follows "/v2/". Names may have any number of segments, so it
// looks at the end of the path first.
func parsePath(p string) (Request, error) {
	if p == "_catalog" {
		return Request{Kind: KindCatalog}, nil
	}
	if p[0] == '_' {
		return Request{Kind: KindExtension, Ref: p}, nil
	}
	head, last := cutLast(p)
	repo, verb := cutLast(head)
	switch {
	case verb == "manifests":
		if last == "" {
			return Request{}, Errorf(CodeManifestUnknown, "the path names no manifest; append a tag or digest")
		}
		return named(Request{KindManifest, repo, last}, checkReference)
	case verb == "blobs" && last == "uploads": // POST without the closing slash
		return named(Request{Kind: KindUploads, Repo: repo}, nil)
	case verb == "blobs":
		return named(Request{KindBlob, repo, last}, checkDigest)
	case verb == "uploads" && strings.HasSuffix(repo, "/blobs"):
		repo = repo[:len(repo)-len("/blobs")]
		if last == "" {
			return named(Request{Kind: KindUploads, Repo: repo}, nil)
		}
		return named(Request{KindUpload, repo, last}, nil)
	case verb == "tags" && last == "list":
		return named(Request{Kind: KindTags, Repo: repo}, nil)
	case verb == "referrers":
		return named(Request{KindReferrers, repo, last}, checkDigest)
	}
	if i := strings.Index(p, "/_"); i > 0 && ValidName(p[:i]) {
		return Request{KindExtension, p[:i], p[i+1:]}, nil
	}
	return Request{}, &Error{Code: CodeNameUnknown, Message: "no such endpoint: /v2/" + clip(p)}
}

func cutLast(p string) (before, after string) {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return "", p
	}
	return p[:i], p[i+1:]
}

func named(r Request, check func(Request) error) (Request, error) {
	if err := CheckName(r.Repo); err != nil {
		return r, err
	}
	if check != nil {
		return r, check(r)
	}
	return r, nil
}

// CheckName returns NAME_INVALID for a malformed repository name.
func CheckName(repo string) error {
	if ValidName(repo) {
		return nil
	}
	if len(repo) > MaxNameLength {
		return Errorf(CodeNameInvalid, "the repository name has %d bytes, at most %d are allowed", len(repo), MaxNameLength)
	}
	return Errorf(CodeNameInvalid, "%q is not a repository name: lower-case letters, digits and separators in segments split by '/'", clip(repo))
}

// CheckTag returns TAG_INVALID for a malformed tag.
func CheckTag(tag string) error {
	if ValidTag(tag) {
		return nil
	}
	return Errorf(CodeTagInvalid, "%q is not a tag: at most %d of letters, digits, '_', '.', '-', not beginning with '.' or '-'", clip(tag), MaxTagLength)
}

// CheckDigest returns DIGEST_INVALID for a digest that is malformed or of an
// algorithm other than sha256 and sha512.
func CheckDigest(d Digest) error {
	if ValidDigest(d) {
		return nil
	}
	return Errorf(CodeDigestInvalid, "%q is not a digest: sha256 or sha512, a colon, and the sum in lower-case hex", clip(string(d)))
}

func checkDigest(r Request) error { return CheckDigest(Digest(r.Ref)) }

func checkReference(r Request) error {
	if IsDigest(r.Ref) {
		return CheckDigest(Digest(r.Ref))
	}
	return nil // except for PUT, a malformed tag is only a tag that does not exist
}

// Path returns the request's URL path, the inverse of Parse.
func (r Request) Path() string {
	switch r.Kind {
	case KindPing:
		return "/v2/"
	case KindCatalog:
		return "/v2/_catalog"
	case KindBlob:
		return "/v2/" + r.Repo + "/blobs/" + r.Ref
	case KindManifest:
		return "/v2/" + r.Repo + "/manifests/" + r.Ref
	case KindUploads:
		return "/v2/" + r.Repo + "/blobs/uploads/"
	case KindUpload:
		return "/v2/" + r.Repo + "/blobs/uploads/" + r.Ref
	case KindTags:
		return "/v2/" + r.Repo + "/tags/list"
	case KindReferrers:
		return "/v2/" + r.Repo + "/referrers/" + r.Ref
	case KindExtension:
		if r.Repo == "" {
			return "/v2/" + r.Ref
		}
		return "/v2/" + r.Repo + "/" + r.Ref
	}
	return ""
}

// clip shortens text from a client before it is put into a message.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
