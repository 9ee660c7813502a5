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

// metrics are the collectors. The label endpoint only has names from the configuration.
type metrics struct {
	events *prometheus.CounterVec
	status *prometheus.CounterVec
	gauges []prometheus.Collector
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

// pending adds a gauge for each endpoint. The gauge asks the queues.
func (m *metrics) pending(n *Notifier) {
	for _, ep := range n.endpoints {
		m.gauges = append(m.gauges, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "registry_notifications_pending_total",
			Help:        "The gauge of pending events in queue",
			ConstLabels: prometheus.Labels{"endpoint": ep.cfg.Name},
		}, func() float64 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			durable, err := n.queue.Len(ctx, ep.cfg.Name)
			if err != nil {
				return math.NaN()
			}
			pulls, _ := n.pulls.Len(ctx, ep.cfg.Name) // RAM does not fail
			return float64(durable + pulls)
		}))
	}
}

func (m *metrics) event(kind, endpoint string) { m.events.WithLabelValues(kind, endpoint).Inc() }

func (m *metrics) answered(status int, endpoint string) {
	// The label is "200 OK", as in Distribution.
	m.status.WithLabelValues(strconv.Itoa(status)+" "+http.StatusText(status), endpoint).Inc()
}

func (m *metrics) all() []prometheus.Collector {
	return append([]prometheus.Collector{m.events, m.status}, m.gauges...)
}
