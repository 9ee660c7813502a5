package remote

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// samples is of how many reads the percentile is taken: the last ones.
	samples = 256
	// refresh is after how many reads it is taken anew, and how many the first
	// needs.
	refresh = 32
	// hedgeShare is how many hedges a read adds to the budget, and hedgeBurst the
	// most it holds: at most 5 % more load, and never a storm when all reads become
	// slow at once.
	hedgeShare = 0.05
	hedgeBurst = 10
)

// latencies keeps how long the last reads took, and tells the time that 95 % of
// them kept. The zero value is ready.
type latencies struct {
	p95 atomic.Int64 // nanoseconds, 0 before there are enough reads

	mu   sync.Mutex
	ring [samples]time.Duration
	n    int // reads so far
}

// add counts a read.
func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.n%samples] = d
	if l.n++; l.n%refresh != 0 {
		return
	}
	sorted := slices.Sorted(slices.Values(l.ring[:min(l.n, samples)]))
	l.p95.Store(int64(max(sorted[len(sorted)*95/100], 1)))
}

// limit is the time that 95 % of the reads kept, 0 before there are enough.
func (l *latencies) limit() time.Duration { return time.Duration(l.p95.Load()) }
