package load

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"example.org/slipway/internal/procstat"
	"example.org/slipway/workload/replay/result"
)

// Step is a period with a constant number of pullers.
type Step struct {
	Pullers int `json:"pullers"`
	// Down says that pullers are being removed.
	Down bool `json:"down,omitempty"`
	// Begin is when the step began, in seconds since the beginning of the run.
	Begin   float64 `json:"begin"`
	Seconds float64 `json:"seconds"`
	// Images is how many images were pulled as a whole and are right. Rate is the number
	// of images per second.
	Images int64   `json:"images"`
	Rate   float64 `json:"rate"`
	// Operations is how many operations of all kinds except pruning succeeded.
	// OperationsRate is their number per second.
	Operations     int64   `json:"operations"`
	OperationsRate float64 `json:"operations_rate"`
	Failed         int64   `json:"failed"`
	Requests       int64   `json:"requests"`
	Bytes          int64   `json:"bytes"`
	// Image is how long a whole image took, and Request how long a single request took,
	// in milliseconds.
	Image   result.Times `json:"image_ms"`
	Request result.Times `json:"request_ms"`
	// Kinds has the operations by name, if there are other operations than pulls.
	Kinds map[string]Kind `json:"kinds,omitempty"`
	// ClientCPU is the CPU time of the driver, in seconds. ClientShare is the share of
	// the driver in the processors that it may use. MachineShare is the share of all
	// processes on this machine.
	ClientCPU    float64 `json:"client_cpu_seconds"`
	ClientShare  float64 `json:"client_share"`
	MachineShare float64 `json:"machine_share"`
	// ServerCPU is the CPU time of the watched process, in seconds.
	ServerCPU float64 `json:"server_cpu_seconds,omitempty"`
}

// Kind describes the operations of one kind in a step.
type Kind struct {
	Done   int64        `json:"done"`
	Failed int64        `json:"failed"`
	Times  result.Times `json:"times_ms"`
}

// Tally is what was counted in a short period.
type Tally struct {
	// At is the end of the period, in seconds since the beginning of the run. Seconds is
	// the length of the period.
	At      float64 `json:"at"`
	Seconds float64 `json:"seconds"`
	Pullers int     `json:"pullers"`
	Images  int64   `json:"images"`
	Failed  int64   `json:"failed"`
	Bytes   int64   `json:"bytes"`
	// Rate is the number of images per second, or of operations if there are other
	// operations than pulls.
	Rate float64 `json:"rate"`
}

// stepper runs pullers in steps.
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

// hopeless is how many failures end a run, if the steps in which they occurred had no
// success.
const hopeless = 5

// errNothing ends a run in which nothing succeeds any more.
var errNothing = errors.New("nothing succeeds")

// run runs the steps. next returns the number of pullers of the next step, or 0 to end
// the run.
func (s *stepper) run(next func(done []Step) (pullers int, down bool)) (err error) {
	defer s.tick.Stop()
	for err == nil {
		n, down := next(s.steps)
		if n == 0 {
			break
		}
		err = s.step(n, down)
	}
	for _, p := range s.pullers { // stop them, also after an error
		p.stop.Store(true)
	}
	for _, p := range s.pullers {
		<-p.done
	}
	s.tally()
	for _, p := range s.pullers { // what ended after the last step counts only in the totals
		s.sum.merge(p.rec.take())
	}
	return err
}

// set starts or stops pullers until n are working. It stops the last ones first.
func (s *stepper) set(n int) {
	for i := n; i < s.active; i++ {
		s.pullers[i].stop.Store(true)
	}
	for i := s.active; i < n; i++ {
		p := s.r.newPuller(s.ctx, i)
		if i < len(s.pullers) { // stopped before: wait for it, so that its counts are not lost
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
	before, begin := procstat.Measure(s.r.o.PID), time.Now()
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

// wait makes tallies until the step ends.
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

// add appends a step to the steps.
func (s *stepper) add(c *counts, n int, down bool, begin time.Time, before procstat.Usage) {
	took := time.Since(begin)
	after := procstat.Measure(s.r.o.PID)
	done, failed := c.all()
	sec := max(took.Seconds(), 1e-9)
	st := Step{Pullers: n, Down: down, Begin: begin.Sub(s.begin).Seconds(), Seconds: took.Seconds(),
		Images: c.done(Pull), Rate: float64(c.done(Pull)) / sec, Operations: done, OperationsRate: float64(done) / sec, Failed: failed,
		Requests: c.requests.spread.Count, Bytes: c.bytes, Image: c.ops[Pull].times(), Request: c.requests.times(),
		ClientCPU: (after.Own - before.Own).Seconds(), ServerCPU: (after.Process - before.Process).Seconds()}
	st.ClientShare = st.ClientCPU / sec / float64(runtime.GOMAXPROCS(0))
	if all := after.All - before.All; all > 0 {
		st.MachineShare = float64(after.Busy-before.Busy) / float64(all)
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

// tally counts what was done since the last tally.
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
		s.peakRSS = max(s.peakRSS, procstat.ResidentBytes(s.r.o.PID))
	}
	s.show(y)
}

// show reports a tally to Options.Progress.
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

// faultList returns what went wrong, the most frequent first.
func faultList(c *counts) []FaultCount {
	return slices.SortedFunc(maps.Values(c.faults), func(a, b FaultCount) int {
		if a.Count != b.Count {
			return int(b.Count - a.Count)
		}
		return strings.Compare(a.Kind, b.Kind)
	})
}
