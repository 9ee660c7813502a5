package replay

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/workload/replay/result"
)

// Metrics show Prometheus the progress of replays. One Metrics may serve several runs,
// one after another: counters continue, and gauges show the last run. Labels are the
// targets' names and the properties by which results group requests; they have no names
// of the trace.
//
// The samples in a result's files are exact and do not come from these metrics: if a replay
// ends between two scrapes, the metrics lack its last seconds.
type Metrics struct {
	requests     *prometheus.CounterVec   // target, phase, method, object, outcome
	bytes        *prometheus.CounterVec   // target, phase
	latency      *prometheus.HistogramVec // target
	service      *prometheus.HistogramVec // target
	lag          prometheus.Histogram
	done, total  prometheus.Gauge
	position     prometheus.Gauge
	length       prometheus.Gauge
	unwritten    prometheus.Gauge
	phase        *prometheus.GaugeVec
	collectors   []prometheus.Collector
	targetNames  []string
	currentPhase string
}

// NewMetrics returns metrics of replays that have not begun.
func NewMetrics() *Metrics {
	m := &Metrics{}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_replay_" + name, Help: help}, labels)
		m.collectors = append(m.collectors, c)
		return c
	}
	times := func(name, help string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "slipway_replay_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 18)}, []string{"target"}) // to 65 s
		m.collectors = append(m.collectors, h)
		return h
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "slipway_replay_" + name, Help: help})
		m.collectors = append(m.collectors, g)
		return g
	}
	m.requests = counters("requests_total", "Requests by what became of them.", "target", "phase", "method", "object", "outcome")
	m.bytes = counters("bytes_total", "Sizes of the bodies sent and received.", "target", "phase")
	m.latency = times("latency_seconds", "Time of the test's requests from when they were to be sent to the end of the answer.")
	m.service = times("service_seconds", "Time of the test's requests from when they were sent to the end of the answer.")
	m.lag = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "slipway_replay_lag_seconds",
		Help:    "By how much the generator itself was late.",
		Buckets: []float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 5}})
	m.collectors = append(m.collectors, m.lag)
	m.done = gauge("done", "Requests that were answered or given up, of the phase; at L2 steps of pulls and pushes.")
	m.total = gauge("planned", "Requests of the phase; 0 where that is not known.")
	m.position = gauge("position_seconds", "Time of the run up to which requests were sent.")
	m.length = gauge("length_seconds", "When in the run the last request is to be sent; 0 where that is not known.")
	m.unwritten = gauge("unwritten_samples", "Samples that could not be written to the result.")
	m.phase = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "slipway_replay_phase", Help: "1 for the phase that the replay is in."}, []string{"phase"})
	m.collectors = append(m.collectors, m.phase)
	return m
}

// Collectors returns the metrics' collectors.
func (m *Metrics) Collectors() []prometheus.Collector { return m.collectors }

// begin makes the series of a phase.
func (m *Metrics) begin(phase string, targets []Target) {
	m.currentPhase, m.targetNames = phase, m.targetNames[:0]
	for i := range targets {
		m.targetNames = append(m.targetNames, targets[i].Name)
		m.bytes.WithLabelValues(targets[i].Name, phase)
	}
	m.phase.Reset()
	m.phase.WithLabelValues(phase).Set(1)
}

// add counts samples of the phase. Sessions are not requests.
func (m *Metrics) add(samples []result.Sample) {
	for i := range samples {
		s := &samples[i]
		if s.IsSession() || int(s.Target) >= len(m.targetNames) {
			continue
		}
		target := m.targetNames[s.Target]
		m.requests.WithLabelValues(target, m.currentPhase, strings.ToLower(s.Method.String()), s.Object.String(), s.Outcome.String()).Inc()
		if !s.Executed() {
			continue
		}
		m.bytes.WithLabelValues(target, m.currentPhase).Add(float64(s.Bytes))
		if m.currentPhase != testPhase {
			continue // it has no times at which requests are to be sent
		}
		m.latency.WithLabelValues(target).Observe(inSeconds(s.Latency()))
		m.service.WithLabelValues(target).Observe(inSeconds(s.Service()))
		m.lag.Observe(inSeconds(s.Lag()))
	}
}

// status takes the status that the meter reports each second.
func (m *Metrics) status(s *Status) {
	m.done.Set(float64(s.Done))
	m.total.Set(float64(s.Total))
	m.position.Set(s.Position.Seconds())
	m.length.Set(s.Length.Seconds())
	m.unwritten.Set(float64(s.Unwritten))
}

// inSeconds turns a sample's microseconds into seconds, as Prometheus has them.
func inSeconds(micros int64) float64 {
	return (time.Duration(max(0, micros)) * time.Microsecond).Seconds()
}
