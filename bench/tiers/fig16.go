package tiers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/internal/backendtest"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Fig16 shows the latency of layers by size, for each place from which they come.
type Fig16 struct {
	Run measure.Run `json:"run"`
	// Requests is the number of requests of the trace that were replayed. Scale is the factor by
	// which sizes were multiplied.
	Requests int     `json:"requests"`
	Scale    string  `json:"scale"`
	AtOnce   int     `json:"at_once"`
	Places   []Place `json:"places"`
}

// Place is one way to keep layers.
type Place struct {
	Name string `json:"name"`
	// Missing says why the place was not measured.
	Missing string `json:"missing,omitempty"`
	// Errors is the number of requests that went wrong.
	Errors int64 `json:"errors"`
	// Early is the number of 404s. A replay without recorded times can send a GET before the push
	// of its content.
	Early int64 `json:"early"`
	// Outcomes counts the ways in which requests went wrong, with the HTTP status.
	Outcomes map[string]int `json:"outcomes,omitempty"`
	Bins     []Bin          `json:"bins,omitempty"`
	// Redirects is the number of GETs that were answered with a redirect.
	Redirects int64 `json:"redirects"`
}

// Bin holds the layers of a range of sizes: how many were fetched, and how long that took in
// milliseconds.
type Bin struct {
	Name   string  `json:"name"`
	N      int     `json:"n"`
	Bytes  int64   `json:"bytes"` // mean
	Mean   float64 `json:"mean_ms"`
	Median float64 `json:"median_ms"`
	P99    float64 `json:"p99_ms"`
}

// binLimits returns the upper ends of the bins. The first bins hold contents whose bytes the
// catalogue keeps, so that they are in no object store at all.
func binLimits() []struct {
	name  string
	below int64
} {
	return []struct {
		name  string
		below int64
	}{{"to 16 KiB", 16<<10 + 1}, {"to 128 KiB", 128 << 10}, {"to 1 MB", 1e6}, {"to 10 MB", 10e6}, {"to 64 MiB", 64 << 20}, {"64 MiB and more", 1 << 62}}
}

const (
	// These are the names of the places in the figure.
	swiftName = "Swift"
	ramName   = "RAM + Swift"
	localName = "local files"
	// smallName is the set-up of the study: layers of 1 MB and more are not cached.
	smallName    = "RAM below 1 MB + Swift"
	redirectName = "redirect to Swift"
	s3Name       = "S3 (versitygw)"
	rgwName      = "S3 (Ceph)"
)

func runFig16(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Fig16{Requests: pick(b, 10_000, 400), Scale: pick(b, "0.1", "0.05"), AtOnce: 2}
	h := newHost(b)
	defer h.close()
	traces := b.NewDir()
	defer b.Remove(traces)
	if _, err := b.slipway(ctx, "trace", "generate", "--zone", "dal", "--seed", "1", "--requests", strconv.Itoa(5*out.Requests), "-o", traces); err != nil {
		return err
	}
	sw, err := h.swift()
	if err != nil {
		return err
	}
	list := []struct {
		name    string
		be      backend
		storage string
		// passes is the number of passes. The first of two passes brings everything into
		// memory.
		passes int
	}{
		{localName, filesystem(), noCache, 1},
		{swiftName, sw, noCache, 1},
		{ramName, sw, "  blob_cache: {ram: 12GiB, ssd: 0, large: 8GiB, write_through: false}\n  prefetch: {mode: \"off\"}\n", 2},
		{smallName, sw, "  blob_cache: {ram: 12GiB, ssd: 0, large: 1000000, write_through: false}\n  prefetch: {mode: \"off\"}\n", 2},
		{redirectName, sw, "  redirect: {mode: always}\n" + noCache, 1},
	}
	for _, s := range []struct {
		name string
		do   func() (backend, error)
	}{{s3Name, func() (backend, error) { return h.gateway(s3Name, false) }}, {rgwName, func() (backend, error) { return h.gateway(rgwName, true) }}} {
		be, err := s.do()
		if err != nil {
			return err
		}
		list = append(list, struct {
			name    string
			be      backend
			storage string
			passes  int
		}{s.name, be, noCache, 1})
	}
	dirs := map[string]string{} // by store, because a bucket belongs to the catalogue that filled it
	for _, l := range list {
		if dirs[l.be.Name] == "" {
			dirs[l.be.Name] = b.NewDir()
			defer b.Remove(dirs[l.be.Name])
		}
		p := Place{Name: l.name, Missing: l.be.Missing}
		if p.Missing == "" {
			if err := out.measure(b, ctx, &p, dirs[l.be.Name], l.be.driver+l.storage, traces, l.passes); err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
		}
		out.Places = append(out.Places, p)
	}
	out.Run = b.Since(began)
	out.Run.Rounds = 1
	b.results.Fig16 = out
	return nil
}

// noCache keeps blobs only in the store.
const noCache = "  blob_cache: {ram: 0, ssd: 0}\n  prefetch: {mode: \"off\"}\n"

// gateway starts an S3 server with its own bucket.
func (h *host) gateway(name string, ceph bool) (backend, error) {
	start := backendtest.S3
	if ceph {
		start = backendtest.RGW
	}
	s, bucket, err := h.bucket(start)
	if err != nil {
		return backend{Name: name, Missing: missing(err)}, unlessMissing(err)
	}
	return s3(name, s.Endpoint, bucket, s), nil
}

// measure replays to one place. Before that, it stores everything that is read. If there
// is a cache, a first pass fills it.
func (f *Fig16) measure(b *bench, ctx context.Context, p *Place, dir, storage, traces string, passes int) error {
	r, err := b.serve(ctx, p.Name, dir, storage)
	if err != nil {
		return err
	}
	defer r.stop()
	var res string
	var said []byte
	for range passes {
		res = b.NewDir()
		defer b.Remove(res)
		if said, err = b.slipway(ctx, "trace", "replay", traces, "-o", res, "--target", "http://"+r.Addr, "--level", "L0",
			"--max-requests", strconv.Itoa(f.Requests), "--closed-loop", strconv.Itoa(f.AtOnce), "--size-scale", f.Scale,
			"--quiet", "--no-docker-config"); err != nil {
			return err
		}
	}
	if err := p.read(res); err != nil {
		return err
	}
	b.Logf("%-18s %s", p.Name, p.line())
	if p.Errors > 0 {
		b.Logf("%-18s went wrong: %v; the replay says: %s", "", p.Outcomes, measure.LastLine(said))
	}
	return nil
}

// read reads what a replay measured for layers.
func (p *Place) read(dir string) error {
	limits := binLimits()
	times := make([][]float64, len(limits))
	sums := make([]int64, len(limits))
	p.Outcomes = map[string]int{}
	err := result.Read(dir, func(s *result.Sample) error {
		if s.IsSession() || s.Method != store.GET || s.Object != result.Object(trace.Blob) {
			return nil
		}
		if early(s) {
			p.Early++
			return nil
		}
		if s.Outcome != result.OK {
			p.Errors++
			p.Outcomes[fmt.Sprintf("%s, status %d", s.Outcome, s.Status)]++
			return nil
		}
		i := slices.IndexFunc(limits, func(l struct {
			name  string
			below int64
		}) bool {
			return s.Bytes < l.below
		})
		times[i] = append(times[i], float64(s.Service())/1e3)
		sums[i] += s.Bytes
		p.Redirects += int64(s.Redirects)
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, result.SummaryName)); err != nil {
		return err
	}
	for i, l := range limits {
		bin := binOf(l.name, times[i])
		if bin.N > 0 {
			bin.Bytes = sums[i] / int64(bin.N)
		}
		p.Bins = append(p.Bins, bin)
	}
	return nil
}

// early reports whether a request came before its content was pushed.
func early(s *result.Sample) bool {
	return s.Outcome == result.BadStatus && s.Status == http.StatusNotFound
}

func binOf(name string, ms []float64) Bin {
	bin := Bin{Name: name, N: len(ms)}
	if bin.N == 0 {
		return bin
	}
	slices.Sort(ms)
	for _, v := range ms {
		bin.Mean += v / float64(bin.N)
	}
	bin.Median = measure.SpreadOf(ms).Median
	bin.P99 = ms[(len(ms)-1)*99/100]
	return bin
}

// below returns the mean of the layers below 1 MB that are objects, or 0 if there are none.
func (p *Place) below() float64 { return p.mean(1, 3) }

// mean returns the mean of the layers of some bins.
func (p *Place) mean(from, to int) float64 {
	var sum, n float64
	for i := from; i < to && i < len(p.Bins); i++ {
		sum += p.Bins[i].Mean * float64(p.Bins[i].N)
		n += float64(p.Bins[i].N)
	}
	if n == 0 {
		return 0
	}
	return sum / n
}

func (p *Place) line() string {
	var parts []string
	for _, bin := range p.Bins {
		if bin.N > 0 {
			parts = append(parts, fmt.Sprintf("%s %s ms", bin.Name, measure.Figure(bin.Mean)))
		}
	}
	return strings.Join(parts, ", ")
}

func (f *Fig16) place(name string) *Place {
	for i := range f.Places {
		if f.Places[i].Name == name && f.Places[i].Missing == "" {
			return &f.Places[i]
		}
	}
	return &Place{}
}

// Title is the heading.
func (f *Fig16) Title() string { return "Latency against layer size: Figure 16 of FAST'18" }

// About says what was done.
func (f *Fig16) About() string {
	return fmt.Sprintf("%d requests of a synthetic dal are replayed to a registry, with layers of %s times their size: each GET as one of a blob (level L0), %d at a time and without pauses, after everything was put in place. "+
		"Times are from sending a request to the last byte, a redirect included. Only the two with RAM have a cache, for all layers or, as in the study, for those below 1 MB, which a first pass of the same requests has filled. Contents of up to 16 KiB are in the registry's catalogue and in no object store, whatever the driver; they are shown, and left out of the comparison of small layers.",
		f.Requests, f.Scale, f.AtOnce)
}

// Head says how the part was measured.
func (f *Fig16) Head() string {
	out := f.Run.Head()
	for _, p := range f.Places {
		if p.Missing != "" {
			out += "\n- " + p.Name + ": not measured: " + p.Missing
		}
	}
	return out
}

// Targets returns the published ratio and order.
func (f *Fig16) Targets() []measure.Target {
	swift, ram := f.place(swiftName), f.place(ramName)
	local, redirect := f.place(localName), f.place(redirectName)
	over := func(what string, limit, a, b float64) measure.Target {
		t := measure.Target{Scenario: "fig16", What: what, Limit: limit, AtLeast: true, Missing: !(a > 0) || !(b > 0)}
		if !t.Missing {
			t.Figure = a / b
		}
		return t
	}
	wrong := int64(0)
	for _, p := range f.Places {
		wrong += p.Errors
	}
	return []measure.Target{
		over("layers below 1 MB: Swift / RAM + Swift", 8.75, swift.below(), ram.below()),
		over("layers below 1 MB: Swift / local files", 1, swift.below(), local.below()),
		over("layers below 1 MB: redirect / Swift", 1, redirect.below(), swift.below()),
		over("layers from 1 MB on: Swift / RAM + Swift", 1, swift.mean(3, 6), ram.mean(3, 6)),
		over("layers from 10 MB on: Swift / redirect", 1, swift.mean(4, 6), redirect.mean(4, 6)),
		{Scenario: "fig16", What: "requests that went wrong", Figure: float64(wrong)},
	}
}

// Write writes the table.
func (f *Fig16) Write(w *strings.Builder) {
	head := []string{"mean (median), ms"}
	for _, l := range binLimits() {
		head = append(head, l.name)
	}
	var rows [][]string
	for _, p := range f.Places {
		if p.Missing != "" {
			continue
		}
		row := []string{p.Name}
		for _, bin := range p.Bins {
			cell := "-"
			if bin.N > 0 {
				cell = fmt.Sprintf("%s (%s)", measure.Figure(bin.Mean), measure.Figure(bin.Median))
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	measure.Table(w, 1, head, rows)
	for _, p := range f.Places {
		if p.Missing != "" {
			continue
		}
		var parts []string
		for _, bin := range p.Bins {
			parts = append(parts, fmt.Sprintf("%d %s", bin.N, bin.Name))
		}
		fmt.Fprintf(w, "\nLayers fetched: %s.\n", strings.Join(parts, ", "))
		break
	}
	var gone []string
	for _, p := range f.Places {
		if p.Early > 0 {
			gone = append(gone, fmt.Sprintf("%d of %s", p.Early, p.Name))
		}
	}
	if len(gone) > 0 {
		fmt.Fprintf(w, "\nAnswered with 404, as their push was not over yet: %s.\n", strings.Join(gone, ", "))
	}
	fmt.Fprintf(w, "\nPublished, in s: below 1 MB 0.008 RAM + Swift, 0.013 local, 0.07 Swift, 0.11 redirect; very large 0.63 Swift, 0.59 redirect.\n")
}

// Pictures returns the figure.
func (f *Fig16) Pictures() []measure.Picture {
	c := measure.Chart{Title: "Latency of layers by size, mean, in ms", Across: "size of layers", Lines: true}
	for _, l := range binLimits() {
		c.Columns = append(c.Columns, l.name)
	}
	for _, p := range f.Places {
		if p.Missing != "" {
			continue
		}
		s := measure.Series{Name: p.Name}
		for _, bin := range p.Bins {
			point := measure.Spread{}
			if bin.N > 0 {
				point = measure.Spread{N: bin.N, Median: bin.Mean, Min: bin.Mean, Max: bin.Mean}
			}
			s.Points = append(s.Points, point)
		}
		c.Series = append(c.Series, s)
	}
	return []measure.Picture{{File: "bench-tiers-fig16.svg", Chart: c}}
}
