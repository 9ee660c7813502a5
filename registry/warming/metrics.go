package warming

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci/warm"
)

// scrapeWithin bounds how long a scrape waits for the catalogue.
const scrapeWithin = 5 * time.Second

// collector exports the state of orders on each scrape.
type collector struct {
	s             *Service
	orders, nodes *prometheus.Desc
}

// Metrics returns the Prometheus collectors of the orders.
func (s *Service) Metrics() []prometheus.Collector {
	return []prometheus.Collector{&collector{s,
		prometheus.NewDesc("slipway_warming_orders", "Orders that nodes have images, by state; ended ones for a day.", []string{"state"}, nil),
		prometheus.NewDesc("slipway_warming_nodes", "Nodes that asked this server for orders in the last five minutes.", nil, nil)}}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.orders
	ch <- c.nodes
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeWithin)
	defer cancel()
	if list, err := c.s.List(ctx); err == nil {
		counts := map[warm.State]int{}
		for i := range list {
			counts[list[i].State]++
		}
		for _, state := range []warm.State{warm.Waiting, warm.Running, warm.Done, warm.Failed, warm.Cancelled, warm.Expired} {
			ch <- prometheus.MustNewConstMetric(c.orders, prometheus.GaugeValue, float64(counts[state]), string(state))
		}
	}
	ch <- prometheus.MustNewConstMetric(c.nodes, prometheus.GaugeValue, float64(c.s.asking()))
}

// asking counts the nodes that asked lately.
func (s *Service) asking() (n int) {
	now := s.o.Clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, node := range s.nodes {
		if now.Sub(node.asked) <= lifetime {
			n++
		}
	}
	return n
}
