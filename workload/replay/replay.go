// Package replay sends the requests of a trace to registries as they were once sent, and
// measures what happens.
//
// A coordinator reads the trace, makes a plan of it (package plan) and deals its tasks to
// workers. These send them (package send) and return samples. Unless workers are named,
// one runs in the coordinator's process. Only the coordinator writes results (package
// result), so that the work of several workers is counted exactly as if one had done it.
//
// The replay is an open loop: it sends each request at its recorded time, whatever
// happened to the requests before, and counts the latency from that time. If that cannot
// be kept, the result says so.
package replay

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/replay/send"
)

// Target is a registry that is replayed to.
type Target = send.Target

// Phase is a part of a replay.
type Phase string

// These are the phases.
const (
	// All runs the warm-up and then the test.
	All Phase = "all"
	// WarmUpOnly puts everything in place and sends nothing else.
	WarmUpOnly Phase = "warmup"
	// TestOnly expects everything to be in place.
	TestOnly Phase = "run"
)

// Options are the options of Run.
type Options struct {
	// Plan says what is replayed. Its Targets is filled in.
	Plan plan.Options
	// Targets are the registries, one at least.
	Targets []send.Target
	// Dir is where the result goes.
	Dir string
	// Phase defaults to All.
	Phase Phase
	// Resume continues a run that was killed. All other options must be the same as in
	// that run.
	Resume bool

	// Workers are the addresses of workers; none means a worker in this process. Secret
	// is the secret that they share. If TLS is not nil, the connections use TLS.
	Workers []string
	Secret  string
	TLS     *tls.Config
	// RoundRobin deals tasks to workers in turn instead of by their client.
	RoundRobin bool
	// Heartbeat is how long a worker may be silent, 0 means 5 s.
	Heartbeat time.Duration

	// ClosedLoop is how many tasks run at once on each worker, one after another
	// regardless of their times. 0 means an open loop.
	ClosedLoop int
	// Concurrency is how many tasks run on each worker at once; 0 means 4096. In an open
	// loop further tasks wait, and are dropped after Patience; 0 means 30 s.
	Concurrency int
	Patience    time.Duration
	// WarmConcurrency is how many blobs or manifests each worker puts in place at
	// once, 0 means 16.
	WarmConcurrency int
	// Timeout bounds each request, 0 means 5 minutes.
	Timeout time.Duration
	// Clients tells targets which client sent each request: an address made from the
	// trace's client, in X-Forwarded-For. Only targets that trust this machine as a proxy
	// believe it.
	Clients bool
	// MaxLag is the largest lag of the generator, at the 99th percentile, with which the
	// run is valid; 0 means 10 ms.
	MaxLag time.Duration
	// Checkpoint is how often results are made durable; 0 means 10 s.
	Checkpoint time.Duration

	// Version is the program's version, for the summary.
	Version string
	// Describe is what the summary says of the options, by name.
	Describe map[string]string
	// Status is called each second, and Progress while the trace is read. Both may be
	// nil.
	Status   func(Status)
	Progress plan.Progress
	// Metrics are kept up to date for Prometheus. They may be nil.
	Metrics *Metrics
	// Log gets what an operator wants to know. nil discards it.
	Log *slog.Logger
}

func (o Options) defaults() (Options, error) {
	o.Phase = cmp.Or(o.Phase, All)
	o.Heartbeat = cmp.Or(o.Heartbeat, 5*time.Second)
	o.Concurrency = cmp.Or(o.Concurrency, 4096)
	o.Patience = cmp.Or(o.Patience, 30*time.Second)
	o.WarmConcurrency = cmp.Or(o.WarmConcurrency, 16)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Minute)
	o.MaxLag = cmp.Or(o.MaxLag, 10*time.Millisecond)
	o.Checkpoint = cmp.Or(o.Checkpoint, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Plan.Targets = len(o.Targets)
	if _, err := o.Plan.Defaults(); err != nil {
		return o, err
	}
	switch {
	case len(o.Targets) == 0:
		return o, errors.New("no target is named")
	case o.Dir == "":
		return o, errors.New("no directory for the result is named")
	case len(o.Workers) > math.MaxUint8:
		return o, fmt.Errorf("%d workers: %d are possible", len(o.Workers), math.MaxUint8)
	case o.ClosedLoop < 0 || o.Concurrency < 1 || o.WarmConcurrency < 1:
		return o, errors.New("numbers of requests at once must be positive")
	case max(o.ClosedLoop, o.WarmConcurrency) > maxClosed:
		return o, fmt.Errorf("a closed loop, and the warm-up, has at most %d requests at once", maxClosed)
	case min(o.Heartbeat, o.Patience, o.Timeout, o.MaxLag, o.Checkpoint) < 0:
		return o, errors.New("times must not be negative")
	case o.ClosedLoop > 0 && o.Plan.Rate > 0:
		return o, errors.New("a closed loop goes as fast as the registry answers: it cannot have a rate")
	case o.Phase != All && o.Phase != WarmUpOnly && o.Phase != TestOnly:
		return o, fmt.Errorf("unknown phase %q: use all, warmup or run", o.Phase)
	}
	for i := range o.Targets {
		if err := o.Targets[i].Check(); err != nil {
			return o, err
		}
	}
	return o, nil
}

// tableName is the file of digests in a result.
const tableName = "digests.table"

// Run replays a trace. If the test has begun, it returns the summary of what was done
// even with an error. With WarmUpOnly the summary holds only the figures of the warm-up.
func Run(ctx context.Context, src plan.Source, o Options) (*result.Summary, error) {
	o, err := o.defaults()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	st, err := openState(&o)
	if err != nil {
		return nil, err
	}
	p, err := plan.New(ctx, src, o.Plan, filepath.Join(o.Dir, tableName), o.Progress)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if p.Requests == 0 {
		return nil, fmt.Errorf("nothing of the trace is to be replayed%s", leftOut(p.Skipped))
	}
	if err := st.begin(&o, p); err != nil {
		return nil, err
	}
	warnOfSecrets(&o)
	c, names, end, err := connect(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer end()
	r := &runner{o: &o, plan: p, c: c, state: st}
	if o.Phase != TestOnly && st.WarmUp == nil {
		if err := r.warmUp(ctx); err != nil {
			return nil, fmt.Errorf("warm-up: %w", err)
		}
		if err := st.save(o.Dir); err != nil {
			return nil, err
		}
	}
	r.names = names
	if o.Phase == WarmUpOnly {
		return r.summary(), nil
	}
	return r.test(ctx)
}

// leftOut says which requests cannot be replayed, if any.
func leftOut(skipped plan.Skip) string {
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(skipped)) {
		reasons = append(reasons, fmt.Sprintf("%d %s", skipped[reason], reason))
	}
	if len(reasons) == 0 {
		return ": it has no requests at these times"
	}
	return "; left out: " + strings.Join(reasons, ", ")
}

// connect meets the workers. end says goodbye to them and waits for the worker of this
// process, which cancels the uploads that the trace did not end.
func connect(ctx context.Context, o *Options) (_ *coordinator, names []string, end func(), _ error) {
	base := config{Targets: o.Targets, Maker: o.Plan.Maker, Timeout: o.Timeout, Most: o.Concurrency, Patience: o.Patience,
		Agent: "slipway-replay/" + o.Version, Clients: o.Clients}
	var conns []net.Conn
	stopped := func() {}
	fail := func(err error) (*coordinator, []string, func(), error) {
		for _, c := range conns {
			err = errors.Join(err, c.Close())
		}
		stopped()
		return nil, nil, nil, err
	}
	if len(o.Workers) == 0 {
		conn, done := local(ctx, &WorkerOptions{Secret: o.Secret, Log: o.Log})
		stopped = func() { <-done }
		conns, names = append(conns, conn), append(names, "local")
	}
	for _, addr := range o.Workers {
		if err := safeToTell(addr, o); err != nil {
			return fail(err)
		}
		conn, err := Dial(ctx, addr, o.TLS)
		if err != nil {
			return fail(err)
		}
		conns, names = append(conns, conn), append(names, addr)
	}
	c, err := newCoordinator(conns, names, o.Secret, base, o.Heartbeat)
	if err != nil {
		return fail(err)
	}
	c.roundRobin = o.RoundRobin
	return c, names, func() { c.close(); stopped() }, nil
}

// isLoopback reports whether a host is certainly this machine.
func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// warnOfSecrets says which targets would be shown credentials in the clear.
func warnOfSecrets(o *Options) {
	for i := range o.Targets {
		t := &o.Targets[i]
		if u, err := url.Parse(t.URL); err == nil && u.Scheme == "http" && t.Secret() && !isLoopback(u.Hostname()) {
			o.Log.Warn("a target without TLS: its credentials can be read on the way", "target", t.Name)
		}
	}
}

// safeToTell returns an error if secrets would be sent to a worker unencrypted.
func safeToTell(addr string, o *Options) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("worker %s: %w", addr, err)
	}
	if o.TLS != nil || isLoopback(host) {
		return nil
	}
	if slices.ContainsFunc(o.Targets, func(t send.Target) bool { return t.Secret() }) {
		return fmt.Errorf("worker %s is reached without TLS: the credentials of the targets would cross the network in the clear; use --worker-tls", addr)
	}
	o.Log.Warn("a worker without TLS: what is replayed can be read and changed on the way", "worker", addr)
	return nil
}

// runner is a replay with its plan and its workers.
type runner struct {
	o     *Options
	plan  *plan.Plan
	c     *coordinator
	state *state
	names []string
}

// warmUp puts everything in place. A few errors are the registry's fault and tolerated.
// If all requests fail, no test follows.
func (r *runner) warmUp(ctx context.Context) error {
	begin := time.Now()
	agg := result.NewAggregate(nil)
	m := newMeter(warmUpPhase, r.o, agg)
	m.total = (r.plan.WarmBlobs + r.plan.WarmConfigs + r.plan.WarmManifests) * int64(len(r.o.Targets))
	done := m.run()
	var err error
	for round := 0; round < plan.WarmRounds && err == nil; round++ {
		err = r.c.phase(ctx, manner{closed: r.o.WarmConcurrency, again: true, collect: m.put}, func(hand func(*plan.Task) error) error {
			return r.plan.WarmUp(round, hand)
		})
	}
	done()
	if err != nil {
		return err
	}
	w := &result.WarmUp{Blobs: r.plan.WarmBlobs, Manifests: r.plan.WarmManifests, Requests: agg.Requests(),
		Errors: agg.Errors() + agg.Outcomes[result.Failed], Seconds: time.Since(begin).Seconds()}
	if w.Errors > 0 && 2*w.Errors >= w.Requests {
		return fmt.Errorf("%d of %d requests failed, %s; is the target a registry that can be written to?", w.Errors, w.Requests, outcomeText(agg))
	}
	r.state.WarmUp = w
	return nil
}

func outcomeText(a *result.Aggregate) string {
	worst := result.BadStatus
	for _, o := range []result.Outcome{result.Broken, result.Timeout, result.Wrong} {
		if a.Outcomes[o] > a.Outcomes[worst] {
			worst = o
		}
	}
	if worst == result.BadStatus {
		classes := map[uint8]int64{}
		class := uint8(0)
		for k, g := range a.Groups {
			if classes[k.Class] += g.Latency.TotalCount(); k.Class >= 4 && (class == 0 || classes[k.Class] > classes[class]) {
				class = k.Class
			}
		}
		return fmt.Sprintf("most with status %dxx", class)
	}
	return "most: " + worst.String()
}

// test replays the plan and writes the result.
func (r *runner) test(ctx context.Context) (*result.Summary, error) {
	s := r.summary()
	done := newDoneSet(r.plan.Requests)
	rec, err := result.Create(r.o.Dir, r.o.Resume, done.add)
	if err != nil {
		return nil, err
	}
	m := newMeter(testPhase, r.o, rec.Aggregate)
	m.rec, m.every = rec, r.o.Checkpoint
	if r.o.Plan.Level != plan.L2 { // the number of steps of its sessions is not known before
		m.total = r.plan.Requests
	}
	how := manner{closed: r.o.ClosedLoop, collect: m.put}
	if how.closed > 0 {
		how.from = time.Duration(rec.Aggregate.Ended) * time.Microsecond
	} else {
		m.length = r.plan.Length
	}
	finish := m.run()
	err = r.c.phase(ctx, how, func(hand func(*plan.Task) error) error {
		return r.plan.Tasks(ctx, done.first(), func(t *plan.Task) error {
			if done.has(t.ID) {
				return nil
			}
			return hand(t)
		})
	})
	finish()
	r.note(s, err)
	return s, errors.Join(err, rec.Close(s))
}

// summary returns what is known before the test.
func (r *runner) summary() *result.Summary {
	s := &result.Summary{Level: r.o.Plan.Level.String(), Mode: "open loop", Options: r.o.Describe, Workers: r.names, Environment: result.Here(r.o.Version),
		Planned: r.plan.Requests, Skipped: r.plan.Skipped, WarmUp: r.state.WarmUp, Began: r.state.Began, Resumed: r.state.Resumed,
		MaxLag: r.o.MaxLag.Seconds() * 1e3, Closed: r.o.ClosedLoop > 0}
	if s.Closed {
		s.Mode = fmt.Sprintf("closed loop of %d", r.o.ClosedLoop)
	}
	if u := r.plan.Unsized; u.Blobs+u.Manifests > 0 {
		s.Unsized = &result.Unsized{Blobs: u.Blobs, Manifests: u.Manifests, BlobSize: r.o.Plan.UnknownSize(), Examples: u.Examples}
	}
	for i := range r.o.Targets {
		s.Targets = append(s.Targets, r.o.Targets[i].Name)
	}
	return s
}

// maxDrift is how far the clock of a worker may move before a message says so.
const maxDrift = 5 * time.Millisecond

// note adds to the summary what happened to the run.
func (r *runner) note(s *result.Summary, err error) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	s.Complete = err == nil
	if err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("the run was ended early: %v", err))
	}
	s.LostWorkers = len(r.c.lost)
	s.Problems = append(s.Problems, r.c.lost...)
	for _, p := range r.c.peers {
		if d := (p.last - p.offset).Abs(); d > maxDrift {
			s.Problems = append(s.Problems, fmt.Sprintf("the clock of worker %s moved by %s during the run; its requests kept their times by another clock", p.name, d.Round(time.Microsecond)))
		}
	}
}
