package cluster

import (
	"context"
	"errors"
	"time"

	"example.org/slipway/registry/objstore"
)

// Store is an object store that reads objects that have a home at that home. It belongs
// below a cache, which asks it for objects that the cache does not hold, and above the
// store that all replicas share.
//
// All calls except Get go to the inner store. [Store.Unwrap] gives access to the inner
// store's optional abilities.
type Store struct {
	objstore.Store
	c *Cluster
}

var _ objstore.Store = (*Store)(nil)

// Store wraps the store that all replicas share.
func (c *Cluster) Store(inner objstore.Store) *Store { return &Store{inner, c} }

// Unwrap returns the inner store.
func (s *Store) Unwrap() objstore.Store { return s.Store }

// Get opens an object at its home. It opens the object in the inner store if this replica
// is the home, the object has none, or the home does not answer well. The object uses ctx
// until it is closed. See [objstore.Store].
func (s *Store) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	r := s.c.begin(key)
	if r == nil || off < 0 || n == 0 {
		s.c.end(r, verdictNone)
		return s.Store.Get(ctx, key, off, n)
	}
	r.inner, r.off, r.n, r.ctx = s.Store, off, n, ctx
	return r.race(ctx)
}

// reading is a read from a peer that is in progress. ctx spans its life.
type reading struct {
	c      *Cluster
	peer   *peer
	inner  objstore.Store
	key    string
	off, n int64
	count  uint64          // number of the request
	ctx    context.Context // the caller's context, for reads from the inner store
}

// begin chooses a peer for a key and records that a read from it is under way. It returns
// nil if no peer should be used.
func (c *Cluster) begin(key string) *reading {
	if _, ok := c.cfg.Digest(key); !ok {
		return nil
	}
	h := hashString(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	// While this key is served to peers, no peer is asked for it: see Handler.
	if c.serving[key] > 0 {
		c.metrics.reads.own.Inc()
		return nil
	}
	p := c.choose(h)
	if p == nil {
		c.metrics.reads.own.Inc()
		return nil
	}
	c.asking[key]++
	c.count++
	return &reading{c: c, peer: p, key: key, count: c.count}
}

// end notes what a read said about its peer. It does nothing if r is nil.
func (c *Cluster) end(r *reading, v verdict) {
	if r == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.peer.inFlight--
	c.inFlight--
	count(c.asking, r.key, -1)
	c.judge(r.peer, v)
}

// count changes a count and deletes it at 0.
func count(m map[string]int, key string, by int) {
	if m[key] += by; m[key] == 0 {
		delete(m, key)
	}
}

// opened is the result of opening an object somewhere.
type opened struct {
	obj objstore.Object
	err error
}

// These errors are the causes with which the context of a peer's read ends. They say why
// the peer is no longer waited for.
var (
	errOutrun = errors.New("the object store was faster")
	errLate   = errors.New("no answer in time")
	errStall  = errors.New("too slow")
)

// start opens an object in the background.
func (c *Cluster) start(open func() (objstore.Object, error)) chan opened {
	done := make(chan opened, 1)
	c.background.Go(func() {
		obj, err := open()
		done <- opened{obj, err}
	})
	return done
}

// forget closes an object that is still being opened. It does nothing if opening is nil.
func (c *Cluster) forget(opening chan opened) {
	if opening == nil {
		return
	}
	c.background.Go(func() {
		if o := <-opening; o.err == nil {
			o.obj.Close()
		}
	})
}

// race opens the object at the peer. If that takes too long, it also asks the inner
// store, and the first answer wins. If the peer fails, race asks the inner store alone.
// At worst the store is read as often as without homes, and once more for the home
// itself.
func (r *reading) race(ctx context.Context) (objstore.Object, error) {
	c, begin := r.c, time.Now()
	peerCtx, stopPeer := context.WithCancelCause(ctx)
	peer := c.start(func() (objstore.Object, error) { return r.open(peerCtx, stopPeer) })
	hedge := time.NewTimer(c.opts.HedgeAfter)
	defer hedge.Stop()
	select {
	case p := <-peer:
		if p.err == nil {
			c.metrics.firstByte.Observe(time.Since(begin).Seconds())
			return p.obj, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return r.inner.Get(ctx, r.key, r.off, r.n)
	case <-hedge.C:
	}
	c.metrics.hedges.Inc()
	innerCtx, stopInner := context.WithCancel(ctx)
	inner := c.start(func() (objstore.Object, error) { return r.inner.Get(innerCtx, r.key, r.off, r.n) })
	late := time.NewTimer(c.opts.AnswerTimeout - c.opts.HedgeAfter)
	defer late.Stop()
	var innerErr error
	for peer != nil || inner != nil {
		select {
		case p := <-peer:
			if peer = nil; p.err == nil {
				stopInner()
				c.forget(inner)
				c.metrics.firstByte.Observe(time.Since(begin).Seconds())
				return p.obj, nil
			}
		case in := <-inner:
			if inner = nil; in.err == nil {
				stopPeer(errOutrun)
				c.forget(peer)
				return &held{in.obj, stopInner}, nil
			}
			innerErr = in.err
		case <-late.C:
			stopPeer(errLate) // the peer's read fails now, and the store's answer counts
		case <-ctx.Done():
			stopInner()
			c.forget(peer)
			c.forget(inner)
			return nil, ctx.Err()
		}
	}
	stopInner()
	return nil, innerErr
}

// held is an object that keeps a context open.
type held struct {
	objstore.Object
	release func()
}

// Close implements objstore.Object.
func (h *held) Close() error {
	defer h.release()
	return h.Object.Close()
}
