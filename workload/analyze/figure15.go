package analyze

import (
	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace/store"
)

// figure15 makes Figures 15a, "Request interarrivals", and 15b, "Idle times", of
// FAST'18.
func figure15() Plugin {
	const inexact = "Quantiles above 255 µs within 0.4 %; shares, means and the curve's points are exact."
	plot := func(y string) Plot {
		return Plot{Kind: PlotCDF, X: chart.Axis{Title: "time", Unit: chart.Seconds, Log: true}, Y: chart.Axis{Title: y, Unit: chart.Share, Full: true}}
	}
	return Plugin{
		Figures: []Figure{
			{ID: "15a", Title: "Figure 15a: time between requests", Error: inexact, Plot: plot("share of at most this time"),
				Definition: "The distribution of the time from the arrival of each request of the zone to that of the next, pings among them. A time that spans an absent day (a whole day in UTC without any request) does not count."},
			{ID: "15b", Title: "Figure 15b: idle periods", Error: inexact, Plot: plot("share of idle periods of at most this length"),
				Definition: "A zone is idle while no request of it, pings among them, is between its arrival and its end. The number of idle periods and the distribution of their lengths. One that spans an absent day does not count."},
		},
		New: func(store.Zone, *Options) Analysis { return &gaps{} },
	}
}

type gaps struct {
	cal        calendar
	n          int64
	prev       int64
	between    Hist
	busy       bool // there was a request with a duration
	busyUntil  int64
	idle       Hist
	short      int64 // idle periods below a second
	spans      bool  // an absent day since the last request with a duration
	measured   int64
	noDuration int64
}

func (g *gaps) Columns() store.Columns { return store.ColDuration }

func (g *gaps) Add(b *store.Batch) {
	for i, t := range b.Time {
		t, from, to := g.cal.next(t)
		if g.n++; g.n > 1 && from == to {
			g.between.Add(t - g.prev)
		}
		g.prev = t
		g.spans = g.spans || from < to
		if b.Duration[i] < 0 {
			g.noDuration++
			continue
		}
		if g.measured++; g.busy && t > g.busyUntil && !g.spans {
			g.idle.Add(t - g.busyUntil)
			if t-g.busyUntil < microSecond {
				g.short++
			}
		}
		g.busy, g.spans = true, false
		g.busyUntil = max(g.busyUntil, t+min(b.Duration[i], maxDuration))
	}
}

func (g *gaps) Result() []Result {
	between, idle := Result{Requests: g.n}, Result{Requests: g.measured}
	between.quantiles(&g.between, Seconds, 1e6)
	between.Series = []Series{{Name: "times", Points: g.between.CDF(1e6)}}
	g.cal.note(&between)
	idle.unknown(g.noDuration, "the duration")
	if g.measured > 0 {
		idle.count("idle periods", g.idle.N())
		idle.share("below 1 s", g.short, g.idle.N())
		idle.quantiles(&g.idle, Seconds, 1e6)
		idle.add("idle in all", Seconds, g.idle.sum/1e6)
		idle.Series = []Series{{Name: "idle periods", Points: g.idle.CDF(1e6)}}
		g.cal.note(&idle)
	}
	return []Result{between, idle}
}
