package server

import (
	"errors"
	"net/http"
	"net/url"

	"example.org/slipway/oci"
)

// RepositoryFunc returns the repository that a request means by a valid name. Its errors
// are answered only once the client is known.
type RepositoryFunc func(r *http.Request, name string) (string, error)

// DefaultedFunc reports whether a request means another repository by a name only because
// no repository has that name.
type DefaultedFunc func(r *http.Request, name string) bool

// orAbsent turns the refusal of a HEAD request for a manifest of a defaulted repository
// into the answer that the manifest is absent. Some clients send such a request before
// they push to a repository that the push creates, and continue only if nothing is there.
// A 401 stays, because the answer may differ with other credentials.
func (s *Server) orAbsent(q *request, err error) error {
	if err == nil || q.asked == "" || q.Kind != oci.KindManifest || q.r.Method != http.MethodHead || s.opts.Defaulted == nil {
		return err
	}
	var e *oci.Error
	if !errors.As(err, &e) || e.HTTPStatus() != http.StatusForbidden || !s.opts.Defaulted(q.r, q.asked) {
		return err
	}
	return &oci.Error{Code: oci.CodeManifestUnknown, Message: "there is no such repository here", Err: err}
}

// resolveName sets the request's repository to the one that the request means. Rules,
// counters and logs use that repository, whatever name the client used. The name must be
// valid, or it is not resolved.
func (s *Server) resolveName(q *request) error {
	if s.opts.Repository == nil || q.Repo == "" {
		return nil
	}
	name, err := s.opts.Repository(q.r, q.Repo)
	if err != nil || name == q.Repo {
		return err
	}
	if err := oci.CheckName(name); err != nil {
		return err // a mapping has made the name too long
	}
	q.asked, q.Repo = q.Repo, name
	return nil
}

// ownRepo returns the repository's name as the client wrote it.
func (q *request) ownRepo() string {
	if q.asked != "" {
		return q.asked
	}
	return q.Repo
}

// ownPath returns the request's path as its client would write it. It is for links to
// further pages.
func (q *request) ownPath() string {
	as := q.Request
	as.Repo = q.ownRepo()
	return as.Path()
}

// ownQuery returns the part of the request's query that says which repository is meant.
// It belongs in links to further pages.
func (q *request) ownQuery() url.Values {
	keep := url.Values{}
	if q.r.URL.RawQuery == "" {
		return keep
	}
	if ns := q.r.URL.Query().Get(namespaceParam); ns != "" {
		keep.Set(namespaceParam, ns)
	}
	return keep
}

// namespaceParam is the query parameter with which clients of a mirror name the registry
// that they mean.
const namespaceParam = "ns"

// loggedURI returns the URI for the access log, with the repository that was meant.
func (s *Server) loggedURI(q *request) string {
	if q.asked == "" {
		return q.r.URL.RequestURI()
	}
	uri := s.opts.Prefix + (&url.URL{Path: q.Path()}).EscapedPath()
	if q.r.URL.RawQuery != "" {
		uri += "?" + q.r.URL.RawQuery
	}
	return uri
}
