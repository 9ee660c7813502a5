package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/oci/fleet"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server/edge"
	"example.org/slipway/registry/warming"
)

// Nodes receives the reports of nodes; *fleet.Book is an implementation.
type Nodes interface {
	// Add records a client's report about an image of a repository. An error says that
	// the report is wrong or that there are too many reports.
	Add(client, repo string, r *fleet.Report) error
}

// maxNodeReport is the size in bytes of the longest report.
const maxNodeReport = 256 << 10

// noteNode answers POST .../gear/nodes. The report does not change the registry, so it is
// not in the audit log.
func (s *Server) noteNode(q *request) error {
	if err := s.mayReport(q); err != nil {
		return err
	}
	b, err := s.wholeBody(q, maxNodeReport)
	if err != nil {
		return err
	}
	var r fleet.Report
	if err := json.Unmarshal(b, &r); err != nil {
		return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusBadRequest, Message: "the body is no report of a node: " + err.Error()}
	}
	if err := s.opts.Nodes.Add(q.reporter(), q.Repo, &r); err != nil {
		return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusBadRequest, Message: err.Error()}
	}
	return q.accepted()
}

// wholeBody reads a body of at most so many bytes, which may be absent.
func (s *Server) wholeBody(q *request, most int64) ([]byte, error) {
	src, _, done := s.body(q)
	defer done()
	if src == nil {
		return nil, nil
	}
	b, err := io.ReadAll(io.LimitReader(src, most+1))
	if err != nil {
		return nil, edge.BrokeOff(err)
	}
	if int64(len(b)) > most {
		return nil, errTooLarge(most)
	}
	return b, nil
}

// Warm keeps orders that nodes have images before they start them. *warming.Service
// implements it.
type Warm interface {
	Serve(ctx context.Context, c warming.Call) (answer any, err error)
}

// findWarm is findExtension for the part of a path after _slipway/warm.
func findWarm(repo, rest string) (e extEndpoint, arg string) {
	id, below := strings.CutPrefix(rest, "/")
	switch {
	case rest == "" && repo != "":
		return warmImage, ""
	case rest == "":
		return warmList, ""
	case !below || repo != "" || id == "" || strings.Contains(id, "/"):
		return extUnknown, ""
	case id == "poll":
		return warmPoll, ""
	}
	return warmOne, id
}

// warm answers the requests of the extension that warms nodes.
func (s *Server) warm(q *request) error {
	c := warming.Call{Method: q.r.Method, Repo: q.Repo, ID: string(q.ext.arg), Poll: q.ext.endpoint == warmPoll, Client: q.reporter()}
	c.Sees = func(repo string) bool { return s.open || s.opts.Auth.Listed(q.id, repo) }
	if q.id != nil {
		c.User = q.id.Name
	}
	var err error
	if c.Poll {
		err = s.mayReport(q)
	}
	if err == nil && c.Method == http.MethodPost {
		c.Body, err = s.wholeBody(q, maxNodeReport)
	}
	if err != nil {
		return err
	}
	answer, err := s.opts.Warm.Serve(q.ctx(), c)
	if err != nil {
		return err
	}
	if !c.Poll && c.Method != http.MethodGet {
		s.audit(q, "warm", c.ID)
	}
	q.w.Header()["Cache-Control"] = noStore
	return q.sendJSON(answer)
}

// mayReport checks that the client may report what nodes do with a repository's images.
// Anonymous clients may report if everybody may do everything, or if the configuration
// allows it. A client that has a password sends it only on request, so the refusal of an
// anonymous client asks for it.
func (s *Server) mayReport(q *request) error {
	if s.open || s.opts.AnonymousReports || !q.id.Anonymous() {
		return nil
	}
	err, challenge := s.opts.Auth.Refuse(q.r, q.id, q.Repo, auth.Pull)
	if challenge != "" {
		q.w.Header().Set("WWW-Authenticate", challenge)
	}
	err.Message = "reports of nodes are taken from users only; gear.anonymous_reports takes those of anonymous clients, too"
	return err
}

// reporter returns the author of a node's report: the user, or the address if there is no
// user.
func (q *request) reporter() string {
	if q.id.Anonymous() {
		return oci.ClientOf(q.r.RemoteAddr).String()
	}
	return "user " + q.id.Name
}
