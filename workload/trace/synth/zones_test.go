package synth_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/synth"
)

// figure is one published number and how close the traces must come to it.
// docs/synthetic-traces.md has the same table.
type figure struct {
	name     string
	want     float64
	low, up  float64
	measured func(*measured) float64
}

// within returns a figure with the same tolerance in both directions.
func within(name string, want, tolerance float64, f func(*measured) float64) figure {
	return figure{name, want, want - tolerance, want + tolerance, f}
}

// between returns a figure for a published range or limit. Its want is NaN.
func between(name string, low, up float64, f func(*measured) float64) figure {
	return figure{name, math.NaN(), low, up, f}
}

func methodShare(method string) func(*measured) float64 {
	return func(m *measured) float64 { return m.share(m.method[method]) }
}

func kindShare(kind string) func(*measured) float64 {
	return func(m *measured) float64 { return float64(m.kind[kind]) / float64(m.method["GET"]) }
}

func top(counts func(*measured) map[string]int, n float64) func(*measured) float64 {
	return func(m *measured) float64 { return topShare(counts(m), n) }
}

func layers(m *measured) map[string]int    { return m.layers }
func manifests(m *measured) map[string]int { return m.manifests }
func repoGets(m *measured) map[string]int  { return m.repoGets }
func spaces(m *measured) map[string]int    { return m.namespaces }
func clients(m *measured) map[string]int   { return m.clients }

// everyZone returns the figures that all zones share.
func everyZone() []figure {
	return []figure{
		between("GET, share of requests", 0.60, 0.85, methodShare("GET")),
		between("HEAD, share of requests", 0.095, 0.22, methodShare("HEAD")),
		between("PUT/PATCH", 1.9, 5.8, func(m *measured) float64 { return float64(m.method["PUT"]) / float64(m.method["PATCH"]) }),
		within("layer GETs below 16 KiB", 0.53, 0.03, func(m *measured) float64 { return below(m.layerSizes, 16<<10) }),
		within("layer GETs below 1 MiB", 0.68, 0.03, func(m *measured) float64 { return below(m.layerSizes, 1<<20) }),
		within("layer GETs below 10 MB", 0.80, 0.04, func(m *measured) float64 { return below(m.layerSizes, 10e6) }),
		within("layers dominate PUT and HEAD (share)", 0.8, 0.2, func(m *measured) float64 {
			return float64(m.headPutBlob) / float64(m.headPutBlob+m.headPutMan)
		}),
		within("GET layer, median of 10 to 200 KB over 1 KB", 1, 0.3, func(m *measured) float64 { return m.timeOf(10e3, 200e3, 0.5) / m.timeOf(500, 2000, 0.5) }),
		within("GET layer, median of 100 MB over 10 MB", 9, 2.5, func(m *measured) float64 { return m.timeOf(80e6, 120e6, 0.5) / m.timeOf(8e6, 12e6, 0.5) }),
		between("PATCH layer over GET layer, medians", 1.1, 4, func(m *measured) float64 { return quantile(m.patchTime, 0.5) / quantile(m.layerSeconds(), 0.5) }),
		between("PATCH layer over PUT layer, medians", 1.1, 4, func(m *measured) float64 { return quantile(m.patchTime, 0.5) / quantile(m.putTime, 0.5) }),
	}
}

func pulled(want, tolerance float64) figure {
	return within("pulled / (pulled + pushed)", want, tolerance, func(m *measured) float64 {
		return float64(m.kind["manifest"]) / float64(m.kind["manifest"]+int(m.putKind[trace.Manifest]))
	})
}

func layersOfGets(low, up float64) figure {
	return between("layers, share of layer and manifest GETs", low, up, func(m *measured) float64 {
		return float64(m.kind["blob"]) / float64(m.kind["blob"]+m.kind["manifest"])
	})
}

func noLayers(want, tolerance float64) figure {
	return within("manifest GETs without layer GETs", want, tolerance, (*measured).without)
}

func gap99(low, up float64) figure {
	return between("time between arrivals, p99 in s", low, up, func(m *measured) float64 { return m.gap(0.99) })
}

func busiest(n float64, want, tolerance float64) figure {
	return within(fmt.Sprintf("busiest %.0f clients", n), want, tolerance, top(clients, n))
}

func meanLayer(want, tolerance float64) figure {
	return within("mean of layer GETs in MB", want, tolerance, func(m *measured) float64 { return mean(m.layerSizes) / 1e6 })
}

func hosts(n float64) figure {
	return within("registry servers", n, 0, func(m *measured) float64 { return float64(len(m.hosts)) })
}

// dalFigures returns figures of three days. Most of what is known about sequences comes
// from 725,242 GETs of dal.
func dalFigures() []figure {
	return []figure{
		hosts(6), pulled(0.90, 0.02), layersOfGets(0.5, 0.7), gap99(2, 5), busiest(1, 0.15, 0.02), meanLayer(14.5, 2), noLayers(0.83, 0.03),
		within("pings, share of GETs", 0.46, 0.01, kindShare("ping")),
		within("blobs, share of GETs", 0.357, 0.01, kindShare("blob")),
		within("manifests, share of GETs", 0.183, 0.01, kindShare("manifest")),
		within("mean run of pings", 2.43, 0.15, func(m *measured) float64 { return float64(m.pings) / float64(m.pingRuns) }),
		within("layer GETs per manifest GET", 1.96, 0.1, func(m *measured) float64 { return float64(m.kind["blob"]) / float64(m.kind["manifest"]) }),
		within("first touches, share of layer GETs", 0.31, 0.02, func(m *measured) float64 { return float64(len(m.layers)) / float64(m.kind["blob"]) }),
		within("first touches in the second half of the layer GETs", 0.31, 0.03, (*measured).lateNew),
		within("layer URIs per layer", 1.33, 0.15, func(m *measured) float64 { return float64(len(m.layerURIs)) / float64(len(m.layers)) }),
		within("top 1 % of layers", 0.43, 0.02, top(layers, 0.01)),
		within("top 10 layers", 0.125, 0.015, top(layers, 10)),
		within("first layer", 0.028, 0.005, top(layers, 1)),
		within("layers fetched once", 0.68, 0.07, func(m *measured) float64 { return onceShare(m.layers) }),
		within("slope of layers", 0.92, 0.07, func(m *measured) float64 { return slope(m.layers, 3000) }),
		within("top 1 % of manifests", 0.848, 0.03, top(manifests, 0.01)),
		within("top 10 manifests", 0.421, 0.03, top(manifests, 10)),
		within("first manifest", 0.07, 0.01, top(manifests, 1)),
		within("manifests fetched once", 0.84, 0.05, func(m *measured) float64 { return onceShare(m.manifests) }),
		within("slope of manifests", 1.25, 0.12, func(m *measured) float64 { return slope(m.manifests, 3000) }),
		within("tag latest, share of manifest GETs", 0.49, 0.06, (*measured).latest),
		within("top 10 repositories", 0.284, 0.07, top(repoGets, 10)),
		within("slope of repositories", 1.07, 0.15, func(m *measured) float64 { return slope(m.repoGets, 3000) }),
		within("first namespace", 0.306, 0.04, top(spaces, 1)),
		within("layers after a manifest, median", 2.5, 0.5, func(m *measured) float64 { return quantile(m.layersAfter(), 0.5) }),
		between("layers after a manifest, p90", 8, 12, func(m *measured) float64 { return quantile(m.layersAfter(), 0.9) }),
		between("minutes with 100 requests and more", 0.8, 1, func(m *measured) float64 { return 1 - below(m.perMinute(), 100) }),
		between("GET layer of more than 1 s", 0.6, 0.8, func(m *measured) float64 { return 1 - below(m.layerSeconds(), 1) }),
		within("GET layer of 10 s and more", 0.25, 0.02, func(m *measured) float64 { return 1 - below(m.layerSeconds(), 10) }),
		within("layer GETs below 64 MiB", 0.9395, 0.01, func(m *measured) float64 { return below(m.layerSizes, 64<<20) }),
		within("layer GETs below 256 MiB", 0.9948, 0.003, func(m *measured) float64 { return below(m.layerSizes, 256<<20) }),
		between("requests at night over by day", 0.4, 0.8, (*measured).night),
	}
}

func zoneFigures() map[string][]figure {
	return map[string][]figure{
		"dal": dalFigures(),
		"lon": {hosts(6), pulled(0.90, 0.02), layersOfGets(0.48, 0.6), gap99(2, 6), busiest(1, 0.15, 0.02), meanLayer(14, 2.5), noLayers(0.85, 0.03),
			within("manifest GETs above 10 KB", 0.5, 0.05, func(m *measured) float64 { return 1 - below(m.manSizes, 10e3) }),
			within("GET manifest, median in s (dal: 0.12)", 0.47, 0.05, func(m *measured) float64 { return quantile(m.manTime, 0.5) })},
		"stg": {hosts(6), pulled(0.827, 0.02), layersOfGets(0.5, 0.7), gap99(2, 6), busiest(1, 0.15, 0.02), meanLayer(12.3, 2.5), noLayers(0.88, 0.03)},
		"fra": {hosts(6), pulled(0.913, 0.02), layersOfGets(0.2, 0.5), gap99(60, 160), busiest(1, 0.15, 0.02), meanLayer(11.5, 2.5), noLayers(0.73, 0.03),
			within("top 10 manifests", 0.40, 0.07, top(manifests, 10))},
		"syd": {hosts(6), pulled(0.78, 0.02), layersOfGets(0.2, 0.5), gap99(70, 160), busiest(1, 0.15, 0.02), meanLayer(8.84, 1.5), noLayers(0.82, 0.04),
			within("top 1 % of layers", 0.59, 0.03, top(layers, 0.01)),
			within("first layer", 0.19, 0.03, top(layers, 1)),
			within("top 10 manifests", 0.40, 0.09, top(manifests, 10))},
		"prs": {hosts(3), pulled(0.683, 0.02), layersOfGets(0.5, 0.7), gap99(70, 160), busiest(2, 0.8, 0.03), meanLayer(9.3, 2), noLayers(0.93, 0.03),
			between("top 1 % of layers", 0.01, 0.10, top(layers, 0.01)),
			within("top 10 manifests", 0.60, 0.06, top(manifests, 10))},
		"dev": {hosts(3), pulled(0.824, 0.02), layersOfGets(0.5, 0.7), gap99(70, 180), busiest(2, 0.8, 0.03), meanLayer(12.2, 2.5), noLayers(0.96, 0.03),
			between("top 1 % of layers", 0.01, 0.10, top(layers, 0.01)),
			within("minutes without a request", 0.57, 0.05, func(m *measured) float64 { return below(m.perMinute(), 1) })},
	}
}

// measureZone generates requests of a zone at the rate of the archive.
func measureZone(t *testing.T, zone string, requests int64) *measured {
	t.Helper()
	p, err := synth.Zone(zone)
	if err != nil {
		t.Fatal(err)
	}
	m := newMeasured()
	if err := p.Generate(context.Background(), &synth.Options{Seed: 1, Requests: requests}, func(r *trace.Record) error { m.add(r); return nil }); err != nil {
		t.Fatal(err)
	}
	if m.total != requests {
		t.Fatalf("%d requests, want %d", m.total, requests)
	}
	return m
}

func TestZonesMeetPublishedFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	figures := zoneFigures()
	for _, zone := range synth.Zones() {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			requests := int64(300_000)
			if zone == "dal" {
				requests = 857_000 // three days
			}
			m := measureZone(t, zone, requests)
			for _, f := range append(everyZone(), figures[zone]...) {
				got := f.measured(m)
				t.Logf("| %s | %s | %.4g | %.4g to %.4g | %.4g |", zone, f.name, f.want, f.low, f.up, got)
				if !(got >= f.low && got <= f.up) {
					t.Errorf("%s: %.4f, want %.4f (%.4f to %.4f)", f.name, got, f.want, f.low, f.up)
				}
			}
		})
	}
}

// TestArchiveTotals compares the mix of all zones, weighted by their requests, with the
// totals of the archive.
func TestArchiveTotals(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	method, status := map[string]float64{}, map[string]float64{}
	total := 0.0
	for _, zone := range synth.Zones() {
		p, err := synth.Zone(zone)
		if err != nil {
			t.Fatal(err)
		}
		m := measureZone(t, zone, 40_000)
		for k, n := range m.method {
			method[k] += m.share(n) * float64(p.Requests)
		}
		for k, n := range m.status {
			status[k[len(k)-3:]] += m.share(n) * float64(p.Requests)
		}
		total += float64(p.Requests)
	}
	if total != 40_872_024 {
		t.Errorf("%.0f requests in all zones, want 40872024", total)
	}
	for _, f := range []struct {
		name            string
		got, want, near float64
	}{
		{"GET", method["GET"], 32_272_717, 0.006}, {"HEAD", method["HEAD"], 4_512_788, 0.004}, {"PUT", method["PUT"], 2_140_534, 0.005},
		{"POST", method["POST"], 1_173_027, 0.003}, {"PATCH", method["PATCH"], 772_958, 0.003},
		{"200", status["200"], 36_777_324, 0.006}, {"201", status["201"], 2_461_177, 0.006}, {"202", status["202"], 1_558_194, 0.004},
		{"206", status["206"], 1_210, 0.0002}, {"301", status["301"], 74_119, 0.001},
	} {
		t.Logf("| all | %s | %.5f | %.4f | %.5f |", f.name, f.want/total, f.near, f.got/total)
		if math.Abs(f.got-f.want)/total > f.near {
			t.Errorf("%s: share %.5f, want %.5f ± %.4f", f.name, f.got/total, f.want/total, f.near)
		}
	}
}
