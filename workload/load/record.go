package load

import (
	"sync"
	"time"

	"example.org/slipway/workload/replay/result"
)

// Op is an operation that a puller repeats.
type Op uint8

// These are the operations of a puller.
const (
	// Pull fetches a whole image.
	Pull Op = iota
	// Push pushes a new image.
	Push
	// Head asks for the manifest that a tag names.
	Head
	// List asks for the tags of a repository.
	List
	// Pruning removes what was pulled from the registry's cache.
	Pruning
	ops
)

// String returns the operation's name as it appears in reports.
func (o Op) String() string {
	names := [ops]string{"pull", "push", "head", "list", "prune"}
	if o < ops {
		return names[o]
	}
	return "unknown"
}

// timing counts how long something takes.
type timing struct {
	spread result.Spread // in microseconds
	max    int64
}

func (t *timing) add(d time.Duration) {
	us := d.Microseconds()
	t.spread.Add(us)
	t.max = max(t.max, us)
}

func (t *timing) merge(o *timing) {
	t.spread.Merge(&o.spread)
	t.max = max(t.max, o.max)
}

// times returns the distribution in milliseconds.
func (t *timing) times() result.Times {
	q := func(p float64) float64 { return min(t.spread.Quantile(p), float64(t.max)) / 1e3 }
	return result.Times{Mean: t.spread.Mean() / 1e3, P50: q(0.5), P90: q(0.9), P99: q(0.99), P999: q(0.999), Max: float64(t.max) / 1e3}
}

// counts is what was counted in some period.
type counts struct {
	ops      [ops]timing
	failed   [ops]int64
	requests timing
	bytes    int64
	faults   map[string]FaultCount
}

// FaultCount says how often something went wrong.
type FaultCount struct {
	// Kind is what went wrong, such as "wrong content" or "status 404".
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
	// Example is the first fault of this kind.
	Example string `json:"example"`
}

func (c *counts) merge(o *counts) {
	for i := range c.ops {
		c.ops[i].merge(&o.ops[i])
		c.failed[i] += o.failed[i]
	}
	c.requests.merge(&o.requests)
	c.bytes += o.bytes
	for kind, f := range o.faults {
		c.fault(kind, f.Count, f.Example)
	}
}

func (c *counts) fault(kind string, n int64, example string) {
	if c.faults == nil {
		c.faults = map[string]FaultCount{}
	}
	f, ok := c.faults[kind]
	if !ok {
		f = FaultCount{Kind: kind, Example: example}
	}
	f.Count += n
	c.faults[kind] = f
}

// done returns how many operations of a kind succeeded.
func (c *counts) done(o Op) int64 { return c.ops[o].spread.Count }

// all returns how many operations succeeded and how many failed. It leaves out pruning,
// which is not measured.
func (c *counts) all() (done, failed int64) {
	for o := range Pruning {
		done += c.done(o)
		failed += c.failed[o]
	}
	return done, failed
}

// totals are the counts of the whole run.
type totals struct {
	Done, Failed, Images, Requests, Bytes int64
}

// recorder counts what one puller does. It is safe for concurrent use. Each puller has a
// recorder with its own lock, so that pullers do not wait for each other.
type recorder struct {
	mu    sync.Mutex
	now   *counts // since the last take
	total totals
}

func newRecorder() *recorder { return &recorder{now: &counts{}} }

func (r *recorder) request(bytes int64, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.requests.add(took)
	r.now.bytes += bytes
	r.total.Requests++
	r.total.Bytes += bytes
}

// op counts an operation.
func (r *recorder) op(o Op, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.now.failed[o]++
		r.now.fault(kindOf(err, false), 1, example(err))
		if o != Pruning {
			r.total.Failed++
		}
		return
	}
	r.now.ops[o].add(took)
	if o == Pull {
		r.total.Images++
	}
	if o != Pruning {
		r.total.Done++
	}
}

// take returns what was counted since the last call of take.
func (r *recorder) take() *counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.now
	r.now = &counts{}
	return c
}

// soFar returns what was counted since the beginning.
func (r *recorder) soFar() totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// peek adds to c what was counted since the last call of take.
func (r *recorder) peek(c *counts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.merge(r.now)
}
