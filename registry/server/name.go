package server

import (
	"errors"
	"net/http"
	"net/url"

	"example.org/slipway/oci"
)

// RepositoryFunc returns the repository that a request means by a name, which is a
// valid one. Its errors are answered once the client is known.
type RepositoryFunc func(r *http.Request, name string) (string, error)

// DefaultedFunc reports whether a request means another repository by a name only because
// there is none of that name.
type DefaultedFunc func(r *http.Request, name string) bool

// orAbsent makes a refusal of the manifest that a default would be into its absence,
// where it is asked for with HEAD. Some clients do so before they push, to a repository
// that the push makes; they go on only if nothing is there. A 401 stays: with other
// credentials the answer may be another.
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

// resolveName makes the request's repository the one it means: rules, counters and
// logs are asked and told of that one, whatever name it went by. The name must be
// a valid one, or nobody is asked.
func (s *Server) resolveName(q *request) error {
	if s.opts.Repository == nil || q.Repo == "" {
		return nil
	}
	name, err := s.opts.Repository(q.r, q.Repo)
	if err != nil || name == q.Repo {
		return err
	}
	if err := oci.CheckName(name); err != nil {
		return err // a mapping has made it too long
	}
	q.asked, q.Repo = q.Repo, name
	return nil
}

// ownRepo is the repository's name as the client wrote it.
func (q *request) ownRepo() string {
	if q.asked != "" {
		return q.asked
	}
	return q.Repo
}

// ownPath is the request's path as its client would write it, for links to more of
// the same.
func (q *request) ownPath() string {
	as := q.Request
	as.Repo = q.ownRepo()
	return as.Path()
}

// ownQuery is the part of the request's query that says which repository is meant.
// It belongs to links to more of the same.
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

// namespaceParam is the query parameter in which clients of a mirror name the
// registry they mean.
const namespaceParam = "ns"

// loggedURI is what the access log has as the request's: with the repository that
// was meant.
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
