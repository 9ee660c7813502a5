package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/auth"
	"example.org/slipway/workload/trace"
)

// response counts what is sent, and gives each piece of a body a separate deadline, so
// that a client may be slow but may not stall. It forwards ReadFrom, without which
// net/http could not use sendfile.
type response struct {
	http.ResponseWriter
	idle    time.Duration
	status  int
	written int64
	// awaiting says that the request's body has not been read to its end.
	awaiting bool
	// since is how many bytes were written under the current deadline.
	since int64
}

var responsePool = sync.Pool{New: func() any { return new(response) }}

func newResponse(w http.ResponseWriter, idle time.Duration) *response {
	r := responsePool.Get().(*response)
	*r = response{ResponseWriter: w, idle: idle}
	return r
}

func (w *response) release() {
	w.ResponseWriter = nil
	responsePool.Put(w)
}

// Unwrap gives http.ResponseController the writer below.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

// begin notes the status and gives the answer its first deadline. Small answers need a
// deadline too, because a client that sends requests and reads nothing fills the socket
// with them. net/http removes the deadline when the answer has been sent.
func (w *response) begin(status int) {
	w.status = status
	w.setDeadline()
}

func (w *response) setDeadline() {
	w.since = 0
	d := w.idle
	if w.awaiting { // net/http may wait for the rest of the body first
		d += w.idle
	}
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(d))
}

// awaitBody bounds the wait for the next bytes of the request's body.
func (w *response) awaitBody() {
	w.awaiting = true
	_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(time.Now().Add(w.idle))
}

// deadlineBytes is how much may be written under one deadline.
const deadlineBytes = 64 << 10

// extend sets a new deadline for the next n bytes once the last deadline is used up.
func (w *response) extend(n int64) {
	if w.since += n; w.since >= deadlineBytes {
		w.setDeadline()
	}
}

// Write implements io.Writer.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	total := 0
	for {
		part := p[total:min(total+piece, len(p))]
		w.extend(int64(len(part)))
		n, err := w.ResponseWriter.Write(part)
		w.written += int64(n)
		total += n
		if err != nil || total == len(p) {
			return total, err
		}
	}
}

// piece is how much of a body is written under one deadline. 1 MiB in 60 s lets a client
// be as slow as 17 KB/s, and costs one more system call per megabyte.
const piece = 1 << 20

// ReadFrom implements io.ReaderFrom for files and parts of files.
func (w *response) ReadFrom(src io.Reader) (int64, error) {
	rf, ok := w.ResponseWriter.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{w}, src)
	}
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	rest, file := int64(1)<<62, src
	if lr, ok := src.(*io.LimitedReader); ok {
		rest, file = lr.N, lr.R
		defer func(n int64) { lr.N -= w.written - n }(w.written)
	}
	var total int64
	for rest > 0 {
		part := io.LimitedReader{R: file, N: min(rest, piece)}
		want := part.N
		w.extend(want)
		n, err := rf.ReadFrom(&part)
		total += n
		w.written += n
		rest -= n
		if err != nil || n < want {
			return total, err
		}
	}
	return total, nil
}

// finish sets the status of an answer that nobody wrote.
func (w *response) finish() {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
}

// body is a request's body that a client may send slowly but must not stop sending. Each
// time that the server has waited for idle in total, at least a given number of bytes
// must have come. Otherwise a client could keep an upload open for ever with a byte now
// and then. Time in which the server does not wait for the client, because the disk is
// slow, does not count.
type body struct {
	src  io.Reader
	rc   *http.ResponseController
	idle time.Duration
	n    *int64
	w    *response
	// least is how many bytes reset left to idle. due is how many of them are still
	// missing.
	least, due int64
	// left is the rest of idle.
	left time.Duration
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	began := time.Now()
	_ = b.rc.SetReadDeadline(began.Add(b.left))
	n, err := b.src.Read(p)
	*b.n += int64(n)
	if b.due -= int64(n); b.due <= 0 {
		b.left, b.due = b.idle, b.least
	} else {
		b.left -= time.Since(began)
	}
	if err == io.EOF {
		// net/http now watches the connection for its end. If a deadline expires during
		// this watch, net/http cancels the request, even if it is being processed.
		b.w.awaiting = false
		_ = b.rc.SetReadDeadline(time.Time{})
		return n, err
	}
	if err != nil && errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		err = &oci.Error{Code: oci.CodeBlobUploadInvalid, Status: http.StatusRequestTimeout,
			Message: "the body stood still, or nearly so, for " + b.idle.String(), Err: err}
	}
	return n, err
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// body returns the request's body, its size (negative if unknown) and a function. The
// caller calls the function when it no longer reads from the body. What the client still
// sends must then come in time, too.
func (s *Server) body(q *request) (io.Reader, int64, func()) {
	if q.r.ContentLength == 0 || q.r.Body == nil || q.r.Body == http.NoBody {
		return nil, 0, func() {}
	}
	rc := http.NewResponseController(q.w.ResponseWriter)
	b := &body{src: q.r.Body, rc: rc, idle: s.opts.IdleTimeout, n: &q.bodyRead, w: q.w, left: s.opts.IdleTimeout,
		least: max(1, int64(float64(s.opts.MinBodyRate)*s.opts.IdleTimeout.Seconds()))}
	b.due = b.least
	return b, q.r.ContentLength, func() {
		if q.w.awaiting {
			q.w.awaitBody()
		}
	}
}

// ignoreClient returns errClientGone for any error of writing to a client. The client has
// gone, and nobody is left to receive an answer.
func ignoreClient(err error) error {
	if err == nil {
		return nil
	}
	return errClientGone
}

// errClientGone says that the answer could not be sent.
var errClientGone = errors.New("the client is gone")

// statusClientGone is the status in logs and metrics for a request whose client left
// before there was an answer, as in nginx.
const statusClientGone = 499

// fail answers with an error.
func (s *Server) fail(q *request, err error) {
	if errors.Is(err, errClientGone) || q.w.status != 0 {
		// The body is incomplete. net/http closes the connection of an answer that is
		// shorter than its Content-Length, so the client notices.
		if !errors.Is(err, errClientGone) {
			s.log.Warn("answer cut short", "method", q.r.Method, "uri", q.r.URL.Path, "err", err)
		}
		return
	}
	if errors.Is(err, context.Canceled) && q.r.Context().Err() != nil {
		q.w.status = statusClientGone // there is no client to send it to
		return
	}
	var e *oci.Error
	if !errors.As(err, &e) {
		e = &oci.Error{Code: oci.CodeUnknown, Message: "the registry failed; its log says why", Err: err}
	}
	status := e.HTTPStatus()
	if status >= 500 {
		s.log.Error("request failed", "method", q.r.Method, "uri", q.r.URL.Path, "status", status, "request", q.requestID(), "err", fullError(err))
	}
	s.answer(q, e)
}

// answer sends an error to the client.
func (s *Server) answer(q *request, e *oci.Error) {
	s.metrics.errors.Add(e.Code)
	status := e.HTTPStatus()
	h := q.w.Header()
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", wire.Seconds(e.RetryAfter))
		}
	}
	b := oci.MarshalErrors(e)
	h["Content-Type"] = jsonType
	h["X-Content-Type-Options"] = noSniff
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	if q.keepsSending(status) {
		q.refused = http.NewResponseController(q.w.ResponseWriter).EnableFullDuplex() == nil
	}
	q.w.WriteHeader(status)
	if q.r.Method != http.MethodHead {
		_, _ = q.w.Write(b) // an error means that nobody is listening any more
	}
}

// keepsSending reports whether the client of a refused request may still send its body.
// HTTP/2 has a way of its own to stop a client, and a client that expects a 100 waits.
func (q *request) keepsSending(status int) bool {
	return q.w.awaiting && q.r.ProtoMajor == 1 && status != http.StatusRequestTimeout && (q.bodyRead > 0 || q.r.Header.Get("Expect") == "")
}

// maxDiscard is how many bytes of a refused body are read at most.
const maxDiscard = 256 << 20

// discardBody sends a refusal, and reads what the client is still sending. Many clients
// look for an answer only when they have sent everything. If the connection is closed
// before, they report a reset and not the answer.
func (s *Server) discardBody(q *request) {
	rc := http.NewResponseController(q.w.ResponseWriter)
	if rc.Flush() == nil {
		_ = rc.SetReadDeadline(time.Now().Add(s.opts.IdleTimeout))
		if _, err := io.CopyN(io.Discard, q.r.Body, maxDiscard); err == io.EOF {
			return
		}
	}
	q.abort = true // net/http would take the rest for the next request
}

// fullError returns an error's text with the cause that the client does not see.
func fullError(err error) string {
	msg := err.Error()
	if cause := errors.Unwrap(err); cause != nil && !strings.Contains(msg, cause.Error()) {
		msg += ": " + cause.Error()
	}
	return msg
}

// requestID returns the request's id, which is the same in all logs.
func (q *request) requestID() string {
	if q.idText == "" {
		q.idText = requestID(q.r)
	}
	return q.idText
}

// requestID returns the id that a proxy gave the request, or a new id.
func requestID(r *http.Request) string {
	const most = 64
	if id := r.Header.Get("X-Request-Id"); id != "" && len(id) <= most && oci.ValidTag(id) {
		return id
	}
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// logAccess writes the request to the access log.
func (s *Server) logAccess(q *request, start time.Time) {
	host, _, err := net.SplitHostPort(q.r.RemoteAddr)
	if err != nil {
		host = q.r.RemoteAddr
	}
	rec := trace.Record{Host: s.opts.Name, Duration: s.opts.Clock().Sub(start), Method: q.r.Method, RemoteAddr: host,
		URI: s.loggedURI(q), Proto: q.r.Proto, UserAgent: q.r.UserAgent(), Referer: q.r.Referer(),
		Status: q.w.status, Written: q.w.written, Received: q.bodyRead, Time: start}
	if q.pushed > 0 { // clients send most of the blob in earlier requests
		rec.Received = q.pushed
	}
	if q.id != nil {
		rec.User = q.id.Name
	}
	// The answer names the content if the path does not: for example a tag's manifest, or
	// the blob that an upload became.
	if d := q.w.Header().Get("Docker-Content-Digest"); d != "" && !strings.HasSuffix(q.r.URL.Path, d) {
		rec.Digest = d
	}
	rec.ID = q.requestID()
	s.opts.AccessLog.Write(&rec)
}

// audit records a change.
func (s *Server) audit(q *request, event, ref string) {
	if s.opts.Audit == nil {
		return
	}
	e := auth.Event{Event: event, Outcome: "success", Addr: q.r.RemoteAddr, Repo: q.Repo, Reference: ref, Action: q.r.Method}
	if q.id != nil {
		e.Subject, e.Method = q.id.Name, q.id.Method
	}
	if q.actor != nil {
		e.RequestID = q.actor.RequestID
	}
	s.opts.Audit.Record(e)
}

// location returns the Location value for a path below /v2/.
func (s *Server) location(path string) string { return s.opts.Host + s.opts.Prefix + path }
