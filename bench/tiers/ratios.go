package tiers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/internal/policy"
	"example.org/slipway/workload/simulate"
)

// Ratios compares hit ratios of a running registry with hit ratios of the simulator, and
// adds simulations on the real sample.
type Ratios struct {
	Run measure.Run `json:"run"`
	// Requests is the number of requests for objects. Footprint is the size of these
	// objects. The sizes of the levels are in bytes.
	Requests  int64        `json:"requests"`
	Footprint int64        `json:"footprint"`
	RAM       int64        `json:"ram"`
	SSD       int64        `json:"ssd"`
	Policies  []LiveRatios `json:"policies"`
	// Sample holds the ratios of the real sample, or nil without it.
	Sample *SampleRatios `json:"sample,omitempty"`
}

// LiveRatios are shares of the requests for objects, from 0 to 1.
type LiveRatios struct {
	Policy string `json:"policy"`
	// LiveRAM and LiveAll are the ratios that the registry counted, in memory and in both
	// levels. SimulatedRAM and SimulatedAll are the simulator's ratios for the same
	// requests.
	LiveRAM      float64 `json:"live_ram"`
	LiveAll      float64 `json:"live_all"`
	SimulatedRAM float64 `json:"simulated_ram"`
	SimulatedAll float64 `json:"simulated_all"`
	// Unseen is the number of requests in the log that the cache did not see.
	Unseen int64 `json:"unseen"`
}

// SampleRatios are simulated on the real sample.
type SampleRatios struct {
	Requests int64 `json:"requests"`
	// LRU2 and GDSF2 are for a memory of 2 % of what was pushed, and GDSF10 is for 10 %.
	// Ceiling is for a cache without a limit.
	LRU2    simulated `json:"lru_2"`
	GDSF2   simulated `json:"gdsf_2"`
	GDSF10  simulated `json:"gdsf_10"`
	Ceiling float64   `json:"ceiling"`
}

// simulated holds the part of a simulation's result that is read.
type simulated struct {
	Object float64 `json:"object_ratio"`
	RAM    float64 `json:"ram_ratio"`
}

const (
	// inlineMax is the largest size of contents whose bytes the catalogue keeps, so that
	// they are not objects (docs/architecture.md).
	inlineMax = 16 << 10
	// sampleIngress is what was pushed in the three days of the sample, in bytes: 307.0 GiB. The
	// sample itself has no pushes.
	sampleIngress = 307 << 30
)

func runRatios(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Ratios{}
	if err := out.live(b, ctx); err != nil {
		return err
	}
	if err := out.sample(b, ctx); err != nil {
		return err
	}
	out.Run = b.Since(began)
	out.Run.Rounds = 1
	b.results.Ratios = out
	return nil
}

// livePolicies returns the policies that run. A quick look runs a few.
func livePolicies(quick bool) []string {
	if quick {
		return []string{"lru", "gdsf", "s3-fifo"}
	}
	return policy.Names()
}

// live runs a registry with each policy over the same requests.
func (x *Ratios) live(b *bench, ctx context.Context) error {
	traces := b.NewDir()
	defer b.Remove(traces)
	n := pick(b, 20_000, 2_000)
	if _, err := b.slipway(ctx, "trace", "generate", "--zone", "dal", "--seed", "2", "--requests", strconv.Itoa(n), "-o", traces); err != nil {
		return err
	}
	replay := func(r *server, result string) error {
		_, err := b.slipway(ctx, "trace", "replay", traces, "-o", result, "--target", "http://"+r.Addr, "--level", "L0", "--closed-loop", "1",
			"--size-scale", pick(b, "0.05", "0.02"), "--quiet", "--no-docker-config")
		return err
	}
	// A first run without a cache finds the total size. Each run has its own registry,
	// because pushing content that already exists reads it.
	for i, name := range append([]string{""}, livePolicies(b.Run.Quick)...) {
		storage := noCache
		if i > 0 {
			storage = fmt.Sprintf("  blob_cache: {ram: %d, ssd: %d, ram_policy: %s, ssd_policy: lru, admission: all, large: %d, write_through: false}\n  prefetch: {mode: \"off\"}\n",
				x.RAM, x.SSD, name, simulate.DefaultSplit(x.RAM))
		}
		if err := x.one(b, ctx, storage, name, replay); err != nil {
			return fmt.Errorf("policy %q: %w", name, err)
		}
	}
	return nil
}

// one runs a registry with one policy. The first run, without a policy, sets the sizes.
func (x *Ratios) one(b *bench, ctx context.Context, storage, name string, replay func(*server, string) error) error {
	dir := b.NewDir()
	defer b.Remove(dir)
	r, err := b.serve(ctx, name, dir, storage)
	if err != nil {
		return err
	}
	running := true
	defer func() {
		if running {
			r.stop()
		}
	}()
	result := b.NewDir()
	defer b.Remove(result)
	if err := replay(r, result); err != nil {
		return err
	}
	now, err := r.metrics(ctx, "slipway_cache_tier_")
	if err != nil {
		return err
	}
	running = false
	r.stop()
	requests, err := readRequests(filepath.Join(dir, accessLog))
	if err != nil {
		return err
	}
	if name == "" {
		x.Requests, x.Footprint = int64(requests.Len()), requests.Footprint()
		x.RAM = x.Footprint / 50
		x.SSD = 10 * x.RAM
		b.Logf("%d requests for objects of %s MB", x.Requests, measure.Megabytes(x.Footprint))
		return nil
	}
	return x.compare(b, ctx, name, requests, now)
}

// compare adds to the counts of a registry the result of simulating its requests.
func (x *Ratios) compare(b *bench, ctx context.Context, name string, requests *simulate.Requests, now map[string]float64) error {
	at := func(what, tier string) float64 {
		return now[fmt.Sprintf("slipway_cache_tier_%s_total{tier=%q}", what, tier)]
	}
	ram, ssd, missed := at("hits", "ram"), at("hits", "ssd"), at("misses", "ssd")
	asked := ram + ssd + missed
	if asked == 0 {
		return errors.New("the registry's cache was asked for nothing")
	}
	// The registry reserves one part in 32 of each level for content in transit.
	res, err := simulate.Caches(ctx, requests,
		[]simulate.CacheConfig{{Policy: name, SSDPolicy: "lru", RAM: x.RAM - x.RAM/32, SSD: x.SSD - x.SSD/32,
			Split: simulate.DefaultSplit(x.RAM)}}, nil)
	if err != nil {
		return err
	}
	l := LiveRatios{Policy: name, LiveRAM: ram / asked, LiveAll: (ram + ssd) / asked, SimulatedRAM: res[0].RAMRatio, SimulatedAll: res[0].ObjectRatio,
		Unseen: int64(requests.Len()) - int64(asked)}
	b.Logf("%-12s live %.2f/%.2f %%, simulated %.2f/%.2f %%; %d of %d requests did not reach the cache", name, 100*l.LiveRAM, 100*l.LiveAll, 100*l.SimulatedRAM, 100*l.SimulatedAll, l.Unseen, requests.Len())
	x.Policies = append(x.Policies, l)
	return nil
}

// readRequests reads the GETs of objects from an access log.
func readRequests(path string) (*simulate.Requests, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &simulate.Requests{}
	numbers := map[string]uint32{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var rec struct {
			Method  string `json:"http.request.method"`
			URI     string `json:"http.request.uri"`
			Status  int    `json:"http.response.status"`
			Written int64  `json:"http.response.written"`
		}
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return nil, fmt.Errorf("parse the access log: %w", err)
		}
		_, digest, ok := strings.Cut(rec.URI, "/blobs/sha256:")
		if !ok || rec.Method != "GET" || rec.Status != 200 || rec.Written <= inlineMax {
			continue
		}
		n, ok := numbers[digest]
		if !ok {
			n = uint32(len(numbers))
			numbers[digest] = n
			r.Size = append(r.Size, rec.Written)
		}
		r.Layer = append(r.Layer, n)
	}
	return r, lines.Err()
}

// sample simulates on the real sample, if it is there.
func (x *Ratios) sample(b *bench, ctx context.Context) error {
	imported, err := b.Sample(b.o.traces)
	if err != nil || imported == nil {
		return err
	}
	traces := b.NewDir()
	defer b.Remove(traces)
	if _, err := b.slipway(ctx, append(imported, traces)...); err != nil {
		return err
	}
	s := &SampleRatios{}
	run := func(policy, ram, ssd, split string) (simulated, error) {
		var got struct {
			Requests int64
			Results  []simulated
		}
		err := b.answer(ctx, &got, "trace", "simulate", "cache", traces, "--policy", policy, "--size", ram, "--ssd", ssd, "--split", split,
			"--sizes", "model", "--seed", "1", "--format", "json")
		if err == nil && len(got.Results) != 1 {
			err = fmt.Errorf("%d results", len(got.Results))
		}
		if err != nil {
			return simulated{}, fmt.Errorf("simulate %s on the real sample: %w", policy, err)
		}
		s.Requests = got.Requests
		return got.Results[0], nil
	}
	ram := func(percent int64) string { return strconv.FormatInt(sampleIngress*percent/100, 10) }
	var limit simulated
	for _, c := range []struct {
		policy, ram, ssd, split string
		to                      *simulated
	}{{"lru", ram(2), "10x", "100MiB", &s.LRU2}, {"gdsf", ram(2), "10x", "100MiB", &s.GDSF2}, {"gdsf", ram(10), "10x", "100MiB", &s.GDSF10}, {"lru", "100%", "0", "0", &limit}} {
		if *c.to, err = run(c.policy, c.ram, c.ssd, c.split); err != nil {
			return err
		}
	}
	s.Ceiling = limit.Object
	b.Logf("real sample: memory of 2 %%: GDSF %.1f %%, LRU %.1f %%; all levels at 10 %%: %.1f of %.1f %%", 100*s.GDSF2.RAM, 100*s.LRU2.RAM, 100*s.GDSF10.Object, 100*s.Ceiling)
	x.Sample = s
	return nil
}

// Title is the heading.
func (x *Ratios) Title() string { return "Hit ratios, live and simulated" }

// Head says how the part was measured.
func (x *Ratios) Head() string { return x.Run.Head() }

// About says what was done.
func (x *Ratios) About() string {
	return fmt.Sprintf("The requests of a synthetic dal are replayed one after another (level L0) to a registry with each policy in memory and LRU on the SSD: memory has 2 %% of what all objects take (%s MB), the SSD ten times as much. Live ratios come from the registry's counters (`slipway_cache_tier_hits_total`). Simulated ratios come from its access log, with levels that are a 32nd smaller, because the registry keeps that part free for content in transit. "+
		"Of %d requests for objects; contents of up to 16 KiB are in the catalogue and are not objects.", measure.Megabytes(x.Footprint), x.Requests)
}

// Targets returns the targets that live and simulated ratios agree, and the targets for
// the gains on the real sample.
func (x *Ratios) Targets() []measure.Target {
	apart := 0.0
	for _, p := range x.Policies {
		apart = max(apart, 100*math.Abs(p.LiveRAM-p.SimulatedRAM), 100*math.Abs(p.LiveAll-p.SimulatedAll))
	}
	out := []measure.Target{
		{Scenario: "ratios", What: "live and simulated ratios differ by", Limit: 1, Unit: " points", Figure: apart, Missing: len(x.Policies) == 0},
	}
	s := x.Sample
	gain := measure.Target{Scenario: "ratios", What: "real sample: GDSF / LRU, hits in memory of 2 % of ingress", Limit: 1.4, AtLeast: true, Missing: s == nil}
	below := measure.Target{Scenario: "ratios", What: "real sample: all levels below the ceiling, 10 % of ingress", Limit: 3, Unit: " points", Missing: s == nil}
	if s != nil {
		gain.Figure, below.Figure = s.GDSF2.RAM/s.LRU2.RAM, 100*(s.Ceiling-s.GDSF10.Object)
	}
	return append(out, gain, below)
}

// Write writes the tables.
func (x *Ratios) Write(w *strings.Builder) {
	var rows [][]string
	percent := func(f float64) string { return strconv.FormatFloat(100*f, 'f', 2, 64) }
	list := slices.Clone(x.Policies)
	slices.SortFunc(list, func(a, b LiveRatios) int { return strings.Compare(a.Policy, b.Policy) })
	for _, p := range list {
		rows = append(rows, []string{p.Policy, percent(p.LiveRAM), percent(p.SimulatedRAM), percent(p.LiveAll),
			percent(p.SimulatedAll), strconv.FormatInt(p.Unseen, 10)})
	}
	measure.Table(w, 1, []string{"policy", "RAM %, live", "simulated", "all %, live", "simulated", "requests that did not reach the cache"}, rows)
	s := x.Sample
	if s == nil {
		w.WriteString("\nThe real sample was not at hand.\n")
		return
	}
	fmt.Fprintf(w, "\nThe real sample: %d requests for layers, modelled sizes (seed 1), SSD ten times the memory, split 100 MiB; sizes in per cent of the 307 GiB that were pushed in those days.\n\n", s.Requests)
	measure.Table(w, 1, []string{"", "RAM %", "all %"}, [][]string{
		{"lru + lru, 2 %", percent(s.LRU2.RAM), percent(s.LRU2.Object)}, {"gdsf + lru, 2 %", percent(s.GDSF2.RAM), percent(s.GDSF2.Object)},
		{"gdsf + lru, 10 %", percent(s.GDSF10.RAM), percent(s.GDSF10.Object)}, {"without limit", "", percent(s.Ceiling)},
	})
}

// Pictures returns no pictures.
func (x *Ratios) Pictures() []measure.Picture { return nil }
