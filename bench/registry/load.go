package registry

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// load is what clients do at the same time during a measurement.
type load struct {
	clients int
	// least is the time during which new operations begin; 0 means until the limit.
	least time.Duration
	// limit is the maximum number of operations; 0 means any number.
	limit int
	// do carries out operation i, counted from 0 over all clients. It returns the number of bytes
	// of content that it moved.
	do func(ctx context.Context, w *worker, i int) (bytes int64, err error)
}

// worker is one client.
type worker struct {
	buf   bytes.Buffer
	chunk []byte

	took []time.Duration
	n    int64
}

// chunkSize is the number of bytes that a client reads at once.
const chunkSize = 256 << 10

// outcome is the outcome of a load.
type outcome struct {
	ops   int
	bytes int64
	// took holds the time of each operation, sorted.
	took []time.Duration
}

// run runs the load and returns when all clients have finished. The first error ends it.
func (l load) run(ctx context.Context) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(l.least)
	workers := make([]*worker, l.clients)
	for id := range workers {
		w := &worker{chunk: make([]byte, chunkSize)}
		workers[id] = w
		wg.Go(func() {
			for ctx.Err() == nil && (l.least == 0 || time.Now().Before(end)) {
				i := int(next.Add(1) - 1)
				if l.limit > 0 && i >= l.limit {
					return
				}
				begin := time.Now()
				n, err := l.do(ctx, w, i)
				if err != nil {
					cancel(err)
					return
				}
				w.took = append(w.took, time.Since(begin))
				w.n += n
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return outcome{}, err
	}
	var o outcome
	for _, w := range workers {
		o.took, o.bytes = append(o.took, w.took...), o.bytes+w.n
	}
	o.ops = len(o.took)
	if o.ops == 0 {
		return outcome{}, errors.New("no operation was done")
	}
	slices.Sort(o.took)
	return o, nil
}

// measureLoad puts a load on a server and returns what it cost. The caller fills in what was
// measured.
func measureLoad(ctx context.Context, s *server, l load) (Sample, error) {
	m, err := measure.StartMeter(s.Process.Pid())
	if err != nil {
		return Sample{}, err
	}
	o, err := l.run(ctx)
	if err != nil {
		return Sample{}, err
	}
	u, err := m.Stop()
	if err != nil {
		return Sample{}, err
	}
	sample := usageSample(u)
	sample.Ops, sample.Bytes = o.ops, o.bytes
	sample.P50, sample.P99 = milliseconds(quantile(o.took, 0.50)), milliseconds(quantile(o.took, 0.99))
	sample.RSS, sample.PeakRSS, err = measure.Memory(m.PIDs)
	return sample, err
}

func usageSample(u measure.Usage) Sample {
	return Sample{Seconds: u.Elapsed.Seconds(), ServerCPU: u.Server.Seconds(), ClientCPU: u.Client.Seconds(), OtherCPUs: u.OtherCPUs}
}

// quantile returns a quantile of sorted times, which must not be empty.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
