package server

import (
	"net/http"
	"strconv"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/auth"
)

// startUpload answers POST /v2/<name>/blobs/uploads/. It begins a new upload (SPEC:
// end-4a), receives a whole blob with ?digest= (end-4b), or mounts a blob with ?mount=
// (end-11).
func (s *Server) startUpload(q *request) error {
	query := q.r.URL.Query()
	if d := query.Get("mount"); d != "" {
		done, err := s.mount(q, oci.Digest(d), query.Get("from"))
		if done || err != nil {
			return err
		}
	} else if d := query.Get("digest"); d != "" {
		return s.pushBlob(q, oci.Digest(d))
	}
	st, err := s.reg.StartUpload(q.ctx(), q.Repo)
	if err != nil {
		return err
	}
	s.uploadHeaders(q, st)
	q.w.WriteHeader(http.StatusAccepted)
	return nil
}

// mount makes a blob of another repository visible here. If that is not possible, the
// client uploads instead. So only a malformed request is an error.
func (s *Server) mount(q *request, d oci.Digest, from string) (done bool, err error) {
	if err := oci.CheckDigest(d); err != nil {
		return false, err
	}
	if from == "" || !oci.ValidName(from) {
		return false, nil // nowhere to look; a search would reveal private blobs
	}
	if !s.open && !s.opts.Auth.Allowed(q.id, from, auth.Pull) {
		return false, nil
	}
	desc, err := s.reg.MountBlob(q.ctx(), q.Repo, from, d)
	if oci.HasCode(err, oci.CodeBlobUnknown) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.audit(q, "mount", string(d))
	return true, s.blobCreated(q, desc)
}

func (s *Server) pushBlob(q *request, d oci.Digest) error {
	if err := oci.CheckDigest(d); err != nil {
		return err
	}
	release, err := s.claimUpload(q)
	if err != nil {
		return err
	}
	defer release()
	src, size, done := s.body(q)
	defer done()
	desc, err := s.reg.PushBlob(q.ctx(), q.Repo, d, size, src)
	if err != nil {
		return err
	}
	q.pushed = desc.Size
	s.audit(q, "push", string(d))
	return s.blobCreated(q, desc)
}

func (s *Server) blobCreated(q *request, desc oci.Descriptor) error {
	h := q.w.Header()
	h["Location"] = []string{s.location(oci.Request{Kind: oci.KindBlob, Repo: q.Repo, Ref: string(desc.Digest)}.Path())}
	h["Docker-Content-Digest"] = []string{string(desc.Digest)}
	h["Content-Length"] = zero
	q.w.WriteHeader(http.StatusCreated)
	return nil
}

// uploadHeaders sets the headers that say where an upload is and how far it is.
func (s *Server) uploadHeaders(q *request, st oci.UploadStatus) {
	h := q.w.Header()
	h["Location"] = []string{s.location(oci.Request{Kind: oci.KindUpload, Repo: q.Repo, Ref: st.ID}.Path())}
	h["Docker-Upload-Uuid"] = []string{st.ID}
	h["Range"] = []string{"0-" + strconv.FormatInt(max(st.Size-1, 0), 10)}
	if st.MinChunk > 0 {
		h["Oci-Chunk-Min-Length"] = []string{strconv.FormatInt(st.MinChunk, 10)}
	}
	h["Content-Length"] = zero
}

// uploadStatus answers GET /v2/<name>/blobs/uploads/<id>. SPEC: end-13.
func (s *Server) uploadStatus(q *request) error {
	st, err := s.reg.UploadStatus(q.ctx(), q.Repo, q.Ref)
	if err != nil {
		return err
	}
	s.uploadHeaders(q, st)
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// appendUpload answers PATCH /v2/<name>/blobs/uploads/<id>. SPEC: end-5.
func (s *Server) appendUpload(q *request) error {
	off, size, release, err := s.chunk(q)
	if err != nil {
		return err
	}
	defer release()
	src, _, done := s.body(q)
	defer done()
	st, err := s.reg.AppendUpload(q.ctx(), q.Repo, q.Ref, off, size, src)
	if err != nil {
		if oci.HasCode(err, oci.CodeRangeInvalid) {
			s.uploadHeaders(q, st) // the client can continue from there
		}
		return err
	}
	s.uploadHeaders(q, st)
	q.w.WriteHeader(http.StatusAccepted)
	return nil
}

// commitUpload answers PUT /v2/<name>/blobs/uploads/<id>?digest=. SPEC: end-6.
func (s *Server) commitUpload(q *request) error {
	d := oci.Digest(q.r.URL.Query().Get("digest"))
	if d == "" {
		return oci.Errorf(oci.CodeDigestInvalid, "the request lacks ?digest=, which names the blob")
	}
	off, size, release, err := s.chunk(q)
	if err != nil {
		return err
	}
	defer release()
	src, _, done := s.body(q)
	defer done()
	desc, err := s.reg.CommitUpload(q.ctx(), q.Repo, q.Ref, off, size, src, d)
	if err != nil {
		return err
	}
	q.pushed = desc.Size
	s.audit(q, "push", string(d))
	return s.blobCreated(q, desc)
}

// cancelUpload answers DELETE /v2/<name>/blobs/uploads/<id>.
func (s *Server) cancelUpload(q *request) error {
	if err := s.reg.CancelUpload(q.ctx(), q.Repo, q.Ref); err != nil {
		return err
	}
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// chunk reads the position to which the request's body belongs, and claims a place among
// the client's concurrent uploads.
func (s *Server) chunk(q *request) (off, size int64, release func(), err error) {
	size = q.r.ContentLength
	off = oci.AtEnd
	if v := q.r.Header.Get("Content-Range"); v != "" {
		var n int64
		if off, n, err = parseContentRange(v); err != nil {
			return 0, 0, nil, err
		}
		if size >= 0 && n != size {
			return 0, 0, nil, oci.Errorf(oci.CodeSizeInvalid, "Content-Range %q has %d bytes, the body has %d", v, n, size)
		}
		size = n
	}
	release, err = s.claimUpload(q)
	return off, size, release, err
}

// parseContentRange parses an upload's Content-Range. SPEC: "<start>-<end>", both
// inclusive. It also accepts the form of RFC 9110, "bytes <start>-<end>/<size>".
func parseContentRange(v string) (off, n int64, err error) {
	spec := strings.TrimPrefix(strings.TrimSpace(v), "bytes ")
	spec, _, _ = strings.Cut(spec, "/")
	first, last, ok := strings.Cut(spec, "-")
	if ok {
		var end int64
		var ok1, ok2 bool
		off, ok1 = wire.Count(first)
		end, ok2 = wire.Count(last)
		if ok1 && ok2 && end >= off {
			return off, end - off + 1, nil
		}
	}
	return 0, 0, oci.Errorf(oci.CodeRangeInvalid, "%.60q is not a Content-Range: write <first byte>-<last byte>", v)
}

func (s *Server) claimUpload(q *request) (release func(), err error) {
	addr := q.r.RemoteAddr
	if !s.sending.Enter(addr) {
		return nil, tooMany("this address sends more uploads at once than http.ratelimit.uploads allows")
	}
	return func() { s.sending.Leave(addr) }, nil
}
