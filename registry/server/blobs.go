package server

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/auth"
)

// contentHeaders sets the headers that blobs and manifests have in common.
func contentHeaders(h http.Header, d oci.Digest, size int64) {
	v := &[3]string{strconv.FormatInt(size, 10), string(d), etag(d)} // one allocation for all
	h["Content-Length"] = v[0:1:1]
	h["Docker-Content-Digest"] = v[1:2:2]
	h["Etag"] = v[2:3:3]
	h["X-Content-Type-Options"] = noSniff
}

// etag returns a content's entity tag. Contents never change, so it is the digest.
func etag(d oci.Digest) string { return `"` + string(d) + `"` }

// notModified reports whether If-None-Match contains the content's tag.
func notModified(r *http.Request, d oci.Digest) bool {
	list := r.Header["If-None-Match"]
	for _, v := range list {
		for _, tag := range strings.Split(v, ",") {
			tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
			if tag == "*" || tag == etag(d) || tag == string(d) {
				return true
			}
		}
	}
	return false
}

func (q *request) answerNotModified(d oci.Digest) error {
	h := q.w.Header()
	h["Docker-Content-Digest"] = []string{string(d)}
	h["Etag"] = []string{etag(d)}
	q.w.WriteHeader(http.StatusNotModified)
	return nil
}

// getBlob answers GET /v2/<name>/blobs/<digest>. SPEC: end-2.
func (s *Server) getBlob(q *request) error {
	d := oci.Digest(q.Ref)
	if len(q.r.Header["Range"]) > 0 || len(q.r.Header["If-None-Match"]) > 0 {
		return s.getBlobWith(q, d)
	}
	if s.opts.Redirect != nil {
		if done, err := s.redirectBlob(q, d); done || err != nil {
			return err
		}
	}
	c, err := s.reg.GetBlob(q.ctx(), q.Repo, d)
	if err != nil {
		return err
	}
	defer c.Close()
	h := q.w.Header()
	contentHeaders(h, d, c.Descriptor().Size)
	h["Content-Type"] = octetStream
	h["Accept-Ranges"] = acceptBytes
	return q.sendContent(c)
}

// sendContent sends a body.
func (q *request) sendContent(c oci.Content) error {
	_, err := c.WriteTo(q.w)
	return q.sendError(err)
}

// sendError classifies the errors of sending a body. Nobody is at fault if the client
// went away. An error of the source is logged.
func (q *request) sendError(err error) error {
	if err != nil && (q.ctx().Err() != nil || fromNetwork(err)) {
		return errClientGone
	}
	return err
}

// fromNetwork reports whether an error came from the client's connection. The type of the
// error does not say so, because sendfile reports a bad disk as an error of the
// connection, too.
func fromNetwork(err error) bool {
	for _, e := range []error{syscall.EPIPE, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.ETIMEDOUT, net.ErrClosed,
		os.ErrDeadlineExceeded, io.ErrClosedPipe} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// getBlobWith answers conditional requests and ranges.
func (s *Server) getBlobWith(q *request, d oci.Digest) error {
	desc, err := s.reg.ResolveBlob(oci.ForReading(q.ctx()), q.Repo, d)
	if err != nil {
		return err
	}
	if notModified(q.r, d) {
		return q.answerNotModified(d)
	}
	off, n, rng := q.wantedRange(d, desc.Size)
	if rng == rangeBad {
		return q.badRange(desc.Size)
	}
	if s.opts.Redirect != nil && s.redirect(q, Redirect{Blob: desc, Part: rng == rangePart, Offset: off}) {
		return nil
	}
	var c oci.Content
	if rng == rangeAll {
		c, err = s.reg.GetBlob(q.ctx(), q.Repo, d)
	} else {
		c, err = s.reg.GetBlobRange(q.ctx(), q.Repo, d, off, n)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	h := q.w.Header()
	contentHeaders(h, d, n)
	h["Content-Type"] = octetStream
	h["Accept-Ranges"] = acceptBytes
	if rng == rangePart {
		q.beginPart(off, n, desc.Size)
	}
	return q.sendContent(c)
}

// wantedRange reads Range and If-Range for the content d of size bytes.
func (q *request) wantedRange(d oci.Digest, size int64) (off, n int64, outcome int) {
	if v := q.r.Header.Get("If-Range"); v != "" && v != etag(d) {
		return 0, size, rangeAll
	}
	return parseRange(q.r.Header.Get("Range"), size)
}

// badRange returns the answer to a range outside a content of size bytes.
func (q *request) badRange(size int64) error {
	h := q.w.Header()
	h["Accept-Ranges"] = acceptBytes
	h["Content-Range"] = []string{"bytes */" + strconv.FormatInt(size, 10)}
	return oci.Errorf(oci.CodeRangeInvalid, "the content has %d bytes, which %q does not fit", size, q.r.Header.Get("Range"))
}

// beginPart begins the answer that has n bytes, from the offset off, of a content of size
// bytes.
func (q *request) beginPart(off, n, size int64) {
	q.w.Header()["Content-Range"] = []string{wire.ContentRange(off, n, size)}
	q.w.WriteHeader(http.StatusPartialContent)
}

// Outcomes of parseRange.
const (
	rangeAll  = iota // no range, or an ignored one: the whole content
	rangePart        // a part of the content
	rangeBad         // a range outside the content
)

// parseRange reads a Range header for a content of size bytes. It ignores several ranges
// at once, other units and malformed headers, as RFC 9110 section 14.2 allows. It also
// ignores every range of an empty content, because clients that ask for a part of
// whatever they get cannot make use of a 416. A range whose end lies before its beginning is
// answered with 416, which tells a client more than the whole content would.
func parseRange(v string, size int64) (off, n int64, outcome int) {
	first, last, ok := wire.ParseRange(v)
	switch {
	case !ok || size == 0:
		return 0, size, rangeAll
	case first < 0 && last > 0: // the last bytes
		n = min(last, size)
		return size - n, n, rangePart
	}
	end := size - 1
	if last >= 0 {
		end = min(end, last)
	}
	if first < 0 || first > end {
		return 0, 0, rangeBad
	}
	return first, end - first + 1, rangePart
}

// headBlob answers HEAD /v2/<name>/blobs/<digest>. SPEC: end-2.
func (s *Server) headBlob(q *request) error {
	d := oci.Digest(q.Ref)
	desc, err := s.reg.ResolveBlob(q.ctx(), q.Repo, d)
	if err != nil {
		return err
	}
	if notModified(q.r, d) {
		return q.answerNotModified(d)
	}
	h := q.w.Header()
	contentHeaders(h, d, desc.Size)
	h["Content-Type"] = octetStream
	h["Accept-Ranges"] = acceptBytes
	q.w.WriteHeader(http.StatusOK)
	return nil
}

// deleteBlob answers DELETE /v2/<name>/blobs/<digest>. SPEC: end-10.
func (s *Server) deleteBlob(q *request) error {
	if err := s.reg.DeleteBlob(q.ctx(), q.Repo, oci.Digest(q.Ref)); err != nil {
		return err
	}
	s.audit(q, "delete", q.Ref)
	return q.accepted()
}

func (q *request) accepted() error {
	q.w.Header()["Content-Length"] = zero
	q.w.WriteHeader(http.StatusAccepted)
	return nil
}

// getManifest answers GET /v2/<name>/manifests/<reference>. SPEC: end-3.
func (s *Server) getManifest(q *request) error {
	m, err := s.reg.GetManifest(q.ctx(), q.Repo, q.Ref)
	if err != nil {
		return err
	}
	if notModified(q.r, m.Digest) {
		return q.answerNotModified(m.Digest)
	}
	h := q.w.Header()
	contentHeaders(h, m.Digest, m.Size)
	h["Content-Type"] = []string{m.MediaType}
	_, err = q.w.Write(m.Bytes)
	return ignoreClient(err)
}

// headManifest answers HEAD /v2/<name>/manifests/<reference>. SPEC: end-3. Clients that
// copy images push nothing if the manifest is there. So a client that may push gets 404
// if something of the image is lost. Nodes, which may only pull, get 200, because they
// may have the layers.
func (s *Server) headManifest(q *request) error {
	ctx := q.ctx()
	if s.open || s.opts.Auth.Allowed(q.id, q.Repo, auth.Push) {
		ctx = oci.ForPushing(ctx)
	}
	desc, err := s.reg.ResolveManifest(ctx, q.Repo, q.Ref)
	if err != nil {
		return err
	}
	if notModified(q.r, desc.Digest) {
		return q.answerNotModified(desc.Digest)
	}
	h := q.w.Header()
	contentHeaders(h, desc.Digest, desc.Size)
	h["Content-Type"] = []string{desc.MediaType}
	q.w.WriteHeader(http.StatusOK)
	return nil
}

// putManifest answers PUT /v2/<name>/manifests/<reference>. SPEC: end-7. If
// the reference is a digest, ?tag= parameters may name tags.
func (s *Server) putManifest(q *request) error {
	b, err := s.readManifest(q)
	if err != nil {
		return err
	}
	put := oci.PutManifest{Bytes: b, MediaType: q.r.Header.Get("Content-Type")}
	query := q.r.URL.Query()
	if oci.IsDigest(q.Ref) {
		put.Digest = oci.Digest(q.Ref)
		put.Tags = query["tag"]
	} else {
		put.Tags = append([]string{q.Ref}, query["tag"]...)
	}
	const maxTags = 100 // each is a row in one transaction
	if len(put.Tags) > maxTags {
		return oci.Errorf(oci.CodeTagInvalid, "%d tags at once, at most %d are allowed", len(put.Tags), maxTags)
	}
	res, err := s.reg.PutManifest(q.ctx(), q.Repo, put)
	if err != nil {
		return err
	}
	s.audit(q, "push", auditRef(res))
	h := q.w.Header()
	h["Location"] = []string{s.location(oci.Request{Kind: oci.KindManifest, Repo: q.Repo, Ref: string(res.Digest)}.Path())}
	h["Docker-Content-Digest"] = []string{string(res.Digest)}
	if res.Subject != "" {
		h["Oci-Subject"] = []string{string(res.Subject)}
	}
	if len(query["tag"]) > 0 {
		h["Oci-Tag"] = res.Tags
	}
	h["Content-Length"] = zero
	q.w.WriteHeader(http.StatusCreated)
	return nil
}

func auditRef(res oci.PutResult) string {
	if len(res.Tags) == 0 {
		return string(res.Digest)
	}
	return strings.Join(res.Tags, ",") + "@" + string(res.Digest)
}

// readManifest reads a body. It returns an error if the body is larger than a manifest
// may be.
func (s *Server) readManifest(q *request) ([]byte, error) {
	most := s.opts.MaxManifestBytes
	tooLarge := &oci.Error{Code: oci.CodeManifestInvalid, Status: http.StatusRequestEntityTooLarge,
		Message: "the manifest is larger than the " + strconv.FormatInt(most, 10) + " bytes that are allowed"}
	if q.r.ContentLength > most {
		return nil, tooLarge
	}
	src, _, done := s.body(q)
	defer done()
	if src == nil {
		return nil, oci.Errorf(oci.CodeManifestInvalid, "the request has no body")
	}
	b, err := io.ReadAll(io.LimitReader(src, most+1))
	if err != nil {
		var e *oci.Error
		if errors.As(err, &e) {
			return nil, err
		}
		return nil, oci.Errorf(oci.CodeManifestInvalid, "the body broke off after %d bytes: %w", len(b), err)
	}
	if int64(len(b)) > most {
		return nil, tooLarge
	}
	return b, nil
}

// deleteManifest answers DELETE /v2/<name>/manifests/<reference>. SPEC: end-9.
func (s *Server) deleteManifest(q *request) error {
	var err error
	if oci.IsDigest(q.Ref) {
		err = s.reg.DeleteManifest(q.ctx(), q.Repo, oci.Digest(q.Ref))
	} else {
		err = s.reg.DeleteTag(q.ctx(), q.Repo, q.Ref)
	}
	if err != nil {
		return err
	}
	s.audit(q, "delete", q.Ref)
	return q.accepted()
}
