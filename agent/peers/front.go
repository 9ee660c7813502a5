package peers

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
)

// front is what a node knows about the files that containers of an image open first, beyond any
// profile. Nodes that start an image together open the same files one after the other. If each
// file went from its owner to all of them, its owner would send it many times while all wait.
// Instead, one node leads: the one that announced the image first. It gets what its containers
// open from the registry itself, as if it were alone, and tells the others at once what that is.
// They fetch it along two trees of nodes, before their containers open it. What a profile names
// comes in the same way, except for large files, which come from their owners. All nodes know
// the profile, so nobody has to be told.
type front struct {
	begun func() // closes ready
	ready chan struct{}

	mu     sync.Mutex
	opened []piece // by this node, in their order
	known  map[piece]bool
	grown  chan struct{} // closed when opened has grown
	heard  map[piece]bool
	fresh  []piece // heard, and not yet fetched
	// ahead are pieces that were fetched because the leader had opened them, and that this node
	// has not used yet, with their sizes. spare is their sum.
	ahead map[piece]int
	spare int64
	// predicted counts the bytes of profiles that came along the trees.
	predicted int64
	// follows says that this node follows a leader, and again from when on it may follow one.
	follows bool
	again   time.Time
}

const (
	// frontFor is for how long after an image was first used its opens count as its start.
	frontFor = time.Minute
	// maxOpened bounds the pieces of a start that nodes are told of.
	maxOpened = 8192
	// maxSpare bounds the bytes that are fetched because the leader opened them, and that this
	// node has not used. They are in the memory for hot pieces.
	maxSpare = 32 << 20
	// maxPredicted bounds the bytes of profiles that come along the trees. Owners need no leader,
	// and are as fast for many files.
	maxPredicted = 64 << 20
	// aheadAsks bounds the groups of such pieces that are fetched at a time. Each may take a
	// connection to a node, of which there are conns.
	aheadAsks = conns / 2
	// followAgain is the pause before a leader is followed again.
	followAgain = time.Second
	// maxFollowers bounds how many other nodes are told what this one opens.
	maxFollowers = 128

	opensPath      = "/v1/opens"
	manifestHeader = "Slipway-Manifest"
)

func (f *front) init() {
	f.ready = make(chan struct{})
	f.begun = sync.OnceFunc(func() { close(f.ready) })
	f.grown, f.known, f.heard, f.ahead = make(chan struct{}), map[piece]bool{}, map[piece]bool{}, map[piece]int{}
}

// open notes what a container of this node has opened.
func (f *front) open(list []piece) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.opened)
	for _, p := range list {
		if !f.known[p] && len(f.opened) < maxOpened {
			f.known[p] = true
			f.opened = append(f.opened, p)
		}
	}
	if len(f.opened) > n {
		close(f.grown)
		f.grown = make(chan struct{})
	}
}

// after returns what was opened after the first n pieces, and a channel that is closed when there
// is more.
func (f *front) after(n int) ([]piece, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened[n:len(f.opened):len(f.opened)], f.grown
}

// hear notes what the leader has opened.
func (f *front) hear(list []piece) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range list {
		if !f.heard[p] && len(f.heard) < maxOpened {
			f.heard[p] = true
			f.fresh = append(f.fresh, p)
		}
	}
}

// take returns what has been heard since the last call.
func (f *front) take() (fresh []piece) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fresh, f.fresh = f.fresh, nil
	return fresh
}

// foresee notes that a piece is fetched ahead, if there is room.
func (f *front) foresee(p piece, size int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spare+int64(size) > maxSpare || f.known[p] {
		return false
	}
	f.ahead[p] = size
	f.spare += int64(size)
	return true
}

// spend notes that bytes of a profile are needed, and reports whether they may come along the trees.
func (f *front) spend(n int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.predicted += n
	return f.predicted-n < maxPredicted
}

// used notes that this node uses a piece, and reports whether the leader opened it.
func (f *front) used(p piece) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spare -= int64(f.ahead[p])
	delete(f.ahead, p)
	return f.heard[p]
}

// starting reports whether the image was first used so lately that it may be starting.
func (s *swarm) starting(now time.Time) bool { return now.Sub(s.made) < frontFor }

// leader returns the node that has used the image for longest, or nil and true if that is this
// one. If the registry does not say since when nodes use it, there is none.
func (s *swarm) leader(now time.Time) (m *member, self bool) {
	s.mu.Lock()
	since := s.since
	s.mu.Unlock()
	if since == 0 {
		return nil, false
	}
	key := s.x.id.key
	for _, o := range s.members(now) {
		if o.since != 0 && (o.since < since || o.since == since && slices.Compare(o.key[:], key[:]) < 0) {
			m, since, key = o, o.since, o.key
		}
	}
	return m, m == nil
}

// leads reports whether this node gets what containers open from the registry itself. It does not
// if others have everything.
func (s *swarm) leads(p *plan, now time.Time) bool {
	_, self := s.leader(now)
	return self && s.starting(now) && len(p.holders) == 0
}

// followLeader begins to follow the leader, if there is one and this node is starting the image.
func (s *swarm) followLeader() {
	now := time.Now()
	m, _ := s.leader(now)
	s.mu.Lock()
	grant, complete := s.grant, s.whole
	s.mu.Unlock()
	if m == nil || complete || !s.starting(now) {
		return
	}
	f := &s.front
	f.mu.Lock()
	begin := !f.follows && !now.Before(f.again)
	f.follows = f.follows || begin
	f.mu.Unlock()
	if !begin {
		return
	}
	end := func(again time.Time) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.follows, f.again = false, again
	}
	if !s.x.goWork(func() {
		err := s.follow(m, grant)
		if now := time.Now(); err == nil { // the start of the leader is over
			end(s.made.Add(frontFor))
		} else {
			end(now.Add(followAgain))
		}
	}) {
		end(now)
	}
}

// follow fetches what a leader opens, until its start or that of this node is over.
func (s *swarm) follow(m *member, grant string) error {
	ctx, cancel := context.WithDeadline(s.ctx, s.made.Add(frontFor))
	defer cancel()
	news := make(chan struct{}, 1)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() { s.fetchAhead(ctx, news) })
	err := m.follow(ctx, grant, s.ref.Manifest, func(list []piece) {
		s.front.hear(list)
		select {
		case news <- struct{}{}:
		default:
		}
	})
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil && !errors.Is(err, errNoFront):
		s.x.blame(m.peer, err)
	}
	return err
}

// fetchAhead fetches what was heard of when there is news, until ctx ends.
func (s *swarm) fetchAhead(ctx context.Context, news <-chan struct{}) {
	var work sync.WaitGroup
	defer work.Wait()
	select {
	case <-s.front.ready: // before that, the image may not be known here
	case <-ctx.Done():
	}
	room := make(chan struct{}, aheadAsks)
	for {
		select {
		case <-news:
		case <-ctx.Done():
			return
		}
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		list := s.lacking(s.front.take())
		work.Go(func() {
			defer func() { <-room }()
			for _, c := range s.claimAll(list, led, false) {
				if _, err := c.wait(ctx); ctx.Err() != nil {
					return
				} else if err != nil {
					s.front.used(c.piece) // it takes no memory
				}
			}
		})
	}
}

// lacking returns those of some pieces that are not on this node, if there is room for them.
func (s *swarm) lacking(list []piece) (out []want) {
	s.x.mu.Lock()
	share := s.x.share
	s.x.mu.Unlock()
	if share == nil {
		return nil
	}
	files := map[gear.Name]*gearfs.Shared{}
	for _, p := range list {
		sh, known := files[p.name]
		if !known {
			sh, _ = share(p.name, func(ref gearfs.SourceRef) bool { return ref == s.ref })
			files[p.name] = sh
		}
		if sh == nil {
			continue
		}
		if size, _, ok := p.of(&sh.File); ok && !sh.Has(int(p.chunk)) && s.front.foresee(p, size) {
			out = append(out, want{p, &sh.File})
		}
	}
	return out
}

// errNoFront is returned for a node that does not use the image or has too many followers.
var errNoFront = errors.New("the node does not tell what it opens")

// follow reads what containers of a node open, from the first file of the image on. It returns
// without an error when the node ends that.
func (p *peer) follow(ctx context.Context, grant, manifest string, heard func([]piece)) error {
	resp, err := p.do(ctx, http.MethodGet, opensPath, grant, manifestHeader, manifest, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errNoFront
	}
	r := bufio.NewReaderSize(resp.Body, 64*pieceEntry)
	for n := 0; n < maxOpened; {
		if _, err := r.Peek(pieceEntry); err != nil {
			if errors.Is(err, io.EOF) && r.Buffered() == 0 {
				return nil
			}
			return err
		}
		b := make([]byte, r.Buffered()/pieceEntry*pieceEntry)
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		list, err := parsePieces(b)
		if err != nil {
			return err
		}
		heard(list)
		n += len(list)
	}
	return nil
}

// tellOpens tells another node what containers of this one open, until the start is over. from
// says from which places the other node may read.
func (x *Exchange) tellOpens(w http.ResponseWriter, r *http.Request, from func(gearfs.SourceRef) bool) error {
	var s *swarm
	x.mu.Lock()
	for ref, o := range x.swarms {
		if ref.Manifest == r.Header.Get(manifestHeader) && from(ref) {
			s = o
		}
	}
	x.mu.Unlock()
	if s == nil || x.followers.Add(1) > maxFollowers {
		if s != nil {
			x.followers.Add(-1)
		}
		http.NotFound(w, r)
		return nil
	}
	defer x.followers.Add(-1)
	rc := http.NewResponseController(w)
	over := time.NewTimer(time.Until(s.made.Add(frontFor)))
	defer over.Stop()
	for n := 0; ; {
		list, grown := s.front.after(n)
		n += len(list)
		if err := rc.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
			return err
		}
		if _, err := w.Write(appendPieces(nil, list)); err != nil {
			return err
		}
		if err := rc.Flush(); err != nil {
			return err
		}
		select {
		case <-grown:
		case <-over.C:
			return nil
		case <-s.ctx.Done():
			return nil
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}
