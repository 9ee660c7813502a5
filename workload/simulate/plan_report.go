package simulate

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/internal/chart"
	"example.org/slipway/internal/policy"
	"example.org/slipway/internal/report"
)

// WriteJSON writes the plan as JSON.
func (p *Plan) WriteJSON(w io.Writer) error { return writeJSON(w, p) }

// WriteText writes the plan for a terminal.
func (p *Plan) WriteText(w io.Writer) error {
	page := report.Page{Facts: p.facts(), Tables: []report.Table{p.table()}}
	if err := page.WriteText(w); err != nil {
		return err
	}
	var b strings.Builder
	section := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, l := range lines {
			fmt.Fprintf(&b, "- %s\n", l)
		}
	}
	section("Recommendation", p.recommendation())
	fmt.Fprintf(&b, "\nFor the configuration of each replica:\n\n%s", p.ConfigYAML())
	section("Assumed", p.Assumed)
	section("Not known from this trace", p.Unknown)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteHTML writes the plan as one page that needs nothing else.
func (p *Plan) WriteHTML(w io.Writer) error {
	page := report.Page{
		Title: "Capacity of " + p.Zone, Facts: p.facts(), Tables: []report.Table{p.table()}, Notes: planNotes(),
		Lists: []report.List{{Title: "Recommendation", Items: p.recommendation()}, {Title: "Assumed", Items: p.Assumed},
			{Title: "Not known from this trace", Items: p.Unknown}},
		Text: p.ConfigYAML(), Charts: p.charts(),
	}
	return page.WriteHTML(w)
}

func (p *Plan) facts() []string {
	t := &p.Trace
	facts := []string{
		fmt.Sprintf("zone %s: %s with %d requests, %d of them for %d layers", p.Zone, spanText(t.Seconds), t.Requests, t.LayerGets, t.Layers),
		fmt.Sprintf("footprint %s, pushed %s; sizes of layers: %s", report.Bytes(float64(t.Footprint)), report.Bytes(float64(t.Ingress)), t.Sizes),
		fmt.Sprintf("at most %s requests/s over a minute; %s %% of the requests for layers are the first for theirs",
			threeDigits(t.PeakPerSec), percent(ratio(t.First, int64(t.LayerGets)))),
		fmt.Sprintf("wanted: %s; growth %gx: sizes, traffic and rates below are %g times the trace's", p.Config.Goal.String(), p.Config.Growth, p.Config.Growth),
	}
	return facts
}

// spanText writes a time for people: hours up to two days, then days.
func spanText(seconds float64) string {
	if seconds < 2*86400 {
		return durationText(time.Duration(seconds) * time.Second)
	}
	return strconv.FormatFloat(seconds/86400, 'f', 1, 64) + " days"
}

func (p *Plan) table() report.Table {
	t := report.Table{Names: 1, Head: []string{"cache", "object %", "byte %", "RAM %", "later %", "%/GiB", "mean", "p50", "p95", "p99",
		"backend MB/s", "backend req/s", "SSD written/day", "DWPD"}}
	row := func(name string, c *Candidate) {
		r := &c.Result
		t.Rows = append(t.Rows, []string{
			name, percent(r.ObjectRatio), percent(r.ByteRatio), percent(r.RAMRatio), percent(c.Later), gainText(c.Gain),
			msText(c.Latency.Mean), msText(c.Latency.P50), msText(c.Latency.P95), msText(c.Latency.P99),
			threeDigits(c.BackendBytesPerSec / 1e6), threeDigits(c.BackendRequestsPerSec),
			report.Bytes(c.SSDBytesPerDay), threeDigits(c.DriveWrites),
		})
	}
	row("none", &p.None)
	for i := range p.Candidates {
		c := &p.Candidates[i]
		name := c.Size.String()
		if c.Knee {
			name += " (knee)"
		}
		if i == p.Advice.Candidate {
			name = "> " + name
		}
		row(name, c)
	}
	row("without limit", &p.Limit)
	return t
}

// String writes a size as one would buy it.
func (s Size) String() string {
	if s.SSD == 0 {
		return gibText(s.RAM)
	}
	return gibText(s.RAM) + " + " + gibText(s.SSD)
}

// gibText writes bytes with binary prefixes, as memory is sold.
func gibText(n int64) string {
	f, i := float64(n), 0
	for f >= 1023.5 && i < 5 {
		f /= 1024
		i++
	}
	if i == 0 {
		return strconv.FormatInt(n, 10) + " B"
	}
	return threeDigits(f) + " " + "KMGTP"[i-1:i] + "iB"
}

// gainText writes a share of requests for each GiB.
func gainText(gain float64) string {
	if gain == 0 {
		return "-"
	}
	return threeDigits(100 * gain)
}

func planNotes() []report.Note {
	return []report.Note{
		{Name: "cache", Text: "Memory + SSD of all replicas together. > is what is recommended; at a knee a GiB more begins to serve less than on average over the sizes of its curve."},
		{Name: "object %, byte %, RAM %", Text: "Requests and bytes served by the cache, and requests served from memory, of all: from the first request on, with an empty cache."},
		{Name: "later %", Text: "Requests served of the second half of the trace: nearer to what a cache does that has been there for long."},
		{Name: "%/GiB", Text: "How many per cent more of the requests each GiB serves that this one has beyond the next smaller of its curve."},
		{Name: "mean, p50, p95, p99", Text: "Latency of layers, whole, on a registry that has nothing else to do."},
		{Name: "backend", Text: "What is fetched in the hour with the most bytes fetched."},
		{Name: "SSD written/day, DWPD", Text: "Bytes written to the SSD a day, and how often that is the whole SSD: drive writes per day."},
	}
}

func (p *Plan) recommendation() []string {
	a := &p.Advice
	c := &p.Candidates[a.Candidate]
	out := []string{fmt.Sprintf("%s: %s", c.Size, a.Why)}
	rep := &p.Config.Replica
	switch {
	case a.Replicas == 0:
		out = append(out, fmt.Sprintf("%d replicas would be needed, more than the %d there may be", a.Wanted, p.Config.MaxReplicas))
	default:
		out = append(out, fmt.Sprintf("%s for the peak minute, and %d to spare: %s %% of its %s and %s %% of its network of %s/s are used then",
			plural(a.Replicas, "replica"), rep.Spare, percent(a.CPU), plural(int(math.Round(rep.Cores)), "core"), percent(a.Network), report.Bytes(rep.Bandwidth)))
	}
	if a.Peak != (Latency{}) {
		met := ""
		if p.Config.Goal.Of != "" {
			met = "; wanted is " + p.Config.Goal.String() + ", which is met"
			if !a.GoalMet {
				met = "; wanted is " + p.Config.Goal.String() + ", which is NOT met"
			}
		}
		out = append(out, fmt.Sprintf("latency of layers in that minute: mean %s, p50 %s, p95 %s, p99 %s%s",
			msText(a.Peak.Mean), msText(a.Peak.P50), msText(a.Peak.P95), msText(a.Peak.P99), met))
	}
	out = append(out, fmt.Sprintf("the backend sends %s MB/s in answer to %s requests/s at most, instead of %s MB/s and %s requests/s without a cache",
		threeDigits(c.BackendBytesPerSec/1e6), threeDigits(c.BackendRequestsPerSec), threeDigits(p.None.BackendBytesPerSec/1e6), threeDigits(p.None.BackendRequestsPerSec)))
	if c.SSD > 0 {
		out = append(out, fmt.Sprintf("the SSD is written %s times a day; admission %q writes less, and a write budget bounds it",
			threeDigits(c.DriveWrites), policy.SecondTouch.String()))
	}
	return append(out, a.Homes.text(p.Config.NoHomes)...)
}

func (h *HomesEffect) text(off bool) []string {
	if h == nil {
		return nil
	}
	mode := "on, as planned"
	if off {
		mode = "off, as planned, where each replica has a cache of the size above"
	}
	return []string{fmt.Sprintf("digest homes are %s: %d replicas that share this cache have %s %% of the requests and %s %% of the bytes with homes and %s %% and %s %% without; mean latency %s and %s",
		mode, h.Replicas, percent(h.On.ObjectRatio), percent(h.On.ByteRatio), percent(h.Off.ObjectRatio), percent(h.Off.ByteRatio), msText(h.OnLatency.Mean), msText(h.OffLatency.Mean))}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ConfigYAML returns the registry's configuration for the recommendation.
func (p *Plan) ConfigYAML() string {
	var b strings.Builder
	e := p.Advice.Each
	fmt.Fprintf(&b, "storage:\n  blob_cache:\n    ram: %s\n", mibText(e.RAM))
	if e.SSD > 0 {
		fmt.Fprintf(&b, "    ssd: %s\n", mibText(e.SSD))
	}
	fmt.Fprintf(&b, "    ram_policy: %s\n", p.Config.Policy)
	if e.SSD > 0 {
		fmt.Fprintf(&b, "    ssd_policy: %s\n    admission: %s\n", p.Config.SSDPolicy, p.Config.Admission)
	}
	if p.Config.Split != nil {
		fmt.Fprintf(&b, "    large: %d\n", p.Config.Split(e.RAM))
	}
	return b.String()
}

// mibText writes bytes for the configuration: whole MiB, rounded up, or bytes where that
// would be far off.
func mibText(n int64) string {
	const mib = 1 << 20
	if n < 64*mib {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt((n+mib-1)/mib, 10) + "MiB"
}

// assumed returns what the figures rest on.
func (p *Plan) assumed() []string {
	c := &p.Config
	rep := &c.Replica
	split := "whatever fits"
	if c.Split != nil {
		split = "layers below " + gibText(c.Split(p.Candidates[p.Advice.Candidate].RAM))
	}
	list := []string{
		fmt.Sprintf("memory with %s for %s, SSD with %s and admission %s; what is pushed does not fill the cache", c.Policy, split, c.SSDPolicy, c.Admission),
		fmt.Sprintf("a layer takes %s from memory, %s from the SSD, %s from the backend, and no time in queues but for the network's in the peak minute", c.Model.RAM.String(), c.Model.SSD.String(), c.Model.Backend.String()),
		fmt.Sprintf("CPU: %s a request, %g s for each GB sent; a miss %s and %g s for each GB more; a GB pushed %g s; up to %s %% of CPU and network may be used",
			msText(rep.RequestCPU*1e3), rep.GBCPU, msText(rep.MissCPU*1e3), rep.MissGBCPU, rep.PushGBCPU, percent(rep.Busy)),
		"everything goes through the registry: with redirects, clients fetch what is redirected from the backend themselves",
	}
	if c.Growth != 1 {
		list = append(list, fmt.Sprintf("growth means %g times as many requests for %g times as much content, with the popularity of today's", c.Growth, c.Growth))
	}
	if !c.NoHomes {
		list = append(list, "with digest homes a layer that is asked of another replica goes through both, each of which pays for sending it")
	}
	return list
}

// unknown lists what the trace lacks.
func (p *Plan) unknown() []string {
	var list []string
	t, c := &p.Trace, &p.Candidates[p.Advice.Candidate].Result
	misses := c.Requests - c.Hits
	if misses > 0 && float64(t.First) >= 0.5*float64(misses) {
		list = append(list, fmt.Sprintf("%s %% of the misses of this cache are requests that are the first for their layer: a trace longer than %s would tell which of those a cache that has been there before would have held; until then all ratios are low estimates",
			percent(ratio(min(t.First, misses), misses)), spanText(t.Seconds)))
	}
	if t.Seconds < 7*86400 {
		list = append(list, fmt.Sprintf("the trace is %s long: what differs between the days of a week is not in it", spanText(t.Seconds)))
	}
	if t.Seconds < 3600 {
		list = append(list, "the trace is shorter than an hour: its mean stands for the peak hour")
	}
	if c.RAMNeverEvicted || p.Candidates[p.Advice.Candidate].SSD > 0 && c.SSDNeverEvicted {
		list = append(list, "a level of this cache was never full: what its size is worth does not show in this trace")
	}
	if t.Skipped > 0 {
		list = append(list, fmt.Sprintf("%d requests for layers have no known size and were left out", t.Skipped))
	}
	if t.Unsized > 0 {
		list = append(list, fmt.Sprintf("the trace does not have the size of %d pushes: percentages refer to the footprint, and traffic does not include them", t.Unsized))
	}
	if t.Sizes != "recorded" {
		list = append(list, "the sizes of layers are from a model: byte ratios, traffic and latencies are those of layers like them, not of these")
	}
	return append(list, "how much the backend itself slows down under load, and what clients' own networks add")
}

// charts returns the charts of the ratios, the latencies and the backend's traffic by
// size.
func (p *Plan) charts() []report.Figure {
	size := chart.Axis{Title: "memory + SSD", Unit: chart.Bytes, Log: true}
	ratios := chart.XY{Title: "Served from the cache", Desc: "Shares of requests and bytes by the size of the cache", X: size, Y: chart.Axis{Title: "share", Unit: chart.Share, Full: true}}
	times := chart.XY{Title: "Latency of layers", Desc: "Mean, median and 99th percentile by the size of the cache", X: size, Y: chart.Axis{Title: "latency", Unit: chart.Seconds, Log: true}}
	traffic := chart.XY{Title: "Fetched from the backend in the peak hour", Desc: "Bytes a second by the size of the cache", X: size, Y: chart.Axis{Title: "bytes a second", Unit: chart.Bytes}}
	for n := 0; ; n++ {
		var on []*Candidate
		for i := range p.Candidates {
			if p.Candidates[i].Curve == n {
				on = append(on, &p.Candidates[i])
			}
		}
		if len(on) == 0 {
			break
		}
		name := "memory alone"
		if on[0].SSD > 0 {
			name = "memory + " + threeDigits(float64(on[0].SSD)/float64(on[0].RAM)) + " x SSD"
		}
		line := func(what string, y func(*Candidate) float64) chart.Series {
			s := chart.Series{Name: what + name}
			for _, c := range on {
				s.Points = append(s.Points, chart.Point{X: float64(c.RAM + c.SSD), Y: y(c)})
			}
			return s
		}
		ratios.Series = append(ratios.Series, line("requests, ", func(c *Candidate) float64 { return c.Result.ObjectRatio }),
			line("bytes, ", func(c *Candidate) float64 { return c.Result.ByteRatio }))
		times.Series = append(times.Series, line("mean, ", func(c *Candidate) float64 { return c.Latency.Mean / 1e3 }),
			line("p99, ", func(c *Candidate) float64 { return c.Latency.P99 / 1e3 }))
		traffic.Series = append(traffic.Series, line("", func(c *Candidate) float64 { return c.BackendBytesPerSec }))
	}
	var out []report.Figure
	for _, xy := range []*chart.XY{&ratios, &times, &traffic} {
		out = append(out, report.NewFigure(xy.Title, xy))
	}
	return out
}
