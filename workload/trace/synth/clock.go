package synth

import (
	"math/rand/v2"
	"time"
)

// clock turns shares of the sessions of a period into times: where the load is
// twice as high, twice as many sessions begin. A segment takes 24 B, and there is one
// for each hour and each pause.
type clock struct {
	segments []segment
	last     int // the segment of the last answer: shares only ascend
	total    float64
	end      int64
}

type segment struct {
	start  int64   // microseconds since 1970
	before float64 // load before the segment
	rate   float64 // load in a microsecond
}

// newClock lays out the load from start for some days.
func newClock(l *Load, start time.Time, days int, r *rand.Rand) *clock {
	hourly, daily := l.Hour, l.Weekday
	if hourly == [24]float64{} {
		hourly = [24]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	}
	if daily == [7]float64{} {
		daily = [7]float64{1, 1, 1, 1, 1, 1, 1}
	}
	const hour = int64(time.Hour / time.Microsecond)
	c := &clock{end: start.UnixMicro() + int64(days)*24*hour}
	at := start.UnixMicro()
	// The first change is somewhere within a stretch of work.
	work := func() int64 { return c.end }
	if l.PausesPerDay > 0 {
		mean := float64(24*hour)/l.PausesPerDay - float64(l.PauseMean.Microseconds())
		work = func() int64 { return int64(r.ExpFloat64()*mean) + 1 }
	}
	change, paused := at+work(), false
	for at < c.end {
		next := min(at-at%hour+hour, change, c.end)
		t := time.UnixMicro(at).UTC()
		rate := hourly[t.Hour()] * daily[t.Weekday()]
		if paused {
			rate = 0
		}
		c.segments = append(c.segments, segment{at, c.total, rate})
		c.total += rate * float64(next-at)
		if at = next; at < change {
			continue
		}
		if paused = !paused; paused {
			rest := float64((l.PauseMean - l.PauseMin).Microseconds())
			change = at + l.PauseMin.Microseconds() + int64(r.ExpFloat64()*rest) + 1
		} else {
			change = at + work()
		}
	}
	if c.total <= 0 { // nothing but pauses, or weights of 0 alone: even load then
		c.segments, c.total = []segment{{start.UnixMicro(), 0, 1}}, float64(c.end-start.UnixMicro())
	}
	return c
}

// at returns the time in microseconds before which the share u of the load lies. u must
// not be less than in the call before.
func (c *clock) at(u float64) int64 {
	want := u * c.total
	for c.last+1 < len(c.segments) && c.segments[c.last+1].before <= want {
		c.last++
	}
	for c.segments[c.last].rate <= 0 && c.last > 0 {
		c.last-- // rounding at the end of the period
	}
	s := c.segments[c.last]
	if s.rate <= 0 {
		return s.start
	}
	return min(s.start+int64((want-s.before)/s.rate), c.end-1)
}
