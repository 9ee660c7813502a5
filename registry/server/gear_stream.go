package server

import (
	"bufio"
	"net/http"
	"strconv"
	"sync"

	"example.org/slipway/registry/server/edge"
)

// fetchGear answers POST .../gear/fetch.
func (s *Server) fetchGear(q *request) error {
	list, err := s.namesOf(q, maxGearNames)
	if err != nil {
		return err
	}
	defer list.Release()
	if list.Profile != "" {
		if list.Names, err = s.opts.Gear.Pack(q.ctx(), q.Repo, list.Profile, list.Names); err != nil {
			return err
		}
	}
	w := newStreamWriter(q)
	defer w.release()
	if err := s.opts.Gear.Fetch(q.ctx(), q.Repo, list.Names, w); err != nil {
		if q.w.status != 0 {
			// The client must not take what it got for complete, as it would with an
			// answer without a length.
			q.abort = true
		}
		return q.sendError(unless(err, errNoFile))
	}
	return ignoreClient(w.close())
}

// streamBuffer is how many bytes of a stream are sent at once.
const streamBuffer = 64 << 10

var streamBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, streamBuffer) }}

// streamWriter sends a stream in large pieces. It sends nothing before the first piece is
// full. So an error until then can still get an error answer, and a short stream has a
// Content-Length.
type streamWriter struct {
	q   *request
	buf *bufio.Writer
}

var _ http.Flusher = (*streamWriter)(nil)

func newStreamWriter(q *request) *streamWriter {
	w := &streamWriter{q: q, buf: streamBuffers.Get().(*bufio.Writer)}
	w.buf.Reset(piecesOf{q})
	return w
}

// Write implements io.Writer.
func (w *streamWriter) Write(p []byte) (int, error) { return w.buf.Write(p) }

// Flush implements http.Flusher. The next Write returns its error.
func (w *streamWriter) Flush() {
	if w.buf.Flush() == nil && w.q.w.status != 0 {
		_ = http.NewResponseController(w.q.w.ResponseWriter).Flush()
	}
}

// close sends what is left.
func (w *streamWriter) close() error {
	if w.q.w.status != 0 {
		return w.buf.Flush()
	}
	n := w.buf.Buffered()
	w.q.w.Header()["Content-Length"] = []string{strconv.Itoa(n)}
	if n == 0 {
		_, err := piecesOf{w.q}.Write(nil)
		return err
	}
	return edge.InOnePiece(w.q.w.ResponseWriter, w.q.r, int64(n), w.buf.Flush)
}

func (w *streamWriter) release() {
	w.buf.Reset(nil)
	streamBuffers.Put(w.buf)
}

// piecesOf receives the pieces of a streamWriter. The source may take its time between
// two pieces, so each piece has a separate deadline.
type piecesOf struct{ q *request }

func (w piecesOf) Write(p []byte) (int, error) {
	if w.q.w.status == 0 {
		h := w.q.w.Header()
		h["Content-Type"] = streamType
		h["X-Content-Type-Options"] = noSniff
	} else {
		w.q.w.setDeadline()
	}
	return w.q.w.Write(p)
}
