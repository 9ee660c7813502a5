package analyze

import (
	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// figure5 makes Figures 5a, "Distribution of GET requests", and 5b, "Distribution of
// PUT and HEAD requests", of FAST'18: manifests against layers.
func figure5() Plugin {
	plot := Plot{Kind: PlotStacked, X: chart.Axis{Title: "share of requests for layers and manifests", Unit: chart.Share, Full: true}}
	return Plugin{
		Figures: []Figure{
			{
				ID: "5a", Title: "Figure 5a: GET of layers and manifests",
				Definition: "Of the GETs of a layer (blob) or a manifest, whatever their status, the share of each. Pings and all else are left out, " +
					"and said beside as shares of all GETs.",
				Plot: plot,
			},
			{
				ID: "5b", Title: "Figure 5b: PUT and HEAD of layers and manifests",
				Definition: "Of the PUTs and HEADs of a layer (blob or upload) or a manifest, whatever their status, the share of each. Pings and all else are left out.",
				Plot:       plot,
			},
		},
		New: func(store.Zone, *Options) Analysis { return &kindMix{} },
	}
}

// kindCount counts requests by what they are for.
type kindCount struct{ layers, manifests, pings, all int64 }

func (k *kindCount) add(kind trace.Kind) {
	k.all++
	switch {
	case kind == trace.Ping:
		k.pings++
	case kind == trace.Manifest:
		k.manifests++
	case isLayer(kind):
		k.layers++
	}
}

type kindMix struct{ get, put, head kindCount }

func (k *kindMix) Columns() store.Columns { return store.ColMethod | store.ColKind }

func (k *kindMix) Add(b *store.Batch) {
	for i, m := range b.Method {
		switch m {
		case store.GET:
			k.get.add(b.Kind[i])
		case store.PUT:
			k.put.add(b.Kind[i])
		case store.HEAD:
			k.head.add(b.Kind[i])
		}
	}
}

// mix begins a result with the shares of layers and manifests.
func (k *kindCount) mix() Result {
	n := k.layers + k.manifests
	r := Result{Requests: n}
	r.share("layers", k.layers, n)
	r.share("manifests", k.manifests, n)
	if n > 0 {
		r.Series = []Series{{Name: "kinds", Points: []Point{
			{Label: "layers", Y: float64(k.layers) / float64(n)}, {Label: "manifests", Y: float64(k.manifests) / float64(n)}}}}
	}
	return r
}

func (k *kindMix) Result() []Result {
	get := k.get.mix()
	get.share("pings in all GETs", k.get.pings, k.get.all)
	get.share("layers in all GETs", k.get.layers, k.get.all)
	get.share("manifests in all GETs", k.get.manifests, k.get.all)
	if k.get.manifests > 0 {
		get.add("layers per manifest", Number, float64(k.get.layers)/float64(k.get.manifests))
	}
	both := kindCount{layers: k.put.layers + k.head.layers, manifests: k.put.manifests + k.head.manifests}
	put := both.mix()
	put.count("PUT of layers", k.put.layers)
	put.count("PUT of manifests", k.put.manifests)
	put.count("HEAD of layers", k.head.layers)
	put.count("HEAD of manifests", k.head.manifests)
	return []Result{get, put}
}
