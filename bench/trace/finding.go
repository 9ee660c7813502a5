package trace

import (
	"fmt"
	"strings"
)

// finder finds a figure of a zone in a report.
type finder func(r *report, zone string) (float64, bool)

// at returns a finder of a value of a figure.
func at(id, name string) finder {
	return func(r *report, zone string) (float64, bool) { return r.figure(id, zone).value(name) }
}

// belowSize returns a finder of the share of GETs of layers below a size in bytes.
func belowSize(bytes float64) finder {
	return func(r *report, zone string) (float64, bool) { return r.figure("6a", zone).below("requests", bytes) }
}

// over returns a finder of one figure divided by another.
func over(a, b finder) finder {
	return func(r *report, zone string) (float64, bool) {
		x, ok := a(r, zone)
		y, ok2 := b(r, zone)
		return x / y, ok && ok2 && y != 0
	}
}

// firstTouches returns the number of different layers as a share of the GETs of layers.
func firstTouches(r *report, zone string) (float64, bool) {
	f := r.figure("10a", zone)
	items, ok := f.value("items")
	return items / float64(f.Requests), ok && f.Requests > 0
}

// layersAfter returns a finder of a quantile of the number of layers after a manifest. It
// ignores manifests that no layers follow.
func layersAfter(q float64) finder {
	return func(r *report, zone string) (float64, bool) { return r.figure("12a", zone).above0("sessions", q) }
}

// night returns the mean of an hour from 2 to 6 divided by the mean of an hour from 13 to
// 19.
func night(r *report, zone string) (float64, bool) {
	mean := func(from, to int) (float64, bool) {
		sum := 0.0
		for h := from; h < to; h++ {
			n, ok := r.figure("14a", zone).value(fmt.Sprintf("%02d", h))
			if !ok {
				return 0, false
			}
			sum += n
		}
		return sum / float64(to-from), true
	}
	dark, ok := mean(2, 6)
	light, ok2 := mean(13, 19)
	return dark / light, ok && ok2 && light > 0
}

// finders returns the figures that the analysis has, by their names in docs/synthetic-traces.md.
func finders() map[string]finder {
	return map[string]finder{
		"GET, share of requests":                   at("4b", "GET"),
		"HEAD, share of requests":                  at("4b", "HEAD"),
		"PUT/PATCH":                                at("4b", "PUT per PATCH"),
		"layer GETs below 16 KiB":                  belowSize(16 << 10),
		"layer GETs below 1 MiB":                   belowSize(1 << 20),
		"layer GETs below 10 MB":                   at("6a", "below 10 MB"),
		"layer GETs below 64 MiB":                  belowSize(64 << 20),
		"layer GETs below 256 MiB":                 belowSize(256 << 20),
		"layers dominate PUT and HEAD (share)":     at("5b", "layers"),
		"GET layer, median of 100 MB over 10 MB":   over(at("9", "median at 100 MB"), at("9", "median at 10 MB")),
		"PATCH layer over GET layer, medians":      over(at("8c", "median"), at("8a", "median")),
		"PATCH layer over PUT layer, medians":      over(at("8c", "median"), at("8b", "median")),
		"registry servers":                         at("table1", "servers"),
		"pulled / (pulled + pushed)":               at("4a", "pulls"),
		"layers, share of layer and manifest GETs": at("5a", "layers"),
		"time between arrivals, p99 in s":          at("15a", "p99"),
		"busiest 1 clients":                        at("11d", "rank 1"),
		"busiest 2 clients":                        at("11d", "top 2"),
		"mean of layer GETs in MB":                 over(at("6a", "mean"), func(*report, string) (float64, bool) { return 1e6, true }),
		"manifest GETs without layer GETs":         at("12a", "no layer"),
		"pings, share of GETs":                     at("5a", "pings in all GETs"),
		"blobs, share of GETs":                     at("5a", "layers in all GETs"),
		"manifests, share of GETs":                 at("5a", "manifests in all GETs"),
		"layer GETs per manifest GET":              at("5a", "layers per manifest"),
		"first touches, share of layer GETs":       firstTouches,
		"top 1 % of layers":                        at("10a", "top 1 %"),
		"top 10 layers":                            at("11a", "top 10"),
		"first layer":                              at("11a", "rank 1"),
		"layers fetched once":                      at("10a", "items requested once"),
		"slope of layers":                          at("10a", "slope"),
		"top 1 % of manifests":                     at("10b", "top 1 %"),
		"top 10 manifests":                         at("11b", "top 10"),
		"first manifest":                           at("11b", "rank 1"),
		"manifests fetched once":                   at("10b", "items requested once"),
		"slope of manifests":                       at("10b", "slope"),
		"layers after a manifest, median":          layersAfter(0.5),
		"layers after a manifest, p90":             layersAfter(0.9),
		"minutes with 100 requests and more":       at("7", "minutes with at least 100"),
		"minutes without a request":                at("7", "minutes without any"),
		"GET layer of more than 1 s":               at("8a", "more than 1 s"),
		"GET layer of 10 s and more":               at("8a", "at least 10 s"),
		"requests at night over by day":            night,
		"manifest GETs above 10 KB":                at("6b", "above 10 kB"),
		"GET manifest, median in s (dal: 0.12)":    at("8d", "median"),
	}
}

// ofThreeDays reports whether a figure was published for three days of dal alone and differs over
// 73 days. How requests are spread over things depends on how many of them there were.
func ofThreeDays(p Published) bool {
	switch p.Name {
	case "slope of layers", "layers fetched once", "slope of manifests", "top 1 % of manifests", "top 10 manifests", "first manifest",
		"manifests fetched once", "first touches, share of layer GETs":
		return p.Zone == "dal"
	}
	return false
}

// find returns the report's value of a published figure. ok is false if it has none.
func (r *report) find(p Published) (float64, bool) {
	if p.Zone == allZones {
		return r.share(p.Name)
	}
	f := finders()[p.Name]
	if f == nil || !r.partial && ofThreeDays(p) {
		return 0, false
	}
	return f(r, p.Zone)
}

// share returns the share of a method in all zones, in per cent.
func (r *report) share(name string) (float64, bool) {
	var part, all float64
	method, _, _ := strings.Cut(name, ",")
	if r.partial {
		return 0, false
	}
	for _, f := range r.Figures {
		for i := range f.Zones {
			if f.ID != "table1" {
				continue
			}
			n, ok := f.Zones[i].value(method)
			total, ok2 := f.Zones[i].value("requests")
			if !ok || !ok2 {
				return 0, false
			}
			part, all = part+n, all+total
		}
	}
	return 100 * part / all, all > 0
}
