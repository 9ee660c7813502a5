package notify

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// These are the values of the label "type". Distribution has the same, except for
// Dropped.
const (
	typeEvents    = "Events"    // queued for an endpoint, or dropped
	typeSuccesses = "Successes" // delivered
	typeFailures  = "Failures"  // deliveries answered with an error status
	typeErrors    = "Errors"    // deliveries that got no answer, queue errors
	typeDropped   = "Dropped"   // lost: queue of pulls full, refused permanently, unreadable
)

// metrics are the collectors. The label endpoint has the names of endpoints, of which
// administrators add at most maxWebhooks.
type metrics struct {
	events  *prometheus.CounterVec
	status  *prometheus.CounterVec
	pending prometheus.Collector
}

func newMetrics() *metrics {
	return &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "registry_notifications_events_total",
			Help: "The number of total events",
		}, []string{"type", "endpoint"}),
		status: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "registry_notifications_status_total",
			Help: "The number of status code",
		}, []string{"code", "endpoint"}),
	}
}

// forget removes what was counted for an endpoint that is gone.
func (m *metrics) forget(endpoint string) {
	for _, v := range []*prometheus.CounterVec{m.events, m.status} {
		v.DeletePartialMatch(prometheus.Labels{"endpoint": endpoint})
	}
}

// pending is a gauge for each endpoint. It asks the queues.
type pending struct {
	n    *Notifier
	desc *prometheus.Desc
}

func newPending(n *Notifier) pending {
	return pending{n, prometheus.NewDesc("registry_notifications_pending_total", "The gauge of pending events in queue", []string{"endpoint"}, nil)}
}

// Describe implements prometheus.Collector.
func (p pending) Describe(ch chan<- *prometheus.Desc) { ch <- p.desc }

// Collect implements prometheus.Collector.
func (p pending) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	counts := map[string]float64{}
	for _, ep := range p.n.current() {
		n, err := p.n.waiting(ctx, ep)
		if err != nil {
			counts[ep.cfg.Name] = math.NaN()
			continue
		}
		counts[ep.cfg.Name] += float64(n)
	}
	for name, n := range counts {
		ch <- prometheus.MustNewConstMetric(p.desc, prometheus.GaugeValue, n, name)
	}
}

func (m *metrics) event(kind, endpoint string) { m.events.WithLabelValues(kind, endpoint).Inc() }

func (m *metrics) answered(status int, endpoint string) {
	// The label is "200 OK", as in Distribution.
	m.status.WithLabelValues(strconv.Itoa(status)+" "+http.StatusText(status), endpoint).Inc()
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.events, m.status, m.pending}
}
