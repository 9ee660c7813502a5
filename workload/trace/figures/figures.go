// Package figures describes the requests of a trace in numbers: how popular the contents
// are, and how requests follow each other.
package figures

import (
	"context"
	"math"
	"slices"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Figures describe the GETs of a zone in numbers. docs/trace.md has the definition of
// each. Shares are fractions of 1. Positions and distances count GETs.
type Figures struct {
	GETs      int64 `json:"gets"`
	Pings     int64 `json:"pings"`
	Manifests int64 `json:"manifests"`
	Blobs     int64 `json:"blobs"`
	Others    int64 `json:"others"`

	// These fields describe the popularity of blobs by digest and by URI, of manifests by
	// URI, of manifest references over all repositories, of repositories and of their
	// first segments.
	BlobDigests  Popularity `json:"blob_digests"`
	BlobURIs     Popularity `json:"blob_uris"`
	ManifestURIs Popularity `json:"manifest_uris"`
	ManifestRefs Popularity `json:"manifest_refs"`
	Repositories Popularity `json:"repositories"`
	Namespaces   Popularity `json:"namespaces"`

	// BlobsPerManifest is the number of blob GETs per manifest GET.
	BlobsPerManifest float64 `json:"blobs_per_manifest"`
	// Growth is how many different digests the first blob GETs request.
	Growth []Growth `json:"growth,omitempty"`
	// GrowthExponent is the slope between the first and the last point of Growth.
	GrowthExponent float64 `json:"growth_exponent"`
	// FirstTouches is the share of blob GETs whose digest was not requested before.
	FirstTouches float64 `json:"first_touches"`
	// FirstTouchesAfterManifest is the share of first touches before which a manifest of
	// the same repository was requested.
	FirstTouchesAfterManifest float64 `json:"first_touches_after_manifest"`
	// StackDistance is the distribution, over the other blob GETs, of the number of other
	// digests that were requested since the previous GET of the same digest.
	StackDistance Quantiles `json:"stack_distance"`
	// Followed says how blob GETs follow manifest GETs.
	Followed []Followed `json:"followed,omitempty"`
	// SinglePulls are repositories that look like they were pulled once.
	SinglePulls SinglePulls `json:"single_pulls"`
	// PingRun is the mean length of runs of pings. PingRunIndependent is what PingRun
	// would be if pings were distributed at random over the GETs.
	PingRun            float64 `json:"ping_run"`
	PingRunIndependent float64 `json:"ping_run_independent"`
}

// Popularity says how requests are spread over things.
type Popularity struct {
	Distinct int64 `json:"distinct"`
	Requests int64 `json:"requests"`
	// Top is the most requested thing, TopRequests the number of its requests.
	Top         string `json:"top"`
	TopRequests int64  `json:"top_requests"`
	// These are shares of the requests: for the first thing, the first ten, and the first
	// 1 % (rounded down, at least one).
	Rank1 float64 `json:"rank1"`
	Top10 float64 `json:"top10"`
	Top1  float64 `json:"top1_percent"`
	// Once is the share of the things that were requested once.
	Once float64 `json:"once"`
	// Slope is the exponent of Zipf's law: minus the slope of the least-squares line
	// through (log rank, log requests) of the first 3000 things.
	Slope float64 `json:"zipf_slope"`
}

// Growth is a point of a curve: distinct digests after some blob GETs.
type Growth struct {
	BlobGETs int64 `json:"blob_gets"`
	Distinct int64 `json:"distinct"`
}

// Quantiles are the quantiles of a distribution. Between two values they are
// interpolated.
type Quantiles struct {
	Count  int64   `json:"count"`
	Median float64 `json:"median"`
	P75    float64 `json:"p75"`
	P90    float64 `json:"p90"`
	P99    float64 `json:"p99"`
}

// Followed counts manifest GETs that have a blob GET of the same repository among the
// next GETs, and before the next manifest GET of that repository.
type Followed struct {
	Within int64 `json:"within"`
	// Share is the share of all manifest GETs.
	Share float64 `json:"share"`
	// Layers is the distribution of the number of blob GETs that follow each of these manifest
	// GETs.
	Layers Quantiles `json:"layers"`
	Mean   float64   `json:"mean"`
}

// SinglePulls are repositories with 4 to 20 blob GETs, all of different digests.
type SinglePulls struct {
	Repositories int64 `json:"repositories"`
	// Spread is the median number of GETs between the first and the last blob GET of such
	// a repository, Gap the median between one and the next.
	Spread int64 `json:"median_spread"`
	Gap    int64 `json:"median_gap"`
}

const (
	// zipfRanks is the number of ranks to which the line is fitted. Later ranks are
	// requested a few times each and would flatten it.
	zipfRanks = 3000
	// A repository with so many blob GETs may be a single pull.
	minPull, maxPull = 4, 20
)

// followWindows are the windows of Followed. growthPoints are the points of Growth.
var (
	followWindows = [...]int64{200, 1000, 5000}
	growthPoints  = [...]int64{10_000, 100_000}
)

// Of computes the figures of one zone between the query's times. Its memory grows with
// the GETs of blobs: about 12 bytes for each, and more for each that is different.
func Of(ctx context.Context, s *store.Store, q store.Query) (*Figures, error) {
	q.Columns = store.ColMethod | store.ColKind | store.ColRepo | store.ColNamespace | store.ColRef
	p := figurePass{blobURIs: map[uint64]int64{}, manifestURIs: map[uint64]int64{}, repos: map[store.Symbol]*repoState{}}
	err := s.Scan(ctx, q, func(b *store.Batch) error {
		for i, m := range b.Method {
			if m == store.GET {
				p.get(b.Kind[i], b.Repo[i], b.Namespace[i], b.Ref[i])
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p.figures(s), nil
}

// figurePass is what is counted in one pass.
type figurePass struct {
	f        Figures
	n        int64 // GETs so far
	lastPing bool
	pingRuns int64

	digests, manifestRefs, repoGETs, nsGETs counts
	blobURIs, manifestURIs                  map[uint64]int64
	sequence                                []store.Symbol // digests of the blob GETs
	repos                                   map[store.Symbol]*repoState
	distinct, afterManifest                 int64
	layers                                  [len(followWindows)][]int64
	gaps, spreads                           []int64
}

// counts are requests by symbol.
type counts []int64

func (c *counts) add(sym store.Symbol) int64 {
	if int(sym) >= len(*c) {
		*c = append(*c, make([]int64, int(sym)+1-len(*c))...)
	}
	(*c)[sym]++
	return (*c)[sym]
}

// repoState is what a pass keeps of each repository.
type repoState struct {
	manifest int64 // position of the last manifest GET, 0 for none
	after    [len(followWindows)]int64
	// pulls are the blob GETs of the repository, as long as it may be a single pull.
	pulls    []pullGET
	noSingle bool
}

type pullGET struct {
	position int64
	digest   store.Symbol
}

// get counts one GET.
func (p *figurePass) get(kind trace.Kind, repo, ns, ref store.Symbol) {
	p.n++
	if kind == trace.Ping {
		p.f.Pings++
		if !p.lastPing {
			p.pingRuns++
		}
		p.lastPing = true
		return
	}
	p.lastPing = false
	if kind != trace.Manifest && kind != trace.Blob {
		p.f.Others++
		return
	}
	p.repoGETs.add(repo)
	p.nsGETs.add(ns)
	st := p.repos[repo]
	if st == nil {
		st = &repoState{}
		p.repos[repo] = st
	}
	uri := uint64(repo)<<32 | uint64(ref)
	if kind == trace.Manifest {
		p.f.Manifests++
		p.manifestURIs[uri]++
		p.manifestRefs.add(ref)
		p.endFollow(st)
		st.manifest = p.n
		return
	}
	p.f.Blobs++
	p.blobURIs[uri]++
	p.sequence = append(p.sequence, ref)
	if p.digests.add(ref) == 1 {
		p.distinct++
		if st.manifest > 0 {
			p.afterManifest++
		}
	}
	if slices.Contains(growthPoints[:], p.f.Blobs) {
		p.f.Growth = append(p.f.Growth, Growth{p.f.Blobs, p.distinct})
	}
	for i, w := range followWindows {
		if st.manifest > 0 && p.n-st.manifest <= w {
			st.after[i]++
		}
	}
	st.pull(p.n, ref)
}

// pull notes a blob GET of a repository that may be a single pull.
func (st *repoState) pull(position int64, digest store.Symbol) {
	if st.noSingle {
		return
	}
	if len(st.pulls) == maxPull || slices.ContainsFunc(st.pulls, func(g pullGET) bool { return g.digest == digest }) {
		st.noSingle, st.pulls = true, nil
		return
	}
	st.pulls = append(st.pulls, pullGET{position, digest})
}

// endFollow counts what followed the last manifest GET of a repository.
func (p *figurePass) endFollow(st *repoState) {
	for i, n := range st.after {
		if n > 0 {
			p.layers[i] = append(p.layers[i], n)
		}
	}
	st.after = [len(followWindows)]int64{}
}

// figures makes the figures from what was counted.
func (p *figurePass) figures(s *store.Store) *Figures {
	f := &p.f
	f.GETs = p.n
	name := func(t store.Table) func(uint64) string {
		return func(sym uint64) string { return s.Name(t, store.Symbol(sym)) }
	}
	uri := func(kind trace.Kind) func(uint64) string {
		return func(u uint64) string {
			return trace.Target{Kind: kind, Repo: s.Name(store.Repos, store.Symbol(u>>32)), Ref: s.Name(store.Refs, store.Symbol(u))}.URI()
		}
	}
	f.BlobDigests = p.digests.popularity(name(store.Refs))
	f.ManifestRefs = p.manifestRefs.popularity(name(store.Refs))
	f.Repositories = p.repoGETs.popularity(name(store.Repos))
	f.Namespaces = p.nsGETs.popularity(name(store.Repos))
	f.BlobURIs = popularity(p.blobURIs, uri(trace.Blob))
	f.ManifestURIs = popularity(p.manifestURIs, uri(trace.Manifest))
	f.BlobsPerManifest = ratio(f.Blobs, f.Manifests)
	f.FirstTouches = ratio(p.distinct, f.Blobs)
	f.FirstTouchesAfterManifest = ratio(p.afterManifest, p.distinct)
	if n := len(f.Growth); n > 0 && f.Growth[n-1].BlobGETs < f.Blobs {
		f.Growth = append(f.Growth, Growth{f.Blobs, p.distinct})
	}
	if n := len(f.Growth); n > 1 {
		a, b := f.Growth[0], f.Growth[n-1]
		f.GrowthExponent = math.Log(float64(b.Distinct)/float64(a.Distinct)) / math.Log(float64(b.BlobGETs)/float64(a.BlobGETs))
	}
	f.StackDistance = quantiles(stackDistances(p.sequence, len(p.digests)))
	f.PingRun = ratio(f.Pings, p.pingRuns)
	if f.Pings < f.GETs {
		f.PingRunIndependent = float64(f.GETs) / float64(f.GETs-f.Pings)
	}
	for _, st := range p.repos {
		p.endFollow(st)
		p.single(st)
	}
	for i, w := range followWindows {
		v := Followed{Within: w, Share: ratio(int64(len(p.layers[i])), f.Manifests)}
		var sum int64
		for _, n := range p.layers[i] {
			sum += n
		}
		v.Mean = ratio(sum, int64(len(p.layers[i])))
		v.Layers = quantiles(p.layers[i])
		f.Followed = append(f.Followed, v)
	}
	f.SinglePulls.Spread, f.SinglePulls.Gap = median(p.spreads), median(p.gaps)
	return f
}

// single counts a repository that was pulled once.
func (p *figurePass) single(st *repoState) {
	n := len(st.pulls)
	if n < minPull {
		return
	}
	p.f.SinglePulls.Repositories++
	p.spreads = append(p.spreads, st.pulls[n-1].position-st.pulls[0].position)
	for i := 1; i < n; i++ {
		p.gaps = append(p.gaps, st.pulls[i].position-st.pulls[i-1].position)
	}
}
