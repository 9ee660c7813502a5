package replication

import "github.com/prometheus/client_golang/prometheus"

// metrics are the collectors of all rules. The rules are few and configured, so their names
// are labels.
type metrics struct {
	runs, images                    *prometheus.CounterVec
	bytes                           *prometheus.CounterVec
	waiting, failing, lastSucceeded *prometheus.GaugeVec
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"rule"})
	}
	return &metrics{
		runs: counter("slipway_replication_runs_total",
			"Runs of a replication rule, which compare both sides, by result: ok or error.", "rule", "result"),
		images: counter("slipway_replication_images_total",
			"Images that a replication rule copied or deleted, or failed to, by result: copied, deleted or failed.", "rule", "result"),
		bytes: counter("slipway_replication_bytes_total",
			"Bytes of layers and configs that a replication rule copied.", "rule"),
		waiting: gauge("slipway_replication_waiting",
			"Pushes and deletions that wait until a replication rule has repeated them."),
		failing: gauge("slipway_replication_failing",
			"1 while the last work of a replication rule failed, otherwise 0."),
		lastSucceeded: gauge("slipway_replication_last_success_timestamp_seconds",
			"When a run of a replication rule last ended without a failure, as a Unix time; 0 if none has."),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.runs, m.images, m.bytes, m.waiting, m.failing, m.lastSucceeded}
}

// begin makes the series of a rule, so that they exist before anything happens.
func (m *metrics) begin(rule string) {
	for _, result := range []string{"ok", "error"} {
		m.runs.WithLabelValues(rule, result)
	}
	for _, result := range []string{"copied", "deleted", "failed"} {
		m.images.WithLabelValues(rule, result)
	}
	m.bytes.WithLabelValues(rule)
	for _, g := range []*prometheus.GaugeVec{m.waiting, m.failing, m.lastSucceeded} {
		g.WithLabelValues(rule)
	}
}

// forget removes the series of a rule that is gone.
func (m *metrics) forget(rule string) {
	gone := prometheus.Labels{"rule": rule}
	for _, v := range []*prometheus.CounterVec{m.runs, m.images, m.bytes} {
		v.DeletePartialMatch(gone)
	}
	for _, v := range []*prometheus.GaugeVec{m.waiting, m.failing, m.lastSucceeded} {
		v.DeletePartialMatch(gone)
	}
}

// counted adds what was done.
func (m *metrics) counted(rule string, c Counts) {
	m.images.WithLabelValues(rule, "copied").Add(float64(c.Images))
	m.images.WithLabelValues(rule, "deleted").Add(float64(c.Deleted))
	m.images.WithLabelValues(rule, "failed").Add(float64(c.Failed))
	m.bytes.WithLabelValues(rule).Add(float64(c.Bytes))
}

// show sets the gauges of a rule from its state.
func (m *metrics) show(rule string, st *state, waiting int) {
	m.waiting.WithLabelValues(rule).Set(float64(waiting))
	failing := 0.0
	if st.Failures > 0 {
		failing = 1
	}
	m.failing.WithLabelValues(rule).Set(failing)
	if !st.Succeeded.IsZero() {
		m.lastSucceeded.WithLabelValues(rule).Set(float64(st.Succeeded.Unix()))
	}
}
