package analyze

import (
	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace/store"
)

// figure7 makes Figure 7 of FAST'18, "Distribution of requests per minute".
func figure7() Plugin {
	return Plugin{
		Figures: []Figure{{
			ID: "7", Title: "Figure 7: requests per minute",
			Definition: "The distribution of the number of requests, pings among them, over calendar minutes from that of the first request to that of the last. " +
				"Minutes without any count, those of absent days do not: whole days in UTC without any request.",
			Error: "Quantiles above 255 within 0.4 %; shares, means and the curve's points are exact.",
			Plot: Plot{Kind: PlotCDF, X: chart.Axis{Title: "requests in a minute", Log: true},
				Y: chart.Axis{Title: "share of minutes with at most as many", Unit: chart.Share, Full: true}},
		}},
		New: func(store.Zone, *Options) Analysis { return &perMinute{limits: newLimits(1, 100)} },
	}
}

type perMinute struct {
	cal    calendar
	minute int64
	count  int64
	n      int64
	hist   Hist
	limits limits
}

func (p *perMinute) Columns() store.Columns { return 0 }

func (p *perMinute) Add(b *store.Batch) {
	for _, t := range b.Time {
		t, from, to := p.cal.next(t)
		p.n++
		m := floorDiv(t, microMinute)
		if p.count > 0 && m != p.minute {
			p.flush(p.count, 1)
			p.flush(0, m-p.minute-1-(to-from)/microMinute)
			p.count = 0
		}
		p.minute, p.count = m, p.count+1
	}
}

// flush counts a number of minutes that have the same number of requests.
func (p *perMinute) flush(requests, minutes int64) {
	p.hist.AddN(requests, minutes)
	p.limits.n += minutes
	for i, at := range p.limits.at {
		if requests < at {
			p.limits.below[i] += minutes
		}
	}
}

func (p *perMinute) Result() []Result {
	if p.count > 0 {
		p.flush(p.count, 1)
	}
	r := Result{Requests: p.n}
	r.count("minutes", p.hist.N())
	r.share("minutes without any", p.limits.below[0], p.limits.n)
	r.share("minutes with at least 100", p.limits.n-p.limits.below[1], p.limits.n)
	r.quantiles(&p.hist, Number, 1)
	p.cal.note(&r)
	r.Series = []Series{{Name: "minutes", Points: p.hist.CDF(1)}}
	return []Result{r}
}
