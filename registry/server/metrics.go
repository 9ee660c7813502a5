package server

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/server/counts"
)

// metrics are Distribution's metrics, so that dashboards made for it keep working. The
// children of the vectors are looked up once per combination and then cached, because
// looking them up by label costs more than serving a small blob from RAM.
type metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	sent      *prometheus.CounterVec
	received  *prometheus.CounterVec
	inFlight  prometheus.Gauge
	served    atomic.Int64
	redirects redirects
	pulls     *counts.Pulls
	errors    counts.Errors
	errorVec  *prometheus.CounterVec

	mu    sync.RWMutex
	cells map[cellKey]*cell
}

type cellKey struct {
	kind   oci.Kind
	ext    extEndpoint
	method uint8
	status int
}

type cell struct {
	requests       prometheus.Counter
	duration       prometheus.Observer
	sent, received prometheus.Counter
}

func newMetrics() *metrics {
	errorCounts, errorVec := counts.NewErrors()
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "registry_http_requests_total",
			Help: "HTTP requests by endpoint, method and status."}, []string{"code", "handler", "method"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "registry_http_request_duration_seconds",
			Help: "How long HTTP requests took.", Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}},
			[]string{"handler", "method"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "registry_http_response_bytes_total",
			Help: "Body bytes sent."}, []string{"handler"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "registry_http_request_bytes_total",
			Help: "Body bytes received."}, []string{"handler"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "registry_http_in_flight_requests",
			Help: "HTTP requests being served."}),
		cells:     map[cellKey]*cell{},
		redirects: newRedirects(),
		pulls:     counts.NewPulls(),
		errors:    errorCounts,
		errorVec:  errorVec,
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.duration, m.sent, m.received, m.inFlight, m.pulls.Count, m.errorVec}
}

func (m *metrics) observe(kind oci.Kind, ext extEndpoint, method string, status int, took time.Duration, received, sent int64) {
	m.served.Add(1)
	c := m.cell(cellKey{kind, ext, uint8(methodIndex(method)), status})
	c.requests.Inc()
	c.duration.Observe(took.Seconds())
	if sent > 0 {
		c.sent.Add(float64(sent))
	}
	if received > 0 {
		c.received.Add(float64(received))
	}
}

func (m *metrics) cell(k cellKey) *cell {
	m.mu.RLock()
	c := m.cells[k]
	m.mu.RUnlock()
	if c != nil {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	method := "other" // a client may send any word, and the label set must stay closed
	if int(k.method) < len(methods) {
		method = strings.ToLower(methods[k.method])
	}
	handler := k.kind.String()
	if k.kind == oci.KindExtension {
		handler = k.ext.String()
	}
	c = &cell{
		requests: m.requests.WithLabelValues(strconv.Itoa(k.status), handler, method),
		duration: m.duration.WithLabelValues(handler, method),
		sent:     m.sent.WithLabelValues(handler),
		received: m.received.WithLabelValues(handler),
	}
	m.cells[k] = c
	return c
}
