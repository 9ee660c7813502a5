package reproduce

import (
	"fmt"
	"math"
	"strings"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/tiers"
	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/analyze"
)

const (
	fast18     = "FAST'18"
	partTraces = "traces"
	partCaches = "caches"
	fromText   = "the paper's text, and Table 1; no curve was read off"
)

// synthetic says what the traces of this project are.
const synthetic = "The published archive is not part of the project. The trace is synthetic and of the archive's length (41 million requests of seven " +
	"zones). It was fitted to these values, so the comparison shows how well, and that the analysis computes them. " +
	"`slipway trace analyze` does the same with the archive."

// fast18Entries returns the entries of Anwar et al.
func fast18Entries() []Entry {
	out := []Entry{}
	for _, f := range []struct{ id, title, did string }{
		{"table1", "the traces", "Days, requests, bytes in and out, and images pushed and pulled, of seven availability zones of a production registry in 75 days."},
		{"4a", "images pulled and pushed", "The share of pulls."},
		{"4b", "methods", "The share of each HTTP method."},
		{"5a", "manifests and layers in GET", "The share of layers in GETs."},
		{"5b", "manifests and layers in PUT and HEAD", "The share of layers in PUTs and HEADs."},
		{"6a", "sizes of layers", "The distribution of sizes over the requests for layers."},
		{"6b", "sizes of manifests", "The distribution of sizes over the requests for manifests."},
		{"7", "requests per minute", "The distribution of the number of requests in a minute."},
		{"8a", "durations: GET of layers", "The distribution of the servers' response times."},
		{"8b", "durations: PUT of layers", "The distribution of the servers' response times."},
		{"8c", "durations: PATCH of layers", "The distribution of the servers' response times. PATCH is slower than GET and PUT."},
		{"8d", "durations: GET of manifests", "The distribution of the servers' response times."},
		{"8e", "durations: PUT of manifests", "The distribution of the servers' response times."},
		{"9", "duration by size", "The response time of GETs of layers by size: flat below 1 MB, linear above."},
		{"10a", "popularity of layers", "The share of the requests that the most popular layers get."},
		{"10b", "popularity of manifests", "The share of the requests that the most popular manifests get."},
		{"10c", "popularity of repositories", "The share of the requests that the most popular repositories get."},
		{"10d", "popularity of clients", "The share of the requests that the busiest clients send."},
		{"11a", "the ten hottest layers", "The share of the requests for each of the ten most popular."},
		{"11b", "the ten hottest manifests", "The share of the requests for each of the ten most popular."},
		{"11c", "the ten hottest repositories", "The share of the requests for each of the ten most popular."},
		{"11d", "the ten busiest clients", "The share of the requests of each of the ten."},
		{"12a", "layers after a manifest", "How many layers a client gets in a session that begins with a manifest."},
		{"12b", "layers after a manifest and a push", "The same, of repositories that were pushed to shortly before. Clearly more layers are fetched."},
		{"13a", "active clients", "How many clients are active at once."},
		{"13b", "active requests", "How many requests are under way at once."},
		{"14a", "requests by hour", "The mean number of requests in each hour of the day. dal falls at night."},
		{"14b", "requests by weekday", "The mean number of requests on each weekday. dal falls at the weekend."},
		{"15a", "time between requests", "The distribution of the time from one request to the next."},
		{"15b", "idle periods", "How long no request is under way."},
	} {
		out = append(out, analysed(f.id, f.title, f.did))
	}
	return append(out, figure16(), figure17(), figure18())
}

// analysed returns the entry of a table or figure that slipway trace analyze makes.
func analysed(id, title, did string) Entry {
	e := Entry{Paper: fast18, Name: "Figure " + id, Title: title, Did: did, Differs: synthetic, Source: fromText, Part: partTraces}
	if id == "table1" {
		e.Name, e.Source = "Table 1", "Table 1, and the totals of the published archive"
	}
	for _, c := range analyze.Published(id) {
		e.Claims = append(e.Claims, claimOf(c))
	}
	shapes, curves := shapesOf(id)
	for _, s := range shapes {
		e.Claims = append(e.Claims, s.claim)
	}
	if len(curves) > 0 {
		e.Curves = []Curve{{Name: "published", Points: curves, Single: true}}
	}
	if p := analyze.PlotOf(id); p.Kind == analyze.PlotCDF || p.Kind == analyze.PlotLines {
		e.X, e.Y = p.X, p.Y
	}
	e.Read = func(r *Raw) *Finding { return r.readAnalysis(id, shapes) }
	return e
}

// flat is the largest slope, in logarithms, that counts as flat.
const flat = 0.2

// claimOf makes a claim of a published number of the analysis.
func claimOf(c analyze.Comparison) Claim {
	claim := Claim{Name: claimName(c), Low: math.Inf(-1), High: math.Inf(1), Total: c.NotComparable != ""}
	switch c.Unit {
	case analyze.Bytes:
		claim.Unit = chart.Bytes
	case analyze.Seconds:
		claim.Unit = chart.Seconds
	case analyze.Share:
		claim.Unit = chart.Share
	}
	if c.Low != nil {
		claim.Low = *c.Low
	}
	if c.High != nil {
		claim.High = *c.High
	}
	if c.About {
		claim.Within = 0.5
	}
	if c.About && claim.Low == 0 && claim.High == 0 { // "flat": 0 needs a tolerance that is not a share
		claim.Low, claim.High = -flat, flat
	}
	return claim
}

func claimName(c analyze.Comparison) string {
	source := strings.TrimPrefix(c.Source, "FAST'18, ")
	if c.Low != nil && c.High != nil && *c.Low != *c.High {
		source += ", a range"
	}
	return fmt.Sprintf("%s, %s (%s)", c.Zone, c.Quantity, source)
}

// shape is what the paper says of a figure without a number: one value of a zone is above another.
type shape struct {
	claim         Claim
	over, under   string // zone/figure/value
	overF, underF string
}

// ratioOf makes a shape: the value of one figure is at least the value of another.
func ratioOf(name, zone, figure, value, otherFigure, otherValue string) shape {
	c := atLeast(name, chart.Number, 1, Like)
	return shape{claim: c, over: zone + "/" + value, overF: figure, under: zone + "/" + otherValue, underF: otherFigure}
}

// shapesOf returns what the paper says of a figure in words, and the points of its curve that the
// text gives.
func shapesOf(id string) (shapes []shape, points []chart.Point) {
	switch id {
	case "6a":
		points = []chart.Point{{X: 1e6, Y: 0.65}, {X: 10e6, Y: 0.80}}
	case "6b":
		points = []chart.Point{{X: 1e3, Y: 0.5}}
	case "7":
		points = []chart.Point{{X: 0, Y: 0.57}, {X: 100, Y: 0.2}}
	case "8a":
		points = []chart.Point{{X: 1, Y: 0.4}, {X: 10, Y: 0.75}}
	case "8b":
		shapes = []shape{ratioOf("dal, median of PATCH / of PUT", "dal", "8c", "median", "8b", "median")}
	case "8c":
		shapes = []shape{ratioOf("dal, median of PATCH / of GET", "dal", "8c", "median", "8a", "median")}
	case "8e":
		shapes = []shape{ratioOf("dal, median of PUT of layers / of manifests", "dal", "8b", "median", "8e", "median")}
	case "10a":
		points = []chart.Point{{X: 0.01, Y: 0.42}, {X: 0.01, Y: 0.59}}
	case "10b":
		shapes = []shape{ratioOf("fra, top 1 % of manifests / of layers", "fra", "10b", "top 1 %", "10a", "top 1 %")}
	case "10c":
		shapes = []shape{ratioOf("dal, top 1 % of repositories / of layers", "dal", "10c", "top 1 %", "10a", "top 1 %")}
	case "10d":
		shapes = []shape{ratioOf("dal, top 1 % of clients / of layers", "dal", "10d", "top 1 %", "10a", "top 1 %")}
	case "12a":
		points = []chart.Point{{X: 0, Y: 0.73}, {X: 0, Y: 0.96}}
	case "12b":
		for _, z := range []string{"dal", "lon", "fra", "syd", "stg"} {
			shapes = append(shapes, ratioOf(z+", sessions without a layer: all / after a push", z, "12a", "no layer", "12b", "no layer"))
		}
	case "13a":
		points = []chart.Point{{X: 7, Y: 0.5}, {X: 0.6, Y: 0.5}}
	case "13b":
		shapes = []shape{ratioOf("dal / dev, mean of active requests", "dal", "13b", "mean", "13b@dev", "mean")}
	case "14a":
		shapes = []shape{ratioOf("dal, busiest hour / quietest", "dal", "14a", "busiest", "14a", "quietest")}
	case "14b":
		shapes = []shape{ratioOf("dal, busiest day / quietest", "dal", "14b", "busiest", "14b", "quietest")}
	case "15a":
		points = []chart.Point{{X: 3, Y: 0.99}, {X: 110, Y: 0.99}}
	}
	return shapes, points
}

// readAnalysis reads a figure of the analysis.
func (r *Raw) readAnalysis(id string, shapes []shape) *Finding {
	t := r.Own.Traces
	if t == nil || t.Report == nil {
		return nil
	}
	f := t.Report.Figure(id)
	if f == nil {
		return nil
	}
	out := &Finding{Run: &t.Run, Values: map[string]measure.Spread{}}
	for _, c := range f.Comparisons {
		if c.Ours != nil && c.NotComparable == "" {
			out.Values[claimName(c)] = one(*c.Ours)
		}
	}
	for _, s := range shapes {
		over, ok := valueOf(t.Report, s.overF, s.over)
		under, ok2 := valueOf(t.Report, s.underF, s.under)
		if ok && ok2 && under > 0 {
			out.Values[s.claim.Name] = one(over / under)
		}
	}
	for _, z := range f.Zones {
		if len(z.Series) == 0 {
			continue
		}
		c := Curve{Name: z.Zone, Step: true}
		for _, p := range z.Series[0].Points {
			c.Points = append(c.Points, chart.Point{X: p.X, Y: p.Y})
		}
		out.Curves = append(out.Curves, c)
	}
	return out
}

// valueOf finds a value "ZONE/NAME" of a figure "ID", or of "ID@ZONE". The names busiest and
// quietest are the extremes of the first series.
func valueOf(rep *analyze.Report, figure, name string) (float64, bool) {
	zone, value, _ := strings.Cut(name, "/")
	if id, other, ok := strings.Cut(figure, "@"); ok {
		figure, zone = id, other
	}
	f := rep.Figure(figure)
	if f == nil || f.Zone(zone) == nil {
		return 0, false
	}
	z := f.Zone(zone)
	if v, ok := z.Value(value); ok || value != "busiest" && value != "quietest" || len(z.Series) == 0 {
		return v, ok
	}
	var ys []float64
	for _, p := range z.Series[0].Points {
		ys = append(ys, p.Y)
	}
	s := measure.SpreadOf(ys)
	if value == "busiest" {
		return s.Max, s.N > 0
	}
	return s.Min, s.N > 0
}

// figure16 returns the entry for the latency of layers by where they are.
func figure16() Entry {
	const small, large = "layers below 1 MB, ", "very large layers, "
	e := Entry{Paper: fast18, Name: "Figure 16", Title: "latency of layers by size and backend", Part: "fig16", Source: "the paper's text: means in seconds",
		Did: "10,000 requests of dal were replayed by five clients to registries (32 cores, 64 GB, SSD, 10 Gbit/s) that keep layers in Swift, in " +
			"memory below 1 MB and else in Swift, and on a local SSD, or redirect clients to Swift.",
		Differs: "A synthetic dal with layers of a tenth of their size, two requests at a time, and all servers on one machine. So ratios are compared, and not " +
			"times: a redirect costs no round trip, and Swift takes the same processors.",
		Claims: []Claim{
			atLeast(small+"Swift / RAM + Swift", chart.Number, 8.75, More),
			atLeast(small+"Swift / local files", chart.Number, 5.38, More),
			exactly(small+"redirect / Swift", chart.Number, 1.57, Like),
			exactly(large+"redirect / Swift", chart.Number, 0.937, Less),
		},
		X: chart.Axis{Title: "size of a layer", Unit: chart.Bytes, Log: true}, Y: chart.Axis{Title: "mean latency", Unit: chart.Seconds, Log: true},
	}
	for _, p := range []struct {
		name         string
		small, large float64
	}{{"RAM + Swift", 0.008, 0}, {"local files", 0.013, 0}, {"Swift", 0.07, 0.63}, {"redirect to Swift", 0.11, 0.59}} {
		// The text has no sizes. 100 kB and 1 GB stand for "below 1 MB" and "very large".
		c := Curve{Name: p.name + ", published", Single: true, Points: []chart.Point{{X: 1e5, Y: p.small}}}
		if p.large > 0 {
			c.Points = append(c.Points, chart.Point{X: 1e9, Y: p.large})
		}
		e.Curves = append(e.Curves, c)
	}
	e.Read = func(r *Raw) *Finding {
		f := r.Tiers.Fig16
		if f == nil {
			return nil
		}
		out := &Finding{Run: &f.Run, Values: map[string]measure.Spread{}}
		means := map[string][2]float64{}
		for i := range f.Places {
			p := &f.Places[i]
			if p.Missing != "" || strings.HasPrefix(p.Name, "S3") {
				continue
			}
			means[p.Name] = [2]float64{meanOf(p, 1, 3), meanOf(p, 5, 6)}
			c := Curve{Name: p.Name}
			for _, b := range p.Bins {
				if b.N > 0 {
					c.Points = append(c.Points, chart.Point{X: float64(b.Bytes), Y: b.Mean / 1000})
				}
			}
			out.Curves = append(out.Curves, c)
		}
		ratio := func(name, over, under string, i int) {
			if means[under][i] > 0 && means[over][i] > 0 {
				out.Values[name] = one(means[over][i] / means[under][i])
			}
		}
		ram := "RAM below 1 MB + Swift" // as in the paper; older raw figures lack it
		if _, ok := means[ram]; !ok {
			ram = "RAM + Swift"
		}
		ratio(small+"Swift / RAM + Swift", "Swift", ram, 0)
		ratio(small+"Swift / local files", "Swift", "local files", 0)
		ratio(small+"redirect / Swift", "redirect to Swift", "Swift", 0)
		ratio(large+"redirect / Swift", "redirect to Swift", "Swift", 1)
		return out
	}
	return e
}

// meanOf returns the mean latency of the bins from index from up to, but not including,
// index to, in milliseconds. The first bin is in no object store.
func meanOf(p *tiers.Place, from, to int) float64 {
	var sum float64
	var n int
	for i := from; i < min(to, len(p.Bins)); i++ {
		sum += p.Bins[i].Mean * float64(p.Bins[i].N)
		n += p.Bins[i].N
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// zones returns the paper's names of its zones.
func zones() []string { return []string{"dal", "lon", "fra", "syd", "stg", "prs", "dev"} }

// sampleZone is the name under which the real sample is simulated.
const sampleZone = "dal, three real days"

// figure17 returns the entry for the hit ratio of two levels.
func figure17() Entry {
	e := Entry{Paper: fast18, Name: "Figure 17", Title: "hit ratio of a cache in memory and on SSD", Part: partCaches, Source: "the paper's text",
		Did: "A cache at each of six servers (three in prs and dev), LRU: layers below 100 MB in memory, the others and what memory evicts on the SSD. " +
			"Memory of 2 to 10 % of the ingress, an SSD of 10, 15 and 20 times that. Counted from the first eviction.",
		Differs: synthetic + " Three real days of dal without sizes are simulated, too, with modelled sizes and one server. The paper's 100 % can " +
			"only be of requests that are not the first for their layer, and is compared with that.",
		Claims: []Claim{
			exactly("dal, memory of 2 %", chart.Share, 0.40, More),
			exactly("fra, memory of 10 %", chart.Share, 0.78, More),
			exactly("syd, memory of 10 %", chart.Share, 0.78, More),
			exactly(sampleZone+", memory of 2 %", chart.Share, 0.40, More),
			exactly("dal, both levels at 6 %, not the first requests", chart.Share, 1, More),
		},
		Curves: []Curve{{Name: "published", Single: true, Points: []chart.Point{{X: 0.02, Y: 0.40}, {X: 0.10, Y: 0.78}}}},
		X:      chart.Axis{Title: "memory, share of the ingress", Unit: chart.Share}, Y: chart.Axis{Title: "hits in memory, from the first eviction", Unit: chart.Share, Full: true},
	}
	for _, z := range []string{"lon", "fra", "syd", "stg"} {
		e.Claims = append(e.Claims, exactly(z+", both levels at 4 %, not the first requests", chart.Share, 1, More))
	}
	e.Read = func(r *Raw) *Finding { return r.Own.Caches.hitRatios() }
	return e
}

// figure18 returns the entry for Algorithm 1.
func figure18() Entry {
	e := Entry{Paper: fast18, Name: "Figure 18", Title: "hits per prefetch of Algorithm 1", Part: partCaches, Source: "the paper's text: trends, and peaks of memory",
		Did:     "Algorithm 1 with LMthresh and MLthresh of 1, 12 and 24 hours. A longer MLthresh raises the hits per prefetch strongly, a longer LMthresh hardly.",
		Differs: synthetic + " Hits are counted as the algorithm is printed: a prefetch of a layer that is already kept counts. \"Strongly\" is taken as 1.5 times and more, \"hardly\" as 0.8 to 1.2 times.",
	}
	for z, bytes := range map[string]float64{"dal": 10e9, "lon": 1.7e9, "fra": 0.5e9, "syd": 1e9, "prs": 2e6, "dev": 69e6} {
		c := exactly(z+", most memory", chart.Bytes, bytes, Less)
		c.Within = 0.5
		e.Claims = append(e.Claims, c)
	}
	for _, z := range zones() {
		e.Claims = append(e.Claims, atLeast(z+", MLthresh of 24 h / of 1 h", chart.Number, 1.5, Like),
			Claim{Name: z + ", LMthresh of 24 h / of 1 h", Low: 0.8, High: 1.2})
	}
	sortClaims(e.Claims)
	e.Read = func(r *Raw) *Finding { return r.Own.Caches.prefetches() }
	return e
}
