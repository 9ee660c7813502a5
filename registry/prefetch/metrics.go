package prefetch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/internal/policy"
)

// Stats say how useful prefetching was since the start.
type Stats struct {
	// Planned counts the layers that were to be fetched ahead, and Started counts the
	// fetches that began. The other layers were Held by the cache already, Overtaken by
	// the request that they were meant for, Cancelled because no client came for them, or
	// Refused because too many were waiting. Some of the started fetches were Cancelled
	// or have Failed.
	Planned   int64 `json:"planned"`
	Started   int64 `json:"started"`
	Held      int64 `json:"held"`
	Overtaken int64 `json:"overtaken"`
	Cancelled int64 `json:"cancelled"`
	Refused   int64 `json:"refused"`
	Failed    int64 `json:"failed"`
	// Fetched counts the layers that were fetched ahead, and Bytes is their size. Used
	// counts the layers that were requested, even before they were there, and UsedBytes
	// is their size. WastedBytes is the size of the layers that nobody requested in time.
	Fetched     int64 `json:"fetched"`
	Used        int64 `json:"used"`
	UsedBytes   int64 `json:"used_bytes"`
	Bytes       int64 `json:"bytes"`
	WastedBytes int64 `json:"wasted_bytes"`
	// Requests counts the requests of clients for blobs. Hits counts the requests for
	// layers that were fetched ahead.
	Requests int64 `json:"requests"`
	Hits     int64 `json:"hits"`
	// Saved is the total time by which layers were ahead of their first request.
	Saved time.Duration `json:"saved_ns"`
	// Decisions are the statistics of the manifest prefetcher's decisions.
	Decisions policy.ManifestsStats `json:"decisions"`
}

// Precision returns the share of the started fetches whose layer was requested.
func (s Stats) Precision() float64 { return share(s.Used, s.Started) }

// Recall returns the share of the requests for blobs that were for a layer fetched ahead.
func (s Stats) Recall() float64 { return share(s.Hits, s.Requests) }

func share(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// Stats returns the counts.
func (p *Prefetcher) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	if p.m != nil {
		s.Decisions = p.m.Stats()
	}
	return s
}

// Metrics returns the prefetcher's Prometheus collectors.
func (p *Prefetcher) Metrics() []prometheus.Collector {
	var list []prometheus.Collector
	counter := func(name, help string, labels prometheus.Labels, of func(Stats) float64) {
		list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "slipway_prefetch_" + name, Help: help, ConstLabels: labels},
			func() float64 { return of(p.Stats()) }))
	}
	count := func(name, help string, of func(Stats) int64) {
		counter(name, help, nil, func(s Stats) float64 { return float64(of(s)) })
	}
	count("planned_total", "Layers that were to be fetched ahead.", func(s Stats) int64 { return s.Planned })
	for outcome, of := range map[string]func(Stats) int64{
		"fetched": func(s Stats) int64 { return s.Fetched }, "held": func(s Stats) int64 { return s.Held },
		"overtaken": func(s Stats) int64 { return s.Overtaken }, "cancelled": func(s Stats) int64 { return s.Cancelled },
		"refused": func(s Stats) int64 { return s.Refused }, "failed": func(s Stats) int64 { return s.Failed },
	} {
		counter("layers_total", "What became of layers that were to be fetched ahead: fetched; held, in the cache already; overtaken by a request; cancelled, as nobody came for them; refused, as too many wait; failed.",
			prometheus.Labels{"outcome": outcome}, func(s Stats) float64 { return float64(of(s)) })
	}
	count("requests_total", "Requests of clients for blobs that may lie in the cache.", func(s Stats) int64 { return s.Requests })
	count("hits_total", "Requests for layers that were fetched ahead, or being so.", func(s Stats) int64 { return s.Hits })
	count("used_total", "Layers fetched ahead that were asked for at least once.", func(s Stats) int64 { return s.Used })
	count("used_bytes_total", "Bytes fetched ahead that were asked for at least once.", func(s Stats) int64 { return s.UsedBytes })
	count("bytes_total", "Bytes fetched ahead.", func(s Stats) int64 { return s.Bytes })
	count("wasted_bytes_total", "Bytes fetched ahead that nobody asked for in time.", func(s Stats) int64 { return s.WastedBytes })
	counter("saved_seconds_total", "Time by which layers were ahead of their first request.", nil, func(s Stats) float64 { return s.Saved.Seconds() })
	gauge := func(name, help string, of func(Stats) float64) {
		list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slipway_prefetch_" + name, Help: help}, func() float64 { return of(p.Stats()) }))
	}
	gauge("precision_ratio", "Share of the layers fetched ahead since the start that were asked for.", Stats.Precision)
	gauge("recall_ratio", "Share of the requests for blobs since the start that were for a layer fetched ahead.", Stats.Recall)
	if p.m == nil {
		return list
	}
	count("known_total", "Manifests given to clients that had them before.", func(s Stats) int64 { return s.Decisions.Known })
	count("abandoned_total", "Manifests after which the client asked for no layer.", func(s Stats) int64 { return s.Decisions.Cancelled })
	count("over_budget_total", "Layers not fetched ahead because the budget was used up.", func(s Stats) int64 { return s.Decisions.OverBudget })
	count("resting_total", "Manifests of repositories that are left alone because little of what was fetched was used.", func(s Stats) int64 { return s.Decisions.Resting })
	return list
}
