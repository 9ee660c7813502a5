package analyze

import (
	"fmt"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// figure6 makes Figures 6a, "Layer size distribution", and 6b, "Manifest size
// distribution", of FAST'18. The paper's text speaks of GET and PUT, its caption of
// GET: GET is the default, PUT an option.
func figure6() Plugin {
	plot := Plot{Kind: PlotCDF, X: chart.Axis{Title: "size", Unit: chart.Bytes, Log: true}, Y: chart.Axis{Title: "share of at most this size", Unit: chart.Share, Full: true}}
	const inexact = "Quantiles above 255 bytes within 0.4 %; shares, means and the curves' points are exact."
	return Plugin{
		Figures: []Figure{
			{
				ID: "6a", Title: "Figure 6a: sizes of layers",
				Definition: "The distribution of the size over GETs of a layer with status 200 or 206 (by option: over PUTs of a layer with a status below 400). " +
					"MB is 10^6 bytes. Objects: the same over different layers, each with the size of its first such request; layers are the same by digest, " +
					"and a pushed layer whose digest the source does not tell is one by itself.",
				Error: inexact, Plot: plot,
			},
			{
				ID: "6b", Title: "Figure 6b: sizes of manifests",
				Definition: "The distribution of the size over GETs (by option: PUTs) of a manifest with a status below 400. kB is 10^3 bytes. " +
					"Objects: the same over different manifests, each with the size of its first such request; manifests are the same by repository and tag or digest.",
				Error: inexact, Plot: plot,
			},
		},
		New: func(_ store.Zone, o *Options) Analysis {
			s := &sizes{method: o.SizesOf, tags: map[uint64]struct{}{}}
			s.layers.limits = newLimits(1e6, 10e6)
			s.layers.objects = newLimits(1e6, 10e6)
			s.manifests.limits = newLimits(1e3+1, 10e3+1)
			s.manifests.objects = newLimits(1e3+1, 10e3+1)
			return s
		},
	}
}

// sizeOf is the distribution of the sizes of one kind of content.
type sizeOf struct {
	requests, perObject Hist
	limits, objects     limits
	unknown             int64
}

// add counts a size. It also counts the size for a new object if first returns true.
func (s *sizeOf) add(size int64, first func() bool) {
	if size < 0 {
		s.unknown++
		return
	}
	s.requests.Add(size)
	s.limits.add(size)
	if first() {
		s.perObject.Add(size)
		s.objects.add(size)
	}
}

type sizes struct {
	method            store.Method
	layers, manifests sizeOf
	digests           symbolSet
	tags              map[uint64]struct{}
}

func (s *sizes) Columns() store.Columns {
	return store.ColMethod | store.ColKind | store.ColStatus | store.ColSize | store.ColRepo | store.ColRef | store.ColDigest
}

func (s *sizes) Add(b *store.Batch) {
	for i, m := range b.Method {
		if m != s.method {
			continue
		}
		switch {
		case b.Kind[i] == trace.Manifest && succeeded(b.Status[i]):
			s.manifests.add(b.Size[i], func() bool {
				key := pair(b.Repo[i], b.Ref[i])
				_, seen := s.tags[key]
				s.tags[key] = struct{}{}
				return !seen
			})
		case layerGet(b, i) || layerPut(b, i):
			s.layers.add(b.Size[i], func() bool {
				return b.Digest[i] == store.None || s.digests.add(b.Digest[i])
			})
		}
	}
}

func (s *sizes) Result() []Result {
	layers := s.layers.result(s.method)
	for i, name := range []string{"below 1 MB", "below 10 MB"} {
		layers.share(name, s.layers.limits.below[i], s.layers.limits.n)
	}
	for i, name := range []string{"objects below 1 MB", "objects below 10 MB"} {
		layers.share(name, s.layers.objects.below[i], s.layers.objects.n)
	}
	manifests := s.manifests.result(s.method)
	above := func(name string, l *limits, i int) { manifests.share(name, l.n-l.below[i], l.n) }
	above("above 1 kB", &s.manifests.limits, 0)
	above("above 10 kB", &s.manifests.limits, 1)
	above("objects above 10 kB", &s.manifests.objects, 1)
	return []Result{layers, manifests}
}

func (s *sizeOf) result(m store.Method) Result {
	r := Result{Requests: s.requests.N()}
	r.unknown(s.unknown, "the size")
	if m != store.GET {
		r.note(fmt.Sprintf("Sizes of %s, not of GET.", m))
	}
	r.quantiles(&s.requests, Bytes, 1)
	r.count("objects", s.perObject.N())
	r.add("median of objects", Bytes, s.perObject.Quantile(0.5))
	r.add("mean of objects", Bytes, s.perObject.Mean())
	r.Series = []Series{{Name: "requests", Points: s.requests.CDF(1)}, {Name: "objects", Points: s.perObject.CDF(1)}}
	return r
}
