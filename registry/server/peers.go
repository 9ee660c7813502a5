package server

import (
	"encoding/json"
	"net/http"

	"example.org/slipway/oci"
	"example.org/slipway/oci/peering"
)

// Peers introduces nodes to each other; *tracker.Tracker is an implementation.
type Peers interface {
	// Announce notes that a node uses an image of a repository from which its client may
	// pull, and returns other nodes that do. seen is the client's address. An error says
	// that the announcement is wrong, or that there are too many.
	Announce(repo, seen string, a *peering.Announcement) (*peering.Answer, error)
}

// maxAnnouncement is the size in bytes of the longest announcement.
const maxAnnouncement = 8 << 10

// announcePeer answers POST .../gear/peers. The announcement does not change the registry,
// so it is not in the audit log.
func (s *Server) announcePeer(q *request) error {
	b, err := s.wholeBody(q, maxAnnouncement)
	if err != nil {
		return err
	}
	wrong := func(err error) error {
		return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusBadRequest, Message: "the body is no announcement of a node: " + err.Error()}
	}
	var a peering.Announcement
	if err := json.Unmarshal(b, &a); err != nil {
		return wrong(err)
	}
	answer, err := s.opts.Peers.Announce(q.Repo, q.r.RemoteAddr, &a)
	if err != nil {
		return wrong(err)
	}
	return q.sendJSON(answer)
}
