package peers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
)

// claim is a piece that this node fetches for itself and for others. All who want it share
// the claim.
type claim struct {
	want
	how  order
	done chan struct{}
	// These are valid once done is closed. Without bytes and error, the piece is in the cache
	// of files.
	b   []byte
	err error
	// users counts the uploads that keep the claim and its bytes. The swarm's mu guards it.
	users int
}

// direct notes that this node fetches pieces into its cache of files itself, so that other
// nodes that ask for them wait, and do not cause a second fetch. It returns a claim for each
// piece, or nil for one that is being fetched already.
func (s *swarm) direct(list []want) []*claim {
	out := make([]*claim, len(list))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range list {
		if s.claims[w.piece] == nil {
			out[i] = &claim{want: w, how: mine, done: make(chan struct{})}
			s.claims[w.piece] = out[i]
		}
	}
	return out
}

// settle ends direct claims.
func (s *swarm) settle(err error, list ...*claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range list {
		if c != nil {
			s.endLocked(c, nil, err)
		}
	}
}

const (
	// claimTime bounds the fetch of some pieces.
	claimTime = 2 * time.Minute
	// lastResort is how many nodes are asked for what the registry does not give.
	lastResort = 4
	// maxHeld bounds the bytes of pieces that are fetched for uploads and wait to be sent.
	// Nodes that start an image together ask for the same pieces.
	maxHeld = 256 << 20
)

var errNoSource = errors.New("nobody gave it")

// claimAll begins to fetch pieces, unless they are being fetched or were lately. how says
// who is asked for them. For an upload, which releases each claim, a claim is nil if there is
// no room for its bytes.
func (s *swarm) claimAll(list []want, how order, upload bool) []*claim {
	out := make([]*claim, len(list))
	var fresh []*claim
	for i, w := range list {
		size, sum, _ := w.of(w.f)
		if f := s.x.hot.get(s.at, w.piece); f != nil {
			if b, err := f.open(size, sum); err == nil {
				c := &claim{want: w, done: closed, b: b}
				if !upload || s.keep(c, size) {
					out[i] = c
				}
				continue
			}
			s.x.hot.drop(s.at, w.piece)
		}
		s.mu.Lock()
		c, known := s.claims[w.piece]
		if !known {
			c = &claim{want: w, how: how, done: make(chan struct{})}
		}
		if !upload || c.how.level() <= how.level() && s.keep(c, size) {
			if out[i] = c; !known {
				s.claims[w.piece] = c
				fresh = append(fresh, c)
				if upload { // the fetch keeps it, too, and may outlast the upload
					c.users++
				}
			}
		}
		s.mu.Unlock()
	}
	if len(fresh) == 0 {
		return out
	}
	fetched := func() {
		for _, c := range fresh {
			if upload {
				s.release(c)
			}
		}
	}
	if !s.x.goWork(func() { s.fetch(fresh, how); fetched() }) {
		s.settle(context.Canceled, fresh...)
		fetched()
	}
	return out
}

// keep notes that an upload keeps a claim, if there is room. mu is held, or nobody else has
// the claim.
func (s *swarm) keep(c *claim, size int) bool {
	if c.users == 0 && s.x.held.Add(int64(size)) > maxHeld {
		s.x.held.Add(-int64(size))
		return false
	}
	c.users++
	return true
}

// release ends keep.
func (s *swarm) release(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.users--; c.users == 0 {
		size, _, _ := c.of(c.f)
		s.x.held.Add(-int64(size))
	}
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// open reports whether a claim has not ended.
func (c *claim) open() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// wait returns the bytes of a claim. They are nil for a piece in the cache of files.
func (c *claim) wait(ctx context.Context) ([]byte, error) {
	select {
	case <-c.done:
		return c.b, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// arrive ends a claim with verified bytes. They are passed on in the frame in which they came.
func (s *swarm) arrive(c *claim, b []byte, f *frame) {
	s.x.hot.add(s.at, c.piece, f)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(c, b, nil)
}

// finish ends a claim with verified bytes or an error.
func (s *swarm) finish(c *claim, b []byte, err error) {
	if err == nil {
		s.x.hot.add(s.at, c.piece, frameOf(b))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(c, b, err)
}

// endLocked is finish for a caller that holds mu.
func (s *swarm) endLocked(c *claim, b []byte, err error) {
	if c.open() {
		c.b, c.err = b, err
		close(c.done)
		delete(s.claims, c.piece)
	}
}

// fetch fetches claimed pieces: from nodes that have all files, else from those that an order
// names, else from the registry, else from whoever has them.
func (s *swarm) fetch(list []*claim, how order) {
	ctx, cancel := context.WithTimeout(s.ctx, claimTime)
	defer cancel()
	s.fetchFrom(ctx, s.route(how, time.Now()), 0, list)
}

// fetchFrom is fetch without the first hops of each piece, which did not give it.
func (s *swarm) fetchFrom(ctx context.Context, r *route, skip int, list []*claim) {
	by := map[hop][]*claim{}
	for _, c := range list {
		var next hop // the registry
		if hops := r.hops(c.piece); skip < len(hops) {
			next = hops[skip]
		}
		by[next] = append(by[next], c)
	}
	var wg sync.WaitGroup
	for h, part := range by {
		wg.Go(func() {
			if h.m == nil {
				s.fetchLeft(ctx, part)
				return
			}
			s.askFor(ctx, h, part)
			if part = unfinished(part); len(part) > 0 {
				s.fetchFrom(ctx, r, skip+1, part)
			}
		})
	}
	wg.Wait()
}

// fetchLeft fetches claimed pieces from the registry, or, while it fails, from whoever has them.
func (s *swarm) fetchLeft(ctx context.Context, left []*claim) {
	if len(left) == 0 {
		return
	}
	away := s.registry.away(time.Now())
	if away {
		left = s.askAnybody(ctx, left)
	}
	var err error
	if len(left) > 0 {
		err = s.fetchFromRegistry(ctx, left)
		s.registry.answered(time.Now(), err)
	}
	if left = unfinished(left); !away && len(left) > 0 {
		left = s.askAnybody(ctx, left)
	}
	for _, c := range left {
		s.finish(c, nil, errors.Join(errNoSource, err))
	}
}

// askAnybody asks some nodes for pieces that the registry does not give. It returns the
// claims that are still open.
func (s *swarm) askAnybody(ctx context.Context, left []*claim) []*claim {
	for i, m := range s.members(time.Now()) {
		if left = unfinished(left); len(left) == 0 || i >= lastResort || ctx.Err() != nil {
			break
		}
		s.askFor(ctx, hop{m, present}, left)
	}
	return unfinished(left)
}

func unfinished(list []*claim) []*claim {
	return slices.DeleteFunc(slices.Clone(list), func(c *claim) bool { return !c.open() })
}

// askFor asks a node for claimed pieces.
func (s *swarm) askFor(ctx context.Context, h hop, list []*claim) {
	wants := make([]want, len(list))
	for i, c := range list {
		wants[i] = c.want
	}
	for part := range slices.Chunk(wants, askPieces) {
		at := list[:len(part)]
		list = list[len(part):]
		_ = s.ask(ctx, h, part, func(int) {}, func(i int, b []byte, f *frame) error {
			if b != nil {
				s.arrive(at[i], b, f)
			}
			return nil
		})
	}
}

// ask requests pieces from a node, and leaves it out after an error. It returns an error of
// got as it is.
func (s *swarm) ask(ctx context.Context, h hop, list []want, moved func(int), got func(int, []byte, *frame) error) error {
	s.mu.Lock()
	grant := s.grant
	s.mu.Unlock()
	var own error // of got
	given := 0
	m := h.m
	err := m.ask(ctx, grant, h.how, s.registry.limits(sizeOfAll(list)), list, moved, func(i int, b []byte, f *frame) error {
		if b != nil {
			given++
			s.x.count.fromPeers.Add(int64(len(b)))
		}
		own = got(i, b, f)
		return own
	})
	switch {
	case err == nil && m.complete && given == 0:
		s.x.blame(m.peer, errEmpty) // it would be asked for everything, and nobody else
	case err == nil:
		m.served()
	case own == nil && ctx.Err() == nil:
		s.x.blame(m.peer, err)
	}
	return err
}

// fetchFromRegistry fetches claimed pieces from the registry.
func (s *swarm) fetchFromRegistry(ctx context.Context, list []*claim) error {
	s.mu.Lock()
	inner := s.inner
	s.mu.Unlock()
	if inner == nil {
		return errNoSource
	}
	var files []*claim
	runs := map[gear.Name][]*claim{}
	for _, c := range list {
		if c.chunk == whole {
			files = append(files, c)
		} else {
			runs[c.name] = append(runs[c.name], c)
		}
	}
	err := s.fetchFiles(ctx, inner, files)
	for _, chunks := range runs {
		slices.SortFunc(chunks, func(a, b *claim) int { return int(a.chunk - b.chunk) })
		for len(chunks) > 0 {
			n := 1
			for n < len(chunks) && chunks[n].chunk == chunks[n-1].chunk+1 {
				n++
			}
			err = errors.Join(err, s.fetchRun(ctx, inner, chunks[:n]))
			chunks = chunks[n:]
		}
	}
	return err
}

// fetchFiles fetches files without chunks. A file that fails does not keep the others away.
func (s *swarm) fetchFiles(ctx context.Context, inner gearfs.Source, list []*claim) (err error) {
	for len(list) > 0 {
		began, first, bytes := time.Now(), time.Time{}, int64(0)
		err = inner.Fetch(ctx, filesOf(list), func(i int, r io.Reader) error {
			if first.IsZero() {
				first = time.Now()
			}
			f := list[i].f
			b, err := readWhole(r, f)
			if err == nil && sha256.Sum256(b) != f.Name {
				err = fmt.Errorf("file %x: %w", f.Name, gear.ErrContent)
			}
			if err != nil {
				return err
			}
			bytes += f.Size
			s.fromRegistry(list[i], b)
			return nil
		})
		if !first.IsZero() {
			s.registry.note(first.Sub(began), time.Since(first), bytes)
		}
		list = unfinished(list)
		if err == nil || len(list) == 0 {
			return err
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, gear.ErrContent) || ctx.Err() != nil {
			return err
		}
		s.finish(list[0], nil, err)
		list = list[1:]
	}
	return err
}

// fetchRun fetches successive chunks of a file.
func (s *swarm) fetchRun(ctx context.Context, inner gearfs.Source, chunks []*claim) error {
	f, first := chunks[0].f, int64(chunks[0].chunk)
	off := first * gear.ChunkSize
	began := time.Now()
	r, err := inner.Range(ctx, *f, off, min(int64(len(chunks))*gear.ChunkSize, f.Size-off), false)
	if err != nil {
		return err
	}
	defer r.Close()
	answered, bytes := time.Now(), int64(0)
	for _, c := range chunks {
		size, sum, _ := c.of(c.f)
		b := make([]byte, size)
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		if sha256.Sum256(b) != sum {
			return fmt.Errorf("chunk %d of file %x: %w", c.chunk, f.Name, gear.ErrContent)
		}
		bytes += int64(size)
		s.fromRegistry(c, b)
	}
	s.registry.note(answered.Sub(began), time.Since(answered), bytes)
	return nil
}

func (s *swarm) fromRegistry(c *claim, b []byte) {
	s.x.count.fromRegistry.Add(int64(len(b)))
	s.finish(c, b, nil)
}
