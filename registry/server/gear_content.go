package server

import (
	"errors"
	"net/http"
	"strconv"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/server/edge"
	"example.org/slipway/registry/server/names"
)

// These are shared header values of the extension, like those in server.go.
var (
	indexType  = []string{gearIndexType}
	streamType = []string{gearStreamType}
	chunksType = []string{gearChunksType}
	// Contents never change. If access is controlled, a cache that several clients share
	// must not answer in place of this server.
	publicForever  = []string{"public, max-age=31536000, immutable"}
	privateForever = []string{"private, max-age=31536000, immutable"}
	noStore        = []string{"no-store"}
)

// Content that is not there and content that may not be seen get the same answer.
var (
	errNoLayer   = &oci.Error{Code: oci.CodeBlobUnknown, Message: "the repository has no such layer, or no index of it"}
	errNoFile    = &oci.Error{Code: oci.CodeBlobUnknown, Message: "the repository has no such file"}
	errNoProfile = &oci.Error{Code: oci.CodeManifestUnknown, Message: "the repository has no such image, or no profile of it"}
)

// unless returns absent if err says that something is not there, and otherwise err.
func unless(err error, absent *oci.Error) error {
	for _, code := range []oci.Code{oci.CodeBlobUnknown, oci.CodeManifestUnknown, oci.CodeNameUnknown} {
		if oci.HasCode(err, code) {
			return absent
		}
	}
	return err
}

// getGearLayer answers GET and HEAD .../gear/layers/<digest>.
func (s *Server) getGearLayer(q *request) error {
	c, err := s.opts.Gear.Layer(q.ctx(), q.Repo, q.ext.arg)
	if err != nil {
		var pending *GearPendingError
		if errors.As(err, &pending) {
			return q.pending(pending)
		}
		return unless(err, errNoLayer)
	}
	defer c.Close()
	name := c.Name()
	d := string(names.Append(nil, name))
	q.w.Header()["Slipway-Gear-Name"] = []string{d}
	if id := c.DiffID(); id != ([32]byte{}) {
		q.w.Header()["Slipway-Gear-Diff-Id"] = []string{string(names.Append(nil, id))}
	}
	return s.sendGear(q, c, oci.Digest(d), indexType)
}

// pendingDetail is the detail in the error for a layer that has no index.
type pendingDetail struct {
	// State is "converting" or "failed".
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// pending returns the answer for a layer that has no index.
func (q *request) pending(p *GearPendingError) error {
	h := q.w.Header()
	h["Cache-Control"] = noStore
	if p.RetryAfter <= 0 {
		return &oci.Error{Code: oci.CodeBlobUnknown, Message: "the layer has no index: its conversion failed", Detail: pendingDetail{"failed", p.Reason}}
	}
	h["Retry-After"] = []string{wire.Seconds(p.RetryAfter)}
	return &oci.Error{Code: oci.CodeBlobUnknown, Message: "the layer has no index yet: it is being converted", Detail: pendingDetail{"converting", p.Reason}}
}

// getGearFile answers GET and HEAD .../gear/files/<name>.
func (s *Server) getGearFile(q *request) error {
	c, err := s.opts.Gear.File(q.ctx(), q.Repo, q.ext.name)
	if err != nil {
		return unless(err, errNoFile)
	}
	defer c.Close()
	return s.sendGear(q, c, q.ext.arg, octetStream)
}

// getGearChunks answers GET .../gear/files/<name>/chunks/<first>-<last>.
func (s *Server) getGearChunks(q *request) error {
	c, err := s.opts.Gear.File(q.ctx(), q.Repo, q.ext.name)
	if err != nil {
		return unless(err, errNoFile)
	}
	defer c.Close()
	// The stored form of a chunk may change, but its content does not.
	return q.sendError(c.WriteChunks(q.ctx(), q.w, q.ext.first, q.ext.last-q.ext.first+1, func(length int64) {
		h := q.w.Header()
		h["Cache-Control"] = privateForever
		if s.open {
			h["Cache-Control"] = publicForever
		}
		h["Content-Type"] = chunksType
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
		q.w.WriteHeader(http.StatusOK)
	}))
}

// sendGear answers GET and HEAD of an open content with the digest d.
func (s *Server) sendGear(q *request, c GearContent, d oci.Digest, mediaType []string) error {
	h := q.w.Header()
	if s.open {
		h["Cache-Control"] = publicForever
	} else {
		h["Cache-Control"] = privateForever
	}
	if notModified(q.r, d) {
		return q.answerNotModified(d)
	}
	size := c.Size()
	off, n, outcome := int64(0), size, rangeAll
	if q.r.Method == http.MethodGet && len(q.r.Header["Range"]) > 0 {
		off, n, outcome = q.wantedRange(d, size)
	}
	if outcome == rangeBad {
		h["Cache-Control"] = noStore
		return q.badRange(size)
	}
	contentHeaders(h, d, n)
	h["Content-Type"] = mediaType
	h["Accept-Ranges"] = acceptBytes
	if outcome == rangePart {
		q.beginPart(off, n, size)
	}
	if q.r.Method == http.MethodHead || n == 0 {
		q.w.WriteHeader(http.StatusOK)
		return nil
	}
	err := q.sendError(edge.InOnePiece(q.w.ResponseWriter, q.r, n, func() error { return c.WriteRange(q.ctx(), q.w, off, n) }))
	if err != nil && q.w.status == 0 {
		// The answer will be an error, which nobody may cache.
		for _, k := range []string{"Etag", "Docker-Content-Digest", "Slipway-Gear-Name", "Accept-Ranges"} {
			delete(h, k)
		}
		h["Cache-Control"] = noStore
	}
	return err
}
