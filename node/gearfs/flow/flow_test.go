package flow_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.org/slipway/node/gearfs/flow"
)

// world is a link with connections on a clock of its own. It fetches a content in units, the
// chunks of a file or the files of an image, with the decisions of a Watcher.
type world struct {
	now      time.Time
	capacity func(at time.Duration) float64 // of the link, in bytes a second
	rtt      time.Duration
	// hold returns from which byte on a new connection gets how much, in bytes a second.
	hold func(conn int) (from int64, rate float64)

	unit            int64 // bytes of one unit
	queue           []work
	missing         []bool // units
	conns           int
	running         []*request
	link            flow.Link
	w               flow.Watcher
	busy            *rand.Rand // if it is not nil, this process often lacks a processor
	lacks           int        // for so many steps more
	moved           float64    // bytes that arrived
	gaveUp, divided int
}

// work is what one request fetches.
type work struct {
	units   []int
	rescues int // how often it was moved
}

// request fetches units over a connection of its own.
type request struct {
	w *world
	work
	got     float64 // bytes of the first unit
	total   float64 // bytes over the connection
	from    float64
	rate    float64
	first   time.Time // no byte arrives before it
	flow    flow.Flow
	slow    bool
	arrival float64 // of this step
	unread  float64 // in the buffer of the connection
}

const (
	step    = 5 * time.Millisecond
	streams = 2
	most    = 6 // streams with those that relieve slow ones
)

func (r *request) Awaited() bool { return true }

func (r *request) Left() flow.Left {
	return flow.Left{All: int64(len(r.units))*r.w.unit - int64(r.got), Lost: int64(r.got)}
}

func (r *request) Divide(keep int64) bool {
	n := 1 + int((float64(keep)+r.got)/float64(r.w.unit))
	if n >= len(r.units) || len(r.w.running) >= most {
		return false
	}
	r.w.divided++
	r.w.queue = append([]work{{r.units[n:], r.rescues + 1}}, r.w.queue...)
	r.units, r.slow = r.units[:n], true
	return true
}

func (r *request) GiveUp() {
	r.w.gaveUp++
	r.w.queue = append([]work{{r.units, r.rescues + 1}}, r.w.queue...)
	r.w.running = slices.DeleteFunc(r.w.running, func(o *request) bool { return o == r })
}

// next returns what the next request fetches.
func (w *world) next() work {
	if len(w.queue) > 0 {
		next := w.queue[0]
		w.queue = w.queue[1:]
		return next
	}
	var left []int
	for i, m := range w.missing {
		if m {
			left = append(left, i)
		}
	}
	piece := flow.Piece(left, streams, int(8<<20/w.unit))
	for _, i := range piece {
		w.missing[i] = false
	}
	return work{units: piece}
}

func (w *world) dispatch() {
	slow := 0
	for _, r := range w.running {
		if r.slow {
			slow++
		}
	}
	for len(w.running)-slow < streams && len(w.running) < most {
		next := w.next()
		if len(next.units) == 0 {
			return
		}
		r := &request{w: w, work: next, from: 1 << 60}
		if w.hold != nil {
			from, rate := w.hold(w.conns)
			r.from, r.rate = float64(from), rate
		}
		w.conns++
		r.first = w.now.Add(2 * w.rtt)
		r.flow.Link, r.flow.Request = &w.link, r
		r.flow.Rescues = r.rescues
		w.w.Begin(&r.flow, w.now)
		w.running = append(w.running, r)
	}
}

// share divides what the link carries in one step among the connections: all get the same, and what
// one cannot take goes to the others.
func (w *world) share(at time.Duration) {
	left := w.capacity(at) * step.Seconds()
	var open []*request
	for _, r := range w.running {
		if r.arrival = 0; !w.now.Before(r.first) {
			open = append(open, r)
		}
	}
	slices.SortFunc(open, func(a, b *request) int { return cmp.Compare(a.limit(), b.limit()) })
	for i, r := range open {
		r.arrival = min(r.limit(), left/float64(len(open)-i))
		left -= r.arrival
	}
}

// starved reports whether this process has no processor in a step.
func (w *world) starved() bool {
	if w.busy == nil {
		return false
	}
	if w.lacks > 0 {
		w.lacks--
	} else if w.busy.IntN(4) == 0 {
		w.lacks = 1 + w.busy.IntN(int(80*time.Millisecond/step)) // less than makes the Watcher begin anew
	}
	return w.lacks > 0
}

// buffer is how many bytes a connection brings that nobody reads.
const buffer = 256 << 10

// limit returns how many bytes the connection of a request can bring in one step.
func (r *request) limit() float64 {
	left := float64(r.Left().All) - r.unread
	if r.w.busy != nil {
		left = max(0, min(left, buffer-r.unread))
	}
	if r.total >= r.from {
		return min(left, r.rate*step.Seconds())
	}
	return left
}

// run fetches all units, and returns how long it took.
func (w *world) run(size int64, watched bool) time.Duration {
	w.now = time.Unix(1_000_000, 0)
	began := w.now
	w.w.Stall = 15 * time.Second
	w.missing = make([]bool, (size+w.unit-1)/w.unit)
	for i := range w.missing {
		w.missing[i] = true
	}
	w.dispatch()
	for len(w.running) > 0 && w.now.Sub(began) < time.Hour {
		at := w.now.Sub(began)
		w.share(at)
		w.now = w.now.Add(step)
		for _, r := range w.running {
			r.unread += r.arrival
		}
		if w.starved() {
			continue
		}
		for _, r := range slices.Clone(w.running) {
			b := r.unread
			if b == 0 || w.busy != nil && w.busy.IntN(2) == 0 { // what reads it did not run
				continue
			}
			r.unread = 0
			r.total += b
			w.moved += b
			r.flow.Came(int(b), w.now)
			r.got += b
			for len(r.units) > 0 && r.got >= float64(w.unit)-0.5 {
				r.got -= float64(w.unit)
				r.units = r.units[1:]
			}
			if len(r.units) == 0 {
				w.w.End(&r.flow)
				w.running = slices.DeleteFunc(w.running, func(o *request) bool { return o == r })
			}
		}
		if watched {
			w.w.Watch(w.now)
		}
		w.dispatch()
	}
	return w.now.Sub(began)
}

func (w *world) String() string {
	return fmt.Sprintf("%d connections, %d divided, %d given up, %.2f MB", w.conns, w.divided, w.gaveUp, w.moved/1e6)
}

func steady(perSec float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return perSec }
}

// TestOneSlowConnection fetches contents over links with one connection that becomes slow at some
// byte, or brings nothing any more. That must cost little more than it takes to see it and to fetch
// one unit again.
func TestOneSlowConnection(t *testing.T) {
	t.Parallel()
	worst := 0.0
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		capacity := float64(int64(2_500_000) << rng.IntN(6)) // 20 to 640 Mbit/s
		rtt := []time.Duration{0, 5, 20, 50}[rng.IntN(4)] * time.Millisecond
		unit := []int64{64 << 10, 1 << 20}[rng.IntN(2)]
		size := int64(capacity*(1+3*rng.Float64())) / unit * unit
		victim, from := rng.IntN(3), rng.Int64N(3<<20)
		held := []float64{0, capacity / 100, capacity / 12}[rng.IntN(3)]
		name := fmt.Sprintf("seed %d: %.0f MB at %.1f MB/s, %v; connection %d gets %.3f MB/s from byte %d on; units of %d", seed, float64(size)/1e6, capacity/1e6, rtt, victim, held/1e6, from, unit)
		free := &world{capacity: steady(capacity), rtt: rtt, unit: unit}
		calm := free.run(size, true)
		w := &world{capacity: steady(capacity), rtt: rtt, unit: unit, hold: func(conn int) (int64, float64) {
			if conn == victim {
				return from, held
			}
			return 1 << 60, 0
		}}
		took := w.run(size, true)
		// It takes this long to see it, to connect anew, to get fast, and to fetch a unit again.
		slack := 150*time.Millisecond + 12*rtt + time.Duration(float64(2*unit+1<<20)/capacity*float64(time.Second))
		if held == 0 {
			slack += 150 * time.Millisecond
		}
		if ratio := (took - slack).Seconds() / calm.Seconds(); ratio > worst {
			worst = ratio
		}
		if took > calm+calm/20+slack {
			t.Errorf("%s: %v, unimpeded %v; %v", name, took, calm, w)
		}
		if w.moved > float64(size)+3*float64(unit) {
			t.Errorf("%s: %.2f MB arrived; %v", name, w.moved/1e6, w)
		}
		if free.gaveUp+free.divided > 0 {
			t.Errorf("%s: unimpeded: %v", name, free)
		}
	}
	t.Logf("at most %.3f times as long, without what it takes to see it", worst)
}

// TestLinkChanges fetches contents over links that change their rate, by up to 100 times. No
// connection is slow, so hardly anything must be fetched twice.
func TestLinkChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		rates := make([]float64, 16)
		for i := range rates {
			rates[i] = 125_000 * float64(int64(1)<<rng.IntN(8))
		}
		each := time.Duration(200+rng.IntN(3000)) * time.Millisecond
		capacity := func(at time.Duration) float64 { return rates[int(at/each)%len(rates)] }
		rtt := []time.Duration{0, 5, 20, 50}[rng.IntN(4)] * time.Millisecond
		unit := []int64{64 << 10, 1 << 20}[rng.IntN(2)]
		size := int64(8<<20 + rng.IntN(32<<20))
		name := fmt.Sprintf("seed %d: %.0f MB at %v, %v each, %v; units of %d", seed, float64(size)/1e6, rates, each, rtt, unit)
		calm := (&world{capacity: capacity, rtt: rtt, unit: unit}).run(size, false)
		w := &world{capacity: capacity, rtt: rtt, unit: unit}
		took := w.run(size, true)
		if w.moved > 1.02*float64(size)+4*float64(unit) {
			t.Errorf("%s: %.2f MB arrived; %v", name, w.moved/1e6, w)
		}
		if took > calm+calm/5+4*each {
			t.Errorf("%s: took %v, without a watcher %v; %v", name, took, calm, w)
		}
	}
}

// TestBusyProcess fetches contents with a process that often lacks a processor, as on a busy machine.
// No connection is slow, so nothing must be fetched twice. A dead connection must be replaced all the
// same.
func TestBusyProcess(t *testing.T) {
	t.Parallel()
	moved := 0
	const seeds = 1000
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 4))
		capacity := float64(int64(2_500_000) << rng.IntN(6)) // 20 to 640 Mbit/s
		rtt := []time.Duration{0, 5, 20, 50}[rng.IntN(4)] * time.Millisecond
		unit := []int64{64 << 10, 1 << 20}[rng.IntN(2)]
		size := int64(capacity*(1+3*rng.Float64())) / unit * unit
		busy := func() *world {
			return &world{capacity: steady(capacity), rtt: rtt, unit: unit, busy: rand.New(rand.NewPCG(seed, 5))}
		}
		w := busy()
		calm := w.run(size, true)
		if w.gaveUp+w.divided > 0 {
			moved++
		}
		dead := busy()
		victim := rng.IntN(3)
		dead.hold = func(conn int) (int64, float64) {
			if conn == victim {
				return 1 << 20, 0
			}
			return 1 << 60, 0
		}
		if took := dead.run(size, true); took > 2*calm+5*time.Second {
			t.Errorf("seed %d: with a dead connection %v, without %v; %v", seed, took, calm, dead)
		}
	}
	t.Logf("%d of %d fetches were disturbed although no connection was slow", moved, seeds)
	if moved > seeds/50 {
		t.Errorf("%d of %d fetches were disturbed although no connection was slow", moved, seeds)
	}
}

// TestPiece checks that pieces bring everything, are runs, and end together.
func TestPiece(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var missing []int
		for i := range 100 {
			if rng.IntN(10) > 0 {
				missing = append(missing, i)
			}
		}
		requests, most := 1+rng.IntN(3), 1+rng.IntN(9)
		for left := missing; len(left) > 0; {
			p := flow.Piece(left, requests, most)
			if len(p) == 0 || len(p) > most || p[len(p)-1]-p[0] != len(p)-1 {
				t.Fatalf("of %v with %d requests: %v", left, requests, p)
			}
			if len(p) > 2 && len(p) > len(left)/requests+1 {
				t.Fatalf("of %d parts one of %d requests brings %d", len(left), requests, len(p))
			}
			left = left[len(p):]
		}
	}
}
