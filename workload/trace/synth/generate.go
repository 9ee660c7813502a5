package synth

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"example.org/slipway/workload/trace"
)

// Options are the options for a trace.
type Options struct {
	// Seed determines all that is random.
	Seed uint64
	// Start is the first instant. Default: 2017-06-20 in UTC, as in the public archive.
	Start time.Time
	// Days is how many days to generate. Default: as many as the zone takes for Requests.
	Days int
	// Requests is how many requests to generate. Default: as many as the zone has in
	// Days, or else as many as the profile has.
	Requests int64
}

const (
	// maxDays bounds the table of hours.
	maxDays = 100_000
	// maxYear is the last year that a store accepts.
	maxYear = 2200
)

func (o *Options) complete(p *Profile) (Options, error) {
	out := Options{}
	if o != nil {
		out = *o
	}
	if out.Start.IsZero() {
		out.Start = time.Date(2017, 6, 20, 0, 0, 0, 0, time.UTC)
	}
	perDay := float64(max(p.Requests, 1)) / float64(max(p.Days, 1))
	switch {
	case out.Days == 0 && out.Requests == 0:
		out.Days, out.Requests = max(p.Days, 1), max(p.Requests, 1)
	case out.Days == 0:
		out.Days = int(min(max(math.Round(float64(out.Requests)/perDay), 1), maxDays))
	case out.Requests == 0:
		out.Requests = int64(perDay * float64(out.Days))
	}
	if out.Days < 0 || out.Days > maxDays || out.Requests < 0 {
		return out, fmt.Errorf("%d requests in %d days", out.Requests, out.Days)
	}
	if first, last := out.Start.Year(), out.Start.AddDate(0, 0, out.Days).Year(); first < 1970 || last > maxYear {
		return out, fmt.Errorf("from %v for %d days: years are 1970 to %d", out.Start.Format(time.DateOnly), out.Days, maxYear)
	}
	return out, nil
}

// Generate calls fn with every request of one zone in order of time. It ends when ctx is
// done, or at the first error of fn, which it returns unchanged. fn must not keep the
// record, but it may keep the record's strings. Memory depends on how many requests are
// under way at once, not on how many there are.
func (p *Profile) Generate(ctx context.Context, o *Options, fn func(*trace.Record) error) error {
	if err := p.Validate(); err != nil {
		return err
	}
	opt, err := o.complete(p)
	if err != nil {
		return err
	}
	g := newGenerator(p, opt)
	return g.run(ctx, opt.Requests, fn)
}

// generator generates one zone.
type generator struct {
	planner *planner
	names   *names
	clock   *clock
	rnd     *rand.Rand
	queue   queue
	order   uint64
	record  trace.Record
	id      uint64
}

func newGenerator(p *Profile, o Options) *generator {
	zone := hashString(p.Zone)
	rnd := rand.New(rand.NewPCG(o.Seed, zone))
	key := mix64(o.Seed ^ zone)
	return &generator{
		planner: newPlanner(p, rnd), rnd: rnd, id: key,
		names: newNames(key, p.Hosts, len(p.Clients)),
		clock: newClock(&p.Load, o.Start, o.Days, rand.New(rand.NewPCG(o.Seed, ^zone))),
	}
}

// guess is how many sessions of three requests are assumed to have been before the first
// one, so that the first sessions do not decide how many there will be.
const guess = 100

func (g *generator) run(ctx context.Context, requests int64, fn func(*trace.Record) error) error {
	// Sessions are spread over the period like points thrown at random. Each takes the
	// part of the remaining period that the first of the remaining points would take.
	// Their number follows from their mean length.
	u, sessions, together := 0.0, 0.0, 0.0
	for planned := int64(0); planned < requests; {
		events := g.planner.next()
		if left := requests - planned; int64(len(events)) > left {
			slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
			events = events[:left]
		}
		n := int64(len(events))
		sessions++
		together++
		if g.rnd.Float64() >= g.planner.p.Burst {
			mean := (float64(planned+n) + 3*guess) / (sessions + guess)
			left := math.Max(float64(requests-planned)/mean+together-1, together)
			u += (1 - u) * (1 - math.Pow(1-g.rnd.Float64(), together/left))
			together = 0
		}
		planned += n
		start := g.clock.at(u)
		if err := g.emitBefore(start, fn); err != nil {
			return err
		}
		g.schedule(start, events)
		if g.order%4096 < uint64(n) {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return g.emitBefore(math.MaxInt64, fn)
}

// schedule queues a session. It speeds up a session that would continue after the end of
// the period.
func (g *generator) schedule(start int64, events []event) {
	last := int64(0)
	for i := range events {
		last = max(last, events[i].at)
	}
	room := g.clock.end - 1 - start
	for _, e := range events {
		if last > room {
			e.at = int64(float64(e.at) / float64(last) * float64(room))
		}
		e.at = min(start+e.at, g.clock.end-1)
		e.order = g.order
		g.order++
		g.queue.push(e)
	}
}

func (g *generator) emitBefore(t int64, fn func(*trace.Record) error) error {
	for len(g.queue) > 0 && g.queue[0].at < t {
		e := g.queue.pop()
		g.fill(&e)
		if err := fn(&g.record); err != nil {
			return err
		}
	}
	return nil
}

// fill turns an event into a record.
func (g *generator) fill(e *event) {
	r := &g.record
	r.URI, r.Host = g.names.uri(e)
	r.Method = methodOf(e.class)
	r.RemoteAddr = g.names.clients[e.client]
	r.UserAgent = g.names.agents[mix64(uint64(e.client)^g.names.key)%uint64(len(g.names.agents))]
	r.Status = int(e.status)
	r.Duration = time.Duration(e.duration) * time.Microsecond
	r.Written, r.Received = e.size, 0
	if e.class == upload || e.class == manifestPut {
		r.Written, r.Received = 0, e.size
	}
	g.id++
	var id [10]byte
	r.ID = string(appendHex(id[:0], mix64(g.id), 10))
	r.Time = time.UnixMicro(e.at - e.at%1000).UTC() // milliseconds, as in the archive
}

func methodOf(c class) string {
	switch c {
	case head:
		return "HEAD"
	case post, mount, redirect:
		return "POST"
	case patch:
		return "PATCH"
	case upload, manifestPut:
		return "PUT"
	}
	return "GET"
}

// queue is a heap of events, the earliest first. Simultaneous events come in the order in
// which they were planned.
type queue []event

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.order < o.order
}

func (q *queue) push(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	*q = h
}

func (q *queue) pop() event {
	h := *q
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].before(&h[down]) {
			down++
		}
		if !h[down].before(&last) {
			break
		}
		h[i] = h[down]
		i = down
	}
	if len(h) > 0 {
		h[i] = last
	}
	*q = h
	return top
}
