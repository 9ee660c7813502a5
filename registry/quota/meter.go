package quota

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// meterEvery is the shortest time between two counts of a meter.
const meterEvery = 15 * time.Second

// Namespace is a set of repositories whose contents are counted for metrics.
type Namespace struct {
	// Repositories are the patterns, for the label, and Match is their meaning.
	Repositories []string
	Match        func(repo string) bool
}

// Meter counts what namespaces hold. A nil Meter counts nothing.
type Meter struct {
	namespaces  []Namespace
	source      Source
	log         *slog.Logger
	bytes, tags *prometheus.GaugeVec
}

// NewMeter returns a meter, or nil if there are no namespaces.
func NewMeter(namespaces []Namespace, source Source, log *slog.Logger) *Meter {
	if len(namespaces) == 0 {
		return nil
	}
	return &Meter{namespaces: namespaces, source: source, log: log,
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "slipway_stored_bytes",
			Help: "What the repositories of a namespace hold, each content once, by the last count."}, []string{"namespace"}),
		tags: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "slipway_stored_tags",
			Help: "Tags of the repositories of a namespace, by the last count."}, []string{"namespace"})}
}

// Metrics returns the collectors.
func (m *Meter) Metrics() []prometheus.Collector {
	if m == nil {
		return nil
	}
	return []prometheus.Collector{m.bytes, m.tags}
}

// Run counts until ctx ends. It rests much longer than a count takes.
func (m *Meter) Run(ctx context.Context) {
	if m == nil {
		return
	}
	for {
		began := time.Now()
		if err := m.count(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("what is stored cannot be counted for metrics", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(meterEvery, countShare*time.Since(began))):
		}
	}
}

func (m *Meter) count(ctx context.Context) error {
	found, err := m.source.Usage(ctx, len(m.namespaces), func(repo string) (list []int) {
		for i := range m.namespaces {
			if m.namespaces[i].Match(repo) {
				list = append(list, i)
			}
		}
		return list
	})
	if err != nil {
		return err
	}
	for i, u := range found {
		name := strings.Join(m.namespaces[i].Repositories, " ")
		m.bytes.WithLabelValues(name).Set(float64(u.Bytes))
		m.tags.WithLabelValues(name).Set(float64(u.Tags))
	}
	return nil
}
