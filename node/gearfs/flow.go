package gearfs

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Somebody waits for most requests, and each runs over one connection. One connection may
// be much slower than the link, or bring nothing any more, because of a path, a proxy or a
// replica of its own. So the scheduler watches the running requests. The work of one that
// falls behind continues over another connection, from the file or chunk that it reached.
// A link that is slow as a whole must not be taken for a slow connection: then the only
// harm is a second connection.

// Reconnector is a Source whose following requests can be made over new connections.
type Reconnector interface {
	Source
	// Reconnect keeps later requests away from the existing connections. It does not
	// disturb the requests that use them, and must not wait.
	Reconnect()
}

const (
	// watchEvery is how often the running requests are compared.
	watchEvery = 25 * time.Millisecond
	// lateWatch is the distance of two comparisons from which on the second waits for the
	// next: this process had no processor meanwhile, and read nothing.
	lateWatch = 4 * watchEvery
	// minWindow is the shortest time over which a rate is measured, and maxWindow the
	// longest.
	minWindow, maxWindow = 50 * time.Millisecond, 400 * time.Millisecond
	// markEvery bounds the time over which it is measured what a request keeps that is
	// divided: it may have become slow in the middle of a window.
	markEvery = 100 * time.Millisecond
	// deficit is how many bytes less than expected a request must have brought before
	// it is divided, in bytes on the wire. A request that cannot be divided loses what it
	// has of its current file or chunk, so it gets abandonDeficit and has to be behind: what
	// the link carries is overestimated when buffers are read at once.
	deficit, abandonDeficit = 256 << 10, 1 << 20
	// behind is how many times as fast as a request another one must be for the first to
	// be given up.
	behind = 4
	// worthwhile is the shortest rest of a request, in time, that is worth another one.
	worthwhile = 100 * time.Millisecond
	// firstPatience is how long a request may bring nothing at all: a registry may have to
	// fetch the content itself. quietPatience is how long it may then pause.
	firstPatience, quietPatience = 2 * time.Second, 400 * time.Millisecond
	// warmUp is how many round trips a new connection may take to get fast. maxRTT bounds
	// what is taken for a round trip: its measurement includes what the registry does.
	warmUp, maxRTT = 4, 200 * time.Millisecond
	// maxRescues bounds how often all these limits are doubled. They double each time that
	// work is moved to another connection, so that it comes to an end on a bad link, too.
	maxRescues = 6
	// wireFade is how fast the expected rate follows a link that became slower. mostFade is
	// how fast it is forgotten what the link has carried.
	wireFade, mostFade = 2 * time.Second, 10 * time.Second
)

// errSlow ends a request whose work is to continue over another connection.
var errSlow = errors.New("the connection is much slower than others")

// flow is a running request, as the scheduler watches it.
type flow struct {
	src  *source
	link *link
	prio priority
	// rescues is how often work of this request was moved to another connection.
	rescues int
	// The scheduler's mu is held when these are called. awaited reports whether somebody
	// waits for the request. left returns how many bytes of content it has yet to bring.
	// divide puts the last files of the request back in the queue, so that it keeps the
	// given share of what is left. It reports whether it could.
	awaited func() bool
	left    func() int64
	divide  func(keep float64) bool
	cancel  context.CancelCauseFunc

	began time.Time
	// arrived counts the bytes on the wire. answered is after how long the first ones came,
	// in nanoseconds.
	arrived, answered atomic.Int64
	// local says that the request stores what has arrived, and reads nothing.
	local atomic.Bool

	// These are guarded by the scheduler's mu. had bytes had arrived at since, when the
	// measurement began. heard is when the last byte was seen, and seen how many there
	// were.
	since, heard time.Time
	had, seen    int64
	// marks are how many bytes had arrived at two times, the last of which is at most
	// markEvery ago.
	marks [2]mark
}

// mark is how many bytes had arrived at a time.
type mark struct {
	at time.Time
	n  int64
}

// rtt returns the shortest known round trip to the source, which includes the least of what
// the registry did meanwhile.
func (f *flow) rtt() time.Duration {
	rtt := maxRTT
	for _, d := range []time.Duration{f.link.least, time.Duration(f.answered.Load())} {
		if d > 0 {
			rtt = min(rtt, d)
		}
	}
	return rtt
}

// came notes that bytes arrived.
func (f *flow) came(n int) {
	if f.arrived.Add(int64(n)) == int64(n) && n > 0 {
		f.answered.Store(int64(time.Since(f.began)))
	}
	f.link.arrived.Add(int64(n))
}

// restart begins a new measurement.
func (f *flow) restart(now time.Time) {
	f.since, f.heard = now, now
	f.had = f.arrived.Load()
	f.seen = f.had
	f.marks = [2]mark{{now, f.had}, {now, f.had}}
}

// lately returns how many bytes a second have arrived since the older mark, and moves the
// marks.
func (f *flow) lately(now time.Time) float64 {
	n := f.arrived.Load()
	if now.Sub(f.marks[1].at) >= markEvery {
		f.marks[0], f.marks[1] = f.marks[1], mark{now, n}
	}
	return float64(n-f.marks[0].n) / max(now.Sub(f.marks[0].at), time.Millisecond).Seconds()
}

// rate returns how many bytes a second have arrived in the current measurement, and
// whether that says anything.
func (f *flow) rate(now time.Time) (perSec float64, known bool) {
	d := now.Sub(f.since)
	return float64(f.arrived.Load()-f.had) / max(d, time.Millisecond).Seconds(), d >= minWindow && f.had > 0
}

// begin has a request watched until end. mu is held.
func (c *scheduler) begin(f *flow) {
	f.link = c.link(f.src.ref.Registry)
	f.rescues = min(f.rescues, maxRescues)
	f.began = time.Now()
	f.restart(f.began)
	c.flows[f] = struct{}{}
}

// watch compares the running requests, and moves the work of slow ones. It returns when to
// look again, or the zero time. mu is held.
func (c *scheduler) watch(now time.Time) time.Time {
	if len(c.flows) == 0 {
		return time.Time{}
	}
	if next := c.watched.Add(watchEvery); now.Before(next) {
		return next
	}
	late := now.Sub(c.watched) > lateWatch
	c.watched = now
	watched := false
	for f := range c.flows {
		if !c.watches(f) {
			f.restart(now)
			continue
		}
		watched = true
		if late {
			f.heard = now
		}
		if f.local.Load() {
			f.restart(now)
		}
	}
	if !watched {
		return now.Add(completeEvery)
	}
	if late { // what has arrived meanwhile is still to be read
		return now.Add(watchEvery)
	}
	for _, l := range c.links {
		l.measure(now)
	}
	for f := range c.flows {
		if c.watches(f) {
			c.judge(f, now)
		}
	}
	return now.Add(watchEvery)
}

// watches reports whether somebody waits for a request that can be made over another
// connection. mu is held.
func (c *scheduler) watches(f *flow) bool {
	_, ok := f.src.src.(Reconnector)
	return ok && f.prio != inBackground && f.awaited()
}

// measure updates the rate that a link is able to carry.
func (l *link) measure(now time.Time) {
	d, n := now.Sub(l.since), l.arrived.Load()
	if d < minWindow {
		return
	}
	r := float64(n-l.had) / d.Seconds()
	began := n > l.had && d <= maxWindow
	l.since, l.had, l.now = now, n, r
	switch {
	case !began:
	case l.wire == 0:
		l.wire = r
	case r > l.wire:
		l.wire += (r - l.wire) / 2
	default:
		l.wire += (r - l.wire) * min(1, d.Seconds()/wireFade.Seconds())
	}
	l.most = max(l.wire, l.most-l.most*min(1, d.Seconds()/mostFade.Seconds()))
}

// judge moves the work of a request that is much slower than it should be. mu is held.
func (c *scheduler) judge(f *flow, now time.Time) {
	n := f.arrived.Load()
	if n != f.seen {
		f.heard, f.seen = now, n
	}
	lately := f.lately(now)
	rtt := f.rtt()
	patience := max(quietPatience, 2*warmUp*rtt)
	if n == 0 {
		patience = firstPatience
	}
	if now.Sub(f.heard) >= min(patience<<f.rescues, c.s.opts.Stall) {
		c.abandon(f)
		return
	}
	if f.had == 0 || now.Sub(f.began) < time.Duration(f.answered.Load())+warmUp*rtt {
		f.since, f.had = now, n
		return
	}
	rate, known := f.rate(now)
	if !known {
		return
	}
	spare, best := c.around(f, rate, now)
	d := now.Sub(f.since).Seconds()
	lacks := func(of float64) int64 { return int64((of-rate)*d) >> f.rescues }
	switch rest := f.left(); {
	case float64(rest) <= rate*(worthwhile+2*rtt).Seconds():
	case best >= behind*rate && lacks(best) >= deficit:
		c.abandon(f)
	case spare < 2*rate:
		if now.Sub(f.since) >= maxWindow {
			f.since, f.had = now, n
		}
	case lacks(spare) >= deficit && c.room(f.prio, now) && f.divide(min(rate, lately)/spare):
		c.reconnect(f.src)
		f.rescues = min(f.rescues+1, maxRescues)
		f.restart(now)
	case spare >= behind*rate && lacks(spare) >= abandonDeficit && (f.rescues == 0 || f.link.most >= behind*rate):
		// Before the link is measured, spare is a guess. For that, a request begins anew only
		// once.
		c.abandon(f)
	}
}

// around returns what the link should carry for a request of the given rate, which is what
// it has carried less what other requests use now, and the rate of the fastest other
// request.
func (c *scheduler) around(f *flow, rate float64, now time.Time) (spare, best float64) {
	spare = f.link.wire
	if f.link.rate == 0 { // it is not measured yet
		spare = max(spare, assumedRate)
	}
	spare -= max(f.link.now-rate, 0)
	for o := range c.flows {
		if o != f && o.link == f.link {
			if r, known := o.rate(now); known {
				best = max(best, r)
			}
		}
	}
	return max(spare, 0), best
}

// abandon ends a request, so that its work is done over another connection. mu is held.
func (c *scheduler) abandon(f *flow) {
	c.reconnect(f.src)
	f.cancel(errSlow)
	delete(c.flows, f)
	c.s.log.Info("a connection is given up because it is slow", "source", f.src.ref.String(), "times", f.rescues+1)
}

// reconnect keeps later requests to a source away from its connections. mu is held.
func (c *scheduler) reconnect(src *source) {
	if r, ok := src.src.(Reconnector); ok {
		r.Reconnect()
	}
}
