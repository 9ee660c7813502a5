package replay_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/replay"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
)

// workerServer is a worker at an address. Tests can cut its connections.
type workerServer struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (w *workerServer) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err == nil {
		w.mu.Lock()
		w.conns = append(w.conns, c)
		w.mu.Unlock()
	}
	return c, err
}

// cut ends the worker as a kill does, without a last message.
func (w *workerServer) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.Listener.Close()
	for _, c := range w.conns {
		_ = c.Close()
	}
}

func startWorker(t testing.TB, o *replay.WorkerOptions) *workerServer {
	t.Helper()
	return serveWorker(t, o, nil)
}

func serveWorker(t testing.TB, o *replay.WorkerOptions, c *tls.Config) *workerServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &workerServer{Listener: l}
	worker := replay.NewWorker(o)
	var serving sync.WaitGroup
	srv := worker.Server(c)
	srv.ErrorLog = log.New(io.Discard, "", 0)
	srv.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		serving.Add(1)
		defer serving.Done()
		worker.ServeHTTP(rw, r)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c != nil {
			_ = srv.ServeTLS(w, "", "")
		} else {
			_ = srv.Serve(w)
		}
	}()
	t.Cleanup(func() { w.cut(); _ = srv.Close(); <-done; serving.Wait() })
	return w
}

// what returns samples without their times and workers.
func what(all []result.Sample) (out []string) {
	for _, s := range all {
		out = append(out, fmt.Sprintf("%06d/%d/%d %s %s %d %s %d bytes", s.Task, s.Step, s.Part, s.Method, s.Object, s.Status, s.Outcome, s.Bytes))
	}
	slices.Sort(out)
	return out
}

func TestTwoWorkersDoWhatOneDoes(t *testing.T) {
	st := newStore(t, images())
	for _, roundRobin := range []bool{false, true} {
		for _, level := range []plan.Level{plan.L0, plan.L2} {
			first, _ := newRegistry(t, nil)
			o := options(t, level, first)
			o.Plan.MaxGap = time.Second
			_, alone := run(t, st, o)

			second, _ := newRegistry(t, nil)
			o = options(t, level, second)
			o.Plan.MaxGap = time.Second
			o.Secret, o.RoundRobin = "open sesame", roundRobin
			for range 2 {
				o.Workers = append(o.Workers, startWorker(t, &replay.WorkerOptions{Secret: o.Secret}).Addr().String())
			}
			sum, both := run(t, st, o)
			if d := gocmp.Diff(what(alone), what(both)); d != "" {
				t.Errorf("%s, round robin %t: samples of one worker and of two (-one +two):\n%s", level, roundRobin, d)
			}
			did := map[uint8]int{}
			for _, s := range both {
				did[s.Worker]++
			}
			if len(did) != 2 || len(sum.Workers) != 2 {
				t.Errorf("%s, round robin %t: work of the workers %v, of two", level, roundRobin, did)
			}
		}
	}
}

func TestWorkerWantsItsSecret(t *testing.T) {
	url, seen := newRegistry(t, nil)
	for _, secret := range []string{"", "wrong"} {
		o := options(t, plan.L1, url)
		o.Workers, o.Secret = []string{startWorker(t, &replay.WorkerOptions{Secret: "right"}).Addr().String()}, secret
		if _, err := replay.Run(t.Context(), newStore(t, images()), o); err == nil || !strings.Contains(err.Error(), "secret") {
			t.Errorf("secret %q: error %v, want one about the secret", secret, err)
		}
	}
	if n := seen.total(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestRequireSafe(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "0.0.0.0:1": false, ":1": false, "192.0.2.7:1": false} {
		if got := replay.RequireSafe(addr, "", nil) == nil; got != want {
			t.Errorf("%s without a secret: safe %t, want %t", addr, got, want)
		}
		if got := replay.RequireSafe(addr, "sesame", nil) == nil; got != want {
			t.Errorf("%s with a secret that can be guessed: safe %t, want %t", addr, got, want)
		}
		if err := replay.RequireSafe(addr, "0123456789abcdef", nil); err != nil {
			t.Errorf("%s with a secret: %v", addr, err)
		}
	}
}

func TestSkewedClockOfAWorker(t *testing.T) {
	url, seen := newRegistry(t, nil)
	o := options(t, plan.L1, url)
	for _, skew := range []time.Duration{-37 * time.Minute, 3 * time.Hour} {
		clock := func() time.Time { return time.Now().Add(skew) }
		o.Workers = append(o.Workers, startWorker(t, &replay.WorkerOptions{Clock: clock}).Addr().String())
	}
	begin := time.Now()
	sum, _ := run(t, newStore(t, pings(100, 10)), o)
	if took := time.Since(begin); took > time.Minute || seen.total() != 100 {
		t.Errorf("%d requests in %s, want 100 within a second or so", seen.total(), took)
	}
	if sum.Lag.P50 > 1000 {
		t.Errorf("median lag %.0f ms: the clocks' difference was not accounted for", sum.Lag.P50)
	}
}

// pings returns a trace of n pings by seven clients, apart milliseconds from each other.
func pings(n, apart int) (out []request) {
	for i := range n {
		out = append(out, request{i * apart, fmt.Sprint("client", i%7), "GET", "v2", 200, 2})
	}
	return out
}

func TestLostWorkerLosesOnlyWhatIsUnderWay(t *testing.T) {
	const n = 400
	var lost *workerServer
	var once sync.Once
	var mu sync.Mutex
	served := 0
	url, _ := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			served++
			cut := served == n/4
			mu.Unlock()
			if cut {
				once.Do(lost.cut)
			}
			time.Sleep(50 * time.Millisecond) // so that requests are in flight
			next.ServeHTTP(w, r)
		})
	})
	o := options(t, plan.L1, url)
	lost = startWorker(t, nil)
	o.Workers = []string{startWorker(t, nil).Addr().String(), lost.Addr().String()}
	sum, all := run(t, newStore(t, pings(n, 5)), o)
	tasks := map[int64]int{}
	for _, s := range all {
		tasks[s.Task]++
	}
	if len(tasks) != n || len(all) != n {
		t.Errorf("%d samples of %d tasks, want %d of each: none lost, none twice", len(all), len(tasks), n)
	}
	gone := sum.Outcomes["lost"]
	if gone == 0 || gone > n/4 {
		t.Errorf("%d requests are counted as lost; some were under way", gone)
	}
	if sum.Outcomes["ok"] != n-gone || sum.LostWorkers != 1 || len(sum.Problems) == 0 {
		t.Errorf("outcomes %v, %d workers lost, problems %q", sum.Outcomes, sum.LostWorkers, sum.Problems)
	}
}

func TestAllWorkersLost(t *testing.T) {
	var w *workerServer
	var once sync.Once
	url, _ := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			once.Do(w.cut)
			next.ServeHTTP(rw, r)
		})
	})
	w = startWorker(t, nil)
	o := options(t, plan.L1, url)
	o.Workers = []string{w.Addr().String()}
	sum, err := replay.Run(t.Context(), newStore(t, pings(300, 5)), o)
	if err == nil || sum == nil || sum.Complete {
		t.Fatalf("error %v, summary %+v; want an error and what was done", err, sum)
	}
}

func TestResume(t *testing.T) {
	const n = 300
	st := newStore(t, pings(n, 5))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := 0
	var mu sync.Mutex
	url, seen := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if served++; served == n/2 {
				cancel()
			}
			next.ServeHTTP(w, r)
		})
	})
	o := options(t, plan.L1, url)
	sum, err := replay.Run(ctx, st, o)
	if !errors.Is(err, context.Canceled) || sum == nil || sum.Complete {
		t.Fatalf("the cancelled run: %v, %+v", err, sum)
	}
	before := seen.total()
	if _, err := replay.Run(t.Context(), st, o); err == nil {
		t.Error("a second run wrote into the result of the first")
	}
	other := o
	other.Resume, other.Plan.Speed = true, 3
	if _, err := replay.Run(t.Context(), st, other); err == nil {
		t.Error("a run was resumed with other options")
	}
	o.Resume = true
	sum, all := run(t, st, o)
	slices.SortFunc(all, func(a, b result.Sample) int { return cmp.Compare(a.Task, b.Task) })
	for i, s := range all {
		if s.Task != int64(i) || s.Intended != int64(i)*5000 {
			t.Fatalf("sample %d is of task %d at %d µs, want each task once at its time", i, s.Task, s.Intended)
		}
	}
	if len(all) != n || !sum.Complete || sum.Resumed != 1 || sum.Requests != n {
		t.Errorf("%d samples, summary of %d, complete %t, resumed %d", len(all), sum.Requests, sum.Complete, sum.Resumed)
	}
	if again := seen.total() - before; again > n*3/4 {
		t.Errorf("%d requests were sent after resuming: what was done is done again", again)
	}
}
