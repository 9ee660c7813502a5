package recent

import (
	"net/netip"
	"sync"
	"time"
)

const (
	failureWindow = time.Minute
	// maxFailureAddrs bounds the number of remembered addresses, which take about 5 MB.
	maxFailureAddrs = 1 << 16
)

// Failures counts wrong passwords by client address in windows of a minute. It is safe
// for concurrent use.
type Failures struct {
	max int // per window; negative: unlimited

	mu sync.Mutex
	m  map[netip.Addr]failureCount
}

type failureCount struct {
	since time.Time
	n     int
}

// NewFailures returns a Failures that allows each address perMinute failures a minute. A
// negative perMinute allows any number.
func NewFailures(perMinute int) *Failures {
	return &Failures{max: perMinute, m: map[netip.Addr]failureCount{}}
}

// Blocked returns how long addr has to wait before it may try again, or 0.
func (f *Failures) Blocked(addr netip.Addr, now time.Time) time.Duration {
	if f.max < 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.m[addr]
	if !ok || c.n < f.max {
		return 0
	}
	return max(failureWindow-now.Sub(c.since), 0)
}

// Add counts a failure.
func (f *Failures) Add(addr netip.Addr, now time.Time) {
	if f.max < 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.m[addr]
	if !ok || now.Sub(c.since) >= failureWindow {
		if !ok && len(f.m) >= maxFailureAddrs {
			f.evict(now)
		}
		c = failureCount{since: now}
	}
	c.n++
	f.m[addr] = c
}

// evict makes room by dropping the windows that are over. If none are over it drops every
// second window.
func (f *Failures) evict(now time.Time) {
	for a, c := range f.m {
		if now.Sub(c.since) >= failureWindow {
			delete(f.m, a)
		}
	}
	if len(f.m) < maxFailureAddrs {
		return
	}
	left := len(f.m) / 2
	for a := range f.m {
		if left--; left < 0 {
			return
		}
		delete(f.m, a)
	}
}
