package simulate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.org/slipway/workload/simulate"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// miniature returns ten requests for the layers a (1000 bytes), b (2000) and c (4000) in
// two hours: a b a c a, and an hour later b a a c b. The first minute also has two
// manifests of 500 bytes and a push.
func miniature() *source {
	s := &source{}
	layer := func(at float64, ref store.Symbol, size int64) { s.add(at, store.GET, trace.Blob, 1, 1, ref, ref, size) }
	const a, b, c = 50, 51, 52
	layer(0, a, 1000)
	s.add(5, store.GET, trace.Manifest, 1, 1, 60, store.None, 500)
	s.add(6, store.GET, trace.Manifest, 1, 1, 60, store.None, 500)
	s.add(7, store.PUT, trace.Upload, 1, 1, 90, store.None, 3000)
	layer(10, b, 2000)
	layer(20, a, 1000)
	layer(30, c, 4000)
	layer(70, a, 1000)
	layer(3600, b, 2000)
	layer(3660, a, 1000)
	layer(3670, a, 1000)
	layer(3680, c, 4000)
	layer(3690, b, 2000)
	return s
}

// plain returns a configuration with LRU in both levels. A request takes 1 ms from memory
// and 10 ms from the SSD. From the backend it takes 100 ms and another millisecond for
// each 1000 bytes. There is no other delay.
func plain(curves ...[]simulate.Size) simulate.PlanConfig {
	return simulate.PlanConfig{
		Policy: "lru", Curves: curves, MaxDriveWrites: 100,
		Model: simulate.Model{RAM: simulate.Tier{Latency: 1}, SSD: simulate.Tier{Latency: 10}, Backend: simulate.Tier{Latency: 100, Bandwidth: 1e6}},
		Replica: simulate.Replica{
			Cores: 1, Bandwidth: 1e12, Busy: 0.5, RequestCPU: 1, MissCPU: 2,
		},
	}
}

func makePlan(t testing.TB, s simulate.Source, c simulate.PlanConfig) *simulate.Plan {
	t.Helper()
	ctx := context.Background()
	r, err := simulate.LoadCache(ctx, s, simulate.Window{Zone: "z"}, simulate.NoWrites, false)
	if err != nil {
		t.Fatal(err)
	}
	a, err := simulate.LoadArrivals(ctx, s, simulate.Window{Zone: "z"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := simulate.MakePlan(ctx, "z", r, a, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func closeTo(t testing.TB, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-6*max(1, math.Abs(want)) {
		t.Errorf("%s is %g, want %g", what, got, want)
	}
}

// TestPlanCandidates compares candidates with figures worked out by hand. With 3000
// bytes, memory holds a and b, and c is not cached: requests 3, 5, 6, 7, 8 and 10 are
// hits. With an SSD of 4000 bytes, request 9 is a hit too.
func TestPlanCandidates(t *testing.T) {
	p := makePlan(t, miniature(), plain([]simulate.Size{{RAM: 3000}}, []simulate.Size{{RAM: 3000, SSD: 4000}}))
	ram, ssd := p.Candidates[0], p.Candidates[1]
	for _, c := range []struct {
		name      string
		got       simulate.Candidate
		hits      int64
		later     float64
		l         simulate.Latency
		fetched   float64 // bytes in the first hour, which has the peak
		misses    float64
		dayBytes  float64
		dayWrites float64
	}{
		{"memory", ram, 6, 0.8, simulate.Latency{Mean: (6*1 + 101 + 102 + 2*104) / 10.0, P50: 1, P95: 104, P99: 104}, 7000, 3, 0, 0},
		{"memory and SSD", ssd, 7, 1, simulate.Latency{Mean: (6*1 + 10 + 101 + 102 + 104) / 10.0, P50: 1, P95: 104, P99: 104}, 7000, 3,
			4000 * 86400 / 3690.0, 86400 / 3690.0},
		{"no limit", p.Limit, 7, 1, simulate.Latency{Mean: (7*1 + 101 + 102 + 104) / 10.0, P50: 1, P95: 104, P99: 104}, 7000, 3, 0, 0},
		{"none", p.None, 0, 0, simulate.Latency{Mean: (5*101 + 3*102 + 2*104) / 10.0, P50: 101, P95: 104, P99: 104}, 10000, 5, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.got.Result.Hits != c.hits || c.got.Result.Requests != 10 {
				t.Errorf("%d hits of %d requests, want %d of 10", c.got.Result.Hits, c.got.Result.Requests, c.hits)
			}
			closeTo(t, "ratio of the second half", c.got.Later, c.later)
			if diff := cmp.Diff(c.l, c.got.Latency, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Errorf("latency (-want +got):\n%s", diff)
			}
			closeTo(t, "bytes fetched a second", c.got.BackendBytesPerSec, c.fetched/3600)
			closeTo(t, "requests to the backend a second", c.got.BackendRequestsPerSec, c.misses/3600)
			closeTo(t, "bytes written to the SSD a day", c.got.SSDBytesPerDay, c.dayBytes)
			closeTo(t, "drive writes per day", c.got.DriveWrites, c.dayWrites)
		})
	}
	want := simulate.PlanTrace{Requests: 13, LayerGets: 10, Layers: 3, First: 3, Footprint: 7000, Ingress: 3000,
		Seconds: 3690, PeakPerSec: 7.0 / 60, Servers: 1, Sizes: "recorded"}
	if diff := cmp.Diff(want, p.Trace); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
}

// TestPlanGrowth doubles the content and the requests. A cache of twice the size must
// have the same hits, and every rate must double.
func TestPlanGrowth(t *testing.T) {
	c := plain([]simulate.Size{{RAM: 6000, SSD: 8000}})
	c.Growth = 2
	got := makePlan(t, miniature(), c)
	one := got.Candidates[0]
	if one.Result.Hits != 7 {
		t.Errorf("%d hits, want 7", one.Result.Hits)
	}
	closeTo(t, "bytes fetched a second", one.BackendBytesPerSec, 2*7000/3600.0)
	closeTo(t, "drive writes per day", one.DriveWrites, 86400/3690.0)
	closeTo(t, "share of the CPU", got.Advice.CPU, 2*(7*1+3*2)/60.0)
}

func TestPlanGoal(t *testing.T) {
	curves := [][]simulate.Size{{{RAM: 3000}}, {{RAM: 3000, SSD: 4000}}}
	for _, c := range []struct {
		goal string
		want int
		met  bool
		why  string
	}{
		{"mean=42ms", 0, true, "it is the cheapest that has mean=42.0 ms"},
		{"mean=33ms", 1, true, "it is the cheapest that has mean=33.0 ms"},
		{"p50=1.1ms", 0, true, "it is the cheapest"},
		// A cache without limit has 31.4 ms.
		{"mean=32ms", 1, false, "none of the sizes tried has mean=32.0 ms"},
		{"mean=31ms", 1, false, "no cache has mean=31.0 ms: without any limit it is 31.4 ms"},
		{"p99=100ms", 0, false, "no cache has p99=100 ms: without any limit it is 104 ms"},
		{"", 1, true, "it is the only one of its curve"},
	} {
		t.Run(c.goal, func(t *testing.T) {
			config := plain(curves...)
			config.Goal, _ = simulate.ParseGoal(c.goal)
			p := makePlan(t, miniature(), config)
			if a := p.Advice; a.Candidate != c.want || a.GoalMet != c.met || !strings.HasPrefix(a.Why, c.why) {
				t.Errorf("candidate %d, met %v, %q; want %d, %v, %q", a.Candidate, a.GoalMet, a.Why, c.want, c.met, c.why)
			}
		})
	}
}

// TestPlanWear plans an SSD that is written 23.4 times a day. Where that is too often,
// the plan must take memory alone.
func TestPlanWear(t *testing.T) {
	c := plain([]simulate.Size{{RAM: 3000}}, []simulate.Size{{RAM: 3000, SSD: 4000}})
	c.MaxDriveWrites = 20
	c.Goal = simulate.Goal{Of: "mean", Ms: 33}
	if a := makePlan(t, miniature(), c).Advice; a.Candidate != 0 || a.GoalMet || !strings.Contains(a.Why, "written at most 20 times a day") {
		t.Errorf("with a goal: candidate %d, met %v, %q; want memory alone, which does not meet it", a.Candidate, a.GoalMet, a.Why)
	}
	// On a curve, the plan takes the next larger SSD that lasts: 4000 bytes written to
	// 8000 are 11.7 times a day.
	c = plain([]simulate.Size{{RAM: 3000, SSD: 4000}, {RAM: 3000, SSD: 8000}})
	c.MaxDriveWrites = 20
	if a := makePlan(t, miniature(), c).Advice; a.Candidate != 1 {
		t.Errorf("without: candidate %d, %q; want the larger SSD", a.Candidate, a.Why)
	}
	c.MaxDriveWrites = 1
	if a := makePlan(t, miniature(), c).Advice; a.Candidate != 1 || !strings.Contains(a.Why, "this is the largest") {
		t.Errorf("where none lasts: candidate %d, %q; want the largest", a.Candidate, a.Why)
	}
}

// TestPlanReplicas checks figures worked out by hand. The first minute has 7 requests. Of
// the layers, a, b and c are misses, which takes 13 s of CPU time. 8000 bytes of layers
// and 1000 of manifests are sent. With two replicas, half of the layers pass through
// both, which adds 4 s and 4000 bytes for both together.
func TestPlanReplicas(t *testing.T) {
	c := plain([]simulate.Size{{RAM: 3000}})
	c.Replica.Bandwidth = 1000
	for _, tt := range []struct {
		name     string
		busy     float64
		homes    bool
		replicas int
		cpu, net float64
		cache    int64
	}{
		{"one", 0.5, true, 1, 13 / 60.0, 9000 / 60e3, 3000},
		{"two with homes", 0.2, true, 2, (13 + 4) / 120.0, (9000 + 4000) / 120e3, 1500},
		{"two without", 0.2, false, 2, 0, 9000 / 120e3, 3000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.Replica.Busy, c.NoHomes = tt.busy, !tt.homes
			p := makePlan(t, miniature(), c)
			a := p.Advice
			if a.Replicas != tt.replicas || a.Each.RAM != tt.cache {
				t.Errorf("%d replicas of %d bytes, want %d of %d", a.Replicas, a.Each.RAM, tt.replicas, tt.cache)
			}
			if tt.cpu > 0 { // with random balancing the misses depend on chance
				closeTo(t, "share of the CPU", a.CPU, tt.cpu)
				// Transfers get the rest of the network. There are 6 hits of 1 ms, 4
				// misses of 100 ms, and 19000 bytes in all.
				closeTo(t, "mean latency in the peak minute", a.Peak.Mean, (6*1+4*100+19000/(1000*(1-tt.net))*1e3)/10)
			}
			closeTo(t, "share of the network", a.Network, tt.net)
			if (a.Homes != nil) != (tt.replicas > 1) {
				t.Errorf("effect of homes %+v with %d replicas", a.Homes, tt.replicas)
			}
		})
	}
	t.Run("too few allowed", func(t *testing.T) {
		c.Replica.Busy, c.MaxReplicas, c.NoHomes = 0.2, 1, false
		p := makePlan(t, miniature(), c)
		if a := p.Advice; a.Replicas != 0 || a.Wanted != 2 {
			t.Errorf("%d replicas, %d wanted, want 0 and 2", a.Replicas, a.Wanted)
		}
	})
	t.Run("more for the latency", func(t *testing.T) {
		c.Replica.Busy, c.Replica.Spare, c.MaxReplicas = 1, 1, 16
		// One replica has 850 bytes/s left in the minute, which gives a mean of 2276 ms.
		// Two have 891.7 bytes/s and 2171 ms.
		c.Goal = simulate.Goal{Of: "mean", Ms: 2200}
		p := makePlan(t, miniature(), c)
		if a := p.Advice; a.Replicas != 2 || !a.GoalMet || a.Homes.Replicas != 3 || a.Each.RAM != 1000 {
			t.Errorf("%+v; want 2 replicas and one to spare, of 1000 bytes each", a)
		}
	})
}

// many returns requests for some hundred layers over two days.
func many() *source {
	s := &source{}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		n := int(math.Exp(rnd.Float64() * math.Log(600)))
		s.add(float64(i)*8.64, store.GET, trace.Blob, 1, 1, store.Symbol(100+n), store.Symbol(100+n), int64(1000+37*n*n))
	}
	return s
}

// TestPlanIsSimulated checks that a plan reports the same results for a cache as the
// simulator.
func TestPlanIsSimulated(t *testing.T) {
	ctx := context.Background()
	s := many()
	r, err := simulate.LoadCache(ctx, s, simulate.Window{Zone: "z"}, simulate.NoWrites, false)
	if err != nil {
		t.Fatal(err)
	}
	var curves [][]simulate.Size
	var configs []simulate.CacheConfig
	for _, factor := range []int64{0, 10} {
		var curve []simulate.Size
		for _, percent := range []int64{1, 2, 5} {
			size := simulate.Size{RAM: r.Footprint() * percent / 100}
			size.SSD = factor * size.RAM
			curve = append(curve, size)
			configs = append(configs, simulate.CacheConfig{Policy: "gdsf", SSDPolicy: "lru", RAM: size.RAM, SSD: size.SSD,
				Split: simulate.DefaultSplit(size.RAM), Shards: 1})
		}
		curves = append(curves, curve)
	}
	replica := simulate.DefaultReplica()
	replica.Spare = 2
	p := makePlan(t, s, simulate.PlanConfig{Curves: curves, Split: simulate.DefaultSplit, Replica: replica})
	for i, want := range caches(t, r, configs...) {
		if diff := cmp.Diff(want, p.Candidates[i].Result); diff != "" {
			t.Errorf("candidate %d (-simulated +planned):\n%s", i, diff)
		}
	}
	// Three replicas with homes are three shards by digest, without homes three shards at
	// random.
	size := p.Candidates[p.Advice.Candidate].Size
	on := simulate.CacheConfig{Policy: "gdsf", SSDPolicy: "lru", RAM: size.RAM, SSD: size.SSD, Split: simulate.DefaultSplit(size.RAM / 3), Shards: 3, By: simulate.ByDigest}
	off := on
	off.By = simulate.ByRandom
	want := caches(t, r, on, off)
	if h := p.Advice.Homes; h == nil || h.Replicas != 3 {
		t.Errorf("effect of homes: %+v, want that of 3 replicas", h)
	} else if diff := cmp.Diff(want, []simulate.CacheResult{h.On, h.Off}); diff != "" {
		t.Errorf("with and without homes (-simulated +planned):\n%s", diff)
	} else if h.On.ObjectRatio <= h.Off.ObjectRatio {
		t.Errorf("homes have %.3f of the requests, no homes %.3f: want more with them", h.On.ObjectRatio, h.Off.ObjectRatio)
	}
}

func TestPlanReports(t *testing.T) {
	c := plain([]simulate.Size{{RAM: 1000}, {RAM: 3000}, {RAM: 9000}}, []simulate.Size{{RAM: 3000, SSD: 4000}})
	c.Goal = simulate.Goal{Of: "mean", Ms: 33}
	c.RAMCost = 1 // the SSD is not cheaper: 9000 bytes of memory cost more than both levels
	p := makePlan(t, miniature(), c)
	p.Zone = "<dal>"
	var text, page, data bytes.Buffer
	for _, err := range []error{p.WriteText(&text), p.WriteHTML(&page), p.WriteJSON(&data)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"zone <dal>: 1h1m30s with 13 requests, 10 of them for 3 layers", "> 2.93 KiB + 3.91 KiB", "without limit",
		"2.93 KiB + 3.91 KiB: it is the cheapest that has mean=33.0 ms", "1 replica for the peak minute, and 0 to spare: 21.7 % of its 1 core",
		"storage:\n  blob_cache:\n    ram: 3000\n    ssd: 4000\n    ram_policy: lru\n",
		"100.0 % of the misses of this cache are requests that are the first for their layer", "what differs between the days of a week",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
	if s := page.String(); !strings.Contains(s, "&lt;dal&gt;") || strings.Contains(s, "<dal>") || strings.Count(s, "<svg") != 6 || !strings.Contains(s, "blob_cache:") {
		t.Error("the page lacks pictures or the configuration, or has what is not escaped")
	}
	var back simulate.Plan
	if err := json.Unmarshal(data.Bytes(), &struct {
		Advice     *simulate.Advice
		Candidates []struct {
			RAM int64 `json:"ram"`
		}
	}{Advice: &back.Advice}); err == nil {
		if back.Advice.Candidate != p.Advice.Candidate {
			t.Errorf("JSON advises candidate %d, want %d", back.Advice.Candidate, p.Advice.Candidate)
		}
	} else if !strings.Contains(err.Error(), "By") { // the JSON has a word for the way to choose a shard
		t.Error(err)
	}
}

func TestBadPlans(t *testing.T) {
	s := miniature()
	ctx := context.Background()
	r, err := simulate.LoadCache(ctx, s, simulate.Window{Zone: "z"}, simulate.NoWrites, false)
	if err != nil {
		t.Fatal(err)
	}
	a, err := simulate.LoadArrivals(ctx, s, simulate.Window{Zone: "z"})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*simulate.PlanConfig){
		"no sizes":         func(c *simulate.PlanConfig) { c.Curves = nil },
		"an empty curve":   func(c *simulate.PlanConfig) { c.Curves = append(c.Curves, nil) },
		"no memory":        func(c *simulate.PlanConfig) { c.Curves = [][]simulate.Size{{{SSD: 1}}} },
		"sizes that fall":  func(c *simulate.PlanConfig) { c.Curves = [][]simulate.Size{{{RAM: 2}, {RAM: 1}}} },
		"too much":         func(c *simulate.PlanConfig) { c.Curves = [][]simulate.Size{{{RAM: 1 << 60}}} },
		"nothing left":     func(c *simulate.PlanConfig) { c.Growth = 5000 },
		"shrinking":        func(c *simulate.PlanConfig) { c.Growth = -1 },
		"no number":        func(c *simulate.PlanConfig) { c.Growth = math.NaN() },
		"a bound":          func(c *simulate.PlanConfig) { c.Policy = simulate.Belady },
		"unknown policy":   func(c *simulate.PlanConfig) { c.Policy = "mru" },
		"no writes":        func(c *simulate.PlanConfig) { c.MaxDriveWrites = -1 },
		"free memory":      func(c *simulate.PlanConfig) { c.RAMCost = -1 },
		"many replicas":    func(c *simulate.PlanConfig) { c.MaxReplicas = 1 << 20 },
		"no cores":         func(c *simulate.PlanConfig) { c.Replica.Cores = 0 },
		"more than all":    func(c *simulate.PlanConfig) { c.Replica.Busy = 1.1 },
		"negative latency": func(c *simulate.PlanConfig) { c.Model.RAM.Latency = -1 },
		"points in disorder": func(c *simulate.PlanConfig) {
			c.Model.SSD.Points = []simulate.TierPoint{{Bytes: 5, Ms: 1}, {Bytes: 5, Ms: 1}}
		},
	} {
		c := plain([]simulate.Size{{RAM: 3000}})
		change(&c)
		if _, err := simulate.MakePlan(ctx, "z", r, a, c, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := simulate.MakePlan(ctx, "z", requests("ab", 1, 1), a, plain([]simulate.Size{{RAM: 3000}}), nil); err == nil {
		t.Error("requests without times: no error")
	}
}

func TestReadModel(t *testing.T) {
	m := simulate.DefaultModel()
	if err := m.ReadModel(strings.NewReader(`{"backend": {"points": [{"bytes": 1000, "ms": 20}, {"bytes": 2000, "ms": 30}]}, "ram": {"latency_ms": 2}}`)); err != nil {
		t.Fatal(err)
	}
	want := simulate.DefaultModel()
	want.RAM = simulate.Tier{Latency: 2}
	want.Backend = simulate.Tier{Points: []simulate.TierPoint{{Bytes: 1000, Ms: 20}, {Bytes: 2000, Ms: 30}}}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	before := m
	for _, bad := range []string{"", "[]", `{"tape": {}}`, `{"ram": {"latency_ms": -1}}`, `{"ssd": {"points": [{"bytes": 2, "ms": 1}, {"bytes": 1, "ms": 1}]}}`,
		strings.Repeat(" ", 2<<20) + "{}"} {
		if err := m.ReadModel(strings.NewReader(bad)); err == nil {
			t.Errorf("%.40q: no error", bad)
		}
	}
	if diff := cmp.Diff(before, m); diff != "" {
		t.Errorf("what cannot be read changes the model:\n%s", diff)
	}
}

func FuzzReadModel(f *testing.F) {
	f.Add(`{"backend": {"points": [{"bytes": 1000, "ms": 20}, {"bytes": 2000, "ms": 30}]}}`)
	f.Add(`{"ram": {"latency_ms": 1e308, "bytes_per_second": 1e-300}}`)
	f.Fuzz(func(t *testing.T, text string) {
		m := simulate.DefaultModel()
		if m.ReadModel(strings.NewReader(text)) != nil {
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		back := simulate.Model{}
		if err := back.ReadModel(bytes.NewReader(again)); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}

func TestParseGoal(t *testing.T) {
	for _, c := range []struct {
		text string
		want simulate.Goal
	}{{"", simulate.Goal{}}, {"p99=1.5s", simulate.Goal{Of: "p99", Ms: 1500}}, {"mean=50ms", simulate.Goal{Of: "mean", Ms: 50}}} {
		if got, err := simulate.ParseGoal(c.text); err != nil || got != c.want {
			t.Errorf("%q is %+v (%v), want %+v", c.text, got, err, c.want)
		}
	}
	for _, bad := range []string{"p99", "p90=1s", "p99=0s", "p99=-1s", "p99=fast", "=1s"} {
		if _, err := simulate.ParseGoal(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
