package cluster

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/objstore"
)

// Source is the store from which peers are served: this replica's cache, over
// [Cluster.Store].
type Source interface {
	// Get opens a range of an object, as in [objstore.Store].
	Get(ctx context.Context, key string, off, n int64) (objstore.Object, error)
}

// Handler serves the requests of peers: GET /_slipway/peer/blobs/KEY, whole or one range.
// It belongs on a listener that only replicas reach. It refuses requests that no replica
// has signed. It answers only for objects that have a home.
//
// A peer's request never leads to a request to another peer. Replicas cannot wait for
// each other in a ring, even while they disagree about homes: a replica that is serving a
// key to a peer reads the key from the store itself, and a replica that is asking a peer
// for a key refuses to serve it. (In a ring, each replica would have begun to ask before
// its successor admitted the request, and would have admitted its predecessor's request
// before it began to ask. Round the ring, each of these moments would be before itself.)
func (c *Cluster) Handler(from Source) http.Handler { return &handler{c, from} }

type handler struct {
	c    *Cluster
	from Source
}

// pieceBytes is how much the receiver must take within the stall time.
const pieceBytes = 1 << 20

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := h.c
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(10 * c.opts.StallTimeout)) // tests lack a connection
	defer rc.SetWriteDeadline(time.Time{})
	t, err := c.verify(r.Method, r.URL.EscapedPath(), r.Header.Get("Range"), r.Header.Get(headerTicket))
	if err != nil {
		c.metrics.served.refused.Inc()
		c.opts.Logger.Debug("refused a request that should be a peer's", "client", r.RemoteAddr, "err", err)
		http.Error(w, errTicket.Error(), http.StatusUnauthorized)
		return
	}
	key, ok := strings.CutPrefix(r.URL.Path, handlerPath)
	_, blob := c.cfg.Digest(key)
	off, n, ranged, err := parseRange(r.Header.Get("Range"))
	if r.Method != http.MethodGet || !ok || !blob || objstore.CheckKey(key) != nil || err != nil {
		c.metrics.served.refused.Inc()
		c.answer(w, t, http.StatusBadRequest)
		return
	}
	select {
	case c.served <- struct{}{}:
		defer func() { <-c.served }()
	default:
		c.metrics.served.busy.Inc()
		c.answer(w, t, http.StatusServiceUnavailable)
		return
	}
	if !c.serve(key) {
		c.metrics.served.busy.Inc()
		c.answer(w, t, http.StatusConflict)
		return
	}
	defer c.unserve(key)
	h.send(w, r, t, key, off, n, ranged)
}

// send answers with an object.
func (h *handler) send(w http.ResponseWriter, r *http.Request, t ticket, key string, off, n int64, ranged bool) {
	c := h.c
	obj, err := h.from.Get(r.Context(), key, off, n)
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		c.metrics.served.failed.Inc()
		c.answer(w, t, http.StatusNotFound)
		return
	case objstore.IsBusy(err):
		c.metrics.served.busy.Inc()
		c.answer(w, t, http.StatusServiceUnavailable)
		return
	case err != nil:
		c.metrics.served.failed.Inc()
		if r.Context().Err() == nil {
			c.opts.Logger.Warn("read an object for a peer", "key", key, "err", err)
		}
		c.answer(w, t, http.StatusInternalServerError)
		return
	}
	defer obj.Close()
	info := obj.Info()
	length, status := info.Size-off, http.StatusOK
	if n >= 0 {
		length = min(length, n)
	}
	if length <= 0 && ranged {
		c.metrics.served.failed.Inc()
		c.answer(w, t, http.StatusRequestedRangeNotSatisfiable)
		return
	}
	head := w.Header()
	if ranged {
		status = http.StatusPartialContent
		head.Set("Content-Range", wire.ContentRange(off, length, info.Size))
	}
	if !info.ModTime.IsZero() {
		head.Set("Last-Modified", info.ModTime.UTC().Format(http.TimeFormat))
	}
	head.Set("Content-Type", "application/octet-stream")
	head.Set("Content-Length", strconv.FormatInt(length, 10))
	c.prove(head, t, status)
	w.WriteHeader(status)
	sent, err := obj.WriteTo(&paced{w, http.NewResponseController(w), 10 * c.opts.StallTimeout})
	if err != nil || sent != length {
		c.metrics.served.failed.Inc()
		if r.Context().Err() == nil {
			c.opts.Logger.Warn("send an object to a peer", "key", key, "sent", sent, "length", length, "err", err)
		}
		// The connection is cut here, so that the peer notices that the answer is
		// incomplete.
		panic(http.ErrAbortHandler)
	}
	c.metrics.served.ok.Inc()
}

// answer sends a signed answer without an object.
func (c *Cluster) answer(w http.ResponseWriter, t ticket, status int) {
	w.Header().Set("Content-Length", "0")
	c.prove(w.Header(), t, status)
	w.WriteHeader(status)
}

func (c *Cluster) prove(head http.Header, t ticket, status int) {
	head.Set(headerProof, hex.EncodeToString(c.key.proof(t, status, head.Get("Content-Length"), head.Get("Content-Range"), head.Get("Last-Modified"))))
}

// serve notes that a key is being served to a peer. It returns false while a peer is
// being asked for the key.
func (c *Cluster) serve(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking[key] > 0 {
		return false
	}
	count(c.serving, key, 1)
	return true
}

func (c *Cluster) unserve(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count(c.serving, key, -1)
}

// parseRange reads a Range header of the two forms that peers send: bytes=A- and
// bytes=A-B. Without a header the range is the whole object. n < 0 means to the end.
func parseRange(s string) (off, n int64, ranged bool, err error) {
	if s == "" {
		return 0, -1, false, nil
	}
	first, last, ok := wire.ParseRange(s)
	switch {
	case !ok || first < 0 || last >= 0 && last < first:
		return 0, 0, false, fmt.Errorf("range %q", s)
	case last < 0:
		return first, -1, true, nil
	}
	return first, last - first + 1, true, nil
}

// paced writes to a receiver that must keep reading.
type paced struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration
}

// extend gives the receiver time for another piece.
func (p *paced) extend() { _ = p.rc.SetWriteDeadline(time.Now().Add(p.stall)) }

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	var done int
	for done < len(b) {
		p.extend()
		n, err := p.w.Write(b[done:min(done+pieceBytes, len(b))])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// ReadFrom implements io.ReaderFrom, so that files are sent by sendfile.
func (p *paced) ReadFrom(r io.Reader) (done int64, err error) {
	rf, ok := p.w.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{p}, r)
	}
	left := int64(-1)
	if l, ok := r.(*io.LimitedReader); ok { // sendfile works through only one LimitedReader
		r, left = l.R, l.N
		defer func() { l.N -= done }()
	}
	for left != 0 {
		piece := int64(pieceBytes)
		if left > 0 {
			piece = min(piece, left)
		}
		p.extend()
		n, err := rf.ReadFrom(&io.LimitedReader{R: r, N: piece})
		done += n
		if left > 0 {
			left -= n
		}
		if err != nil || n < piece {
			return done, err
		}
	}
	return done, nil
}
