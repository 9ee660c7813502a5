package replay

import (
	"sync"
	"time"

	"example.org/slipway/workload/replay/result"
)

// These are the phases, as a [Status] names them.
const (
	warmUpPhase = "warm-up"
	testPhase   = "replay"
)

// Status is the progress of a replay. Figures are of the last second unless they say
// otherwise.
type Status struct {
	// Phase is "warm-up" or "replay".
	Phase string
	// Done of Total are done. They count requests of the trace, or contents that are put
	// in place; at L2 they count steps of pulls and pushes. Total is 0 if it is not
	// known.
	Done, Total int64
	Rate        float64 // requests per second
	BytesPerSec float64
	P50, P99    time.Duration // from the intended sending
	Lag         time.Duration // the largest lag of the generator
	// Errors and Unsent count over the whole run.
	Errors, Unsent int64
	Elapsed        time.Duration
	// Position is the run's time up to which requests were sent. Length is when the
	// last is to be sent, 0 if that is not known.
	Position, Length time.Duration
	// Unwritten is how many samples are in no file; Problem says why.
	Unwritten int64
	Problem   error
}

// meter takes samples from the workers, counts and writes them, and reports the progress.
type meter struct {
	phase  string
	status func(Status)
	// metrics may be nil. Only run's goroutine uses them.
	metrics *Metrics
	agg     *result.Aggregate
	rec     *result.Recorder // nil while nothing is written
	every   time.Duration    // between checkpoints
	total   int64
	length  time.Duration

	in   chan []result.Sample
	over chan struct{} // closed when nobody takes any more
}

// meterQueue is how many batches of samples may wait to be written; workers wait
// beyond.
const meterQueue = 256

func newMeter(phase string, o *Options, agg *result.Aggregate) *meter {
	status := o.Status
	if status == nil {
		status = func(Status) {}
	}
	if o.Metrics != nil {
		o.Metrics.begin(phase, o.Targets)
	}
	return &meter{phase: phase, status: status, metrics: o.Metrics, agg: agg, in: make(chan []result.Sample, meterQueue), over: make(chan struct{})}
}

// put takes samples. It drops the samples of a run that was ended early.
func (m *meter) put(s []result.Sample) {
	select {
	case m.in <- s:
	case <-m.over:
	}
}

// run counts until the function that it returns is called.
func (m *meter) run() (finish func()) {
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		v := &view{begin: time.Now(), last: time.Now()}
		saved := time.Now()
		for {
			select {
			case s := <-m.in:
				m.take(v, s)
			case <-tick.C:
				m.tell(v)
				if m.rec != nil && time.Since(saved) >= m.every {
					m.rec.Checkpoint()
					saved = time.Now()
				}
			case <-m.over:
				for {
					select {
					case s := <-m.in:
						m.take(v, s)
						continue
					default:
					}
					m.tell(v)
					return
				}
			}
		}
	})
	return func() { close(m.over); done.Wait() }
}

func (m *meter) tell(v *view) {
	s := v.status(m)
	if m.metrics != nil {
		m.metrics.status(&s)
	}
	m.status(s)
}

func (m *meter) take(v *view, samples []result.Sample) {
	for i := range samples {
		v.add(&samples[i])
	}
	if m.metrics != nil {
		m.metrics.add(samples)
	}
	if m.rec != nil {
		m.rec.Add(samples)
		return
	}
	for i := range samples {
		_ = m.agg.Add(&samples[i]) // an aggregate without a series returns no error
	}
}

// view is what a status is made of.
type view struct {
	begin, last time.Time
	steps       int64
	n, bytes    int64
	lag         int64
	position    int64
	latency     result.Spread
}

func (v *view) add(s *result.Sample) {
	if s.Step >= 0 && s.Part == 0 {
		v.steps++
	}
	v.position = max(v.position, s.Intended)
	if s.IsSession() || !s.Executed() {
		return
	}
	v.n++
	v.bytes += s.Bytes
	v.lag = max(v.lag, s.Lag())
	v.latency.Add(s.Latency())
}

func (v *view) status(m *meter) Status {
	now := time.Now()
	seconds := max(1e-3, now.Sub(v.last).Seconds())
	micros := func(f float64) time.Duration { return time.Duration(f * 1e3) }
	s := Status{Phase: m.phase, Done: v.steps, Total: m.total, Length: m.length, Rate: float64(v.n) / seconds, BytesPerSec: float64(v.bytes) / seconds,
		P50: micros(v.latency.Quantile(0.5)), P99: micros(v.latency.Quantile(0.99)), Lag: micros(float64(v.lag)),
		Errors: m.agg.Errors(), Unsent: m.agg.Outcomes[result.Dropped] + m.agg.Outcomes[result.Lost] + m.agg.Outcomes[result.Failed],
		Elapsed: now.Sub(v.begin), Position: micros(float64(v.position))}
	if m.rec != nil {
		s.Unwritten, s.Problem = m.rec.Unwritten, m.rec.Err
	}
	v.last, v.n, v.bytes, v.lag, v.latency = now, 0, 0, 0, result.Spread{}
	return s
}
