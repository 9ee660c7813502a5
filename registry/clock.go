package registry

import (
	"context"
	"sync"
	"time"
)

// clockWatch provides the time by which grace periods are judged. Grace periods begin at
// the clock's time, because they must outlive the process. If the clock is set ahead,
// everything that waits for the collector looks as if it had waited long enough. The same
// happens when the machine sleeps. So the judging time is compared with a steady clock,
// which nobody sets: the judging time is never further ahead of the steady clock than the
// clock was at any moment of the last grace period. What began in that period gets its
// whole grace period, and no more than that, however often the clock is set.
type clockWatch struct {
	now    func() time.Time
	steady func() time.Duration
	grace  time.Duration

	mu sync.Mutex
	// leads holds by how much now was ahead of steady in the last grace period, oldest first. A
	// lead is left out if a later one was lower, so the first is the least.
	leads []lead
}

// lead is how far the clock was ahead, and when that was last observed.
type lead struct{ by, until time.Duration }

// look compares the two clocks. The result named at is the time to judge by. step is how
// far the clock was set ahead since the last look. Leads that differ by less than a
// thousandth of a grace period count as the least of them.
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
		c.leads[n-1].until = steady // this lead may have lasted until a moment ago
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

// judgingTime returns the time by which grace periods are judged. It logs steps of the
// clock that matter to the operator.
func (r *Registry) judgingTime() time.Time {
	at, step := r.clock.look()
	if step > r.opts.Grace/10 {
		r.log.Warn("the clock was set ahead, or the machine slept; for garbage collection that time has not passed", "by", step)
	}
	return at
}

// MaxIdle is how long a registry may go without a push or pull before its clock is no
// longer believed. Registries that are unused for longer are rarer than machines whose
// clock has no battery. An idle registry loses nothing by keeping its images until it is
// used again.
const MaxIdle = 14 * 24 * time.Hour

// noteClock notes the time once an hour, so that a jump of the clock is noticed even if
// it happens while the registry does not run. Only keepHouse calls it.
func (r *Registry) noteClock(ctx context.Context) error {
	if at := r.replica.Steady(); r.clockNoted == 0 || at-r.clockNoted >= time.Hour {
		r.clockNoted = at
		return r.cat.Settings.NoteClock(ctx, r.replica.Now(), MaxIdle)
	}
	return nil
}

// seedClock notes the time of the newest push or pull if no time was noted yet. Otherwise
// a pull after the start would make a clock that jumped before the start look right.
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
