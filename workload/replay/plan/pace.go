package plan

import "time"

// pace turns recorded times into times of the run.
type pace struct {
	speed  float64
	maxGap time.Duration
	space  time.Duration // the least time between tasks

	began bool
	last  int64         // recorded time of the last task, microseconds
	clock time.Duration // the run's time, before the rate delayed it
	at    time.Duration
}

// never is the latest time of a task: a hundred years after the first, which is well
// below what a Duration holds.
const never = 100 * 365 * 24 * time.Hour

func newPace(o *Options) *pace {
	p := &pace{speed: o.Speed, maxGap: o.MaxGap}
	if o.Rate > 0 {
		p.space = time.Duration(min(float64(time.Second)/o.Rate, float64(never)))
	}
	return p
}

// next returns the run's time of a task that was recorded at a time in microseconds.
// Calls must be in the order of time. A time before the last one counts as equal to it.
func (p *pace) next(recorded int64) time.Duration {
	if !p.began {
		p.began, p.last = true, recorded
		return 0
	}
	gap := time.Duration(min(float64(max(0, recorded-p.last))*1e3/p.speed, float64(never)))
	p.last = max(p.last, recorded)
	if p.maxGap > 0 {
		gap = min(gap, p.maxGap)
	}
	p.clock = min(p.clock+gap, never)
	p.at = min(max(p.clock, p.at+p.space), never)
	return p.at
}
