package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/registry/objstore"
)

// Actions, by their names in the metrics: Distribution's names if they mean the same.
const (
	actionGet     = "Reader"
	actionStat    = "Stat"
	actionPut     = "PutContent"
	actionDelete  = "Delete"
	actionList    = "Walk"
	actionMove    = "Move"
	actionAdopt   = "Adopt"
	actionURL     = "RedirectURL"
	actionUpload  = "Writer"
	actionResume  = "Resume"
	actionSuspend = "Suspend"
	actionCommit  = "Commit"
	actionCancel  = "Cancel"
	actionAbandon = "Abandon"
	actionSweep   = "Sweep"
	actionOpenAt  = "OpenAt"
	actionReadAt  = "ReadAt"
	actionWait    = "Wait" // for a place among the operations
)

// Kinds of errors.
const (
	kindMissing    = "missing"
	kindExists     = "exists"
	kindFull       = "full"
	kindTimeout    = "timeout"
	kindStalled    = "stalled"
	kindBusy       = "busy"
	kindConnection = "connection"
	kindCancelled  = "cancelled"
	kindOther      = "other"
)

// kind maps an error to one of the fixed values of a label.
func kind(err error) string {
	var busy *objstore.BusyError
	var netErr net.Error
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		return kindMissing
	case errors.Is(err, objstore.ErrExist):
		return kindExists
	case errors.Is(err, objstore.ErrNoSpace):
		return kindFull
	case errors.Is(err, errStalled):
		return kindStalled
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return kindTimeout
	case errors.Is(err, context.Canceled):
		return kindCancelled
	case errors.As(err, &netErr), errors.Is(err, io.ErrUnexpectedEOF):
		return kindConnection
	case errors.As(err, &busy):
		return kindBusy
	}
	return kindOther
}

// metrics are the collectors of one store.
type metrics struct {
	seconds *prometheus.HistogramVec // action
	bytes   *prometheus.CounterVec   // direction
	retries *prometheus.CounterVec   // action
	errors  *prometheus.CounterVec   // action, kind
	hedges  *prometheus.CounterVec   // result
	resumed prometheus.Counter
	inwork  prometheus.GaugeFunc
	budget  prometheus.GaugeFunc
	read    prometheus.Counter
	written prometheus.Counter
	hedged  prometheus.Counter
	won     prometheus.Counter
}

func newMetrics(driver string, retry *Retry, slots chan struct{}) metrics {
	label := prometheus.Labels{"driver": driver}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: label}, labels)
	}
	m := metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "registry_storage_action_seconds",
			Help:        "How long operations of the object store took, with their repetitions; of reads the time to the first byte.",
			ConstLabels: label, Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}}, []string{"action"}),
		bytes:   counters("registry_storage_bytes_total", "Bytes read from and written to the object store.", "direction"),
		retries: counters("registry_storage_retries_total", "Operations of the object store that were repeated.", "action"),
		errors:  counters("registry_storage_errors_total", "Operations of the object store that failed in the end.", "action", "kind"),
		hedges:  counters("registry_storage_hedges_total", "Reads that were sent a second time because the first byte was late, and those that the second won.", "result"),
		resumed: prometheus.NewCounter(prometheus.CounterOpts{Name: "registry_storage_resumed_reads_total",
			Help: "Reads that broke off and continued with a range.", ConstLabels: label}),
		inwork: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "registry_storage_inflight",
			Help: "Operations of the object store that are under way.", ConstLabels: label}, func() float64 { return float64(len(slots)) }),
		budget: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "registry_storage_retry_budget",
			Help: "How many repetitions the object store may have before it recovers.", ConstLabels: label}, retry.budget.left),
	}
	m.read, m.written = m.bytes.WithLabelValues("read"), m.bytes.WithLabelValues("written")
	m.hedged, m.won = m.hedges.WithLabelValues("sent"), m.hedges.WithLabelValues("won")
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.seconds, m.bytes, m.retries, m.errors, m.hedges, m.resumed, m.inwork, m.budget}
}

// done counts an operation that has ended.
func (m *metrics) done(action string, begin time.Time, err error) {
	m.seconds.WithLabelValues(action).Observe(time.Since(begin).Seconds())
	if err != nil {
		m.failed(action, kind(err))
	}
}

func (m *metrics) failed(action, kind string) { m.errors.WithLabelValues(action, kind).Inc() }

// retried counts repetitions of an action.
func (m *metrics) retried(action string) func() {
	return func() { m.retries.WithLabelValues(action).Inc() }
}

func (m *metrics) got(n int)  { m.read.Add(float64(n)) }
func (m *metrics) sent(n int) { m.written.Add(float64(n)) }
