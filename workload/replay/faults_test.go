package replay_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/workload/replay"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
)

// hours returns a trace of pings an hour apart. In a closed loop the times of the trace
// must not have an effect.
func hours(n int) []request { return pings(n, 3_600_000) }

// wantNow checks that the samples of a closed loop lasted for seconds, not for the hours
// of the trace.
func wantNow(t *testing.T, sum *result.Summary, all []result.Sample) {
	t.Helper()
	for _, s := range all {
		if s.Intended < 0 || s.Intended > time.Minute.Microseconds() || s.End < s.Intended {
			t.Fatalf("a sample from %d to %d µs", s.Intended, s.End)
		}
	}
	if sum.Seconds <= 0 || sum.Seconds > 60 || sum.PerSecond <= 0 {
		t.Errorf("%g seconds and %g requests a second", sum.Seconds, sum.PerSecond)
	}
}

func TestClosedLoopHasTimesOfItsOwn(t *testing.T) {
	url, _ := newRegistry(t, nil)
	o := options(t, plan.L1, url)
	o.ClosedLoop = 3
	sum, all := run(t, newStore(t, hours(100)), o)
	wantNow(t, sum, all)
}

func TestClosedLoopGoesOnWhereItEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	served := 0
	url, _ := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			if served++; served == 300 {
				cancel()
			}
			mu.Unlock()
			time.Sleep(time.Millisecond) // so that the first samples are reported long before the end
			next.ServeHTTP(w, r)
		})
	})
	st := newStore(t, hours(600))
	o := options(t, plan.L1, url)
	o.ClosedLoop = 2
	first, err := replay.Run(ctx, st, o)
	if err == nil || first.Requests == 0 {
		t.Fatalf("the cancelled run: %v, %+v", err, first)
	}
	o.Resume = true
	sum, all := run(t, st, o)
	wantNow(t, sum, all)
	if len(all) != 600 {
		t.Errorf("%d samples of 600 requests", len(all))
	}
}

func TestClosedLoopLosesAWorker(t *testing.T) {
	var lost *workerServer
	var once sync.Once
	var mu sync.Mutex
	served := 0
	url, _ := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			served++
			cut := served == 100
			mu.Unlock()
			if cut {
				once.Do(lost.cut)
			}
			time.Sleep(5 * time.Millisecond) // so that requests are in flight
			next.ServeHTTP(w, r)
		})
	})
	o := options(t, plan.L1, url)
	o.ClosedLoop, o.RoundRobin = 4, true
	lost = startWorker(t, nil)
	o.Workers = []string{startWorker(t, nil).Addr().String(), lost.Addr().String()}
	sum, all := run(t, newStore(t, hours(400)), o)
	wantNow(t, sum, all)
	if len(all) != 400 || sum.Outcomes["ok"]+sum.Outcomes["lost"] != 400 || sum.LostWorkers != 1 {
		t.Errorf("%d samples, outcomes %v, %d workers lost; want 400 requests once", len(all), sum.Outcomes, sum.LostWorkers)
	}
}

// TestLostSessionIsCountedOnce cuts the only other worker during pulls of which some
// layers were already reported.
func TestLostSessionIsCountedOnce(t *testing.T) {
	var rs []request
	for i := range 40 {
		client := "c" + string(rune('A'+i))
		rs = append(rs, request{4 * i, client, "GET", "v2/a/one/manifests/817c8a39", 200, 900})
		for l := range 9 {
			rs = append(rs, request{4*i + 1, client, "GET", "v2/a/one/blobs/1111111" + string(rune('0'+l)), 200, 100})
		}
	}
	var lost *workerServer
	var once sync.Once
	var mu sync.Mutex
	layers := 0
	url, _ := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				mu.Lock()
				layers++
				cut := layers == 100
				mu.Unlock()
				time.Sleep(30 * time.Millisecond) // longer than samples wait to be reported
				if cut {
					once.Do(lost.cut)
				}
			}
			next.ServeHTTP(w, r)
		})
	})
	o := options(t, plan.L2, url)
	lost = startWorker(t, nil)
	o.Workers = []string{startWorker(t, nil).Addr().String(), lost.Addr().String()}
	sum, all := run(t, newStore(t, rs), o)
	type key struct {
		task int64
		step int32
	}
	n := map[key]int{}
	for _, s := range all {
		n[key{s.Task, s.Step}]++
	}
	for k, v := range n {
		if v != 1 {
			t.Errorf("task %d, step %d has %d samples", k.task, k.step, v)
		}
	}
	if len(n) != 40*11 || sum.Sessions["ok"]+sum.Sessions["lost"] != 40 || sum.Sessions["lost"] == 0 {
		t.Errorf("%d samples, sessions %v; want 40 pulls of 10 requests, some lost", len(n), sum.Sessions)
	}
}

func TestResumeWantsTheSameRun(t *testing.T) {
	url, _ := newRegistry(t, nil)
	st := newStore(t, pings(20, 1))
	o := options(t, plan.L1, url)
	run(t, st, o)
	o.Resume = true
	other := o
	other.Targets = options(t, plan.L1, url+"/elsewhere").Targets
	if _, err := replay.Run(t.Context(), st, other); err == nil || !strings.Contains(err.Error(), "other targets") {
		t.Errorf("with another target: %v", err)
	}
	if _, err := replay.Run(t.Context(), newStore(t, pings(21, 1)), o); err == nil || !strings.Contains(err.Error(), "another trace") {
		t.Errorf("with another trace: %v", err)
	}
	if _, all := run(t, st, o); len(all) != 20 {
		t.Errorf("%d samples after going on, want 20", len(all))
	}
}

// TestFailedBeginIsNoRun checks that a run that could not begin does not prevent the next
// one.
func TestFailedBeginIsNoRun(t *testing.T) {
	url, _ := newRegistry(t, nil)
	st := newStore(t, images())
	o := options(t, plan.L1, url)
	o.Plan.MaxGap = time.Millisecond
	good := o.Targets
	o.Targets = options(t, plan.L1, "http://127.0.0.1:1").Targets
	if _, err := replay.Run(t.Context(), st, o); err == nil || !strings.Contains(err.Error(), "warm-up") {
		t.Fatalf("without a registry: %v", err)
	}
	o.Targets = good
	if sum, _ := run(t, st, o); !sum.Complete {
		t.Errorf("%+v", sum)
	}
}

func TestNothingToReplay(t *testing.T) {
	o := options(t, plan.L0, "http://127.0.0.1:1")
	_, err := replay.Run(t.Context(), newStore(t, pings(3, 1)), o)
	if err == nil || !strings.Contains(err.Error(), "3 not a GET or PUT") {
		t.Errorf("error %v, want one that says what was left out", err)
	}
}

func TestOptionsWithoutSense(t *testing.T) {
	for name, change := range map[string]func(*replay.Options){
		"timeout":         func(o *replay.Options) { o.Timeout = -1 },
		"patience":        func(o *replay.Options) { o.Patience = -1 },
		"checkpoint":      func(o *replay.Options) { o.Checkpoint = -1 },
		"lag":             func(o *replay.Options) { o.MaxLag = -1 },
		"closed loop":     func(o *replay.Options) { o.ClosedLoop = 1 << 30 },
		"concurrency":     func(o *replay.Options) { o.Concurrency = -1 },
		"closed and rate": func(o *replay.Options) { o.ClosedLoop, o.Plan.Rate = 2, 10 },
		"phase":           func(o *replay.Options) { o.Phase = "test" },
		"no target":       func(o *replay.Options) { o.Targets = nil },
		"worker's secret": func(o *replay.Options) { o.Workers, o.Targets[0].Password = []string{"192.0.2.1:1"}, "p" },
	} {
		o := options(t, plan.L1, "http://127.0.0.1:1")
		change(&o)
		if _, err := replay.Run(t.Context(), newStore(t, pings(1, 1)), o); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// TestUploadsAreCancelledBeforeTheEnd checks that Run cancels open uploads before it
// returns, since the process may end right afterwards.
func TestUploadsAreCancelledBeforeTheEnd(t *testing.T) {
	var mu sync.Mutex
	cancelled := 0
	url, _ := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r)
			if r.Method == http.MethodDelete {
				time.Sleep(50 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				cancelled++
			}
		})
	})
	run(t, newStore(t, []request{{0, "c", "POST", "v2/a/blobs/uploads/", 202, 0}}), options(t, plan.L1, url))
	mu.Lock()
	defer mu.Unlock()
	if cancelled != 1 {
		t.Errorf("%d uploads were cancelled when the run had ended, want 1", cancelled)
	}
}

// TestWarmUpAlone checks that a warm-up reports what it did and leaves nothing that looks
// like a result.
func TestWarmUpAlone(t *testing.T) {
	url, _ := newRegistry(t, nil)
	o := options(t, plan.L1, url)
	o.Phase, o.Plan.MaxGap = replay.WarmUpOnly, time.Millisecond
	st := newStore(t, images())
	sum, err := replay.Run(t.Context(), st, o)
	if err != nil || sum.WarmUp == nil || sum.WarmUp.Manifests != 1 {
		t.Fatalf("%+v, %v", sum, err)
	}
	if _, err := os.Stat(filepath.Join(o.Dir, result.SummaryName)); err == nil {
		t.Error("there is a summary of nothing")
	}
	o.Phase = replay.TestOnly
	if sum, _ := run(t, st, o); sum.WarmUp == nil || sum.Requests < 20 || !sum.Complete {
		t.Errorf("the test after it: %+v", sum)
	}
}

// TestStrangerSendsLittle checks that a peer that has not proved that it knows the secret
// can neither fill a worker's memory nor learn what it does.
func TestStrangerSendsLittle(t *testing.T) {
	var log logtest.Buffer
	addr := startWorker(t, &replay.WorkerOptions{Secret: "open sesame", Log: slog.New(slog.NewTextHandler(&log, nil))}).Addr().String()
	conn, err := replay.Dial(t.Context(), addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte{0, 0, 16, 0, 2}); err != nil { // announces a proof of 1 MiB
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn) // the greeting, and then the end of the connection
	if len(b) > 4096 || !strings.Contains(log.String(), "a frame of 1048576 bytes") {
		t.Errorf("the worker waits for a proof of 1 MiB: %d bytes, %v; its log:\n%s", len(b), err, log.String())
	}
	if strings.Contains(string(b), "sesame") || strings.Contains(log.String(), "sesame") {
		t.Error("the worker tells its secret")
	}
}
