package rebuild

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/wire"
)

// dayOptions are the flags of the scenario day.
type dayOptions struct {
	hours, speed float64
	history      int
	requests     int
	turns        int
	mbit         float64
	rtt          time.Duration
}

// dayFlags are the flags that a report names.
var dayFlags = []string{"hours", "speed", "history", "requests", "turns", "link", "rtt"}

func (o *dayOptions) add(fl *flag.FlagSet) {
	fl.Float64Var(&o.hours, "hours", 24, "day: how many `hours` of the day are replayed")
	fl.Float64Var(&o.speed, "speed", 240, "day: how many `times` as fast as it was the day is replayed")
	fl.IntVar(&o.history, "history", 30, "day: a layer for which nobody asked in so many `days` before is dropped")
	fl.IntVar(&o.requests, "requests", 0, "day: `number` of requests of the trace, of all days (default as many as the zone had)")
	fl.IntVar(&o.turns, "turns", 12, "day: in how many `parts` the day is replayed, each to one registry and then to the other")
	fl.Float64Var(&o.mbit, "link", 100, "day: `Mbit/s` of each client's link (0: no limit)")
	fl.DurationVar(&o.rtt, "rtt", 20*time.Millisecond, "day: round trip between clients and registry")
}

func (o *dayOptions) validate() error {
	if !(o.hours > 0 && o.hours <= 24 && o.speed > 0 && o.history > 0 && o.requests >= 0 && o.turns > 0 && o.mbit >= 0 && o.rtt >= 0) {
		return errors.New("-hours, -speed, -history, -turns, -link or -rtt is out of range")
	}
	return nil
}

// Day is a replayed day of a trace, on a registry that has dropped its cold layers and on
// one that keeps its blobs.
type Day struct {
	Run     Run     `json:"run"`
	Runs    int     `json:"runs,omitempty"` // how many runs of the program it took
	Hours   float64 `json:"hours"`
	Speed   float64 `json:"speed"`
	History int     `json:"history_days"`
	Mbit    float64 `json:"link_mbit"`
	RTT     float64 `json:"rtt_sec"`
	Layers  int     `json:"layers"`
	Bytes   int64   `json:"layer_bytes"`
	// Cold is the number of layers that nobody asked for before. Dropped is how many of
	// them were dropped; the others are smaller than what is dropped, or were refused.
	Cold         int   `json:"cold"`
	Dropped      int64 `json:"dropped"`
	DroppedBytes int64 `json:"dropped_bytes"`
	// Left is the number of layers that were still dropped when the day had ended.
	Left    int64      `json:"dropped_in_the_end"`
	Pulls   []Pull     `json:"pulls"`
	Servers []DaysWork `json:"servers"` // that which keeps its blobs comes first
}

// Pull is a pull of the day, from both registries.
type Pull struct {
	At      float64    `json:"at_sec"` // of the day
	Bytes   int64      `json:"bytes"`
	Dropped bool       `json:"dropped"`   // when the day began
	Sec     [2]float64 `json:"sec"`       // from the intended time to the last byte
	First   [2]float64 `json:"first_sec"` // to the first byte
}

// ratio returns how many times as long the pull took as from a blob.
func (p *Pull) ratio() float64 { return p.Sec[1] / p.Sec[0] }

// DaysWork is what a server used and stored.
type DaysWork struct {
	Name      string  `json:"name"`
	CPU       float64 `json:"cpu_sec"`
	PeakRSS   int64   `json:"peak_rss"`
	OtherCPUs float64 `json:"other_cpus"` // the most during a turn
	Stored    State   `json:"stored"`     // before the day
}

// limit is how many times as long a pull may take as from a blob.
const limit = 1.2

// dayLayer is a layer of the images with the blob of the trace for which it stands.
type dayLayer struct {
	source
	*standIn
}

// repo returns the repository of the layer. Its first part decides whether the layer is
// dropped.
func (l *dayLayer) repo(k int) string {
	if l.cold {
		return "cold/l" + strconv.Itoa(k)
	}
	return "warm/l" + strconv.Itoa(k)
}

// dropped reports whether a server drops the layer if it can.
func (l *dayLayer) dropped() bool { return l.cold && l.source.Size >= leastDropped }

func runDay(b *bench, ctx context.Context) error {
	began := time.Now()
	o := &b.day
	layers, err := b.dayLayers(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.state, "day")
	if b.state == "" {
		dir = b.NewDir()
		defer b.Remove(dir)
	}
	p := &progress{Flags: fmt.Sprintf("%+v", *o), Day: newDay(o, layers)}
	if err := p.continued(dir, b.names()); err != nil {
		return err
	}
	kept := &server{binary: b.Binary, dir: filepath.Join(dir, "kept"), until: b.until()}
	dropped := &server{binary: b.Binary, dir: filepath.Join(dir, "dropped"), until: kept.until}
	err = p.do([]func() error{
		func() error { return b.fillDay(ctx, p, layers, kept) },
		func() error { return b.copyDay(ctx, kept, dropped) },
		func() error { return b.dropDay(ctx, p.Day, layers, dropped) },
		func() error { return b.playDay(ctx, p, layers, []*server{kept, dropped}) },
	})
	if err != nil {
		return err
	}
	p.Day.Run, p.Day.Runs = b.since(began), p.Runs
	p.Day.Run.TookSec = p.Took
	b.results.Day = p.Day
	return nil
}

// newDay returns what is known before anything is measured.
func newDay(o *dayOptions, layers []dayLayer) *Day {
	d := &Day{Hours: o.hours, Speed: o.speed, History: o.history, Mbit: o.mbit, RTT: o.rtt.Seconds(), Layers: len(layers),
		Servers: []DaysWork{{Name: "keeps its blobs"}, {Name: "has dropped its cold layers"}}}
	for i := range layers {
		d.Bytes += layers[i].source.Size
		if layers[i].cold {
			d.Cold++
		}
	}
	return d
}

func stopAll(servers []*server) (err error) {
	for _, s := range servers {
		err = errors.Join(err, s.stop())
	}
	return err
}

// dayLayers makes the trace and gives each layer a blob of it.
func (b *bench) dayLayers(ctx context.Context) ([]dayLayer, error) {
	o := &b.day
	dir := b.NewDir()
	defer b.Remove(dir)
	generate := []string{"trace", "generate", "--zone", "dal", "--seed", "1", "--start", traceStart, "--days", strconv.Itoa(o.history + 1), "-o", dir}
	if o.requests > 0 {
		generate = append(generate, "--requests", strconv.Itoa(o.requests))
	}
	if _, _, err := b.Slipway(ctx, 0, generate...); err != nil {
		return nil, err
	}
	start, err := time.Parse(time.DateOnly, traceStart)
	if err != nil {
		return nil, err
	}
	day, err := dayOf(ctx, dir, start.AddDate(0, 0, o.history), time.Duration(o.hours*float64(time.Hour)))
	if err != nil {
		return nil, err
	}
	list := b.layers()
	slices.SortFunc(list, func(x, y source) int { return cmp.Or(cmp.Compare(x.Size, y.Size), cmp.Compare(x.Digest, y.Digest)) })
	blobs, err := choose(day, len(list))
	if err != nil {
		return nil, err
	}
	out := make([]dayLayer, len(list))
	for k := range list {
		out[k] = dayLayer{list[k], blobs[k]}
	}
	return out, nil
}

// traceStart is the first day of the trace.
const traceStart = "2017-06-20"

// fillDay pushes each layer as an image of its own to a server, and settles everything.
func (b *bench) fillDay(ctx context.Context, p *progress, layers []dayLayer, s *server) (err error) {
	if err := os.MkdirAll(s.root(), 0o700); err != nil {
		return err
	}
	if err := s.start(ctx, ""); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	for ; p.Pushed < len(layers); p.Pushed++ {
		if err := s.inTime("push"); err != nil {
			return err
		}
		if err := layers[p.Pushed].push(ctx, s, p.Pushed); err != nil {
			return fmt.Errorf("push layer %s: %w", layers[p.Pushed].Digest, err)
		}
	}
	b.Logf("pushed %d layers; settling", len(layers))
	if err := s.settle(ctx); err != nil {
		return err
	}
	p.Day.Servers[0].Stored, err = s.stored(ctx)
	return err
}

// push pushes the k-th layer.
func (l *dayLayer) push(ctx context.Context, s *server, k int) error {
	config := []byte(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}`)
	data, err := os.ReadFile(l.im.Blob(l.Digest))
	if err == nil {
		_, err = s.client.PushBlob(ctx, l.repo(k), data)
	}
	if err == nil {
		_, err = s.client.PushBlob(ctx, l.repo(k), config)
	}
	if err == nil {
		manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`,
			typeManifest, typeConfig, wire.Digest(config), len(config), l.MediaType, l.Digest, l.source.Size)
		_, err = s.client.PutManifest(ctx, l.repo(k), "latest", typeManifest, []byte(manifest))
	}
	return err
}

// copyDay copies the directory of a server that is not running. An earlier run may have ended
// within that.
func (b *bench) copyDay(ctx context.Context, from, to *server) error {
	if err := os.RemoveAll(to.dir); err != nil {
		return err
	}
	if text, err := exec.CommandContext(ctx, "cp", "-a", "--reflink=auto", from.dir, to.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the registry: %w: %s", err, text)
	}
	return nil
}

const (
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
)

// dropDay has a server drop or refuse the cold layers, and notes what is stored then.
func (b *bench) dropDay(ctx context.Context, out *Day, layers []dayLayer, s *server) (err error) {
	var large int64
	for i := range layers {
		if layers[i].dropped() {
			large++
		}
	}
	b.Logf("dropping %d of %d layers", large, len(layers))
	if err := s.start(ctx, dropping+", repositories: ['cold/**']"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	st, err := s.await(ctx, "drop", func(st *status) bool { return st.Recipes.Layers+st.Recipes.Refused >= large && st.Recipes.Waiting == 0 })
	if err == nil {
		err = s.settle(ctx)
	}
	if err == nil {
		err = s.run(ctx, &st, "status")
	}
	if err != nil {
		return err
	}
	out.Dropped, out.DroppedBytes = st.Recipes.Layers, st.Recipes.Bytes
	out.Servers[1].Stored, err = s.protected(ctx, st.PackBytes, st.Recipes.Layers > 0)
	return err
}

// playDay starts both servers and replays to them the parts of the day that are left.
func (b *bench) playDay(ctx context.Context, p *progress, layers []dayLayer, servers []*server) error {
	interval := max(time.Second, time.Duration(float64(time.Hour)/b.day.speed))
	configs := []string{"", fmt.Sprintf("cold_after: 720h, repositories: ['cold/**'], interval: %v", interval)}
	for i, s := range servers {
		if err := s.start(ctx, configs[i]); err != nil {
			return errors.Join(err, stopAll(servers[:i]))
		}
	}
	err := b.replayDay(ctx, p, layers, servers)
	for i, s := range servers {
		peak, rssErr := s.process.PeakRSS()
		p.Day.Servers[i].PeakRSS = max(p.Day.Servers[i].PeakRSS, peak)
		err = errors.Join(err, rssErr)
	}
	if err == nil {
		var st status
		err = servers[1].run(ctx, &st, "status")
		p.Day.Left = st.Recipes.Layers
	}
	return errors.Join(err, stopAll(servers))
}

// replayDay replays the parts of the day in turns.
func (b *bench) replayDay(ctx context.Context, p *progress, layers []dayLayer, servers []*server) error {
	o, out := &b.day, p.Day
	stands := make([]*standIn, len(layers))
	for k := range layers {
		stands[k] = layers[k].standIn
	}
	list := pulls(stands)
	if p.Turn == 0 {
		out.Pulls = make([]Pull, len(list))
		for i, a := range list {
			out.Pulls[i] = Pull{At: a.at.Seconds(), Bytes: layers[a.layer].source.Size, Dropped: layers[a.layer].dropped()}
		}
	}
	part := time.Duration(o.hours * float64(time.Hour) / float64(o.turns))
	for p.Turn < o.turns {
		if err := servers[0].inTime("replay"); err != nil {
			return err
		}
		turn := p.Turn
		from, _ := slices.BinarySearchFunc(list, time.Duration(turn)*part, func(a access, at time.Duration) int { return cmp.Compare(a.at, at) })
		to, _ := slices.BinarySearchFunc(list, time.Duration(turn+1)*part, func(a access, at time.Duration) int { return cmp.Compare(a.at, at) })
		if turn == o.turns-1 {
			to = len(list)
		}
		order := []int{0, 1}
		if turn%2 == 1 {
			order = []int{1, 0}
		}
		for _, i := range order {
			if err := b.replayTurn(ctx, out, layers, list, from, to, time.Duration(turn)*part, i, servers[i]); err != nil {
				return err
			}
		}
		b.Logf("part %d of %d: %d pulls from each", turn+1, o.turns, to-from)
		p.Turn++
		if err := p.save(); err != nil {
			return err
		}
	}
	return nil
}

// replayTurn sends the pulls from one to another at their times, and waits for the last.
func (b *bench) replayTurn(ctx context.Context, out *Day, layers []dayLayer, list []access, from, to int, begin time.Duration, i int, s *server) error {
	meter, err := measure.StartMeter(s.process.Pid())
	if err != nil {
		return err
	}
	l := link{bytesPerSec: int64(b.day.mbit * 1e6 / 8), rtt: b.day.rtt}
	errs := make([]error, to-from)
	var wg sync.WaitGroup
	start := time.Now()
	for n := from; n < to; n++ {
		at := start.Add(time.Duration(float64(list[n].at-begin) / b.day.speed))
		select {
		case <-ctx.Done():
			wg.Wait()
			return ctx.Err()
		case <-time.After(time.Until(at)):
		}
		wg.Go(func() {
			k := list[n].layer
			p, err := l.pull(ctx, s.addr, layers[k].repo(k), layers[k].Digest, at)
			out.Pulls[n].Sec[i], out.Pulls[n].First[i] = p.all.Seconds(), p.first.Seconds()
			errs[n-from] = err
		})
	}
	wg.Wait()
	u, err := meter.Stop()
	out.Servers[i].CPU += u.Server.Seconds()
	out.Servers[i].OtherCPUs = max(out.Servers[i].OtherCPUs, u.OtherCPUs)
	return errors.Join(append(errs, err)...)
}

// quantile returns the value below which a share of the values lies, by nearest rank.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	return v[max(0, int(math.Ceil(q*float64(len(v))))-1)]
}

// within returns how many pulls, in percent, took at most limit times as long as from
// blobs.
func (d *Day) within() float64 {
	var n int64
	for i := range d.Pulls {
		if d.Pulls[i].ratio() <= limit {
			n++
		}
	}
	return percent(n, int64(len(d.Pulls)))
}

// Head implements [measure.Part].
func (d *Day) Head() string { return d.Run.Head() + inRuns(d.Runs) }

// Title implements [measure.Part].
func (d *Day) Title() string { return "A day" }

// About implements [measure.Part].
func (d *Day) About() string {
	link := "without a limit"
	if d.Mbit > 0 {
		link = "of " + measure.Figure(d.Mbit) + " Mbit/s"
	}
	return fmt.Sprintf("%s hours of a synthetic dal are replayed %s times as fast as they were, in turns to two registries that have the same layers, converted and settled. "+
		"One keeps its blobs. The other has dropped the layers for which nobody had asked in the %d days before. "+
		"Each pull has a new connection, a link %s, and %s ms of round trip. A ratio is the time of a pull, from its intended time to its last byte, by the time of the same pull from the registry that keeps its blobs.",
		measure.Figure(d.Hours), measure.Figure(d.Speed), d.History, link, measure.Figure(1000*d.RTT))
}

// Targets implements [measure.Part].
func (d *Day) Targets() []measure.Target {
	return []measure.Target{{Scenario: "day", What: "pulls that take at most 1.2 times as long as from blobs", Limit: 95, AtLeast: true, Unit: " %", Figure: d.within()}}
}

// Write implements [measure.Part].
func (d *Day) Write(w *strings.Builder) {
	fmt.Fprintf(w, "%d layers of %s MB, %d of them cold. %d layers of %s MB were dropped; %d were still dropped in the end. %s %% of the pulls took at most 1.2 times as long.\n\n",
		d.Layers, measure.Megabytes(d.Bytes), d.Cold, d.Dropped, measure.Megabytes(d.DroppedBytes), d.Left, measure.Figure(d.within()))
	var rows [][]string
	for _, kind := range []struct {
		name string
		is   func(*Pull) bool
	}{
		{"all", func(*Pull) bool { return true }},
		{"of layers that were dropped", func(p *Pull) bool { return p.Dropped }},
		{"of others", func(p *Pull) bool { return !p.Dropped }},
	} {
		var ratios []float64
		var sec, first [2][]float64
		for i := range d.Pulls {
			p := &d.Pulls[i]
			if !kind.is(p) {
				continue
			}
			ratios = append(ratios, p.ratio())
			for s := range 2 {
				sec[s] = append(sec[s], 1000*p.Sec[s])
				first[s] = append(first[s], 1000*p.First[s])
			}
		}
		row := []string{kind.name, strconv.Itoa(len(ratios))}
		for _, q := range []float64{0.5, 0.9, 0.95, 0.99, 1} {
			row = append(row, measure.Figure(quantile(ratios, q)))
		}
		for _, of := range [][2][]float64{sec, first} {
			for _, q := range []float64{0.5, 0.95} {
				row = append(row, measure.Figure(quantile(of[0], q))+" / "+measure.Figure(quantile(of[1], q)))
			}
		}
		rows = append(rows, row)
	}
	measure.Table(w, 1, []string{"pulls", "number", "ratio p50", "p90", "p95", "p99", "max", "ms p50, blobs / dropped", "p95", "first byte ms p50", "p95"}, rows)
	rows = nil
	for _, s := range d.Servers {
		rows = append(rows, []string{s.Name, measure.Megabytes(s.Stored.Packs), measure.Megabytes(s.Stored.Parity), measure.Megabytes(s.Stored.Catalogue),
			measure.Megabytes(s.Stored.Rest), measure.Megabytes(s.Stored.all()), measure.Figure(s.CPU), measure.Megabytes(s.PeakRSS), measure.Figure(s.OtherCPUs)})
	}
	w.WriteString("\n")
	measure.Table(w, 1, []string{"registry that", "packs MB", "parity MB", "catalogue MB", "rest MB", "all MB", "CPU s", "peak RSS MB", "other CPUs, most"}, rows)
}

// Pictures implements [measure.Part].
func (d *Day) Pictures() []measure.Picture { return nil }
