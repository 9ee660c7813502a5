package simulate

import (
	"context"
	"fmt"
	"time"

	"example.org/slipway/internal/policy"
)

// These are the names of the prefetchers in PrefetchConfig.
const (
	Algorithm1 = "algorithm1"
	Manifest   = "manifest"
)

// Prefetchers returns the names of all prefetchers that can be simulated.
func Prefetchers() []string { return []string{Algorithm1, Manifest} }

// PrefetchConfig is a prefetcher to simulate.
type PrefetchConfig struct {
	Algorithm string `json:"algorithm"`
	// LM is how long a pushed layer counts as new, for Algorithm 1 only. ML is how long a
	// prefetched layer is kept.
	LM time.Duration `json:"lm_ns"`
	ML time.Duration `json:"ml_ns"`
	// Online restricts the manifest prefetcher's knowledge of a manifest's layers to
	// earlier requests. By default it knows what the whole trace shows, because a
	// registry has the manifest and reads its layers there.
	Online bool `json:"online"`
	// Manifests are further settings of the manifest prefetcher. Its Keep is ML.
	Manifests policy.ManifestsOptions `json:"-"`
}

// PrefetchResult is how a prefetcher would have performed.
type PrefetchResult struct {
	Config PrefetchConfig `json:"config"`

	// LayerGets counts all requests for layers. Hits counts the requests that a prefetch
	// served.
	LayerGets  int64 `json:"layer_gets"`
	Hits       int64 `json:"hits"`
	Prefetches int64 `json:"prefetches"`
	Used       int64 `json:"used"`
	Bytes      int64 `json:"bytes"`
	// Refreshes counts the decisions to prefetch a layer that is already kept.
	Refreshes int64 `json:"refreshes"`
	// HitsPerPrefetch divides the hits by the layers that were fetched.
	HitsPerPrefetch float64 `json:"hits_per_prefetch"`
	// HitsPerDecision is the ratio of FAST'18's Figure 18, as Algorithm 1 is printed: it
	// counts a prefetch whenever a new client asks for a manifest, even if the layer is
	// already kept.
	HitsPerDecision float64 `json:"hits_per_decision"`
	// Precision is the share of the prefetches with at least one hit, Recall the share of
	// the requests for layers that a prefetch served.
	Precision float64 `json:"precision"`
	Recall    float64 `json:"recall"`
	// WastedBytes are the sizes of prefetches without a hit, including prefetches that
	// were still kept at the end of the trace.
	WastedBytes int64 `json:"wasted_bytes"`
	// PeakBytes is the most that prefetched layers took at once.
	PeakBytes int64 `json:"peak_bytes"`

	// The next fields are set for the manifest prefetcher only: the requests served by
	// layers that were pinned since their push, the most bytes that these took, and its
	// own counts.
	PinnedHits      int64                 `json:"pinned_hits"`
	PinnedPeakBytes int64                 `json:"pinned_peak_bytes"`
	Stats           policy.ManifestsStats `json:"manifests"`
}

// Prefetch simulates prefetchers over the same requests and returns a result for each
// configuration, in their order.
func Prefetch(ctx context.Context, p *Pulls, configs []PrefetchConfig, o *RunOptions) ([]PrefetchResult, error) {
	if o == nil {
		o = &RunOptions{}
	}
	for _, c := range configs {
		if c.Algorithm != Algorithm1 && c.Algorithm != Manifest {
			return nil, fmt.Errorf("no prefetcher is called %q; there are %v", c.Algorithm, Prefetchers())
		}
		if c.ML <= 0 || c.Algorithm == Algorithm1 && c.LM <= 0 {
			return nil, fmt.Errorf("thresholds of a prefetcher are above 0")
		}
	}
	results := make([]PrefetchResult, len(configs))
	total := int64(p.Len()) * int64(len(configs))
	tick := ticker(ctx, total, o.Progress)
	err := parallel(o.Workers, len(configs), func(i int) error {
		var run prefetcher = newAlgorithm1Run(p, configs[i])
		if configs[i].Algorithm == Manifest {
			run = newManifestRun(p, configs[i])
		}
		for from := 0; from < p.Len(); from += tickEvery {
			to := min(p.Len(), from+tickEvery)
			for j := from; j < to; j++ {
				run.request(j)
			}
			if err := tick(to - from); err != nil {
				return err
			}
		}
		results[i] = run.result()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// prefetcher is the simulation of one configuration.
type prefetcher interface {
	request(i int)
	result() PrefetchResult
}

// account makes a result from what was prefetched.
func account(p *Pulls, c PrefetchConfig, s policy.PrefetchStats) PrefetchResult {
	return PrefetchResult{
		Config: c, LayerGets: p.layerGets, Hits: s.Hits, Prefetches: s.Prefetches, Used: s.Used, Bytes: s.Bytes,
		Refreshes: s.Refreshes, HitsPerPrefetch: ratio(s.Hits, s.Prefetches), HitsPerDecision: ratio(s.Hits, s.Prefetches+s.Refreshes), Precision: ratio(s.Used, s.Prefetches),
		Recall: ratio(s.Hits, p.layerGets), WastedBytes: s.WastedBytes, PeakBytes: s.Peak,
	}
}

// theEnd is later than any request. At that time all that is kept is dropped.
var theEnd = time.Unix(1<<40, 0)

type algorithm1Run struct {
	p *Pulls
	c PrefetchConfig
	a *policy.Algorithm1
}

func newAlgorithm1Run(p *Pulls, c PrefetchConfig) *algorithm1Run {
	return &algorithm1Run{p: p, c: c, a: policy.NewAlgorithm1(&policy.Algorithm1Options{LM: c.LM, ML: c.ML})}
}

func (r *algorithm1Run) request(i int) {
	p := r.p
	now := time.UnixMicro(p.time[i])
	repo, client := uint64(p.repo[i]), uint64(p.client[i])
	switch p.event[i] {
	case putLayer:
		r.a.PutLayer(now, repo, client, p.layerAt(i))
	case getManifest:
		r.a.GetManifest(now, repo, client)
	case getLayer:
		r.a.GetLayer(now, p.layerAt(i).Key)
	}
}

func (p *Pulls) layerAt(i int) policy.Layer {
	n := p.what[i]
	return policy.Layer{Key: policy.NumberKey(uint64(n) + 1), Size: p.size[n]}
}

func (r *algorithm1Run) result() PrefetchResult {
	r.a.Advance(theEnd)
	return account(r.p, r.c, r.a.Prefetched().Stats())
}

type manifestRun struct {
	p *Pulls
	c PrefetchConfig
	m *policy.Manifests
	// pins counts the manifests that pin each layer.
	pins                   map[policy.Key]int
	pinned, peak, pinnedBy int64
}

func newManifestRun(p *Pulls, c PrefetchConfig) *manifestRun {
	o := c.Manifests
	o.Keep = c.ML
	return &manifestRun{p: p, c: c, m: policy.NewManifests(&o), pins: map[policy.Key]int{}}
}

func (r *manifestRun) request(i int) {
	p := r.p
	now := time.UnixMicro(p.time[i])
	repo, client := uint64(p.repo[i]), uint64(p.client[i])
	known := int64(never)
	if r.c.Online {
		known = p.time[i]
	}
	switch p.event[i] {
	case putManifest:
		r.follow(r.m.PutManifest(now, manifestKey(p.what[i]), p.layers(p.what[i], known)))
	case getManifest:
		r.follow(r.m.GetManifest(now, repo, client, manifestKey(p.what[i]), p.layers(p.what[i], known),
			func(k policy.Key) bool { return r.pins[k] > 0 }))
	case getLayer:
		l := p.layerAt(i)
		hit, plan := r.m.GetLayer(now, client, l.Key)
		r.follow(plan)
		if !hit && r.pins[l.Key] > 0 {
			r.pinnedBy++
		}
	}
}

// manifestKey returns the key of a manifest. It differs from the key of any layer.
func manifestKey(n uint32) policy.Key { return policy.NumberKey(1<<63 | uint64(n)) }

// follow counts what is pinned.
func (r *manifestRun) follow(plan policy.Plan) {
	for _, l := range plan.Unpin {
		if r.pins[l.Key]--; r.pins[l.Key] <= 0 {
			delete(r.pins, l.Key)
			r.pinned -= l.Size
		}
	}
	for _, l := range plan.Pin {
		if r.pins[l.Key]++; r.pins[l.Key] == 1 {
			r.pinned += l.Size
		}
	}
	r.peak = max(r.peak, r.pinned)
}

func (r *manifestRun) result() PrefetchResult {
	r.m.Advance(theEnd)
	res := account(r.p, r.c, r.m.Prefetched().Stats())
	res.Stats = r.m.Stats()
	res.PinnedHits, res.PinnedPeakBytes = r.pinnedBy, r.peak
	return res
}
