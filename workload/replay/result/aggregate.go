package result

import (
	"cmp"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"example.org/slipway/workload/trace/store"
)

// Histograms count microseconds from 1 to one day with three digits.
const (
	maxMicros = 24 * 3600 * 1e6
	digits    = 3
)

// Key is what distinguishes groups of requests.
type Key struct {
	Method store.Method
	Object Object
	Size   uint8
	Target uint8
	// Class is the status' first digit, 0 if there was no answer.
	Class uint8
}

// Group holds the requests of a key.
type Group struct {
	// Latency counts from the intended sending, Service from the actual one.
	Latency, Service *hdrhistogram.Histogram
	Bytes            int64
	Redirects        int64
	RedirectTime     int64
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, maxMicros, digits) }

func record(h *hdrhistogram.Histogram, v int64) {
	_ = h.RecordValue(min(max(v, 1), maxMicros)) // the value is in range
}

// Block is a stretch of the run, by the times at which requests were to be sent.
type Block struct {
	Latency, Service         Spread
	Requests, Errors, Unsent int64
	Bytes                    int64
	MaxLag                   int64
}

// Second is a row of the series, as in its file.
type Second struct {
	Second   int64   `parquet:"second"`
	Target   int32   `parquet:"target"`
	Requests int64   `parquet:"requests"`
	Errors   int64   `parquet:"errors"`
	Unsent   int64   `parquet:"unsent"`
	Bytes    int64   `parquet:"bytes"`
	P50      float64 `parquet:"p50_us"`
	P99      float64 `parquet:"p99_us"`
	Max      float64 `parquet:"max_us"`
	Mean     float64 `parquet:"mean_us"`
	MaxLag   int64   `parquet:"max_lag_us"`
}

// maxBlocks bounds the blocks of a target. When there are more, neighbours are merged,
// and from then on blocks are twice as long.
const maxBlocks = 2048

// openSeconds is how long a second of the series can still get requests, in seconds. It is
// longer than the time between the ends of requests of one second, unless a timeout is very
// long. In that case the second has two rows.
const openSeconds = 900

// Aggregate is all that is counted of a run. The same samples give the same result in any
// order, also if parts are counted separately and merged. It is not safe for concurrent use.
type Aggregate struct {
	Groups map[Key]*Group
	// Lag is the generator's own lag. Wait is the time that requests waited for a place
	// among the requests under way.
	Lag, Wait *hdrhistogram.Histogram
	// Outcomes counts requests, and Sessions whole pulls and pushes, by their outcome.
	Outcomes, Sessions [outcomes]int64
	// Late counts the requests that were sent more than LateAfter microseconds late.
	Late  int64
	Extra int64
	// Workers is what each worker did.
	Workers map[uint8]*WorkerCount
	// Began is when the first request was to be sent, -1 if there was none, and Ended
	// when the last request had ended, in microseconds.
	Began, Ended int64
	// Blocks holds the blocks of each target. Each is BlockSeconds long, and the first
	// begins at 0.
	Blocks       [][]Block
	BlockSeconds int64

	seconds  map[secondKey]*Block
	newest   int64
	oldest   int64
	onSecond func(Second) error
}

type secondKey struct {
	second int64
	target uint8
}

// LateAfter is the delay in microseconds beyond which a request counts as late.
const LateAfter = 2000

// NewAggregate returns an empty aggregate. onSecond, if not nil, gets the rows of the
// series, in order of time except for very late requests; see [Aggregate.Flush].
func NewAggregate(onSecond func(Second) error) *Aggregate {
	return &Aggregate{Groups: map[Key]*Group{}, Workers: map[uint8]*WorkerCount{}, Lag: newHistogram(), Wait: newHistogram(), Began: -1,
		BlockSeconds: 1, seconds: map[secondKey]*Block{}, onSecond: onSecond}
}

// Add counts a sample. It returns errors of onSecond.
func (a *Aggregate) Add(s *Sample) error {
	a.Ended = max(a.Ended, s.End)
	if a.Began < 0 || s.Intended < a.Began {
		a.Began = max(0, s.Intended)
	}
	if s.IsSession() {
		a.Sessions[s.Outcome]++
		if s.Executed() {
			a.group(s)
		}
		return nil
	}
	a.Outcomes[s.Outcome]++
	a.worker(s)
	if s.Extra {
		a.Extra++
	}
	if s.Executed() {
		a.group(s)
		record(a.Lag, s.Lag())
		record(a.Wait, s.Wait)
		if s.Sent-s.Intended > LateAfter {
			a.Late++
		}
	}
	second := max(0, s.Intended) / 1e6
	a.block(second, s.Target).add(s)
	return a.second(second, s)
}

func (a *Aggregate) group(s *Sample) {
	k := Key{s.Method, s.Object, s.SizeClass(), s.Target, uint8(min(s.Status/100, 9))}
	g := a.Groups[k]
	if g == nil {
		g = &Group{Latency: newHistogram(), Service: newHistogram()}
		a.Groups[k] = g
	}
	record(g.Latency, s.Latency())
	record(g.Service, s.Service())
	g.Bytes += s.Bytes
	g.Redirects += int64(s.Redirects)
	g.RedirectTime += s.RedirectTime
}

// WorkerCount is what a worker did.
type WorkerCount struct {
	Requests, Errors, Unsent, Bytes int64
	Latency, Lag                    *hdrhistogram.Histogram
}

// count returns the counts of a worker.
func (a *Aggregate) count(worker uint8) *WorkerCount {
	w := a.Workers[worker]
	if w == nil {
		w = &WorkerCount{Latency: newHistogram(), Lag: newHistogram()}
		a.Workers[worker] = w
	}
	return w
}

func (a *Aggregate) worker(s *Sample) {
	w := a.count(s.Worker)
	if !s.Executed() {
		w.Unsent++
		return
	}
	w.Requests++
	w.Bytes += s.Bytes
	if s.Outcome != OK {
		w.Errors++
	}
	record(w.Latency, s.Latency())
	record(w.Lag, s.Lag())
}

func (b *Block) add(s *Sample) {
	if !s.Executed() {
		b.Unsent++
		return
	}
	b.Requests++
	b.Bytes += s.Bytes
	if s.Outcome != OK {
		b.Errors++
	}
	b.Latency.Add(s.Latency())
	b.Service.Add(s.Service())
	b.MaxLag = max(b.MaxLag, s.Lag())
}

func (b *Block) merge(o *Block) {
	b.Latency.Merge(&o.Latency)
	b.Service.Merge(&o.Service)
	b.Requests += o.Requests
	b.Errors += o.Errors
	b.Unsent += o.Unsent
	b.Bytes += o.Bytes
	b.MaxLag = max(b.MaxLag, o.MaxLag)
}

// block returns the block of a second. Blocks become longer as the run grows.
func (a *Aggregate) block(second int64, target uint8) *Block {
	for second/a.BlockSeconds >= maxBlocks {
		for t := range a.Blocks {
			a.Blocks[t] = halve(a.Blocks[t])
		}
		a.BlockSeconds *= 2
	}
	for len(a.Blocks) <= int(target) {
		a.Blocks = append(a.Blocks, nil)
	}
	i := int(second / a.BlockSeconds)
	for len(a.Blocks[target]) <= i {
		a.Blocks[target] = append(a.Blocks[target], Block{})
	}
	return &a.Blocks[target][i]
}

// halve merges each block with its neighbour.
func halve(b []Block) []Block {
	for i := range b {
		if i%2 == 1 {
			b[i/2].merge(&b[i])
		} else if i > 0 {
			b[i/2] = b[i]
		}
	}
	return b[:(len(b)+1)/2]
}

// second counts a sample in the series and closes the rows that are complete.
func (a *Aggregate) second(second int64, s *Sample) error {
	if a.onSecond == nil {
		return nil
	}
	k := secondKey{second, s.Target}
	b := a.seconds[k]
	if b == nil {
		b = &Block{}
		a.seconds[k] = b
	}
	b.add(s)
	if second > a.newest {
		a.newest = second
		if a.oldest < second-openSeconds-60 { // closes several seconds at a time, because each closing examines all
			a.oldest = second - openSeconds
			return a.flush(a.oldest)
		}
	}
	return nil
}

// Flush hands out the rows of the series that are still open.
func (a *Aggregate) Flush() error { return a.flush(a.newest + 1) }

func (a *Aggregate) flush(before int64) error {
	var keys []secondKey
	for k := range a.seconds {
		if k.second < before {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y secondKey) int {
		return cmp.Or(cmp.Compare(x.second, y.second), cmp.Compare(x.target, y.target))
	})
	for _, k := range keys {
		b := a.seconds[k]
		delete(a.seconds, k)
		row := Second{Second: k.second, Target: int32(k.target), Requests: b.Requests, Errors: b.Errors, Unsent: b.Unsent, Bytes: b.Bytes,
			P50: b.Latency.Quantile(0.5), P99: b.Latency.Quantile(0.99), Max: b.Latency.Quantile(1), Mean: b.Latency.Mean(), MaxLag: b.MaxLag}
		if err := a.onSecond(row); err != nil {
			return err
		}
	}
	return nil
}

// Sum merges the groups that are wanted into one.
func (a *Aggregate) Sum(want func(Key) bool) *Group {
	sum := &Group{Latency: newHistogram(), Service: newHistogram()}
	for k, g := range a.Groups {
		if want == nil && k.Object < PullSession || want != nil && want(k) {
			sum.Latency.Merge(g.Latency)
			sum.Service.Merge(g.Service)
			sum.Bytes += g.Bytes
			sum.Redirects += g.Redirects
			sum.RedirectTime += g.RedirectTime
		}
	}
	return sum
}

// Requests returns how many requests there are, including requests that were never sent.
func (a *Aggregate) Requests() (n int64) {
	for _, c := range a.Outcomes {
		n += c
	}
	return n
}

// Errors returns how many requests were sent and failed.
func (a *Aggregate) Errors() int64 {
	return a.Outcomes[BadStatus] + a.Outcomes[Broken] + a.Outcomes[Timeout] + a.Outcomes[Wrong]
}
