package replay_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/workload/replay"
	"example.org/slipway/workload/replay/plan"
)

// TestStallShowsInIntendedTimes is the coordinated omission test. A request that waits
// behind a stall is slow for its client, however fast it is once it is sent.
func TestStallShowsInIntendedTimes(t *testing.T) {
	const stall = 1500 * time.Millisecond
	var mu sync.Mutex
	var until time.Time
	url, _ := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			if until.IsZero() {
				until = time.Now().Add(stall + 200*time.Millisecond)
			}
			wait := time.Until(until)
			mu.Unlock()
			if wait > 0 && wait < stall { // the first requests pass
				time.Sleep(wait)
			}
			next.ServeHTTP(w, r)
		})
	})
	o := options(t, plan.L1, url)
	o.Concurrency = 2 // of 500: the requests that the stall itself hits are 0.4 %
	sum, _ := run(t, newStore(t, pings(500, 4)), o)
	if sum.Latency.P99 < 1000 || sum.Latency.P90 < 700 {
		t.Errorf("latency p90 %.0f ms, p99 %.0f ms: a stall of %s does not show", sum.Latency.P90, sum.Latency.P99, stall)
	}
	if sum.Service.P99 > sum.Latency.P99/2 || sum.Service.Max < 1000 {
		t.Errorf("service time p99 %.0f ms, max %.0f ms: want only the two requests slow that were under way", sum.Service.P99, sum.Service.Max)
	}
	if sum.Wait.P90 < 700 || sum.Lag.P90 > sum.Wait.P90/2 {
		t.Errorf("wait p90 %.0f ms, lag p90 %.0f ms: the wait is not the generator's lag", sum.Wait.P90, sum.Lag.P90)
	}
	if !sum.Valid || !strings.Contains(sum.Verdict, "saturated") {
		t.Errorf("verdict %q, want a valid run with a word on the wait", sum.Verdict)
	}
}

func TestImpatienceDrops(t *testing.T) {
	url, _ := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(200 * time.Millisecond)
			next.ServeHTTP(w, r)
		})
	})
	o := options(t, plan.L1, url)
	o.Concurrency, o.Patience = 1, 300*time.Millisecond
	sum, all := run(t, newStore(t, pings(40, 10)), o)
	if sum.Outcomes["dropped"] == 0 || sum.Outcomes["dropped"]+sum.Outcomes["ok"] != 40 || len(all) != 40 {
		t.Errorf("outcomes %v of 40", sum.Outcomes)
	}
	if sum.Valid {
		t.Errorf("verdict %q of a run with dropped requests", sum.Verdict)
	}
}

func TestGeneratorAsBottleneckIsSaid(t *testing.T) {
	url, _ := newRegistry(t, nil)
	o := options(t, plan.L1, url)
	o.MaxLag = time.Nanosecond
	sum, _ := run(t, newStore(t, pings(200, 1)), o)
	if sum.Valid || !strings.Contains(sum.Verdict, "the generator was the bottleneck") {
		t.Errorf("verdict %q", sum.Verdict)
	}
}

func TestClosedLoop(t *testing.T) {
	url, _ := newRegistry(t, nil)
	o := options(t, plan.L1, url)
	o.ClosedLoop = 3
	reqs := pings(100, 3_600_000) // four days
	sum, _ := run(t, newStore(t, reqs), o)
	if sum.Outcomes["ok"] != 100 || !sum.Closed || !strings.Contains(sum.Verdict, "closed loop") {
		t.Errorf("outcomes %v, verdict %q", sum.Outcomes, sum.Verdict)
	}
}

func TestSeveralTargets(t *testing.T) {
	for _, policy := range []plan.Policy{plan.ByRandom, plan.ByDigest} {
		a, seenA := newRegistry(t, nil)
		b, seenB := newRegistry(t, nil)
		o := options(t, plan.L1, a, b)
		o.Plan.TargetPolicy = policy
		st := newStore(t, append(images()[:9], pings(60, 3)...))
		sum, all := run(t, st, o)
		wantOutcomes(t, sum, all, map[string]int64{"ok": sum.Requests})
		if policy == plan.ByRandom && (seenA.get("GET /v2/") < 15 || seenB.get("GET /v2/") < 15) {
			t.Errorf("%d and %d of 60 pings", seenA.get("GET /v2/"), seenB.get("GET /v2/"))
		}
	}
}

// BenchmarkTimeliness sends pings at their recorded times to a server that answers at
// once, and reports how late they left. See the section Timeliness of docs/replay.md.
func BenchmarkTimeliness(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { drain(r) }))
	defer srv.Close()
	const perSecond = 1000
	for b.Loop() {
		o := options(b, plan.L1, srv.URL)
		o.Phase, o.Plan.MaxRequests = replay.TestOnly, 100_000
		sum, err := replay.Run(b.Context(), newStore(b, pings(100_000, 1000/perSecond)), o)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(sum.Lag.P99, "lag-p99-ms")
		b.ReportMetric(sum.Lag.P999, "lag-p999-ms")
		b.ReportMetric(100*float64(sum.Late)/float64(sum.Requests), "%late")
		b.ReportMetric(sum.Latency.P50, "p50-ms")
	}
}
