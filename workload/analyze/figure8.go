package analyze

import (
	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// figure8 makes Figures 8a to 8e of FAST'18, the distributions of the time it took
// to get, push and upload layers and to get and push manifests.
func figure8() Plugin {
	var figures []Figure
	for _, f := range []struct{ id, what, which string }{
		{"8a", "GET of layers", "GETs of a layer with status 200 or 206"},
		{"8b", "PUT of layers", "PUTs of a layer (the request that ends its upload) with a status below 400"},
		{"8c", "PATCH of layers", "PATCHes of a layer's upload with a status below 400"},
		{"8d", "GET of manifests", "GETs of a manifest with a status below 400"},
		{"8e", "PUT of manifests", "PUTs of a manifest with a status below 400"},
	} {
		figures = append(figures, Figure{
			ID: f.id, Title: "Figure " + f.id + ": how long " + f.what + " took",
			Definition: "The distribution of the duration, as the registry tells it, over " + f.which + ".",
			Error:      "Quantiles above 255 µs within 0.4 %; shares, means and the curve's points are exact.",
			Plot: Plot{Kind: PlotCDF, X: chart.Axis{Title: "duration", Unit: chart.Seconds, Log: true},
				Y: chart.Axis{Title: "share that took at most as long", Unit: chart.Share, Full: true}},
		})
	}
	return Plugin{Figures: figures, New: func(store.Zone, *Options) Analysis {
		d := &durations{}
		for i := range d {
			d[i].limits = newLimits(microSecond+1, 10*microSecond)
		}
		return d
	}}
}

// durations holds the distributions of Figures 8a to 8e.
type durations [5]struct {
	hist    Hist
	limits  limits
	unknown int64
}

func (d *durations) Columns() store.Columns {
	return store.ColMethod | store.ColKind | store.ColStatus | store.ColDuration
}

func (d *durations) Add(b *store.Batch) {
	for i := range b.Method {
		which := 0
		switch {
		case layerGet(b, i):
		case layerPut(b, i):
			which = 1
		case b.Method[i] == store.PATCH && b.Kind[i] == trace.Upload && succeeded(b.Status[i]):
			which = 2
		case manifestGet(b, i):
			which = 3
		case manifestPut(b, i):
			which = 4
		default:
			continue
		}
		if b.Duration[i] < 0 {
			d[which].unknown++
			continue
		}
		d[which].hist.Add(b.Duration[i])
		d[which].limits.add(b.Duration[i])
	}
}

func (d *durations) Result() []Result {
	var out []Result
	for i := range d {
		f := &d[i]
		r := Result{Requests: f.hist.N()}
		r.unknown(f.unknown, "the duration")
		r.share("more than 1 s", f.limits.n-f.limits.below[0], f.limits.n)
		r.share("at least 10 s", f.limits.n-f.limits.below[1], f.limits.n)
		r.quantiles(&f.hist, Seconds, 1e6)
		r.Series = []Series{{Name: "requests", Points: f.hist.CDF(1e6)}}
		out = append(out, r)
	}
	return out
}
