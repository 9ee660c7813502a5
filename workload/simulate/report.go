package simulate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/internal/chart"
	"example.org/slipway/internal/policy"
	"example.org/slipway/internal/report"
)

// CacheReport is what was simulated and the results.
type CacheReport struct {
	Zone string `json:"zone"`
	// Requests is how many requests for layers there are, Layers the number of distinct
	// layers. Pushes counts the pushes that fill the cache because of Writes, without
	// being requests.
	Requests  int    `json:"requests"`
	Pushes    int    `json:"pushes"`
	Writes    Writes `json:"writes"`
	Layers    int    `json:"layers"`
	Footprint int64  `json:"footprint_bytes"`
	Ingress   int64  `json:"ingress_bytes"`
	// Servers is how many servers answered. It is 0 if the trace does not say.
	Servers int `json:"servers"`
	// Skipped counts requests without a size.
	Skipped int64 `json:"skipped_requests"`
	// Sizes says where the sizes are from. Of says what the sizes of the caches are shares of.
	Sizes   string        `json:"sizes"`
	Of      string        `json:"of"`
	Results []CacheResult `json:"results"`
}

// PrefetchReport is what was simulated and the results.
type PrefetchReport struct {
	Zone string `json:"zone"`
	// Requests counts the requests for manifests and layers. Skipped counts the requests
	// without a client or a size.
	Requests int   `json:"requests"`
	Skipped  int64 `json:"skipped_requests"`
	// Manifests counts the manifests with known layers, which are learnt within Session.
	Manifests int              `json:"manifests"`
	Session   time.Duration    `json:"session_ns"`
	Pair      string           `json:"pair"`
	NoDigest  int64            `json:"pushes_without_digest"`
	Results   []PrefetchResult `json:"results"`
}

// WriteJSON writes the report as JSON.
func (r *CacheReport) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteJSON writes the report as JSON.
func (r *PrefetchReport) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// WriteText writes the report for a terminal.
func (r *CacheReport) WriteText(w io.Writer) error {
	return (&report.Page{Facts: r.facts(), Tables: []report.Table{r.table()}}).WriteText(w)
}

// WriteText writes the report for a terminal.
func (r *PrefetchReport) WriteText(w io.Writer) error {
	return (&report.Page{Facts: r.facts(), Tables: []report.Table{r.table()}}).WriteText(w)
}

// WriteHTML writes the report as one page that needs nothing else.
func (r *CacheReport) WriteHTML(w io.Writer) error {
	bytes := func(c *CacheResult) float64 { return c.ByteRatio }
	p := report.Page{Title: "Cache simulation of " + r.Zone, Facts: r.facts(), Tables: []report.Table{r.table()}, Notes: cacheNotes()}
	if sizes := r.lines("Requests served, by size of the memory", objects); len(sizes.Series) > 0 {
		p.Charts = append(p.Charts, report.NewFigure(sizes.Title, sizes))
		sizes = r.lines("Bytes served, by size of the memory", bytes)
		p.Charts = append(p.Charts, report.NewFigure(sizes.Title, sizes))
	}
	p.Charts = append(p.Charts, report.NewFigure("Requests served from the cache", r.bars("Requests served from the cache", objects)),
		report.NewFigure("Bytes served from the cache", r.bars("Bytes served from the cache", bytes)))
	return p.WriteHTML(w)
}

// WriteHTML writes the report as one page that needs nothing else.
func (r *PrefetchReport) WriteHTML(w io.Writer) error {
	p := report.Page{Title: "Prefetch simulation of " + r.Zone, Facts: r.facts(), Tables: []report.Table{r.table()}, Notes: prefetchNotes()}
	for _, algorithm := range Prefetchers() {
		title := "Hits per prefetch: " + algorithm
		bars := chart.Bars{Title: title, Desc: title + ", by setting", X: chart.Axis{Title: "hits per prefetch"}}
		for _, x := range r.Results {
			if x.Config.Algorithm == algorithm {
				value := x.HitsPerPrefetch
				bars.Rows = append(bars.Rows, chart.Row{Name: x.Config.settings(), Values: []float64{value}, Label: strconv.FormatFloat(value, 'f', 2, 64)})
			}
		}
		if len(bars.Rows) > 0 {
			p.Charts = append(p.Charts, report.NewFigure(bars.Title, &bars))
		}
	}
	return p.WriteHTML(w)
}

// SVG draws the share of requests that were served: a line for each policy over the size of
// the memory, or a bar for each cache if no policy has several sizes.
func (r *CacheReport) SVG() string {
	if xy := r.lines("Requests served, by size of the memory, "+r.Zone, objects); len(xy.Series) > 0 {
		return xy.SVG(nil)
	}
	return r.bars("Requests served from the cache, "+r.Zone, objects).SVG(nil)
}

func objects(c *CacheResult) float64 { return c.ObjectRatio }

// lines draws a value over the size of the memory: a line for each policy and each ratio
// of the SSD to the memory. It leaves out policies of a single size.
func (r *CacheReport) lines(title string, value func(*CacheResult) float64) *chart.XY {
	xy := &chart.XY{Title: title, Desc: title + ", a line for each policy", X: chart.Axis{Title: "memory", Unit: chart.Bytes},
		Y: chart.Axis{Title: "share served from either level", Unit: chart.Share, Full: true}}
	for i := range r.Results {
		c := &r.Results[i]
		name := c.Config.Policy
		if c.Config.isBound() {
			name += " (bound)"
		}
		if c.Config.SSD > 0 {
			name += fmt.Sprintf(" + SSD of %.3g times", float64(c.Config.SSD)/float64(c.Config.RAM))
		}
		at := slices.IndexFunc(xy.Series, func(s chart.Series) bool { return s.Name == name })
		if at < 0 {
			at = len(xy.Series)
			xy.Series = append(xy.Series, chart.Series{Name: name})
		}
		xy.Series[at].Points = append(xy.Series[at].Points, chart.Point{X: float64(c.Config.RAM), Y: value(c)})
	}
	xy.Series = slices.DeleteFunc(xy.Series, func(s chart.Series) bool { return len(s.Points) < 2 })
	for _, s := range xy.Series {
		slices.SortFunc(s.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
	}
	return xy
}

func (r *CacheReport) bars(title string, value func(*CacheResult) float64) *chart.Bars {
	bars := &chart.Bars{Title: title, Desc: title + " by policy and size", X: chart.Axis{Title: title, Unit: chart.Share, Full: true}}
	for i := range r.Results {
		c := &r.Results[i]
		bars.Rows = append(bars.Rows, chart.Row{Name: c.Config.name(), Values: []float64{value(c)}, Label: percent(value(c)) + " %", Weak: c.Config.isBound()})
	}
	return bars
}

// name returns a short name of a configuration.
func (c *CacheConfig) name() string {
	s := c.Policy + " " + report.Bytes(float64(c.RAM))
	if c.SSD > 0 {
		s += " + " + report.Bytes(float64(c.SSD))
	}
	return s
}

func (c *PrefetchConfig) name() string { return c.Algorithm + " " + c.settings() }

// settings returns the thresholds of the algorithm.
func (c *PrefetchConfig) settings() string {
	if c.Algorithm == Manifest {
		return "ML " + durationText(c.ML)
	}
	return fmt.Sprintf("LM %s ML %s", durationText(c.LM), durationText(c.ML))
}

func (r *CacheReport) facts() []string {
	facts := []string{
		fmt.Sprintf("zone %s: %d requests for %d layers", r.Zone, r.Requests, r.Layers),
		fmt.Sprintf("footprint %s, pushed %s", report.Bytes(float64(r.Footprint)), report.Bytes(float64(r.Ingress))),
		"sizes of layers: " + r.Sizes,
		"sizes of caches in per cent are of the " + r.Of,
	}
	switch r.Writes {
	case WriteThrough:
		facts = append(facts, fmt.Sprintf("%d pushes fill the cache and do not count as requests", r.Pushes))
	case CompatWrites:
		facts = append(facts, "a push is a request for the id of its upload")
	}
	for _, c := range r.Results {
		if n := c.Config.Shards; c.Config.By == ByHost && n > r.Servers && r.Servers > 0 && !c.Config.isBound() {
			facts = append(facts, fmt.Sprintf("only %d of %d shards are used: so many servers answered", r.Servers, n))
			break
		}
	}
	if r.Skipped > 0 {
		facts = append(facts, fmt.Sprintf("%d requests left out: the trace does not have their size", r.Skipped))
	}
	return facts
}

func (r *CacheReport) table() report.Table {
	t := report.Table{Names: 2, Head: []string{"policy", "shards", "RAM", "SSD", "object %", "byte %", "RAM %", "RAM warm %", "all warm %", "not compulsory %", "backend", "SSD written", "RAM evictions", "SSD evictions"}}
	for _, c := range r.Results {
		name := c.Config.Policy
		if c.Config.SSD > 0 && !c.Config.isBound() {
			name += " + " + c.Config.SSDPolicy
			if c.Config.Admission != policy.AdmitAll {
				name += " " + c.Config.Admission.String()
			}
		}
		shards := "1"
		if c.Config.Shards > 1 && !c.Config.isBound() {
			shards = fmt.Sprintf("%d by %s", c.Config.Shards, c.Config.By)
		}
		ram, all := percent(c.RAMWarm), percent(c.CombinedWarm)
		if c.RAMNeverEvicted {
			ram = "never evicted"
		}
		if c.NeverFull() {
			all = "never evicted"
		}
		t.Rows = append(t.Rows, []string{
			name, shards, report.Bytes(float64(c.Config.RAM)), report.Bytes(float64(c.Config.SSD)), percent(c.ObjectRatio), percent(c.ByteRatio), percent(c.RAMRatio),
			ram, all, percent(c.NotCompulsory), report.Bytes(float64(c.BackendBytes)), report.Bytes(float64(c.SSDWriteBytes)),
			strconv.FormatInt(c.RAMEvictions, 10), strconv.FormatInt(c.SSDEvictions, 10),
		})
	}
	return t
}

func cacheNotes() []report.Note {
	return []report.Note{
		{Name: "object %, byte %", Text: "Requests and bytes served by either level, of all, from the first request on."},
		{Name: "RAM %", Text: "Requests served from memory, of all."},
		{Name: "RAM warm %, all warm %", Text: "The same for memory from the first eviction from memory on, and for both levels from the first eviction from the last level on: the time in which the cache fills is left out. FAST'18 counts so. A cache that never evicted has no such ratio."},
		{Name: "not compulsory %", Text: "Hits through the requests that are not the first for their layer: what a cache without limit has in full."},
		{Name: "backend, SSD written", Text: "Bytes that had to be fetched from the object store, and bytes written to the SSD."},
		{Name: "belady, belady-size", Text: "No policies but bounds that know the future: the first is the best there is for contents of equal size and a cache that takes in all it is asked for, the second is close to the best by requests where sizes differ. They stand for both levels together and one shard."},
	}
}

func (r *PrefetchReport) facts() []string {
	facts := []string{
		fmt.Sprintf("zone %s: %d requests for manifests and layers", r.Zone, r.Requests),
		"layers pushed and pulled are paired by " + r.Pair,
		fmt.Sprintf("the layers of %d manifests were learnt from the requests that followed them", r.Manifests),
	}
	if r.NoDigest > 0 {
		facts = append(facts, fmt.Sprintf("%d pushed layers have no digest in the trace and are paired with nothing; by size they can be", r.NoDigest))
	}
	if r.Session > 0 {
		facts[2] += ", within " + durationText(r.Session)
	}
	if r.Skipped > 0 {
		facts = append(facts, fmt.Sprintf("%d requests left out: the trace does not have the client, or the size of a layer", r.Skipped))
	}
	return facts
}

func (r *PrefetchReport) table() report.Table {
	t := report.Table{Names: 1, Head: []string{"prefetcher", "prefetches", "hits", "hits/prefetch", "hits/decision", "precision %", "recall %", "fetched", "wasted", "peak memory", "pinned hits", "pinned peak"}}
	for _, x := range r.Results {
		t.Rows = append(t.Rows, []string{
			x.Config.name(), strconv.FormatInt(x.Prefetches, 10), strconv.FormatInt(x.Hits, 10),
			strconv.FormatFloat(x.HitsPerPrefetch, 'f', 2, 64), strconv.FormatFloat(x.HitsPerDecision, 'f', 2, 64), percent(x.Precision), percent(x.Recall),
			report.Bytes(float64(x.Bytes)), report.Bytes(float64(x.WastedBytes)), report.Bytes(float64(x.PeakBytes)),
			strconv.FormatInt(x.PinnedHits, 10), report.Bytes(float64(x.PinnedPeakBytes)),
		})
	}
	return t
}

func prefetchNotes() []report.Note {
	return []report.Note{
		{Name: "hits/prefetch", Text: "Requests for layers that a prefetched one served, through prefetched layers."},
		{Name: "hits/decision", Text: "The same, through all decisions to prefetch: also those for a layer that was kept already. Algorithm 1 as printed in FAST'18 counts so, for its Figure 18."},
		{Name: "precision %, recall %", Text: "Prefetched layers that were asked for at all, of all prefetched; requests for layers that a prefetched one served, of all."},
		{Name: "fetched, wasted", Text: "Bytes prefetched, and of these the bytes nobody asked for."},
		{Name: "peak memory", Text: "The most that prefetched layers took at once."},
		{Name: "pinned", Text: "The manifest prefetcher keeps what was pushed, so it need not be fetched: requests served so, and the most that it took."},
	}
}

func percent(r float64) string { return strconv.FormatFloat(100*r, 'f', 1, 64) }

// durationText writes a duration without zeros at its end.
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
