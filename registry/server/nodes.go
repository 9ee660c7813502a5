package server

import (
	"encoding/json"
	"io"
	"net/http"

	"example.org/slipway/oci"
	"example.org/slipway/oci/fleet"
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
	src, _, done := s.body(q)
	defer done()
	if src == nil {
		src = http.NoBody
	}
	b, err := io.ReadAll(io.LimitReader(src, maxNodeReport+1))
	if err != nil {
		return brokeOff(err)
	}
	if len(b) > maxNodeReport {
		return errTooLarge(maxNodeReport)
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
