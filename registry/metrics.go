package registry

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the registry's collectors. Their label sets are closed.
type metrics struct {
	gcRuns    *prometheus.CounterVec
	gcDeleted prometheus.Counter
	gcBytes   prometheus.Counter
	gcSeconds prometheus.Histogram
	gcLast    prometheus.Gauge
	all       []prometheus.Collector
}

// Results of garbage collections.
const (
	gcOK    = "ok"
	gcError = "error"
)

func (m *metrics) init(r *Registry) {
	m.gcRuns = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_registry_gc_runs_total",
		Help: "Garbage collections by result."}, []string{"result"})
	for _, result := range []string{gcOK, gcError} { // so that the first failure shows as an increase from 0
		m.gcRuns.WithLabelValues(result)
	}
	m.gcDeleted = prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_registry_gc_deleted_total",
		Help: "Contents deleted by garbage collection."})
	m.gcBytes = prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_registry_gc_deleted_bytes_total",
		Help: "Bytes of the contents deleted by garbage collection."})
	m.gcSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "slipway_registry_gc_duration_seconds",
		Help: "How long garbage collections took.", Buckets: prometheus.ExponentialBuckets(0.01, 4, 8)})
	m.gcLast = prometheus.NewGauge(prometheus.GaugeOpts{Name: "slipway_registry_gc_last_success_timestamp_seconds",
		Help: "When garbage was last collected without an error; 0 since the start: not yet."})
	m.all = []prometheus.Collector{m.gcRuns, m.gcDeleted, m.gcBytes, m.gcSeconds, m.gcLast}
	counter := func(name, help string, get func() int64) {
		m.all = append(m.all, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(get()) }))
	}
	gauge := func(name, help string, get func() int64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(get()) }))
	}
	counter("slipway_cache_ram_hits_total", "Look-ups answered from RAM.", func() int64 { return r.ram.Stats().Hits })
	counter("slipway_cache_ram_misses_total", "Look-ups not answered from RAM.", func() int64 { return r.ram.Stats().Misses })
	counter("slipway_cache_ram_evictions_total", "Values evicted from RAM.", func() int64 { return r.ram.Stats().Evictions })
	gauge("slipway_cache_ram_bytes", "Bytes held in RAM.", func() int64 { return r.ram.Stats().Bytes })
	gauge("slipway_registry_uploads_in_memory", "Uploads known in RAM.", r.uploads.Count)
}

func (m *metrics) collected(rep CollectReport, err error) {
	result := gcOK
	if err != nil {
		result = gcError
	} else {
		m.gcLast.SetToCurrentTime()
	}
	m.gcRuns.WithLabelValues(result).Inc()
	m.gcDeleted.Add(float64(rep.Contents))
	m.gcBytes.Add(float64(rep.Bytes))
	m.gcSeconds.Observe(rep.Took.Seconds())
}

func (m *metrics) collectors() []prometheus.Collector { return m.all }
