package reproduce

import (
	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/mirrors"
	"example.org/slipway/internal/chart"
)

const (
	ociregistry = "Ociregistry"
	// twoMachines says what differs in all of its entries.
	twoMachines = "The upstream, the mirror and the client share one machine of two cores and its loopback; there, the server had twelve threads and the client a " +
		"machine of its own. Ociregistry itself is measured in the same way, and is in the plot. A step lasts 4 s."
	ofLoadTest = "its documentation of the load test; the dashboards are pictures, and no curve was read off"
)

// ociregistryEntries returns the entries for the results of the load test.
func ociregistryEntries() []Entry {
	const did = "1,500 images of five small blobs in ten batches; one puller more every minute up to ten, and down again. "
	return []Entry{
		loadEntry("Pull-through", "images a second, each pull through to the upstream", did+"Each image is pruned after its pull. About 320 images a second, still rising at ten pullers.",
			"pull-through", 320),
		loadEntry("Cached pulls", "images a second from the cache", did+"About 1,800 images a second, sagging at ten pullers.", "cached", 1800),
		{Paper: ociregistry, Name: "Server memory", Title: "resident memory", Part: "ociregistry", Source: ofLoadTest, Differs: twoMachines,
			Did:    "Below 40 MB with 1,500 manifests, without leaks.",
			Claims: []Claim{atMost("Slipway, largest resident set, cached", chart.Bytes, 40e6, Less)},
			Read: readLoad(func(l *mirrors.Load, out *Finding) {
				var peak []float64
				for _, r := range rampsOf(l, "slipway", "cached") {
					peak = append(peak, float64(r.PeakRSS))
				}
				out.Values["Slipway, largest resident set, cached"] = measure.SpreadOf(peak)
			})},
		{Paper: ociregistry, Name: "API errors", Title: "errors while pulling and pruning", Part: "ociregistry", Source: ofLoadTest, Differs: twoMachines,
			Did:    "No errors.",
			Claims: []Claim{atMost("failed pulls, pull-through", chart.Number, 0, Less), atMost("failed prunes", chart.Number, 0, Less), atMost("failed pulls, cached", chart.Number, 0, Less)},
			Read: readLoad(func(l *mirrors.Load, out *Finding) {
				var pulls, prunes, cached []float64
				for _, r := range rampsOf(l, "slipway", "pull-through") {
					pulls, prunes = append(pulls, float64(r.Failed)), append(prunes, float64(r.NotPruned))
				}
				for _, r := range rampsOf(l, "slipway", "cached") {
					cached = append(cached, float64(r.Failed))
				}
				out.Values["failed pulls, pull-through"], out.Values["failed prunes"] = measure.SpreadOf(pulls), measure.SpreadOf(prunes)
				out.Values["failed pulls, cached"] = measure.SpreadOf(cached)
			})},
		{Paper: ociregistry, Name: "One cached image", Title: "time of one pull", Part: "ociregistry", Source: ofLoadTest, Differs: twoMachines,
			Did:    "One cached image takes 7.5 ms: two manifests, a configuration and five blobs.",
			Claims: []Claim{exactly("Slipway, one puller, cached", chart.Seconds, 0.0075, Less)},
			Read: readLoad(func(l *mirrors.Load, out *Finding) {
				var sec []float64
				for _, r := range rampsOf(l, "slipway", "cached") {
					if rate := r.Steps[0].Rate; rate > 0 {
						sec = append(sec, 1/rate)
					}
				}
				out.Values["Slipway, one puller, cached"] = measure.SpreadOf(sec)
			})},
	}
}

// loadEntry returns the entry for a ramp of pullers.
func loadEntry(name, title, did, mode string, published float64) Entry {
	const atTen, ratio = "Slipway, ten pullers", "Slipway / Ociregistry on this machine, ten pullers"
	return Entry{Paper: ociregistry, Name: name, Title: title, Did: did, Differs: twoMachines, Source: ofLoadTest, Part: "ociregistry",
		Claims: []Claim{exactly(atTen, chart.Number, published, More), atLeast(ratio, chart.Number, 1, More)},
		Curves: []Curve{{Name: "Ociregistry, published", Single: true, Points: []chart.Point{{X: 10, Y: published}}}},
		X:      chart.Axis{Title: "pullers"}, Y: chart.Axis{Title: "images a second", Log: true},
		Read: readLoad(func(l *mirrors.Load, out *Finding) {
			var ten [2][]float64
			for i, server := range []string{"slipway", "Ociregistry"} {
				byPullers := map[int][]float64{}
				for _, r := range rampsOf(l, server, mode) {
					for _, s := range r.Steps {
						byPullers[s.Pullers] = append(byPullers[s.Pullers], s.Rate)
					}
				}
				c := Curve{Name: server + ", here"}
				for n := 1; n <= 10; n++ {
					if s := measure.SpreadOf(byPullers[n]); s.N > 0 {
						c.Points = append(c.Points, chart.Point{X: float64(n), Y: s.Median})
					}
				}
				if len(c.Points) > 0 {
					out.Curves = append(out.Curves, c)
				}
				ten[i] = byPullers[10]
			}
			own, other := measure.SpreadOf(ten[0]), measure.SpreadOf(ten[1])
			out.Values[atTen] = own
			if own.N > 0 && other.N > 0 {
				out.Values[ratio] = one(own.Median / other.Median)
			}
		})}
}

// readLoad returns a reader of the load test.
func readLoad(fill func(*mirrors.Load, *Finding)) func(*Raw) *Finding {
	return func(r *Raw) *Finding {
		l := r.Mirrors.Load
		if l == nil {
			return nil
		}
		out := &Finding{Run: &l.Run.Run, Values: map[string]measure.Spread{}}
		fill(l, out)
		return out
	}
}

// rampsOf returns the complete ramps of a server in a mode.
func rampsOf(l *mirrors.Load, server, mode string) (out []mirrors.Ramp) {
	for _, r := range l.Ramps {
		if r.Server == server && r.Mode == mode && len(r.Steps) > 0 {
			out = append(out, r)
		}
	}
	return out
}
