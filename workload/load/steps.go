package load

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"example.org/slipway/workload/replay/result"
)

// Step is a time with one number of pullers.
type Step struct {
	Pullers int `json:"pullers"`
	// Down tells that pullers are being taken away.
	Down bool `json:"down,omitempty"`
	// Begin counts from the begin of the run, in seconds.
	Begin   float64 `json:"begin"`
	Seconds float64 `json:"seconds"`
	// Images were pulled whole and are right; Rate is how many a second.
	Images int64   `json:"images"`
	Rate   float64 `json:"rate"`
	// Operations and OperationsRate are those of all kinds but pruning, which succeeded.
	Operations     int64   `json:"operations"`
	OperationsRate float64 `json:"operations_rate"`
	Failed         int64   `json:"failed"`
	Requests       int64   `json:"requests"`
	Bytes          int64   `json:"bytes"`
	// Image is how long a whole image took, Request a single one, in milliseconds.
	Image   result.Times `json:"image_ms"`
	Request result.Times `json:"request_ms"`
	// Kinds has the operations by name, where there are others than pulls.
	Kinds map[string]Kind `json:"kinds,omitempty"`
	// ClientCPU is the driver's own, in seconds, and ClientShare its share of the
	// processors that it may use. MachineShare is that of everybody on this machine.
	ClientCPU    float64 `json:"client_cpu_seconds"`
	ClientShare  float64 `json:"client_share"`
	MachineShare float64 `json:"machine_share"`
	// ServerCPU is that of the process that was watched, in seconds.
	ServerCPU float64 `json:"server_cpu_seconds,omitempty"`
}

// Kind is the operations of one kind in a step.
type Kind struct {
	Done   int64        `json:"done"`
	Failed int64        `json:"failed"`
	Times  result.Times `json:"times_ms"`
}

// Tally is what was counted in a short time.
type Tally struct {
	// At is the end of that time, in seconds since the begin of the run, Seconds its
	// length.
	At      float64 `json:"at"`
	Seconds float64 `json:"seconds"`
	Pullers int     `json:"pullers"`
	Images  int64   `json:"images"`
	Failed  int64   `json:"failed"`
	Bytes   int64   `json:"bytes"`
	// Rate is images a second, or operations where there are other kinds than pulls.
	Rate float64 `json:"rate"`
}

// stepper runs pullers, some at a time.
type stepper struct {
	r       *run
	ctx     context.Context // of the pullers, for the stepper's life
	pullers []*puller
	active  int
	begin   time.Time
	tick    *time.Ticker

	steps   []Step
	tallies []Tally
	counted totals // up to the last tally
	last    time.Time
	sum     counts
	peakRSS int64
	barren  int64 // failures since the last step in which something succeeded
}

func (r *run) newStepper(ctx context.Context) *stepper {
	now := time.Now()
	return &stepper{r: r, ctx: ctx, begin: now, last: now, tick: time.NewTicker(r.o.Tally)}
}

// hopeless is how many failures in whole steps without any success end a run.
const hopeless = 5

// errNothing ends a run in which nothing succeeds any more.
var errNothing = errors.New("nothing succeeds")

// run steps through numbers of pullers. next tells the next one, 0 to end.
func (s *stepper) run(next func(done []Step) (pullers int, down bool)) (err error) {
	defer s.tick.Stop()
	for err == nil {
		n, down := next(s.steps)
		if n == 0 {
			break
		}
		err = s.step(n, down)
	}
	for _, p := range s.pullers { // in case of an error
		p.stop.Store(true)
	}
	for _, p := range s.pullers {
		<-p.done
	}
	s.tally()
	for _, p := range s.pullers { // what ended after the last step is in no step, but in the totals
		s.sum.merge(p.rec.take())
	}
	return err
}

// set starts or stops pullers, the last ones first.
func (s *stepper) set(n int) {
	for i := n; i < s.active; i++ {
		s.pullers[i].stop.Store(true)
	}
	for i := s.active; i < n; i++ {
		p := s.r.newPuller(s.ctx, i)
		if i < len(s.pullers) { // it was stopped before: what it does not count any more must not be lost
			<-s.pullers[i].done
			p.rec = s.pullers[i].rec
			for _, l := range p.lanes {
				l.rec = p.rec
			}
			s.pullers[i] = p
		} else {
			s.pullers = append(s.pullers, p)
		}
		go p.run(s.ctx)
	}
	s.active = n
}

// step lets n pullers work for a while.
func (s *stepper) step(n int, down bool) error {
	before, begin := measureUsage(s.r.o.PID), time.Now()
	s.set(n)
	timer := time.NewTimer(s.r.o.Step)
	defer timer.Stop()
	err := s.wait(timer.C)
	c := &counts{}
	for _, p := range s.pullers {
		c.merge(p.rec.take())
	}
	s.sum.merge(c)
	s.add(c, n, down, begin, before)
	done, failed := c.all()
	if s.barren += failed; done > 0 {
		s.barren = 0
	}
	if err == nil && s.barren >= hopeless {
		return errNothing
	}
	return err
}

// wait tallies until the step ends.
func (s *stepper) wait(end <-chan time.Time) error {
	for {
		select {
		case <-end:
			return nil
		case <-s.tick.C:
			s.tally()
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

// add appends a step.
func (s *stepper) add(c *counts, n int, down bool, begin time.Time, before usage) {
	took := time.Since(begin)
	after := measureUsage(s.r.o.PID)
	done, failed := c.all()
	sec := max(took.Seconds(), 1e-9)
	st := Step{Pullers: n, Down: down, Begin: begin.Sub(s.begin).Seconds(), Seconds: took.Seconds(),
		Images: c.done(Pull), Rate: float64(c.done(Pull)) / sec, Operations: done, OperationsRate: float64(done) / sec, Failed: failed,
		Requests: c.requests.spread.Count, Bytes: c.bytes, Image: c.ops[Pull].times(), Request: c.requests.times(),
		ClientCPU: (after.own - before.own).Seconds(), ServerCPU: (after.server - before.server).Seconds()}
	st.ClientShare = st.ClientCPU / sec / float64(runtime.GOMAXPROCS(0))
	if all := after.all - before.all; all > 0 {
		st.MachineShare = float64(after.busy-before.busy) / float64(all)
	}
	for o := range ops {
		if o != Pull && c.done(o)+c.failed[o] > 0 || o == Pull && !s.r.o.Mix.PullsOnly() {
			if st.Kinds == nil {
				st.Kinds = map[string]Kind{}
			}
			st.Kinds[o.String()] = Kind{c.done(o), c.failed[o], c.ops[o].times()}
		}
	}
	s.steps = append(s.steps, st)
}

// tally counts what was done since the last time.
func (s *stepper) tally() {
	now := time.Now()
	var t totals
	for _, p := range s.pullers {
		n := p.rec.soFar()
		t.Done, t.Failed, t.Images = t.Done+n.Done, t.Failed+n.Failed, t.Images+n.Images
		t.Requests, t.Bytes = t.Requests+n.Requests, t.Bytes+n.Bytes
	}
	sec := now.Sub(s.last).Seconds()
	y := Tally{At: now.Sub(s.begin).Seconds(), Seconds: sec, Pullers: s.active, Images: t.Images - s.counted.Images,
		Failed: t.Failed - s.counted.Failed, Bytes: t.Bytes - s.counted.Bytes}
	y.Rate = float64(t.Done-s.counted.Done) / max(sec, 1e-9)
	s.tallies = append(s.tallies, y)
	s.counted, s.last = t, now
	if s.r.o.PID > 0 {
		s.peakRSS = max(s.peakRSS, residentBytes(s.r.o.PID))
	}
	s.show(y)
}

// show tells whoever watches.
func (s *stepper) show(y Tally) {
	if s.r.o.Progress == nil {
		return
	}
	c := &counts{}
	for _, p := range s.pullers {
		p.rec.peek(c)
	}
	s.r.o.Progress(Status{Phase: "running", Elapsed: time.Since(s.begin), Length: s.r.length(), Tally: y, Image: c.ops[Pull].times(),
		Failed: s.counted.Failed, Images: s.counted.Images, Tallies: s.tallies, Steps: s.steps})
}

// faultList sorts what went wrong, the most frequent first.
func faultList(c *counts) []FaultCount {
	return slices.SortedFunc(maps.Values(c.faults), func(a, b FaultCount) int {
		if a.Count != b.Count {
			return int(b.Count - a.Count)
		}
		return strings.Compare(a.Kind, b.Kind)
	})
}
