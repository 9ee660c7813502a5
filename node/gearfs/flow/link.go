package flow

import (
	"sync/atomic"
	"time"
)

const (
	// AssumedRate is the rate of a link before the first measurement, in bytes a second.
	AssumedRate = 4 << 20
	// smooth is the weight of a new measurement in the average. longSample bounds how much
	// time it counts for, so that a link that became faster is soon known as such.
	smooth, longSample = 0.3, time.Second
	// minSample is the fewest bytes from which a rate is computed. Fewer bytes may have
	// come from a shaper's bucket or a socket's buffer.
	minSample = 512 << 10
	// wireFade is how fast the expected rate follows a link that became slower. mostFade is
	// how fast it is forgotten what the link has carried.
	wireFade, mostFade = 2 * time.Second, 10 * time.Second
)

// Link is what was measured of the connections to a registry. The lock of a Watcher's owner
// guards it.
type Link struct {
	// RTT is the average time until an answer begins, and Rate how many bytes of content a
	// second a request brings. 0 means unknown.
	RTT  time.Duration
	Rate float64

	least time.Duration // the shortest round trip
	// brought and took are the averages whose quotient is Rate. An average of rates would be
	// that of the shortest requests: a chunk of zeros takes no time at all.
	brought, took float64
	// arrived counts the bytes on the wire. wire is how many a second all requests together
	// can bring, and most how many they could lately. had bytes had arrived at since, when
	// that was measured last.
	arrived    atomic.Int64
	wire, most float64
	since      time.Time
	had        int64
	// guesses counts how often in a row a request was divided although no other one was
	// faster. guessAt is when that may be tried again.
	guesses int
	guessAt time.Time
}

// Observe adds a measurement: the time until an answer began, and how long the given number
// of bytes took then. A zero means that a value is unknown.
func (l *Link) Observe(rtt time.Duration, bytes int64, took time.Duration) {
	if rtt > 0 && (l.least == 0 || rtt < l.least) {
		l.least = rtt
	}
	switch {
	case rtt > 0 && l.RTT == 0:
		l.RTT = rtt
	case rtt > 0:
		l.RTT += time.Duration(smooth * float64(rtt-l.RTT))
	}
	if bytes < minSample || took <= 0 {
		return
	}
	counts := min(1, longSample.Seconds()/took.Seconds())
	brought, sec := counts*float64(bytes), counts*took.Seconds()
	if l.took == 0 {
		l.brought, l.took = brought, sec
	}
	l.brought += smooth * (brought - l.brought)
	l.took += smooth * (sec - l.took)
	l.Rate = l.brought / l.took
}

// measure updates the rate that the link is able to carry.
func (l *Link) measure(now time.Time) {
	d, n := now.Sub(l.since), l.arrived.Load()
	if d < minWindow {
		return
	}
	r := float64(n-l.had) / d.Seconds()
	began := n > l.had && d <= maxWindow
	l.since, l.had = now, n
	switch {
	case !began:
	case l.wire == 0:
		l.wire = r
	case r > l.wire:
		l.wire += (r - l.wire) / 2
	default:
		l.wire += (r - l.wire) * min(1, d.Seconds()/wireFade.Seconds())
	}
	l.most = max(l.wire, l.most-l.most*min(1, d.Seconds()/mostFade.Seconds()))
}
