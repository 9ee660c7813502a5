package registry

import (
	"sync"
	"time"
)

// clockWatch notices that the clock was set ahead. Grace periods are measured
// with it: after such a step all that waits for the collector looks as if it had
// waited long enough. The machine's sleep looks the same, and is treated so.
type clockWatch struct {
	now    func() time.Time
	steady func() time.Duration
	grace  time.Duration

	mu sync.Mutex
	// offset is how far now was ahead of steady when it was last trusted.
	offset time.Duration
	begun  bool
	// until, on steady, is when all that was there at the last step has waited
	// for a grace period, whatever the clock says.
	until time.Duration
}

// look compares the clock with one that nobody sets. step is how far it was set
// ahead since the last look, or zero; wait is how long grace periods must not be
// believed. What is less than a tenth of a grace period does not matter, unless
// it adds up to more.
func (c *clockWatch) look() (step, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	steady := c.steady()
	offset := time.Duration(c.now().UnixNano()) - steady
	switch ahead := offset - c.offset; {
	case !c.begun:
		c.offset, c.until, c.begun = offset, steady, true
	case ahead < 0:
		c.offset = offset
	case ahead > c.grace/10:
		c.offset, step, c.until = offset, ahead, steady+c.grace
	}
	return step, max(0, c.until-steady)
}

// lookAtClock is look, told to the operator.
func (r *Registry) lookAtClock() (wait time.Duration) {
	step, wait := r.clock.look()
	if step > 0 {
		r.log.Warn("the clock was set ahead, or the machine slept; no garbage is collected until a grace period has passed", "by", step, "wait", wait)
	}
	return wait
}
