package gearfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs/flow"
	"example.org/slipway/node/poolfs"
)

// priority is the priority of a fetch. A lower value goes first.
type priority uint8

const (
	onDemand priority = iota
	fromProfile
	inBackground
	priorities
)

// These bound one request. The rest of a queue goes into the next request. A file in a
// running request can no longer be moved forward.
const (
	demandBytes, demandFiles = 8 << 20, 256
	batchFiles               = 4096
	// A request for a profile or in the background takes about a second on the measured
	// link, within these bounds.
	batchTime = time.Second
	// A request with files of an eager start beyond its profile takes two round trips, within
	// these bounds. Nobody waits for it, but the start may want one of its files next, and
	// would wait for those before it. Two such requests keep the link busy.
	minRest, maxRest         = time.Second / 16, time.Second / 4
	minBatch, maxBatch       = 1 << 20, 64 << 20
	profileStreams           = 2
	limitPiece               = 64 << 10
	maxBackground      int64 = 16 << 20
)

var (
	// ErrTimeout is returned, wrapped, if nothing arrived within the bound.
	ErrTimeout = errors.New("nothing arrived in time")
	// ErrClosed is returned, wrapped, after Close.
	ErrClosed = errors.New("file service is closed")

	errAbandoned = errors.New("nobody waits for it any more")
	errStalled   = errors.New("the source sent nothing for too long")
)

// flight is the fetch of a whole file. All callers that want the file share it.
type flight struct {
	f    gear.File
	img  *image // the image for which the file was requested first
	done chan struct{}
	err  error // valid once done is closed
	// moved changes as the fetch progresses: when bytes arrive that no earlier try
	// brought, or bytes of another file that comes before it.
	moved atomic.Int64
	best  int64 // the most bytes that one try brought; owned by the batch that runs the flight
	// arrived is the most bytes that arrived in one try before the delivery. It is
	// guarded by that batch's mu.
	arrived int64

	// These fields are guarded by the scheduler's mu.
	prio    priority
	running bool
	parts   bool // the file is assembled by ranges, and is not part of a batch
	over    bool
	waiters int
	keep    bool      // continues without waiters
	rescues int       // how often a slow connection was given up for it
	held    time.Time // since when it waits for a pack on demand
	tries   tries
}

// awaited reports whether a caller other than an image's completion waits for the file.
// mu is held.
func (fl *flight) awaited() bool {
	return fl.prio == onDemand || fl.prio == fromProfile && fl.waiters > 0
}

// rangeJob is the fetch of some chunks of a large file.
type rangeJob struct {
	lf   *large
	prio priority
	// first and n are the chunks that are left. best is how many bytes of the first one a try
	// brought or received at most. lf.mu guards them from the time when the job is queued.
	first, n, best int
	checked        bool  // a source sent wrong bytes
	rescues        int   // how often a slow connection was given up for it
	tries          tries // guarded by the scheduler's mu
}

// scheduler decides what is fetched, and when.
type scheduler struct {
	s    *Service
	kick chan struct{} // capacity 1
	// urgent is the number of callers that currently wait for something.
	urgent atomic.Int64
	// calmed is when the last of these callers got its file, in nanoseconds since 1970.
	// It is 0 if nobody has waited yet.
	calmed atomic.Int64
	// packed changes when bytes of a pack arrive.
	packed atomic.Int64

	// mu guards all fields below. It is locked before Service.imagesMu and large.mu.
	mu      sync.Mutex
	flights map[fileKey]*flight
	queues  [priorities][]*flight
	ranges  [priorities][]*rangeJob
	running [priorities]int
	sources map[SourceRef]*source
	links   map[string]*flow.Link
	large   map[fileKey]*large
	flip    bool // whether ranges go first, which alternates
	// assembling is the number of large files that are being completed by ranges.
	assembling [priorities]int
	flows      flow.Watcher
	// slow counts the running requests of which a part continues over another connection.
	slow [priorities]int
	pack *pack // the last one, or nil
}

func (c *scheduler) init(s *Service) {
	c.s = s
	c.kick = make(chan struct{}, 1)
	c.flights = map[fileKey]*flight{}
	c.sources = map[SourceRef]*source{}
	c.links = map[string]*flow.Link{}
	c.large = map[fileKey]*large{}
	c.flows.Stall = s.opts.Stall
}

// wake makes run check the queues.
func (c *scheduler) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// run starts requests when there is work and room for them.
func (c *scheduler) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		c.mu.Lock()
		now := time.Now()
		look := c.flows.Watch(now)
		at := c.dispatch(now)
		c.mu.Unlock()
		if at.IsZero() || !look.IsZero() && look.Before(at) {
			at = look
		}
		if at.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(at))
		}
		select {
		case <-c.kick:
		case <-timer.C:
		case <-c.s.ctx.Done():
			return
		}
	}
}

// join returns the fetch of a file with at least the given priority. It creates the fetch
// if there is none. keep makes the fetch continue when nobody waits. A waiter calls
// leave.
func (c *scheduler) join(img *image, f gear.File, prio priority, keep bool) *flight {
	return c.joinAll(img, []gear.File{f}, prio, keep)[0]
}

// joinAll is like join, for many files, which share one request if possible.
func (c *scheduler) joinAll(img *image, files []gear.File, prio priority, keep bool) []*flight {
	out := make([]*flight, len(files))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range files {
		fl := c.flights[img.key(f.Name)]
		switch {
		case fl == nil:
			fl = &flight{f: f, img: img, prio: prio, done: make(chan struct{})}
			c.flights[img.key(f.Name)] = fl
			// Another flight may have ended since the caller looked: a file is added to
			// the cache before its flight is removed.
			if img.view.Has(f.Name) {
				c.finish(fl, nil)
			} else {
				c.queues[prio] = append(c.queues[prio], fl)
			}
		case prio < fl.prio:
			fl.prio = prio // its entry in the old queue is skipped
			if !fl.running {
				c.queues[prio] = append(c.queues[prio], fl)
			}
		}
		fl.keep = fl.keep || keep
		fl.waiters++
		out[i] = fl
	}
	c.wake()
	return out
}

func (c *scheduler) leave(fl *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fl.waiters--
}

// finish ends a fetch. mu is held.
func (c *scheduler) finish(fl *flight, err error) {
	if fl.over {
		return
	}
	fl.over = true
	fl.running = false
	fl.err = err
	delete(c.flights, fl.img.key(fl.f.Name))
	close(fl.done)
	if lf := c.large[fl.img.key(fl.f.Name)]; lf != nil {
		lf.streaming(-1) // readers that waited for it have to request chunks themselves
	}
}

// await waits for a flight as long as the flight makes progress.
func (c *scheduler) await(ctx context.Context, fl *flight, urgent bool) error {
	if urgent {
		c.urgent.Add(1)
		defer c.calm()
	}
	bound := c.s.opts.Bound
	tick := time.NewTicker(min(time.Second, bound/4))
	defer tick.Stop()
	last, seen := time.Now(), int64(0)
	for {
		select {
		case <-fl.done:
			return fl.err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.s.ctx.Done():
			return ErrClosed
		case <-tick.C:
		}
		if moved := fl.moved.Load() + c.packed.Load(); moved != seen {
			last, seen = time.Now(), moved
			poolfs.Progress(ctx)
		}
		if time.Since(last) > bound {
			c.mu.Lock()
			err := fl.tries.err
			c.mu.Unlock()
			if err == nil {
				return fmt.Errorf("file %x: %w", fl.f.Name, ErrTimeout)
			}
			return fmt.Errorf("file %x: %w: %w", fl.f.Name, ErrTimeout, err)
		}
	}
}

// calm notes that one caller fewer is waiting.
func (c *scheduler) calm() {
	c.calmed.Store(time.Now().UnixNano())
	if c.urgent.Add(-1) == 0 {
		c.wake()
	}
}

// restsAt returns the time from which the background may run, unless somebody waits for a
// file before then.
func (c *scheduler) restsAt() time.Time {
	return time.Unix(0, c.calmed.Load()).Add(c.s.opts.BackgroundRest)
}

// room reports whether a request of a priority may start now. mu is held.
func (c *scheduler) room(p priority, now time.Time) bool {
	all := c.running[onDemand] + c.running[fromProfile] + c.running[inBackground]
	most := c.s.opts.Streams
	switch p {
	case onDemand:
		return all < most
	case fromProfile:
		return all < max(1, most-1) && c.running[fromProfile]-c.slow[fromProfile] < profileStreams
	}
	return all < max(1, most-1) && c.running[inBackground] == 0 && c.running[fromProfile] == 0 &&
		len(c.queues[fromProfile]) == 0 && c.urgent.Load() == 0 && !now.Before(c.restsAt())
}

// crowded reports whether something that somebody waits for has to wait for a request to
// end.
func (c *scheduler) crowded() bool {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := onDemand; p < inBackground; p++ {
		if c.room(p, now) {
			continue
		}
		if len(c.ranges[p]) > 0 || slices.ContainsFunc(c.queues[p], func(fl *flight) bool {
			return !fl.over && !fl.running && fl.awaited()
		}) {
			return true
		}
	}
	return false
}

// dispatch starts everything that can be started. It returns the time at which to look
// again, or the zero time for never. mu is held.
func (c *scheduler) dispatch(now time.Time) time.Time {
	var wake time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	for p := onDemand; p < priorities; {
		if !c.room(p, now) {
			if at := c.restsAt(); p == inBackground && now.Before(at) && len(c.queues[p])+len(c.ranges[p]) > 0 {
				sooner(at)
			}
			p++
			continue
		}
		c.flip = !c.flip
		started := false
		for i := range 2 {
			var at time.Time
			if (i == 0) == c.flip {
				started, at = c.startRange(p, now)
			} else {
				started, at = c.startBatch(p, now)
			}
			sooner(at)
			if started {
				break
			}
		}
		if !started {
			p++
		}
	}
	return wake
}

// startRange starts the first range job for which a source is available. mu is held.
func (c *scheduler) startRange(p priority, now time.Time) (bool, time.Time) {
	var wake time.Time
	q := c.ranges[p]
	for i := 0; i < len(q); i++ {
		j := q[i]
		src, at, err := c.choose(j.lf.img, j.lf.f.Name, &j.tries, now)
		if j.lf.readers+j.lf.wanted == 0 {
			err = errAbandoned
		}
		if err == nil && src == nil {
			if wake.IsZero() || at.Before(wake) {
				wake = at
			}
			continue
		}
		c.ranges[p] = append(q[:i:i], q[i+1:]...)
		if err != nil {
			j.lf.fail(j, err)
			q, i = c.ranges[p], i-1
			continue
		}
		c.running[p]++
		c.s.goWork(func() { c.runRange(j, src) })
		return true, wake
	}
	return false, wake
}

// batchBytes returns how many bytes a request asks for that begins with a flight.
func (c *scheduler) batchBytes(p priority, fl *flight, src *source) int64 {
	if p == onDemand {
		return demandBytes
	}
	r, during := float64(flow.AssumedRate), batchTime
	l := c.links[src.ref.Registry]
	if l != nil && l.Rate > 0 {
		r = l.Rate
	}
	least := int64(minBatch)
	if p == fromProfile && !fl.awaited() {
		during, least = minRest, minBatch/4
		if l != nil {
			during = min(max(2*l.RTT, minRest), maxRest)
		}
	}
	if b := float64(c.s.opts.BackgroundRate); p == inBackground && b > 0 && b < r {
		r = b
	}
	n := min(max(int64(r*during.Seconds()), least), maxBatch)
	if p == inBackground {
		n = min(n, maxBackground)
	}
	return n
}

// startBatch starts one request for as many queued files as fit in it. mu is held.
func (c *scheduler) startBatch(p priority, now time.Time) (bool, time.Time) {
	var wake time.Time
	var b *batch
	most, files := int64(0), batchFiles
	if p == onDemand {
		files = demandFiles
	}
	q := c.queues[p]
	keep := q[:0:0]
	for i, fl := range q {
		if b != nil && (b.bytes >= most || len(b.flights) >= files || b.alone) {
			keep = append(keep, q[i:]...)
			break
		}
		switch {
		case fl.over || fl.running || fl.prio != p:
			continue
		case fl.waiters == 0 && !fl.keep:
			c.finish(fl, errAbandoned)
			continue
		}
		if held, until := c.heldBack(fl, now); held {
			if !until.IsZero() && (wake.IsZero() || until.Before(wake)) {
				wake = until
			}
			keep = append(keep, fl)
			if p != inBackground {
				fl.img.st.trace.Asked(fl.f.Name)
			}
			continue
		}
		switch {
		case c.assembles(fl):
			if !c.roomToAssemble(p) {
				keep = append(keep, fl)
				continue
			}
			fl.running, fl.parts = true, true
			if p != inBackground {
				fl.img.st.trace.Asked(fl.f.Name)
			}
			c.assembling[p]++
			c.s.goWork(func() { c.assemble(fl, p) })
			continue
		case b != nil && (len(fl.tries.faults) > 0 || !c.delivers(b, fl)):
			keep = append(keep, fl)
			continue
		}
		if b == nil {
			src, at, err := c.choose(fl.img, fl.f.Name, &fl.tries, now)
			if err != nil {
				c.finish(fl, fmt.Errorf("file %x: %w", fl.f.Name, err))
				continue
			}
			if src == nil {
				if wake.IsZero() || at.Before(wake) {
					wake = at
				}
				keep = append(keep, fl)
				continue
			}
			// A file that failed before is requested alone, so that it cannot spoil the
			// others again.
			b = &batch{c: c, src: src, prio: p, alone: len(fl.tries.faults) > 0}
			most = c.batchBytes(p, fl, src)
		}
		fl.running = true
		if p != inBackground {
			fl.img.st.trace.Asked(fl.f.Name)
		}
		b.flights = append(b.flights, fl)
		b.bytes += fl.f.Size
	}
	c.queues[p] = keep
	if b == nil {
		return false, wake
	}
	b.end = len(b.flights)
	b.flow = &flow.Flow{Link: c.link(b.src.ref.Registry), Request: b}
	for _, fl := range b.flights {
		b.flow.Rescues = max(b.flow.Rescues, fl.rescues)
	}
	c.running[p]++
	c.s.goWork(b.run)
	return true, wake
}

// delivers reports whether a batch's source is a source of a flight's image.
func (c *scheduler) delivers(b *batch, fl *flight) bool {
	if fl.img == b.flights[0].img {
		return true
	}
	c.s.imagesMu.RLock()
	defer c.s.imagesMu.RUnlock()
	for _, ref := range fl.img.rec.Sources {
		if ref == b.src.ref {
			return c.s.images[fl.img.chain] == fl.img
		}
	}
	return false
}

// requeue puts the flights that a request did not deliver at the head of their queues. mu
// is held.
func (c *scheduler) requeue(flights []*flight) {
	for i := len(flights) - 1; i >= 0; i-- {
		fl := flights[i]
		fl.running = false
		if !fl.over {
			c.queues[fl.prio] = append([]*flight{fl}, c.queues[fl.prio]...)
		}
	}
}
