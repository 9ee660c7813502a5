package mirror

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/registry/mirror/fill"
	"example.org/slipway/registry/mirror/upstream"
)

// kind is the kind of content that a client asked for.
type kind int

const (
	kindManifest kind = iota
	kindBlob
	kindTags
	kindReferrers
	kinds
)

var kindNames = [kinds]string{"manifest", "blob", "tags", "referrers"}

// result is the outcome of a request.
type result int

const (
	// resultHit means that the request was answered without the upstream, or together
	// with another request that was already on its way there.
	resultHit result = iota
	// resultMiss means that the content was fetched.
	resultMiss
	// resultStale means that the request was answered from the store, because the
	// upstream failed.
	resultStale
	// resultNegative means that the upstream does not have the content: it said so now or
	// a short time ago.
	resultNegative
	// resultDenied means that the upstream or the rules refused the request.
	resultDenied
	// resultOffline means that the content is not here, and the upstream is not asked.
	resultOffline
	// resultError means that the upstream failed, and there was nothing to serve instead.
	resultError
	results
)

var resultNames = [results]string{"hit", "miss", "stale", "negative", "denied", "offline", "error"}

// counts are the counters of a source. The zero value is ready.
type counts struct {
	requests [kinds][results]atomic.Int64
	// pulled counts bytes from the upstream, pushed counts bytes to clients.
	pulled, pushed atomic.Int64
	resumed        atomic.Int64
}

func (c *counts) add(k kind, r result) { c.requests[k][r].Add(1) }

// fetched counts a request that needed the upstream. began says that this request, and
// not an earlier one, made us ask the upstream.
func (c *counts) fetched(k kind, began bool, err error) {
	switch kind := upstream.KindOf(err); {
	case err == nil && began:
		c.add(k, resultMiss)
	case err == nil:
		c.add(k, resultHit)
	case isRefusal(err) || kind == upstream.Denied:
		c.add(k, resultDenied)
	case kind == upstream.NotFound:
		c.add(k, resultNegative)
	default:
		c.add(k, resultError)
	}
}

// send counts the bytes of a part of a blob of size bytes.
func (c *counts) send(p fill.Span, size int64) {
	if off, end, err := p.In(size); err == nil {
		c.pushed.Add(end - off)
	}
}

// metrics holds the registry's collectors. It is a collector itself, because the counters
// of sources are read when they are collected.
type metrics struct {
	m        *Registry
	requests *prometheus.Desc
	bytes    *prometheus.Desc
	resumed  *prometheus.Desc
	fills    *prometheus.Desc
	memory   *prometheus.Desc
	fetch    *prometheus.HistogramVec
}

func newMetrics(m *Registry) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("registry_proxy_"+name, help, labels, nil)
	}
	return &metrics{
		m:        m,
		requests: desc("requests_total", "Requests for content of mirrored repositories.", "upstream", "type", "result"),
		bytes:    desc("bytes_total", "Bytes of mirrored content, pulled from the upstream and pushed to clients.", "upstream", "direction"),
		resumed:  desc("resumed_total", "Downloads of blobs that went on after they had broken off.", "upstream"),
		fills:    desc("fills", "Blobs that are being fetched."),
		memory:   desc("fill_memory_bytes", "Bytes of blobs in RAM that are being fetched or stored."),
		fetch: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "registry_proxy_fetch_seconds",
			Help: "Time it took to fetch something, or to ask whether it has changed.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}, []string{"upstream", "type"}),
	}
}

// Metrics returns the registry's Prometheus collectors. Those of the upstreams are not
// among them.
func (m *Registry) Metrics() []prometheus.Collector {
	return []prometheus.Collector{m.metrics, m.metrics.fetch}
}

// Describe implements prometheus.Collector.
func (c *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.requests, c.bytes, c.resumed, c.fills, c.memory} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *metrics) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, v *atomic.Int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v.Load()), labels...)
	}
	for name, s := range c.m.all() {
		for k := range kinds {
			for r := range results {
				count(c.requests, &s.counts.requests[k][r], name, kindNames[k], resultNames[r])
			}
		}
		count(c.bytes, &s.counts.pulled, name, "pulled")
		count(c.bytes, &s.counts.pushed, name, "pushed")
		count(c.resumed, &s.counts.resumed, name)
	}
	ch <- prometheus.MustNewConstMetric(c.fills, prometheus.GaugeValue, float64(c.m.fills.Count()))
	ch <- prometheus.MustNewConstMetric(c.memory, prometheus.GaugeValue, float64(c.m.fills.Memory()))
}

// forget drops the series of a source that no longer exists.
func (c *metrics) forget(name string) {
	c.fetch.DeletePartialMatch(prometheus.Labels{"upstream": name})
}

func (c *metrics) observe(s *source, k kind, took time.Duration) {
	c.fetch.WithLabelValues(s.Name, kindNames[k]).Observe(took.Seconds())
}
