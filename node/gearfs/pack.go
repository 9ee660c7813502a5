package gearfs

import (
	"context"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs/flow"
)

// packPatience is how long a pack may bring nothing after its names are known: the registry
// looked up the profile for both at the same time.
const packPatience = 400 * time.Millisecond

// Packer is a Source that can send the files of its image's profile before anybody knows
// their names.
type Packer interface {
	Source
	// Pack delivers the files as they come, in the order of the profile. It calls coming
	// once, with the names in the profile, as soon as it knows them. It need not send all of
	// them, and sends none of [gear.LargeFile] bytes or more.
	Pack(ctx context.Context, coming func(names []gear.Name), deliver func(f gear.File, content io.Reader) error) error
}

// pack is a stream with the files of a profile that is under way. Flights for its files wait
// for it. The scheduler's mu guards the fields from coming on.
type pack struct {
	c     *scheduler
	src   *source
	view  *cachedir.View
	flow  flow.Flow
	guard *guard
	began time.Time
	got   int64 // bytes of content
	heard atomic.Bool

	// coming has the place of each name in the profile. It is nil before the names are known
	// and after the end. Files before the place at have come, or do not come.
	coming map[gear.Name]int
	at     int
	over   bool
	// img is the image that starts with the files, once it is known. early are the files
	// that came before.
	img   *image
	early []gear.File
}

// Pack requests the files that containers of an image open first from one of its sources,
// although the image is not known yet, and keeps them for the source's trust domain.
// Whoever wants one of them waits for it as long as they keep coming. There is one pack at
// a time: what a second one brings could be in the first. The caller makes sure that the
// node has none of the files.
func (s *Service) Pack(ref SourceRef, domain string) {
	v, err := s.cache.View(viewOf(domain))
	if err != nil {
		s.log.Warn("the files of a profile are not requested early", "source", ref.String(), "err", err)
		return
	}
	c := &s.sched
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pack != nil && !c.pack.over || s.ctx.Err() != nil {
		return
	}
	p := &pack{c: c, src: c.source(ref), view: v, began: time.Now()}
	ctx, g, end := guarded(s.ctx, s.opts.Stall)
	p.guard = g
	p.flow.Link, p.flow.Request = c.link(ref.Registry), p
	c.pack = p
	c.flows.Begin(&p.flow, p.began)
	s.goWork(func() {
		defer end()
		p.run(ctx)
	})
}

func (p *pack) run(ctx context.Context) {
	c := p.c
	from, err := c.dialled(p.src)
	if packer, ok := from.(Packer); ok {
		err = packer.Pack(gear.WithArrival(ctx, p.came), p.comes, p.deliver)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flows.End(&p.flow)
	p.release()
	if p.got > 0 {
		p.src.delivered(p.began)
	}
	switch {
	case err == nil:
		_, took := p.flow.Took(time.Now()) // the answer begins when the registry has put the files together
		p.flow.Link.Observe(0, p.got, took)
	case err != nil && !isNotExist(err) && c.s.ctx.Err() == nil:
		c.s.log.Info("the files of a profile did not all come early", "source", p.src.ref.String(), "err", err)
	}
}

// release lets all who wait for the pack go their own way. mu is held.
func (p *pack) release() {
	p.coming, p.over = nil, true
	p.c.wake()
}

// heldBack reports whether a flight waits in its queue for the pack under way, and until
// when. The pack cannot be told to bring a file first. So it ends if somebody has waited for
// a file on demand for as long as a request for a profile takes. mu is held.
func (c *scheduler) heldBack(fl *flight, now time.Time) (held bool, until time.Time) {
	if held = c.holds(fl); !held || fl.prio != onDemand {
		return held, until
	}
	if fl.held.IsZero() {
		fl.held = now
	}
	if until = fl.held.Add(batchTime); now.Before(until) {
		return true, until
	}
	c.pack.release()
	c.pack.guard.giveUp(errSlow)
	return false, until
}

// holds reports whether a pack under way will bring a flight's file. mu is held.
func (c *scheduler) holds(fl *flight) bool {
	p := c.pack
	if p == nil || p.coming == nil || fl.img.view.ID() != p.view.ID() || fl.f.Size >= gear.LargeFile {
		return false
	}
	at, ok := p.coming[fl.f.Name]
	return ok && at >= p.at
}

// comes notes which files are coming.
func (p *pack) comes(names []gear.Name) {
	names = names[:min(len(names), gear.PackFiles)]
	coming := make(map[gear.Name]int, len(names))
	for i, n := range names {
		if _, twice := coming[n]; !twice {
			coming[n] = i
		}
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.over {
		return
	}
	p.coming = coming
	time.AfterFunc(packPatience, func() {
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		if !p.heard.Load() && !p.over {
			p.GiveUp()
		}
	})
}

// came notes that bytes arrived.
func (p *pack) came(n int) {
	p.guard.moved()
	p.flow.Came(n, time.Now())
	p.c.packed.Add(int64(n))
	if n > 0 {
		p.heard.Store(true)
	}
}

// deliver stores a file, and ends the flight that waits for it.
func (p *pack) deliver(f gear.File, r io.Reader) error {
	c := p.c
	p.flow.Local(true)
	defer p.flow.Local(false)
	if err := store(c.s.cache, p.view, f, r); err != nil {
		return err
	}
	p.got += f.Size
	c.mu.Lock()
	defer c.mu.Unlock()
	p.src.files++
	p.src.bytes += f.Size
	if at, ok := p.coming[f.Name]; ok {
		if at > p.at {
			c.wake() // for files that were left out
		}
		p.at = max(p.at, at+1)
	}
	fl := c.flights[fileKey{p.view.ID(), f.Name}]
	switch {
	case fl != nil && fl.f.Size == f.Size:
		if !fl.running { // the request that runs counts it itself
			c.s.fetched(fl, fromProfile)
		}
		c.finish(fl, nil)
	case p.img != nil:
		c.s.fetched(&flight{f: f, img: p.img}, fromProfile)
	default:
		p.early = append(p.early, f)
	}
	return nil
}

// credit counts for an image what its pack has brought, and returns it.
func (c *scheduler) credit(img *image) (early []gear.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.imagesMu.RLock()
	defer c.s.imagesMu.RUnlock()
	p := c.pack
	if p == nil || p.img != nil || !slices.Contains(img.rec.Sources, p.src.ref) {
		return nil
	}
	p.early = slices.DeleteFunc(p.early, func(f gear.File) bool { return !img.Has(f.Name) })
	for _, f := range p.early {
		img.st.trace.Asked(f.Name)
		c.s.fetched(&flight{f: f, img: img}, fromProfile)
	}
	early, p.img, p.early = p.early, img, nil
	return early
}

// Awaited implements flow.Request.
func (p *pack) Awaited() bool {
	if p.coming == nil || !p.src.reconnects() {
		return false
	}
	for _, fl := range p.c.flights { // nearly always one of the first is
		if p.c.holds(fl) && fl.awaited() {
			return true
		}
	}
	return false
}

// Left implements flow.Request. It counts what flights wait for.
func (p *pack) Left() (l flow.Left) {
	for _, fl := range p.c.flights {
		if p.c.holds(fl) {
			l.All += fl.f.Size
		}
	}
	return l
}

// Divide implements flow.Request. The registry sends a pack to its end, so the last part
// cannot be left to another request.
func (p *pack) Divide(int64) bool { return false }

// GiveUp implements flow.Request. The scheduler's mu is held.
func (p *pack) GiveUp() {
	p.c.givesUp(p.src, 0)
	p.release()
	p.guard.giveUp(errSlow)
}
