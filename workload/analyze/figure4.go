package analyze

import (
	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// figure4 makes Figures 4a, "Image pull vs. push ratio", and 4b, "Distribution of
// HTTP requests", of FAST'18.
func figure4() Plugin {
	return Plugin{
		Figures: []Figure{
			{
				ID: "4a", Title: "Figure 4a: images pulled and pushed",
				Definition: "An image is pulled with each GET of a manifest and pushed with each PUT of one, with a status below 400. " +
					"The share of pulls is pulled / (pulled + pushed).",
				Plot: Plot{Kind: PlotBars, X: chart.Axis{Title: "pulls among pulls and pushes of images", Unit: chart.Share, Full: true}},
			},
			{
				ID: "4b", Title: "Figure 4b: requests by method",
				Definition: "The share of each HTTP method in all requests, pings among them; how many are pings is said beside. " +
					"PUT per PATCH is the ratio of their numbers.",
				Plot: Plot{Kind: PlotStacked, X: chart.Axis{Title: "share of all requests", Unit: chart.Share, Full: true}},
			},
		},
		New: func(store.Zone, *Options) Analysis { return &methodMix{} },
	}
}

type methodMix struct {
	pulled, pushed int64
	methods        [store.DELETE + 1]int64
	n, pings       int64
}

func (m *methodMix) Columns() store.Columns {
	return store.ColMethod | store.ColKind | store.ColStatus
}

func (m *methodMix) Add(b *store.Batch) {
	for i, method := range b.Method {
		m.n++
		m.methods[method]++
		switch {
		case b.Kind[i] == trace.Ping:
			m.pings++
		case manifestGet(b, i):
			m.pulled++
		case manifestPut(b, i):
			m.pushed++
		}
	}
}

func (m *methodMix) Result() []Result {
	images := Result{Requests: m.pulled + m.pushed}
	images.share("pulls", m.pulled, m.pulled+m.pushed)
	images.count("pulled", m.pulled)
	images.count("pushed", m.pushed)
	if images.Requests > 0 {
		images.Series = []Series{{Name: "pulls", Points: []Point{{Label: "pulls", Y: images.Values[0].Value}}}}
	}
	mix := Result{Requests: m.n}
	var points []Point
	part := func(name string, n int64) {
		mix.share(name, n, m.n)
		if m.n > 0 {
			points = append(points, Point{Label: name, Y: float64(n) / float64(m.n)})
		}
	}
	for _, method := range []store.Method{store.GET, store.PUT, store.HEAD, store.PATCH, store.POST, store.DELETE} {
		if method != store.DELETE || m.methods[method] > 0 {
			part(method.String(), m.methods[method])
		}
	}
	if other := m.methods[store.OtherMethod]; other > 0 {
		part("other", other)
	}
	mix.share("pings", m.pings, m.n)
	if patches := m.methods[store.PATCH]; patches > 0 {
		mix.add("PUT per PATCH", Number, float64(m.methods[store.PUT])/float64(patches))
	}
	mix.Series = []Series{{Name: "methods", Points: points}}
	return []Result{images, mix}
}
