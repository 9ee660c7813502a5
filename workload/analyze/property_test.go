package analyze_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// asJSON returns the whole report as JSON.
func asJSON(t *testing.T, r *analyze.Report) []byte {
	t.Helper()
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCutsDoNotMatter checks that the report is the same however the trace is cut into
// batches, and however many zones are read at once.
func TestCutsDoNotMatter(t *testing.T) {
	for seed := range uint64(5) {
		src := &memSource{names: []string{"a", "dal", "z"}, reqs: map[string][]req{
			"a": randomTrace(seed, 3000), "dal": randomTrace(seed+100, 1500), "z": randomTrace(seed+200, int(seed))}}
		whole, err := analyze.Run(context.Background(), src, &analyze.Options{Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(seed, 7))
		src.cut = func(n int) []int {
			var cuts []int
			for at := 0; at < n; at += rnd.IntN(300) {
				cuts = append(cuts, at)
			}
			return cuts
		}
		cut, err := analyze.Run(context.Background(), src, &analyze.Options{Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(asJSON(t, whole)), string(asJSON(t, cut))); diff != "" {
			t.Fatalf("seed %d: cut into batches (-whole +cut):\n%s", seed, diff)
		}
		src.cut = nil
		if many, err := analyze.Run(context.Background(), src, &analyze.Options{Workers: 3}); err != nil || !bytes.Equal(asJSON(t, whole), asJSON(t, many)) {
			t.Fatalf("seed %d: zones at once make another report (%v)", seed, err)
		}
	}
}

// TestSessionsAgainstBruteForce compares sessions with a brute-force search.
func TestSessionsAgainstBruteForce(t *testing.T) {
	for seed := range uint64(20) {
		reqs := randomTrace(seed, 600)
		for _, stop := range []bool{false, true} {
			var all, fresh []float64
			for i, m := range reqs {
				if m.method != store.GET || m.kind != trace.Manifest {
					continue
				}
				n, pushed := 0.0, false
				for _, p := range reqs[:i] {
					pushed = pushed || p.method == store.PUT && p.repo == m.repo && m.at-p.at <= time.Minute
				}
				for _, l := range reqs[i+1:] {
					if l.at > m.at+time.Minute {
						break
					}
					if l.client != m.client || l.repo != m.repo || l.method != store.GET {
						continue
					}
					if l.kind == trace.Manifest && stop {
						break
					}
					if l.kind == trace.Blob {
						n++
					}
				}
				all = append(all, n)
				if pushed {
					fresh = append(fresh, n)
				}
			}
			rep := run(t, reqs, &analyze.Options{StopAtNext: stop})
			for figure, want := range map[string][]float64{"12a": all, "12b": fresh} {
				r := rep.Figure(figure).Zone("z")
				mean, _ := r.Value("mean")
				most, _ := r.Value("max")
				if r.Requests != int64(len(want)) || math.Abs(mean*float64(len(want))-sum(want)) > 1e-6 || most != slices.Max(want) {
					t.Fatalf("seed %d, stop %v, figure %s: %d sessions with a mean of %v and at most %v layers, want %d with %v and %v",
						seed, stop, figure, r.Requests, mean, most, len(want), sum(want)/float64(len(want)), slices.Max(want))
				}
			}
		}
	}
}

func sum(v []float64) float64 {
	var s float64
	for _, x := range v {
		s += x
	}
	return s
}

// TestSweepAgainstBruteForce counts active clients and requests at each millisecond, and
// idle periods, by brute force.
func TestSweepAgainstBruteForce(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const span = 3 * 60 * 1000 // milliseconds
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		var reqs []req
		at := 0
		for at < span/2 {
			reqs = append(reqs, req{at: time.Duration(at) * ms, dur: time.Duration(rnd.IntN(4000)) * ms, client: store.Symbol(1 + rnd.IntN(3))})
			at += rnd.IntN(5000)
		}
		requests, clients, kept := make([]int, span), make([]map[store.Symbol]bool, span), make([]map[store.Symbol]bool, span)
		end, keptEnd := 0, 0
		const keep = 2500
		for _, r := range reqs {
			from, to := int(r.at/ms), int((r.at+r.dur)/ms)
			end, keptEnd = max(end, to), max(keptEnd, to+keep)
			for i := from; i < to+keep; i++ {
				if clients[i] == nil {
					clients[i] = map[store.Symbol]bool{}
				}
				if kept[i] == nil {
					kept[i] = map[store.Symbol]bool{}
				}
				kept[i][r.client] = true
				if i < to {
					clients[i][r.client] = true
					requests[i]++
				}
			}
		}
		var ofRequests, ofClients, ofKept, idle float64
		for i := range keptEnd {
			ofKept += float64(len(kept[i]))
			if i < end {
				ofRequests += float64(requests[i])
				ofClients += float64(len(clients[i]))
			}
		}
		last := int(reqs[len(reqs)-1].at / ms)
		for i := range last {
			if requests[i] == 0 {
				idle++
			}
		}
		rep := run(t, reqs, &analyze.Options{KeepAlive: keep * ms})
		check(t, rep, "13a", map[string]float64{"mean": ofClients / float64(end), "mean, kept alive 2.5s": ofKept / float64(keptEnd), "max, time-weighted": float64(most(clients))})
		check(t, rep, "13b", map[string]float64{"mean": ofRequests / float64(end), "max, time-weighted": float64(slices.Max(requests))})
		check(t, rep, "15b", map[string]float64{"idle in all": idle / 1000})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func most(sets []map[store.Symbol]bool) int {
	n := 0
	for _, s := range sets {
		n = max(n, len(s))
	}
	return n
}

// TestHist checks that the quantiles of a distribution are within the documented error
// and that its curve is exact.
func TestHist(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var h analyze.Hist
		var all []int64
		for range 1 + rnd.IntN(2000) {
			v := int64(math.Exp(rnd.Float64() * 43)) // up to 4.7e18
			h.Add(v)
			all = append(all, v)
		}
		slices.Sort(all)
		for _, q := range []float64{0, 0.1, 0.5, 0.9, 0.99, 1} {
			want := float64(all[max(int(math.Ceil(q*float64(len(all))))-1, 0)])
			if got := h.Quantile(q); math.Abs(got-want) > analyze.QuantileError*want {
				t.Fatalf("quantile %v of %d numbers is %v, want %v", q, len(all), got, want)
			}
		}
		for _, p := range h.CDF(1) {
			n, _ := slices.BinarySearch(all, int64(p.X)+1)
			if p.X < 1<<53 && p.Y != float64(n)/float64(len(all)) {
				t.Fatalf("the curve has %v at %v, want %v", p.Y, p.X, float64(n)/float64(len(all)))
			}
		}
	}
	var empty analyze.Hist
	empty.AddN(5, 0)
	if !math.IsNaN(empty.Quantile(0.5)) || !math.IsNaN(empty.Mean()) || !math.IsNaN(empty.Max()) || empty.CDF(1) != nil {
		t.Error("a distribution of nothing has numbers")
	}
}

// FuzzRun checks that the analysis ends and its report can be written, whatever requests
// a store holds.
func FuzzRun(f *testing.F) {
	f.Add(int64(0), int64(1), int64(1), uint8(1), uint8(2), uint16(200))
	f.Add(int64(-1), int64(-1), int64(-1), uint8(9), uint8(99), uint16(0))
	f.Add(int64(math.MaxInt64/2000), int64(math.MaxInt64), int64(math.MaxInt64), uint8(1), uint8(3), uint16(65535))
	f.Fuzz(func(t *testing.T, at, dur, size int64, method, kind uint8, status uint16) {
		const limit = 200 * 365 * 86400 * 1e6 // the limit of the store's files: some centuries
		b := &store.Batch{Zone: "z"}
		for i := range int64(4) {
			b.Time = append(b.Time, at%limit/(4-i))
			b.Duration = append(b.Duration, max(dur>>(7*i), -1))
			b.Size = append(b.Size, max(size>>(9*i), -1))
			b.Method = append(b.Method, store.Method(method%7))
			b.Kind = append(b.Kind, trace.Kind(kind)%9)
			b.Status = append(b.Status, status)
			sym := store.Symbol(i / 2)
			b.Host, b.Client, b.Repo = append(b.Host, sym), append(b.Client, sym), append(b.Repo, sym)
			b.Namespace, b.Ref, b.Digest, b.Agent = append(b.Namespace, sym), append(b.Ref, sym), append(b.Digest, sym), append(b.Agent, sym)
		}
		slices.Sort(b.Time)
		rep, err := analyze.Run(context.Background(), &uriSource{batches: []*store.Batch{b}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(rep); err != nil {
			t.Fatal(err)
		}
		if _, err := rep.HTML(); err != nil {
			t.Fatal(err)
		}
	})
}
