package registry

import (
	"context"
	"sync"
	"time"
)

// clockWatch tells the time by which grace periods are judged. They begin at
// what the clock says, as they must outlive the process. A clock that is set
// ahead makes all that waits for the collector look as if it had waited long
// enough, and so does the sleep of the machine. Hence the judging time is never
// further ahead of a clock that nobody sets than the clock was at any moment of
// the last grace period: what began then has its whole grace period, and no more
// than that, however often the clock is set.
type clockWatch struct {
	now    func() time.Time
	steady func() time.Duration
	grace  time.Duration

	mu sync.Mutex
	// leads are by how much now was ahead of steady in the last grace period,
	// oldest first. A lead that a later one fell below is left out, so the first
	// is the least.
	leads []lead
}

// lead is by how much the clock was ahead, and when that was seen last.
type lead struct{ by, until time.Duration }

// look compares the two clocks. at is the time to judge by; step is how far the
// clock was set ahead since the last look. Leads that differ by less than a
// thousandth of a grace period are taken for the least of them.
func (c *clockWatch) look() (at time.Time, step time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	steady := c.steady()
	by := time.Duration(c.now().UnixNano()) - steady
	n := len(c.leads)
	for n > 0 && c.leads[n-1].by > by {
		n--
	}
	c.leads = c.leads[:n]
	if n > 0 {
		c.leads[n-1].until = steady // it may have been so until a moment ago
		step = by - c.leads[n-1].by
	}
	if n == 0 || step > c.grace/1000 {
		c.leads = append(c.leads, lead{by, steady})
	}
	for len(c.leads) > 1 && c.leads[0].until+c.grace <= steady {
		c.leads = c.leads[1:]
	}
	return time.Unix(0, int64(c.leads[0].by+steady)), step
}

// judgingTime is the time by which grace periods are judged. Steps of the clock
// that matter are told to the operator.
func (r *Registry) judgingTime() time.Time {
	at, step := r.clock.look()
	if step > r.opts.Grace/10 {
		r.log.Warn("the clock was set ahead, or the machine slept; for garbage collection that time has not passed", "by", step)
	}
	return at
}

// MaxIdle is for how long a registry may have seen neither push nor pull before its clock
// is not believed. A registry that nobody used for longer is rarer than a machine without
// a battery for its clock; one that is idle loses nothing by keeping its images until
// somebody uses it again.
const MaxIdle = 14 * 24 * time.Hour

// noteClock notes the time once an hour, so that a jump of the clock shows also when it
// happens while the registry does not run. Only keepHouse calls it.
func (r *Registry) noteClock(ctx context.Context) error {
	if at := r.opts.Steady(); r.clockNoted == 0 || at-r.clockNoted >= time.Hour {
		r.clockNoted = at
		return r.cat.Settings.NoteClock(ctx, r.now(), MaxIdle)
	}
	return nil
}

// seedClock notes the time of the newest push or pull where no time was noted yet, so that
// a clock that jumped before the start is not believed because of a pull after it.
func (r *Registry) seedClock(ctx context.Context) error {
	noted, err := r.cat.Settings.Clock(ctx)
	if err != nil || noted != 0 {
		return err
	}
	newest, err := r.cat.Retention.Newest(ctx)
	if err != nil || newest == 0 {
		return err
	}
	return r.cat.Settings.NoteClock(ctx, time.UnixMilli(newest), MaxIdle)
}
