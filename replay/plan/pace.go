package plan

import "time"

// pace turns recorded times into those of the run.
type pace struct {
	speed  float64
	maxGap time.Duration
	space  time.Duration // the least time between tasks

	began bool
	last  int64         // recorded time of the last task, microseconds
	clock time.Duration // that of the run, before it was moved back for the rate
	at    time.Duration
}

func newPace(o *Options) *pace {
	p := &pace{speed: o.Speed, maxGap: o.MaxGap}
	if o.Rate > 0 {
		p.space = time.Duration(float64(time.Second) / o.Rate)
	}
	return p
}

// next is the time of a task that was recorded at a time in microseconds. Calls are
// in the order of time; a time before the last one counts as the same.
func (p *pace) next(recorded int64) time.Duration {
	if !p.began {
		p.began, p.last = true, recorded
		return 0
	}
	gap := time.Duration(float64(max(0, recorded-p.last)) * 1e3 / p.speed)
	p.last = max(p.last, recorded)
	if p.maxGap > 0 {
		gap = min(gap, p.maxGap)
	}
	p.clock += gap
	p.at = max(p.clock, p.at+p.space)
	return p.at
}
