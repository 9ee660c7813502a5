package analyze

import (
	"math"
	"slices"
	"strconv"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace/store"
)

// popularity makes Figures 10a to 10d, "Popularity of layers, manifests, repositories and
// clients", and 11a to 11d, the shares of the ten hottest of each, of FAST'18. It makes
// the same figures of users, which the paper mentions. All rest on the same counts.
func popularity() Plugin {
	items := []struct{ letter, name, counted string }{
		{"a", "layers", "GETs of a layer with status 200 or 206; layers are the same by digest (by option: by repository and digest)"},
		{"b", "manifests", "GETs of a manifest with a status below 400; manifests are the same by repository and tag or digest"},
		{"c", "repositories", "all requests to a repository, with whatever method and status; pings are to none"},
		{"d", "clients", "all requests but pings, with whatever method and status"},
		{"-users", "users", "all requests to a repository; a user is the first segment of its name"},
	}
	var figures []Figure
	for _, it := range items {
		figures = append(figures, Figure{
			ID: "10" + it.letter, Title: "Figure 10" + it.letter + ": popularity of " + it.name,
			Definition: "Counted are " + it.counted + ". The " + it.name + " are ranked by their count; the curve shows what share of all requests the most popular part of them has. " +
				"The top 1 % are the first n/100 of n, rounded down, but at least one. " +
				"The slope is that of Zipf's law: the line through log(count) against log(rank) of the first 3,000, by least squares, without its sign.",
			Plot: Plot{Kind: PlotLines, X: chart.Axis{Title: "part of the " + it.name + ", most popular first", Unit: chart.Share, Log: true},
				Y: chart.Axis{Title: "share of requests", Unit: chart.Share, Full: true}},
		})
	}
	for _, it := range items {
		figures = append(figures, Figure{
			ID: "11" + it.letter, Title: "Figure 11" + it.letter + ": the ten hottest " + it.name,
			Definition: "Counted are " + it.counted + ". The share of all of them that each of the ten most popular " + it.name + " has, by rank.",
			Plot:       Plot{Kind: PlotColumns, X: chart.Axis{Title: "rank 1 to 10"}, Y: chart.Axis{Title: "share of requests", Unit: chart.Share}},
		})
	}
	for i := range figures {
		if figures[i].ID == "10-users" || figures[i].ID == "11-users" {
			figures[i].Title = "Beside Figure " + figures[i].ID[:2] + ": " + []string{"popularity of users", "the ten hottest users"}[i/len(items)]
		}
	}
	return Plugin{Figures: figures, New: func(_ store.Zone, o *Options) Analysis {
		p := &popular{manifests: map[uint64]uint32{}}
		if o.LayersBy == ByURI {
			p.layerURIs = map[uint64]uint32{}
		}
		return p
	}}
}

type popular struct {
	layers, repos, clients, users bySymbol[uint32]
	manifests                     map[uint64]uint32
	layerURIs                     map[uint64]uint32 // instead of layers, if not nil
	noClient                      int64
}

func (p *popular) Columns() store.Columns {
	return store.ColMethod | store.ColKind | store.ColStatus | store.ColClient | store.ColRepo | store.ColNamespace | store.ColRef | store.ColDigest
}

func (p *popular) Add(b *store.Batch) {
	for i := range b.Method {
		switch {
		case layerGet(b, i) && p.layerURIs != nil:
			p.layerURIs[pair(b.Repo[i], b.Digest[i])]++
		case layerGet(b, i):
			*p.layers.at(b.Digest[i])++
		case manifestGet(b, i):
			p.manifests[pair(b.Repo[i], b.Ref[i])]++
		}
		if b.Repo[i] != store.None {
			*p.repos.at(b.Repo[i])++
			*p.users.at(b.Namespace[i])++
		}
		switch {
		case isPing(b, i):
		case b.Client[i] == store.None:
			p.noClient++
		default:
			*p.clients.at(b.Client[i])++
		}
	}
}

func (p *popular) Result() []Result {
	layers := counted(&p.layers)
	if p.layerURIs != nil {
		layers = values(p.layerURIs)
	}
	all := [][]uint32{layers, values(p.manifests), counted(&p.repos), counted(&p.clients), counted(&p.users)}
	var curves, hottest []Result
	for i, counts := range all {
		curve, top := rank(counts)
		if i == 3 {
			curve.unknown(p.noClient, "the client")
			top.unknown(p.noClient, "the client")
		}
		if i == 0 && p.layerURIs != nil {
			curve.note("Layers are counted by repository and digest.")
			top.note("Layers are counted by repository and digest.")
		}
		curves, hottest = append(curves, curve), append(hottest, top)
	}
	return append(curves, hottest...)
}

// counted returns the counts that are not 0.
func counted(t *bySymbol[uint32]) []uint32 {
	var out []uint32
	t.all(func(c *uint32) {
		if *c > 0 {
			out = append(out, *c)
		}
	})
	return out
}

func values(m map[uint64]uint32) []uint32 {
	out := make([]uint32, 0, len(m))
	for _, c := range m {
		out = append(out, c)
	}
	return out
}

// zipfRanks is the number of the most popular items to which the slope is fitted.
const zipfRanks = 3000

// rank makes the results of Figures 10 and 11 from the counts of items.
func rank(counts []uint32) (curve, hottest Result) {
	slices.SortFunc(counts, func(a, b uint32) int { return int(b) - int(a) })
	var total, once int64
	var zipf fit
	for i, c := range counts {
		total += int64(c)
		if c == 1 {
			once++
		}
		if i < zipfRanks {
			zipf.add(math.Log(float64(i+1)), math.Log(float64(c)), 1)
		}
	}
	curve, hottest = Result{Requests: total}, Result{Requests: total}
	n := len(counts)
	curve.count("items", int64(n))
	if n == 0 {
		return curve, hottest
	}
	var sum, top1, top10 int64
	var points, bars []Point
	next := 1.0
	for i, c := range counts {
		sum += int64(c)
		switch i + 1 {
		case max(n/100, 1):
			top1 = sum
		}
		if i < 10 {
			top10 = sum
			bars = append(bars, Point{Label: strconv.Itoa(i + 1), X: float64(i + 1), Y: float64(c) / float64(total)})
		}
		if at := float64(i + 1); at >= next || i == n-1 {
			points = append(points, Point{X: at / float64(n), Y: float64(sum) / float64(total)})
			next = at * 1.06
		}
	}
	curve.share("top 1 %", top1, total)
	curve.share("items requested once", once, int64(n))
	curve.add("slope", Number, -zipf.slope())
	curve.Series = []Series{{Name: "share of requests", Points: points}}
	hottest.share("rank 1", int64(counts[0]), total)
	if n > 1 {
		hottest.share("top 2", int64(counts[0])+int64(counts[1]), total)
	}
	hottest.share("top 10", top10, total)
	hottest.Series = []Series{{Name: "share of requests", Points: bars}}
	return curve, hottest
}
