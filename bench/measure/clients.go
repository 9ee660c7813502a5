package measure

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Clients carry out operations at the same time during a measurement.
type Clients struct {
	N int
	// Least is the time during which new operations begin; 0 means until the limit. Each
	// client begins at least one operation, however late.
	Least time.Duration
	// Limit is the maximum number of operations; 0 means any number.
	Limit int
	// Do carries out operation i, counted from 0 over all clients. It returns the number of bytes
	// of content that it moved.
	Do func(ctx context.Context, w *Worker, i int) (bytes int64, err error)
}

// Worker is one client.
type Worker struct {
	Buf   bytes.Buffer
	Chunk []byte

	took []time.Duration
	n    int64
}

// chunkSize is the number of bytes that a client reads at once.
const chunkSize = 256 << 10

// Outcome is what clients did.
type Outcome struct {
	Bytes int64
	// Took holds the time of each operation, sorted.
	Took []time.Duration
}

// Run returns when all clients have finished. The first error ends them.
func (c Clients) Run(ctx context.Context) (Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(c.Least)
	workers := make([]*Worker, c.N)
	for id := range workers {
		w := &Worker{Chunk: make([]byte, chunkSize)}
		workers[id] = w
		wg.Go(func() {
			for first := true; ctx.Err() == nil && (first || c.Least == 0 || time.Now().Before(end)); first = false {
				i := int(next.Add(1) - 1)
				if c.Limit > 0 && i >= c.Limit {
					return
				}
				begin := time.Now()
				n, err := c.Do(ctx, w, i)
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
		return Outcome{}, err
	}
	var o Outcome
	for _, w := range workers {
		o.Took, o.Bytes = append(o.Took, w.took...), o.Bytes+w.n
	}
	if len(o.Took) == 0 {
		return Outcome{}, errors.New("no operation was done")
	}
	slices.Sort(o.Took)
	return o, nil
}

// Ms returns a quantile of the times, in milliseconds.
func (o Outcome) Ms(quantile float64) float64 {
	n := len(o.Took)
	return float64(o.Took[min(int(quantile*float64(n)), n-1)]) / float64(time.Millisecond)
}
