package service

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
)

// Status is the state of the Gear side.
type Status struct {
	// Layers is the number of layers that have an index. Files is the number of distinct
	// files in them, and StoredBytes their stored size. Packs is the number of packs, and
	// PackBytes their size.
	Layers      int64 `json:"layers"`
	Files       int64 `json:"files"`
	StoredBytes int64 `json:"stored_bytes"`
	Packs       int64 `json:"packs"`
	PackBytes   int64 `json:"pack_bytes"`
	// Waiting and Failed count the conversions that wait and have failed.
	Waiting int64 `json:"waiting"`
	Failed  int64 `json:"failed"`
	// Active has the layers being converted, the longest-running first.
	Active []Active `json:"active"`
	// Failures has some of the failed conversions.
	Failures []Failure `json:"failures"`
}

// Active is a layer being converted.
type Active struct {
	Layer oci.Digest `json:"layer"`
	// Bytes is how many of the Size bytes of the layer have been read.
	Bytes int64         `json:"bytes"`
	Size  int64         `json:"size"`
	Took  time.Duration `json:"took"`
}

// Failure is a failed conversion.
type Failure struct {
	Layer    oci.Digest `json:"layer"`
	Attempts int        `json:"attempts"`
	Reason   string     `json:"reason"`
	// Retry is when it is tried again. If it is zero, that happens only when somebody
	// requests the layer.
	Retry time.Time `json:"retry,omitzero"`
}

// maxFailures is how many failures a status lists.
const maxFailures = 100

// Status returns the current state.
func (s *Service) Status(ctx context.Context) (Status, error) {
	var st Status
	n, err := s.contents.Counts(ctx)
	if err != nil {
		return st, err
	}
	st.Layers, st.Files, st.StoredBytes, st.Packs, st.PackBytes = n.Layers, n.LiveFiles, n.LiveBytes, n.Packs, n.PackBytes
	if st.Waiting, st.Failed, err = s.facts.QueueCounts(ctx); err != nil {
		return st, err
	}
	failed, err := s.facts.Failed(ctx, "", maxFailures)
	if err != nil {
		return st, err
	}
	st.Failures = make([]Failure, len(failed))
	for i, j := range failed {
		st.Failures[i] = Failure{Layer: j.Digest, Attempts: j.Attempts, Reason: j.Failure}
		if !s.final(j) {
			st.Failures[i].Retry = j.Due
		}
	}
	st.Active = s.activeNow()
	return st, nil
}

func (s *Service) activeNow() []Active {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Active, 0, len(s.active))
	for d, c := range s.active {
		c.mu.Lock()
		out = append(out, Active{d, c.bytes, c.size, s.opts.Clock().Sub(c.since)})
		c.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Active) int { return cmp.Or(cmp.Compare(b.Took, a.Took), cmp.Compare(a.Layer, b.Layer)) })
	return out
}

// QueueAll queues all layers of images that have no index, and if again is set, also the
// layers whose conversion has failed. It returns how many there are.
func (s *Service) QueueAll(ctx context.Context, again bool) (n int, err error) {
	for after := int64(0); ; {
		rows, err := repair.New(s.cat.DB).ManifestRows(ctx, after, 256)
		if err != nil || len(rows) == 0 {
			return n, err
		}
		for _, m := range rows {
			after = m.ID
			queued, err := s.queueManifest(ctx, m, again)
			if err != nil {
				return n, err
			}
			n += queued
		}
	}
}

// queueManifest queues the layers of a manifest.
func (s *Service) queueManifest(ctx context.Context, row repair.ManifestRow, again bool) (n int, err error) {
	m, err := s.cat.Manifest(ctx, row.Repo, row.Digest)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
		return 0, nil // deleted meanwhile
	}
	if err != nil {
		return 0, err
	}
	layers, err := s.here(ctx, row.Repo, layersIn(m.Content)) // a mirrored image may lack some of its layers
	if err != nil {
		return 0, err
	}
	for _, d := range layers {
		if _, err := s.facts.Layer(ctx, d); !errors.Is(err, catalog.ErrNotFound) {
			if err != nil {
				return n, err
			}
			continue
		}
		job, err := s.facts.Job(ctx, d)
		switch {
		case errors.Is(err, catalog.ErrNotFound):
			err = s.Queue(ctx, row.Repo, []oci.Digest{d})
			n++
		case err == nil && job.Attempts > 0 && again:
			err = s.facts.Requeue(ctx, d)
			s.wake()
			n++
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// metrics has the service's Prometheus collectors.
type metrics struct {
	converted, failed   prometheus.Counter
	readBytes, newBytes prometheus.Counter
	settled             prometheus.Counter
	took                prometheus.Histogram
	active              prometheus.GaugeFunc
}

func (m *metrics) init(s *Service) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "slipway", Subsystem: "gear", Name: name, Help: help})
	}
	m.converted = counter("conversions_total", "Layers converted.")
	m.failed = counter("conversion_failures_total", "Attempts to convert a layer that failed.")
	m.readBytes = counter("converted_bytes_total", "Uncompressed bytes of the layers converted.")
	m.newBytes = counter("new_bytes_total", "Uncompressed bytes of the files that no layer held before.")
	m.settled = counter("settled_bytes_total", "Bytes of the packs that settling replaced.")
	m.took = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "slipway", Subsystem: "gear", Name: "conversion_seconds",
		Help: "Time of a conversion, from the layer's first byte to its index.", Buckets: prometheus.ExponentialBuckets(0.01, 4, 8)})
	m.active = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "slipway", Subsystem: "gear", Name: "conversions_active",
		Help: "Layers being converted."}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(len(s.active))
	})
}

// Metrics returns the service's Prometheus collectors.
func (s *Service) Metrics() []prometheus.Collector {
	m := &s.metrics
	return []prometheus.Collector{m.converted, m.failed, m.readBytes, m.newBytes, m.settled, m.took, m.active}
}
