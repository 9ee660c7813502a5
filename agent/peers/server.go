package peers

import (
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/oci/peering"
)

const (
	// queueTime is how long a request waits for its turn.
	queueTime = 500 * time.Millisecond
	// holdFor is how long a request waits for a piece that this node is fetching.
	// While it does, it says so this often.
	holdFor, comingEvery = maxComing, 300 * time.Millisecond
	// readTime is how long another node may take to send its list, and writeTime how long it
	// may take to receive a frame.
	readTime, writeTime = 30 * time.Second, 30 * time.Second
	// slowest is the fewest bytes per second that another node may take, besides writeTime.
	// One that takes less ends without the rest, so that it does not keep others waiting.
	slowest = 32 << 10
	// fetchBytes bounds what one request may make this node fetch.
	fetchBytes = 64 << 20
	// bufferBytes is how much is sent at once.
	bufferBytes = 64 << 10
)

// serveHTTP answers another node. Whoever has no valid grant gets the same answer, whatever
// the request is about.
func (x *Exchange) serveHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	x.mu.Lock()
	if x.ctx.Err() != nil {
		x.mu.Unlock()
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	x.work.Add(1) // the files that are read are closed after Close
	share := x.share
	x.mu.Unlock()
	defer x.work.Done()
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		x.refuse(w)
		return
	}
	holder := keyOf(r.TLS.PeerCertificates[0])
	from, err := x.allows(r.Header.Get(grantHeader), holder, now)
	if err != nil {
		x.refuse(w)
		return
	}
	asks, follows := r.Method == http.MethodPost && r.URL.Path == piecesPath, r.Method == http.MethodGet && r.URL.Path == opensPath
	if !asks && !follows {
		http.NotFound(w, r)
		return
	}
	x.meet(holder, from, now)
	if !x.doors.enter(holder) {
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	defer x.doors.leave(holder)
	if follows {
		_ = x.tellOpens(w, r, from) // the other node notices
		return
	}
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(now.Add(writeTime)) // a connection that cannot have one fails later
	_ = rc.SetReadDeadline(now.Add(readTime))
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPieces*pieceEntry+1))
	if err != nil {
		http.Error(w, "the list of pieces is too long or broke off", http.StatusBadRequest)
		return
	}
	_ = rc.SetReadDeadline(time.Time{}) // or the request would end while it is answered
	list, err := parsePieces(b)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t := time.NewTimer(queueTime)
	defer t.Stop()
	select {
	case x.uploads <- struct{}{}:
		defer func() { <-x.uploads }()
	case <-t.C:
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	case <-r.Context().Done():
		return
	}
	u := &upload{x: x, w: w, rc: rc, ctx: r.Context(), share: share, from: from}
	_ = u.send(list, orderOf(r.Header.Get(fetchHeader))) // the other node notices
}

// meet announces young images again if they are used by a node that this one does not know:
// others are starting them, too.
func (x *Exchange) meet(holder peering.Key, from func(gearfs.SourceRef) bool, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for ref, s := range x.swarms {
		if now.Sub(s.made) < meetFor && from(ref) && !s.knows(holder) {
			s.announceNow()
		}
	}
}

func (x *Exchange) refuse(w http.ResponseWriter) {
	x.count.refusals.Inc()
	w.Header().Set("Connection", "close") // the next try costs another handshake
	http.Error(w, "no valid grant", http.StatusForbidden)
}

// upload is one answer to another node.
type upload struct {
	x     *Exchange
	w     http.ResponseWriter
	rc    *http.ResponseController
	ctx   context.Context // the request's
	share Sharer
	from  func(gearfs.SourceRef) bool
	buf   []byte
	// sent counts the bytes that were written, and took is how long that took.
	sent int64
	took time.Duration
}

// offer is how a piece is given: as a frame, or as a claim that will bring it. If both are
// nil, it is not given.
type offer struct {
	f *frame
	c *claim
	s *swarm // of c
	// sh is where the piece is on this node, and at where it comes from.
	sh *gearfs.Shared
	at place
}

// send answers with a frame for each piece.
func (u *upload) send(list []piece, how order) error {
	u.w.Header().Set("Content-Type", "application/octet-stream")
	offers := u.offers(list, how)
	defer func() {
		for i := range offers {
			offers[i].end()
		}
	}()
	for i, p := range list {
		f, err := u.frame(p, &offers[i])
		if err != nil {
			return err
		}
		if err := u.write(f); err != nil {
			return err
		}
		offers[i].end()
	}
	return u.flush()
}

// end lets go of what a piece took.
func (o *offer) end() {
	if o.c != nil {
		o.s.release(o.c)
	}
	*o = offer{}
}

// offers looks up all pieces, and begins to fetch those that are not here as an order says.
func (u *upload) offers(list []piece, how order) []offer {
	out := make([]offer, len(list))
	wants := map[*swarm][]want{}
	at := map[*swarm][]int{}
	left := int64(fetchBytes)
	files := map[gear.Name]*gearfs.Shared{} // a large file has many pieces, and a long list of them
	for i, p := range list {
		sh, known := files[p.name]
		if !known {
			sh, _ = u.share(p.name, u.from)
			files[p.name] = sh
		}
		if sh == nil {
			continue
		}
		size, _, ok := p.of(&sh.File)
		if !ok {
			continue
		}
		out[i].at = placeOf(sh.Source)
		if out[i].f = u.x.hot.get(out[i].at, p); out[i].f != nil {
			continue
		}
		if out[i].sh = sh; sh.Has(int(p.chunk)) {
			continue
		}
		u.x.mu.Lock()
		s := u.x.swarms[sh.Source]
		u.x.mu.Unlock()
		if left -= int64(size); s == nil || how == present || left < 0 {
			out[i].sh = nil
			continue
		}
		wants[s], at[s] = append(wants[s], want{p, &sh.File}), append(at[s], i)
	}
	for s, list := range wants {
		for k, c := range s.claimAll(list, how, true) {
			o := &out[at[s][k]]
			if o.c, o.s = c, s; c == nil {
				o.sh = nil
			}
		}
	}
	return out
}

var none = &frame{enc: missing}

// frame returns a piece as it is sent. It waits for a piece that is being fetched.
func (u *upload) frame(p piece, o *offer) (*frame, error) {
	switch {
	case o.f != nil:
		return o.f, nil
	case o.c == nil && o.sh == nil:
		return none, nil
	case o.c == nil:
		return u.stored(p, o), nil
	}
	b, err := u.hold(o.c)
	switch {
	case u.ctx.Err() != nil:
		return nil, u.ctx.Err()
	case err != nil:
		return none, nil
	case b == nil:
		return u.stored(p, o), nil
	}
	if f := u.x.hot.get(o.at, p); f != nil { // compressed once for all
		return f, nil
	}
	return &frame{plain, b}, nil
}

// hold waits for a piece that is being fetched. Meanwhile it says so, and sends what has been
// said before.
func (u *upload) hold(c *claim) ([]byte, error) {
	if !c.open() {
		return c.b, c.err
	}
	ctx, cancel := context.WithTimeout(u.ctx, holdFor)
	defer cancel()
	tick := time.NewTicker(comingEvery)
	defer tick.Stop()
	for {
		if err := u.flush(); err != nil {
			return nil, err
		}
		select {
		case <-c.done:
			return c.b, c.err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
			u.buf = (&frame{enc: coming}).appendHeader(u.buf)
		}
	}
}

// stored returns a piece from the cache of files. It is missing if it was evicted or damaged
// meanwhile.
func (u *upload) stored(p piece, o *offer) *frame {
	f := o.sh.File
	size, sum, _ := p.of(&f)
	b, err := o.sh.Chunk(int(p.chunk))
	if err != nil || len(b) != size || sha256.Sum256(b) != sum {
		return none
	}
	fr := frameOf(b)
	u.x.hot.add(o.at, p, fr)
	return fr
}

// write sends a frame, at the rate that this node may send.
func (u *upload) write(f *frame) error {
	if err := u.x.limit.WaitN(u.ctx, frameHeader+len(f.data)); err != nil {
		return err
	}
	u.buf = f.appendHeader(u.buf)
	u.x.count.sent.Add(int64(frameHeader + len(f.data)))
	if len(u.buf)+len(f.data) <= bufferBytes {
		u.buf = append(u.buf, f.data...)
		return nil
	}
	if err := u.flushBuffer(); err != nil {
		return err
	}
	return u.timed(func() error {
		_, err := u.w.Write(f.data)
		u.sent += int64(len(f.data))
		return err
	})
}

func (u *upload) flushBuffer() error {
	return u.timed(func() error {
		_, err := u.w.Write(u.buf)
		u.sent += int64(len(u.buf))
		u.buf = u.buf[:0]
		return err
	})
}

func (u *upload) flush() error {
	if len(u.buf) > 0 {
		if err := u.flushBuffer(); err != nil {
			return err
		}
	}
	return u.timed(u.rc.Flush)
}

// timed writes something, unless the other node was too slow before.
func (u *upload) timed(write func() error) error {
	left := writeTime + time.Duration(u.sent)*time.Second/slowest - u.took
	now := time.Now()
	if err := u.rc.SetWriteDeadline(now.Add(min(left, writeTime))); err != nil {
		return err
	}
	err := write()
	u.took += time.Since(now)
	return err
}
