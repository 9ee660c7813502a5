package edge

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.org/slipway/oci"
)

// Limiter limits each client address, both in requests per second and in concurrent
// operations. It bounds its memory by forgetting addresses that have been idle.
type Limiter struct {
	perSecond rate.Limit
	burst     int
	most      int

	mu      sync.Mutex
	clients map[netip.Addr]*clientLimit
	swept   time.Time
}

type clientLimit struct {
	bucket *rate.Limiter
	now    int // operations in progress
	seen   time.Time
}

// NewLimiter returns a limiter. It returns nil, which allows everything, if there is
// nothing to limit.
func NewLimiter(perSecond float64, burst, most int) *Limiter {
	if perSecond <= 0 && most <= 0 {
		return nil
	}
	if burst <= 0 {
		burst = max(1, int(perSecond))
	}
	return &Limiter{perSecond: rate.Limit(perSecond), burst: burst, most: most, clients: map[netip.Addr]*clientLimit{}}
}

// client returns the entry of an address. mu is held.
func (l *Limiter) client(addr string, at time.Time) *clientLimit {
	who := oci.ClientOf(addr)
	l.sweep(at)
	c := l.clients[who]
	if c == nil {
		c = &clientLimit{}
		if l.perSecond > 0 {
			c.bucket = rate.NewLimiter(l.perSecond, l.burst)
		}
		l.clients[who] = c
	}
	c.seen = at
	return c
}

// sweep forgets addresses whose bucket is full again. It does so once a minute.
func (l *Limiter) sweep(at time.Time) {
	const every = time.Minute
	if at.Sub(l.swept) < every {
		return
	}
	l.swept = at
	for who, c := range l.clients {
		if c.now == 0 && at.Sub(c.seen) > every && (c.bucket == nil || c.bucket.TokensAt(at) >= float64(l.burst)) {
			delete(l.clients, who)
		}
	}
}

// Allow takes a token for a request. It reads the clock only if there is a limit.
func (l *Limiter) Allow(addr string, clock func() time.Time) bool {
	if l == nil || l.perSecond <= 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := clock()
	return l.client(addr, at).bucket.AllowN(at, 1)
}

// Enter begins an operation. A client may run only a limited number of operations at
// once.
func (l *Limiter) Enter(addr string) bool {
	if l == nil || l.most <= 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.client(addr, time.Now())
	if c.now >= l.most {
		return false
	}
	c.now++
	return true
}

// Leave ends what Enter began.
func (l *Limiter) Leave(addr string) {
	if l == nil || l.most <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.client(addr, time.Now()); c.now > 0 {
		c.now--
	}
}
