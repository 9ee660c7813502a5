package remote

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// samples is the number of the latest reads over which the percentile is taken.
	samples = 256
	// refresh is the number of reads after which the percentile is taken again. The first
	// percentile needs as many reads.
	refresh = 32
	// hedgeShare is how many hedges each read adds to the budget, and hedgeBurst is the
	// most that the budget holds. So hedges add at most 5 % load, and there is no storm
	// when all reads become slow at once.
	hedgeShare = 0.05
	hedgeBurst = 10
)

// latencies keeps the durations of the last reads, and their 95th percentile. The zero
// value is ready.
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

// limit returns the 95th percentile of the reads' durations, or 0 before there are enough
// reads.
func (l *latencies) limit() time.Duration { return time.Duration(l.p95.Load()) }
