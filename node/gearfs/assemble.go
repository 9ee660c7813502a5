package gearfs

import (
	"context"
	"errors"
	"slices"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs/flow"
	"example.org/slipway/node/gearfs/pace"
)

// A large file is completed from the chunks that are already there. Only missing chunks
// that nobody else is fetching are requested. Each request is short enough for a reader
// to wait for it. So no chunk is fetched twice, however the file is read meanwhile.

// assembles reports whether a flight's file is fetched in parts. A profile instead
// fetches a file that is not too large, and of which no part is here, together with
// others in one request. mu is held.
func (c *scheduler) assembles(fl *flight) bool {
	return fl.f.Size >= gear.LargeFile &&
		(fl.prio != fromProfile || fl.f.Size > streamWhole || c.large[fl.img.key(fl.f.Name)] != nil || fl.img.view.HasPart(fl.f.Name))
}

// roomToAssemble reports whether another file may be assembled now. mu is held.
func (c *scheduler) roomToAssemble(p priority) bool {
	return p == onDemand || c.assembling[p] < profileStreams && p == fromProfile || c.assembling[p] == 0
}

// bring fetches a whole large file for a reader. It waits for a request for the file that
// is already running.
func (c *scheduler) bring(img *image, lf *large) {
	fl := c.join(img, lf.f, onDemand, true)
	c.mu.Lock()
	defer c.mu.Unlock()
	fl.waiters--
	if !fl.running || fl.parts {
		return
	}
	lf.mu.Lock()
	defer lf.mu.Unlock()
	if lf.stream < 0 {
		lf.stream = 0
	}
}

// assemble ends a flight with the complete file or an error. The caller has already
// counted it in c.assembling.
func (c *scheduler) assemble(fl *flight, p priority) {
	err := c.complete(fl)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.assembling[p]--
	if err == nil {
		fl.img.st.trace.Here(fl.f.Name)
		fl.img.st.files[p].Add(1)
	}
	c.finish(fl, err)
	c.wake()
}

// complete fetches the missing parts of a flight's file and publishes the file.
func (c *scheduler) complete(fl *flight) error {
	lf, err := c.acquire(fl.img, fl.f)
	if errors.Is(err, errComplete) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.release(lf)
	lf.streaming(-1) // the request for the whole file has failed
	c.mu.Lock()
	lf.wanted++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		lf.wanted--
		c.mu.Unlock()
	}()
	for first := 0; ; {
		lf.mu.Lock()
		changed := lf.changed
		lf.mu.Unlock()
		for first < len(fl.f.Chunks) && len(lf.missing(first, 1)) == 0 {
			first++
		}
		if first == len(fl.f.Chunks) {
			return lf.p.Complete(c.s.ctx)
		}
		prio, most, wanted := c.assembly(fl)
		if !wanted {
			return errAbandoned
		}
		if err := lf.wantPieces(first, most, prio); err != nil {
			lf.mu.Lock()
			clear(lf.failed) // readers try again themselves
			lf.mu.Unlock()
			return err
		}
		select {
		case <-changed:
			fl.moved.Add(1)
		case <-time.After(completeEvery):
		case <-c.s.ctx.Done():
			return ErrClosed
		}
	}
}

// assembleStreams is how many requests for one file are under way while it is assembled. A
// connection that becomes slow then leaves the link to the other one.
const assembleStreams = 2

// wantPieces asks for missing chunks, of which the first is given, until assembleStreams
// requests are under way. It raises the priority of the request that brings the first.
func (lf *large) wantPieces(first, most int, prio priority) error {
	lf.mu.Lock()
	known := lf.coming[first] != nil || lf.failed[first] != nil
	lf.mu.Unlock()
	if known {
		if err := lf.want([]int{first}, 0, prio); err != nil {
			return err
		}
	}
	for range assembleStreams {
		piece := lf.nextPiece(first, most)
		if len(piece) == 0 {
			return nil
		}
		if err := lf.want(piece, 0, prio); err != nil {
			return err
		}
	}
	return nil
}

// nextPiece returns the chunks to ask for next, or none if enough requests are under way.
func (lf *large) nextPiece(first, most int) []int {
	missing := lf.missing(first, min(8*nearStream, len(lf.f.Chunks)-first))
	lf.mu.Lock()
	defer lf.mu.Unlock()
	var jobs []*rangeJob
	for _, j := range lf.coming {
		if !slices.Contains(jobs, j) {
			jobs = append(jobs, j)
		}
	}
	if len(jobs) >= assembleStreams {
		return nil
	}
	missing = slices.DeleteFunc(missing, func(i int) bool { return lf.coming[i] != nil })
	return flow.Piece(missing, assembleStreams, most)
}

// assembly returns the priority at which a file is assembled and how many chunks one
// request asks for at most: half a second's worth of the link, but no more than a reader
// waits for.
func (c *scheduler) assembly(fl *flight) (prio priority, chunks int, wanted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	chunks = nearStream
	if fl.prio == inBackground {
		r := float64(flow.AssumedRate)
		for _, src := range c.sourcesOf(fl.img, fl.f.Name) {
			if l := c.links[src.ref.Registry]; l != nil && l.Rate > 0 {
				r = l.Rate
				break
			}
		}
		chunks = min(max(int(r/2/gear.ChunkSize), 1), nearStream)
	}
	return fl.prio, chunks, (fl.waiters > 0 || fl.keep) && c.s.image(fl.img.chain) == fl.img
}

// missing returns which of n chunks, from the first on, are missing.
func (lf *large) missing(first, n int) []int {
	return lf.p.Missing(int64(first)*gear.ChunkSize, int64(n)*gear.ChunkSize)
}

// spare delays a background request while others need the processors more, and to keep to
// the background rate. It does not delay a request while a reader waits for what it
// brings.
func (c *scheduler) spare(ctx context.Context, g *guard, lf *large, p *pace.Pace, n int) error {
	urgent := func() bool { return lf.waiting.Load() > 0 }
	g.hold()
	defer g.resume()
	for n > 0 && c.s.opts.BackgroundRate > 0 && !urgent() {
		m := min(n, limitPiece)
		if err := c.s.limit.WaitN(ctx, m); err != nil {
			return err
		}
		n -= m
	}
	now := time.Now()
	for until, looked := now.Add(p.Due()), now; now.Before(until) && !urgent(); now = time.Now() {
		if now.Sub(looked) >= crowdedEvery {
			if looked = now; c.crowded() {
				break
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(yieldEvery):
		}
	}
	return nil
}
