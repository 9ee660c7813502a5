// Package flow watches running requests, so that a slow connection does not hold up a
// start.
//
// Somebody waits for most requests, and each runs over one connection. One connection may
// be much slower than the link, or bring nothing any more, because of a path, a proxy or a
// replica of its own. So a Watcher compares the requests that run. The work of one that
// falls behind continues over another connection, from the file or chunk that it reached.
// A link that is slow as a whole must not be taken for a slow connection: then the only
// harm is a second connection.
//
// The package does no input or output and reads no clock. Its user tells it what arrives,
// and does what it decides.
package flow

import (
	"sync/atomic"
	"time"

	"example.org/slipway/node/gearfs/pace"
)

// Request is what a Watcher asks about a request, and has done with it.
type Request interface {
	// Awaited reports whether somebody waits for the request, and its work can be done over
	// another connection.
	Awaited() bool
	// Left returns what the request has yet to bring.
	Left() Left
	// Divide has another request bring the last part of what is left, over another
	// connection, so that this request keeps about the given number of bytes. It returns
	// false if there is no room for another request, or nothing to give away.
	Divide(keep int64) bool
	// GiveUp ends the request, so that all that is left is brought over another connection.
	GiveUp()
}

// Left is what a request has yet to bring, in bytes of content.
type Left struct {
	All int64
	// Lost is how much has arrived of the file or chunk under way. It arrives again if the
	// request is given up.
	Lost int64
	// Urgent says that somebody waits for the next bytes, rather than for all.
	Urgent bool
}

const (
	// watchEvery is how often the running requests are compared.
	watchEvery = 25 * time.Millisecond
	// lateWatch is the distance of two comparisons from which on the second waits for the
	// next: this process had no processor meanwhile, and read nothing.
	lateWatch = 4 * watchEvery
	// starved is the share of the time of the last comparisons from which on this process was
	// late for so long that the rates of requests say nothing: on a busy machine single
	// requests get no processor for 0.1 s, here or at the registry.
	starved = 1.0 / 16
	// idleWatch is the distance of two comparisons while nobody waits for a request.
	idleWatch = 250 * time.Millisecond
	// minWindow is the shortest time over which the rate of a link is measured, and
	// maxWindow the longest.
	minWindow, maxWindow = 50 * time.Millisecond, 400 * time.Millisecond
	// marks is over how many comparisons the rates of requests are compared at most.
	marks = 8
	// deficit is how many bytes a request must lack before its work is moved, in bytes on
	// the wire. guessDeficit is for a request that cannot be divided, as long as no other
	// request shows that the link is faster: what the link carries is overestimated when
	// buffers are read at once.
	deficit, guessDeficit = 256 << 10, 1 << 20
	// mostLack bounds what a request lacks, so that one that recovers is soon good again.
	mostLack = 4 << 20
	// half is the share of what a link has to spare from which on a request lacks nothing.
	half = 0.5
	// behind is how many times as fast as a request another one must be to show that not
	// the link is slow. Connections that share a link may differ by less.
	behind = 4
	// proofLasts is how long it counts that another request was faster. That request may
	// end, and then the slow one is the last.
	proofLasts = 2 * time.Second
	// gain is how many times as long as over another connection a request has to take for
	// it to be given up.
	gain = 2
	// guessAgain is how long a link is left in peace after a request was divided for a
	// guess. It doubles with each guess that no faster request confirms.
	guessAgain = 500 * time.Millisecond
	// worthwhile is the shortest rest of a request, in time, that is worth another one.
	worthwhile = 100 * time.Millisecond
	// firstPatience is how long a request may bring nothing at all: a registry may have to
	// fetch the content itself. quietPatience is how long it may then pause.
	firstPatience, quietPatience = 2 * time.Second, 400 * time.Millisecond
	// warmUp is how many round trips a new connection may take to get fast. maxRTT bounds
	// what is taken for a round trip: its measurement includes what the registry does.
	warmUp, maxRTT = 4, 200 * time.Millisecond
	// setUp is how many round trips it takes until a new connection brings the first byte:
	// for TCP, TLS and the request.
	setUp = 3
	// maxRescues bounds how often these limits are doubled. They double each time that work
	// is moved, so that it comes to an end on a bad link, too.
	maxRescues = 6
)

// Flow is a running request, as a Watcher sees it.
type Flow struct {
	Link    *Link
	Request Request
	// Rescues is how often work of this request was moved to another connection.
	Rescues int

	began time.Time
	// arrived counts the bytes on the wire. answered is after how long the first ones came,
	// in nanoseconds.
	arrived, answered atomic.Int64
	// local says that the request stores what has arrived, and reads nothing.
	local atomic.Bool

	// had bytes had arrived at looked. heard is when the last byte was seen, and lateBy how
	// late this process was then.
	looked, heard time.Time
	lateBy        time.Duration
	had           int64
	// lack is how many bytes less than expected have come lately. slow is when it was 0 for
	// the last time.
	lack float64
	slow mark
	// proof is when another request was seen to be much faster.
	proof time.Time
	// marks are how many bytes had arrived at the last comparisons, the oldest one first.
	marks [marks]mark
}

// mark is how many bytes had arrived at a time.
type mark struct {
	at time.Time
	n  int64
}

// since returns how many bytes a second have arrived since m.
func (m mark) since(now time.Time, n int64) float64 {
	return float64(n-m.n) / max(now.Sub(m.at), time.Millisecond).Seconds()
}

// Came notes that n bytes have arrived. Any goroutine may call it.
func (f *Flow) Came(n int, now time.Time) {
	if n > 0 {
		f.Answered(now)
	}
	f.arrived.Add(int64(n))
	f.Link.arrived.Add(int64(n))
}

// Answered notes that the answer has begun, if that is not known yet. Any goroutine may call
// it.
func (f *Flow) Answered(now time.Time) { f.answered.CompareAndSwap(0, int64(now.Sub(f.began))) }

// Took returns the time until the answer began, and the time since then. Both are 0 if there
// is no answer yet.
func (f *Flow) Took(now time.Time) (rtt, since time.Duration) {
	if rtt = time.Duration(f.answered.Load()); rtt == 0 {
		return 0, 0
	}
	return rtt, now.Sub(f.began.Add(rtt))
}

// Local notes whether the request is busy with what has arrived, and reads nothing. Any
// goroutine may call it.
func (f *Flow) Local(is bool) { f.local.Store(is) }

// rtt returns the shortest known round trip, which includes the least of what the registry
// did meanwhile.
func (f *Flow) rtt() time.Duration {
	rtt := maxRTT
	for _, d := range []time.Duration{f.Link.least, time.Duration(f.answered.Load())} {
		if d > 0 {
			rtt = min(rtt, d)
		}
	}
	return rtt
}

// restart begins a new measurement. late is how late this process was until now.
func (f *Flow) restart(now time.Time, late time.Duration) {
	f.heard, f.lateBy = now, late
	f.forget(now)
}

// forget begins a new measurement of the rate.
func (f *Flow) forget(now time.Time) {
	n := f.arrived.Load()
	f.looked, f.had, f.lack = now, n, 0
	f.slow = mark{now, n}
	for i := range f.marks {
		f.marks[i] = f.slow
	}
}

// warm reports whether the request runs long enough to say something about its connection.
func (f *Flow) warm(now time.Time) bool {
	return f.had > 0 && now.Sub(f.began) >= time.Duration(f.answered.Load())+warmUp*f.rtt()
}

// Watcher compares running requests. Its owner's lock guards it, and guards all fields of
// a Flow and a Link but those that Came and Local change.
type Watcher struct {
	// Stall is after how long without a byte a request is given up whatever happened
	// before.
	Stall   time.Duration
	flows   map[*Flow]struct{}
	watched time.Time
	// late is how late this process was for comparisons, and lates holds when the last ones
	// were and how late it was then, the oldest one first.
	late  pace.Lateness
	lates [marks]struct {
		at time.Time
		by time.Duration
	}
}

// Begin has a request watched until End.
func (w *Watcher) Begin(f *Flow, now time.Time) {
	if w.flows == nil {
		w.flows = map[*Flow]struct{}{}
	}
	f.Rescues = min(f.Rescues, maxRescues)
	f.began = now
	f.restart(now, w.late.Total(now))
	w.flows[f] = struct{}{}
}

// End has a request no longer watched.
func (w *Watcher) End(f *Flow) { delete(w.flows, f) }

// Watch compares the running requests, and moves the work of slow ones. It returns when to
// call it again, or the zero time.
func (w *Watcher) Watch(now time.Time) time.Time {
	if len(w.flows) == 0 {
		w.late.Beat(now, time.Time{})
		return time.Time{}
	}
	if next := w.watched.Add(watchEvery); now.Before(next) {
		return next
	}
	late := now.Sub(w.watched) > lateWatch
	w.watched = now
	next := now.Add(watchEvery)
	awaited := w.account(now, late)
	if len(awaited) == 0 {
		next = now.Add(idleWatch)
	}
	w.late.Beat(now, next)
	if late { // what has arrived meanwhile is still to be read
		return next
	}
	busy := w.starved(now)
	for _, f := range awaited {
		if _, runs := w.flows[f]; runs {
			w.judge(f, now, busy)
		}
	}
	return next
}

// starved reports whether this process was late for so long, at the last comparisons, that
// the rates of requests say nothing.
func (w *Watcher) starved(now time.Time) bool {
	copy(w.lates[:], w.lates[1:])
	last := &w.lates[marks-1]
	last.at, last.by = now, w.late.Total(now)
	first := last
	for i := range w.lates {
		if l := &w.lates[i]; now.Sub(l.at) <= maxWindow {
			first = l
			break
		}
	}
	return float64(last.by-first.by) > starved*float64(max(now.Sub(first.at), maxWindow/2))
}

// account measures the links and the requests. It returns the requests that somebody waits
// for.
func (w *Watcher) account(now time.Time, late bool) (awaited []*Flow) {
	for f := range w.flows {
		f.Link.measure(now)
		if f.arrived.Load() != f.had {
			f.heard, f.lateBy = now, w.late.Total(now)
		}
		copy(f.marks[:], f.marks[1:])
		f.marks[marks-1] = mark{now, f.arrived.Load()}
	}
	for f := range w.flows {
		switch {
		case !f.Request.Awaited():
			f.restart(now, w.late.Total(now))
			continue
		case late:
			f.forget(now)
		}
		awaited = append(awaited, f)
	}
	return awaited
}

// lately returns how many bytes a second a request has brought since about the given time,
// which counts as far as the marks reach.
func (f *Flow) lately(now, since time.Time) float64 {
	m := f.marks[0]
	for _, o := range f.marks[1 : marks-1] {
		if !o.at.After(since) {
			m = o
		}
	}
	return m.since(now, f.arrived.Load())
}

// judge moves the work of a request that is much slower than it should be. If this process is
// starved, that is only one that brings nothing.
func (w *Watcher) judge(f *Flow, now time.Time, starved bool) {
	n, rtt := f.arrived.Load(), f.rtt()
	patience := max(quietPatience, 2*warmUp*rtt)
	if n == 0 {
		patience = firstPatience
	}
	if f.local.Load() { // what arrives meanwhile is still to be read
		f.heard, f.lateBy, f.looked, f.had = now, w.late.Total(now), now, n
		return
	}
	if now.Sub(f.heard)-(w.late.Total(now)-f.lateBy) >= min(patience<<f.Rescues, w.Stall) {
		w.giveUp(f)
		return
	}
	if starved {
		f.forget(now)
		return
	}
	warm := f.warm(now)
	got, took := float64(n-f.had), now.Sub(f.looked).Seconds()
	f.looked, f.had = now, n
	if !warm {
		f.lack, f.slow = 0, mark{now, n}
		return
	}
	spare, best := w.around(f, now)
	f.lack = min(f.lack+max(half*spare, best/behind)*took-got, mostLack)
	if f.lack <= 0 {
		f.lack, f.slow = 0, mark{now, n}
		return
	}
	if f.lack >= float64(int64(deficit)<<f.Rescues) {
		w.move(f, now, spare, best)
	}
}

// move moves the work of a request that lacks bytes, if that is worth it. spare and best
// are those of around.
func (w *Watcher) move(f *Flow, now time.Time, spare, best float64) {
	rate, left, l := max(f.slow.since(now, f.had), f.lately(now, f.slow.at)), f.Request.Left(), f.Link
	if best >= behind*rate {
		f.proof, l.guesses = now, 0
	}
	proved := now.Sub(f.proof) < proofLasts
	speed := spare
	if left.Urgent {
		speed = max(spare, best)
	}
	setUp := (setUp * f.rtt()).Seconds()
	if float64(left.All) <= rate*(worthwhile.Seconds()+setUp) {
		return
	}
	anew := speed >= behind*rate && float64(left.All) > gain*rate*(float64(left.All+left.Lost)/speed+setUp)
	switch {
	case anew && proved:
		w.giveUp(f)
	case spare <= 0 || spare < rate/half:
	case (proved || !now.Before(l.guessAt)) && f.Request.Divide(int64(float64(left.All)*rate/spare)):
		if !proved {
			l.guessAt = now.Add(guessAgain << l.guesses)
			l.guesses = min(l.guesses+1, maxRescues)
		}
		f.restart(now, w.late.Total(now))
	case anew && f.lack >= float64(int64(guessDeficit)<<f.Rescues) && !w.crowd(f) && (f.Rescues == 0 || l.most >= behind*rate):
		// Before the link is measured, spare is a guess. For that, a request begins anew only
		// once.
		w.giveUp(f)
	}
}

// around returns what the link should carry for a request, which is what it has carried
// less what other requests use, and the rate of the fastest other request, since it lacks
// bytes.
func (w *Watcher) around(f *Flow, now time.Time) (spare, best float64) {
	spare, alone := f.Link.wire, true
	for o := range w.flows {
		if o == f || o.Link != f.Link {
			continue
		}
		r := o.lately(now, f.slow.at)
		spare -= r
		if o.warm(now) {
			best, alone = max(best, r), false
		}
	}
	if f.Link.Rate == 0 && alone { // it is not measured yet
		spare = max(spare, AssumedRate)
	}
	return max(spare, 0), best
}

// crowd reports whether another request of the same link lacks bytes, too. Then it is
// rather the link.
func (w *Watcher) crowd(f *Flow) bool {
	for o := range w.flows {
		if o != f && o.Link == f.Link && o.lack > 0 {
			return true
		}
	}
	return false
}

func (w *Watcher) giveUp(f *Flow) {
	delete(w.flows, f)
	f.Request.GiveUp()
}
