package cluster

import "github.com/prometheus/client_golang/prometheus"

// metrics are the collectors of a cluster. Their label sets are closed.
type metrics struct {
	reads     struct{ own, peer prometheus.Counter }
	failed    map[string]prometheus.Counter // by the reason of a failure
	hedges    prometheus.Counter
	peerBytes prometheus.Counter
	firstByte prometheus.Histogram
	served    struct{ ok, busy, refused, failed prometheus.Counter }
	all       []prometheus.Collector
}

func (m *metrics) init(c *Cluster) {
	reads := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_cluster_reads_total",
		Help: "Reads of blobs that the cache did not hold, by where they went: peer, the blob's home, which delivered it whole; own, the object store, as this replica is the home or no other can be asked. Reads that a peer did not deliver are in slipway_cluster_fallbacks_total."}, []string{"from"})
	m.reads.own, m.reads.peer = reads.WithLabelValues("own"), reads.WithLabelValues("peer")
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_cluster_fallbacks_total",
		Help: "Reads that a peer did not deliver whole, by reason; they went on at the object store, but for those that the caller abandoned."}, []string{"reason"})
	m.failed = map[string]prometheus.Counter{}
	for _, f := range failures {
		m.failed[f.reason] = failed.WithLabelValues(f.reason)
	}
	m.hedges = prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_cluster_hedges_total",
		Help: "Reads from a peer that took so long to begin that the object store was asked too."})
	m.peerBytes = prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_cluster_peer_bytes_total",
		Help: "Bytes read from peers."})
	m.firstByte = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "slipway_cluster_peer_answer_seconds",
		Help: "How long peers took to begin their answers, or to deliver small blobs.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8)})
	served := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_cluster_served_total",
		Help: "Reads by peers, by result: ok, busy (refused for the moment), refused (not signed by a peer), failed."}, []string{"result"})
	m.served.ok, m.served.busy = served.WithLabelValues("ok"), served.WithLabelValues("busy")
	m.served.refused, m.served.failed = served.WithLabelValues("refused"), served.WithLabelValues("failed")
	members := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slipway_cluster_members",
		Help: "Replicas that are there, with this one."}, func() float64 { return float64(len(c.Members())) })
	m.all = []prometheus.Collector{reads, failed, m.hedges, m.peerBytes, m.firstByte, served, members}
}
