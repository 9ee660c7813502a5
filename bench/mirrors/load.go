package mirrors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
	"example.org/slipway/workload/load"
	"example.org/slipway/workload/load/imageset"
)

// Load is the result of Ociregistry's load test.
type Load struct {
	Run     Run     `json:"run"`
	Images  int     `json:"images"`
	Batches int     `json:"batches"`
	StepSec float64 `json:"step_sec"`
	Ramps   []Ramp  `json:"ramps"`
}

// Ramp is one mirror under a load that grows and shrinks again.
type Ramp struct {
	Server string `json:"server"`
	Mode   string `json:"mode"`
	Round  int    `json:"round"`
	// Images counts images that were pulled whole and were correct. Failed counts failed
	// operations, including operations with wrong content. NotPruned counts failed
	// prunes.
	Images    int64 `json:"images"`
	Failed    int64 `json:"failed"`
	NotPruned int64 `json:"not_pruned"`
	// Rate is the number of images per second over the whole ramp.
	Rate float64 `json:"rate"`
	// CPU is the mirror's CPU time for an image, in milliseconds.
	CPU float64 `json:"cpu_ms"`
	// PeakRSS is the mirror's largest resident set, in bytes.
	PeakRSS int64  `json:"peak_rss"`
	Steps   []Step `json:"steps"`
	// Example is an example of a failure.
	Example string `json:"example,omitempty"`
}

// Step is a period with one number of pullers.
type Step struct {
	Pullers int     `json:"pullers"`
	Rate    float64 `json:"rate"`
}

// These are the modes of the load test.
const (
	modeCached  = "cached"
	modeThrough = "pull-through"
)

func runLoad(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Load{Images: b.o.images, Batches: b.o.batches, StepSec: b.o.step.Seconds()}
	all := b.mirrors(b.upstream.Addr)
	list := slices.DeleteFunc(slices.Clone(all), func(s *rival.Spec) bool { return s.Binary == "" })
	if err := b.putInPlace(ctx); err != nil {
		return err
	}
	for _, s := range list {
		if err := b.checkThrough(ctx, s.Name); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	for round := range b.Run.Rounds {
		for _, mode := range []string{modeCached, modeThrough} {
			for _, s := range list {
				ramp, err := b.ramp(ctx, s, mode)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s.Name, mode, err)
				}
				ramp.Round = round + 1
				out.Ramps = append(out.Ramps, *ramp)
				b.Logf("%-12s %-12s %s images/s, %s ms CPU an image, %s MB, %d failed %s", mode, s.Name, measure.Figure(ramp.Rate), measure.Figure(ramp.CPU),
					measure.Megabytes(ramp.PeakRSS), ramp.Failed, ramp.Example)
			}
		}
		slices.Reverse(list) // so that drift on the machine affects both alike
	}
	out.Run = b.since(ctx, began, all)
	b.results.Load = out
	return nil
}

// set returns the requested number of images, each with five layers of 2 KiB.
func (b *bench) set() imageset.Options {
	return imageset.Options{Images: b.o.images, Batches: b.o.batches}
}

// patterns select batches. They match names with tags, and Ociregistry's names of the manifests
// that indexes lead to, because it would otherwise prune only the indexes.
func patterns(batches int) []string {
	var out []string
	for n := range batches {
		out = append(out, fmt.Sprintf("-%04d[:@]", n+1))
	}
	return out
}

// putInPlace pushes to the upstream the images that are not there yet.
func (b *bench) putInPlace(ctx context.Context) error {
	b.Logf("putting %d images into the upstream", b.o.images)
	r, err := load.Run(ctx, &load.Options{Target: load.Target{URL: "http://" + b.upstream.Addr}, Set: b.set(), Cold: true,
		Ramp: load.Constant, Pullers: 1, Step: 100 * time.Millisecond})
	if err == nil && r.Total.Failed > 0 {
		err = fmt.Errorf("%d operations on the upstream failed", r.Total.Failed)
	}
	return err
}

// target returns how the driver reaches a mirror.
func target(s *rival.Server, upstream string) load.Target {
	t := load.Target{Name: s.Name, URL: "http://" + s.Addr, Prefix: upstreamName + "/"}
	if s.Name == nameOciregistry {
		t.Prefix = upstream + "/"
	}
	return t
}

// pruned makes a mirror forget the images of a pass with one call, in the server's own
// way. This is Ociregistry's API, and slipway mirror prune for Slipway.
func (b *bench) pruned(s *rival.Server, o *load.Options) {
	if s.Name == nameOciregistry {
		o.Prune = load.PruneOciregistry
		return
	}
	o.Prune, o.PruneMirror = load.PruneSlipway, func(ctx context.Context, repositories string) error {
		out, err := exec.CommandContext(ctx, b.Binary, "mirror", "prune", "--pattern", repositories,
			"--config", filepath.Join(s.Dir, "config"), "--root", filepath.Join(s.Dir, "root")).CombinedOutput()
		if err != nil {
			return fmt.Errorf("slipway mirror prune: %w: %s", err, out)
		}
		return nil
	}
}

// ramp measures a mirror that starts with an empty store.
func (b *bench) ramp(ctx context.Context, sp *rival.Spec, mode string) (*Ramp, error) {
	s, err := rival.Start(ctx, sp, b.NewDir())
	if err != nil {
		return nil, err
	}
	defer b.end(s)
	o := &load.Options{Upstream: &load.Target{URL: "http://" + b.upstream.Addr}, Set: b.set(), Source: load.InPlace,
		Patterns: patterns(b.o.batches), Pullers: b.o.batches, Step: b.o.step, PID: s.Process.Pid()}
	if o.Target = target(s, b.upstream.Addr); mode == modeThrough {
		b.pruned(s, o)
	}
	res, err := load.Run(ctx, o)
	if err != nil {
		return nil, err
	}
	t := &res.Total
	r := &Ramp{Server: sp.Name, Mode: mode, Images: t.Images, Failed: t.Failed, NotPruned: t.NotPruned, CPU: t.ServerCPU}
	if t.Seconds > 0 {
		r.Rate = float64(t.Images) / t.Seconds
	}
	for _, st := range res.Steps {
		r.Steps = append(r.Steps, Step{st.Pullers, st.Rate})
	}
	if len(res.Faults) > 0 {
		r.Example = res.Faults[0].Kind + ": " + res.Faults[0].Example
	}
	_, r.PeakRSS, err = s.Memory()
	return r, err
}

// checkThrough makes sure that the pull-through measurement really pulls through: after a prune, a
// mirror must ask the upstream for every blob again. It counts at the upstream, in a separate run,
// because counting costs time.
func (b *bench) checkThrough(ctx context.Context, name string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	count := &measure.Counter{Of: func(path string) bool { return strings.Contains(path, "/blobs/") }}
	wg.Go(func() { count.Serve(ctx, l, b.upstream.Addr) })
	addr := l.Addr().String()
	specs := b.mirrors(addr)
	s, err := rival.Start(ctx, specs[slices.IndexFunc(specs, func(s *rival.Spec) bool { return s.Name == name })], b.NewDir())
	if err != nil {
		return err
	}
	defer b.end(s)
	// There are only a few images, so that several passes take place.
	o := &load.Options{Upstream: &load.Target{URL: "http://" + b.upstream.Addr}, Set: imageset.Options{Images: 10, Batches: 1, Prefix: "check/"},
		Patterns: patterns(1), Ramp: load.Constant, Pullers: 1, Step: b.o.check}
	o.Target = target(s, addr)
	b.pruned(s, o)
	res, err := load.Run(ctx, o)
	if err != nil {
		return err
	}
	if res.Total.Failed > 0 || res.Total.Images == 0 {
		return errors.New("nothing came through: " + cmp.Or(firstFault(res), "no image at all"))
	}
	if res.Total.Images < 20 {
		return fmt.Errorf("only %d images came through", res.Total.Images)
	}
	// An image has a configuration and five layers.
	if each := float64(count.Reads.Load()) / float64(res.Total.Images); each < 5.9 {
		return fmt.Errorf("the upstream was asked for %.2f blobs an image, of 6: what was pruned is still there", each)
	}
	return nil
}

func firstFault(r *load.Result) string {
	if len(r.Faults) == 0 {
		return ""
	}
	return r.Faults[0].Kind + ": " + r.Faults[0].Example
}

// Title is the heading.
func (l *Load) Title() string { return "Many pulls of small images" }

// Head says how the part was measured.
func (l *Load) Head() string {
	return fmt.Sprintf("%s\n- %d images in %d batches, each an index, a manifest, a configuration and five layers of 2 KiB; 1 to %d pullers and back, %s s each",
		l.Run.Head(), l.Images, l.Batches, l.Batches, measure.Figure(l.StepSec))
}

// About says what was done.
func (l *Load) About() string {
	return "This is the load test of Ociregistry: each puller pulls the images of its own batch again and again, and every byte is checked against its digest. \"Cached\" means that everything was pulled once before. With \"pull-through\", a puller prunes its batch after each pass by one call, as each mirror's own command does, so that every pull reaches the upstream. Each ramp has a fresh mirror, and the mirrors take turns. CPU is the mirror's process alone; upstream, mirror and driver share the machine."
}

// figures returns the figures of a server in a mode, by round.
func (l *Load) figures(server, mode string, of func(*Ramp) float64) []float64 {
	var out []float64
	for i := range l.Ramps {
		if r := &l.Ramps[i]; r.Server == server && r.Mode == mode {
			out = append(out, of(r))
		}
	}
	return out
}

// ratios divides a figure of a by the same figure of b within each round.
func (l *Load) ratios(a, b, mode string, of func(*Ramp) float64) []float64 {
	x, y := l.figures(a, mode, of), l.figures(b, mode, of)
	var out []float64
	for i := range min(len(x), len(y)) {
		out = append(out, x[i]/y[i])
	}
	return out
}

// dip returns the rate with the most pullers divided by the best rate with fewer.
func (r *Ramp) dip() float64 {
	rates := map[int][]float64{}
	most := 0
	for _, s := range r.Steps {
		rates[s.Pullers] = append(rates[s.Pullers], s.Rate)
		most = max(most, s.Pullers)
	}
	best := 0.0
	for n, list := range rates {
		if n < most {
			best = max(best, measure.SpreadOf(list).Median)
		}
	}
	return measure.SpreadOf(rates[most]).Median / best
}

func cpuOf(r *Ramp) float64  { return r.CPU }
func rateOf(r *Ramp) float64 { return r.Rate }
func dipOf(r *Ramp) float64  { return r.dip() }
func badOf(r *Ramp) float64  { return float64(r.Failed + r.NotPruned) }
func rssOf(r *Ramp) float64  { return float64(r.PeakRSS) / 1e6 }

// noDip is the least value of dip that counts as no dip. The difference from 1 allows for
// the spread of short steps.
const noDip = 0.9

// Targets returns the project's targets.
func (l *Load) Targets() []measure.Target {
	both := append(l.figures(nameSlipway, modeCached, rssOf), l.figures(nameSlipway, modeThrough, rssOf)...)
	bad := append(l.figures(nameSlipway, modeCached, badOf), l.figures(nameSlipway, modeThrough, badOf)...)
	worst := func(what string, limit float64, unit string, figures []float64) measure.Target {
		t := measure.TargetOf("load", what, limit, false, figures)
		t.Figure, t.Unit = t.Rounds.Max, unit
		return t
	}
	return []measure.Target{
		measure.TargetOf("load", "cached: CPU of a pull, Ociregistry / Slipway", 4, true, l.ratios(nameOciregistry, nameSlipway, modeCached, cpuOf)),
		measure.TargetOf("load", "cached: rate with most pullers / best with fewer", noDip, true, l.figures(nameSlipway, modeCached, dipOf)),
		measure.TargetOf("load", "pull-through: images/s, Slipway / Ociregistry", 2, true, l.ratios(nameSlipway, nameOciregistry, modeThrough, rateOf)),
		measure.TargetOf("load", "pull-through: CPU of a pull, Slipway / Ociregistry", 0.5, false, l.ratios(nameSlipway, nameOciregistry, modeThrough, cpuOf)),
		worst("largest resident set", 40, " MB", both),
		worst("pulls and prunes that failed, wrong content included", 0, "", bad),
	}
}

// Write writes the tables.
func (l *Load) Write(w *strings.Builder) {
	var rows [][]string
	for _, mode := range []string{modeCached, modeThrough} {
		for _, server := range l.servers() {
			of := func(f func(*Ramp) float64) string { return measure.SpreadOf(l.figures(server, mode, f)).String() }
			rows = append(rows, []string{mode, server, of(func(r *Ramp) float64 { return float64(r.Images) }), of(rateOf), of(cpuOf), of(dipOf), of(rssOf), of(badOf)})
		}
	}
	measure.Table(w, 2, []string{"mode", "mirror", "images pulled", "images/s", "CPU ms an image", "rate with most pullers / best with fewer", "peak RSS MB", "failed"}, rows)
	for _, mode := range []string{modeCached, modeThrough} {
		fmt.Fprintf(w, "\nImages a second by pullers, %s:\n\n", mode)
		head := []string{"mirror"}
		rows = nil
		for n := 1; n <= l.Batches; n++ {
			head = append(head, fmt.Sprint(n))
		}
		for _, server := range l.servers() {
			row := []string{server}
			for n := 1; n <= l.Batches; n++ {
				row = append(row, l.rate(server, mode, n).String())
			}
			rows = append(rows, row)
		}
		measure.Table(w, 1, head, rows)
	}
}

// servers returns the servers that have results, Slipway first.
func (l *Load) servers() []string {
	return slices.DeleteFunc([]string{nameSlipway, nameOciregistry}, func(name string) bool {
		return !slices.ContainsFunc(l.Ramps, func(r Ramp) bool { return r.Server == name })
	})
}

// rate returns the spread of rates with the given number of pullers, going up and down.
func (l *Load) rate(server, mode string, pullers int) measure.Spread {
	var v []float64
	for _, r := range l.Ramps {
		for _, s := range r.Steps {
			if r.Server == server && r.Mode == mode && s.Pullers == pullers {
				v = append(v, s.Rate)
			}
		}
	}
	return measure.SpreadOf(v)
}

// Pictures returns the rates against the number of pullers.
func (l *Load) Pictures() []measure.Picture {
	var out []measure.Picture
	for _, mode := range []string{modeCached, modeThrough} {
		c := measure.Chart{Title: "Images a second, " + mode, Across: "pullers", Lines: true}
		for n := 1; n <= l.Batches; n++ {
			c.Columns = append(c.Columns, fmt.Sprint(n))
		}
		for _, server := range l.servers() {
			s := measure.Series{Name: server}
			for n := 1; n <= l.Batches; n++ {
				s.Points = append(s.Points, l.rate(server, mode, n))
			}
			c.Series = append(c.Series, s)
		}
		out = append(out, measure.Picture{File: "bench-mirrors-" + mode + ".svg", Chart: c})
	}
	return out
}
