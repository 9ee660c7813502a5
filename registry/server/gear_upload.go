package server

import (
	"io"
	"net/http"
	"strconv"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/server/edge"
)

// putGearFile answers PUT .../gear/files/<name>.
func (s *Server) putGearFile(q *request) error {
	body, done, err := s.uploadBody(q, maxGearFile)
	if err != nil {
		return err
	}
	defer done()
	if err := s.opts.Gear.PutFile(q.ctx(), q.Repo, q.ext.name, q.r.ContentLength, body); err != nil {
		return body.explain(err)
	}
	s.audit(q, "push", string(q.ext.arg))
	h := q.w.Header()
	h["Location"] = []string{s.location(q.Path())}
	h["Docker-Content-Digest"] = []string{string(q.ext.arg)}
	h["Content-Length"] = zero
	q.w.WriteHeader(http.StatusCreated)
	return nil
}

// putGearFiles answers POST .../gear/files.
func (s *Server) putGearFiles(q *request) error {
	kind, _, _ := strings.Cut(q.r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), gearStreamType) {
		return errMediaType(gearStreamType)
	}
	body, done, err := s.uploadBody(q, maxGearUpload)
	if err != nil {
		return err
	}
	defer done()
	n, err := s.opts.Gear.PutFiles(q.ctx(), q.Repo, body)
	if err != nil {
		return body.explain(err)
	}
	s.audit(q, "push", "gear files: "+strconv.Itoa(n))
	b := strconv.AppendInt([]byte(`{"stored":`), int64(n), 10)
	return q.sendBytes(http.StatusCreated, jsonType, append(b, '}'))
}

// uploadBody returns the request's body, limited to the given number of bytes, and claims
// a place among the client's uploads. done must be called.
func (s *Server) uploadBody(q *request, most int64) (b *uploadBody, done func(), err error) {
	if q.r.ContentLength > most {
		return nil, nil, errTooLarge(most)
	}
	release, err := s.claimUpload(q)
	if err != nil {
		return nil, nil, err
	}
	src, _, ended := s.body(q)
	if src == nil {
		src = http.NoBody
	}
	return &uploadBody{src: src, most: most, left: most}, func() { ended(); release() }, nil
}

func errTooLarge(most int64) error {
	return &oci.Error{Code: oci.CodeSizeInvalid, Status: http.StatusRequestEntityTooLarge,
		Message: "the body has more than the " + strconv.FormatInt(most, 10) + " bytes that are allowed in one request"}
}

// uploadBody is a body with a limit. It remembers why the body could not be read, because
// the reader may report the failure in words that are not meant for a client.
type uploadBody struct {
	src        io.Reader
	most, left int64
	err        error
}

// Read implements io.Reader.
func (b *uploadBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.src.Read(p)
	if b.left -= int64(n); b.left < 0 {
		n, err = n-1, errTooLarge(b.most)
	}
	if err != nil && err != io.EOF {
		b.err = edge.BrokeOff(err)
		return n, b.err
	}
	return n, err
}

// explain returns the error for the answer after storing failed with err.
func (b *uploadBody) explain(err error) error {
	if b.err != nil {
		return b.err
	}
	return err
}
