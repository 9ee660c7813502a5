package analyze

import (
	"fmt"
	"time"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace/store"
)

// figure13 makes Figures 13a, "Active clients", and 13b, "Active requests", of
// FAST'18. The paper's median of 0.6 clients cannot come from instants, at which
// there are 0 or 1; so the mean of each minute is given beside the time-weighted
// distribution.
func figure13() Plugin {
	const how = "Counted is from the first request to the end of the last, without absent days (whole days in UTC without any request). " +
		"Mean per minute: the distribution, over calendar minutes, of the mean number within the minute. Time-weighted: the share of the time during which there were at most as many. Pings are among the requests."
	plot := Plot{Kind: PlotCDF, X: chart.Axis{Title: "active at once", Log: true}, Y: chart.Axis{Title: "share of minutes, or of the time", Unit: chart.Share, Full: true}}
	const inexact = "Means of a minute to a thousandth; quantiles above 255 (above 0.255 for means) within 0.4 %."
	return Plugin{
		Figures: []Figure{
			{ID: "13a", Title: "Figure 13a: active clients", Error: inexact, Plot: plot,
				Definition: "A client is active from the arrival of its request to its end; at several at once it counts once. In the second form it stays active for the keep-alive time (60 s, or by option) after the end. " + how},
			{ID: "13b", Title: "Figure 13b: active requests", Error: inexact, Plot: plot,
				Definition: "A request is active from its arrival to its end. " + how},
		},
		New: func(_ store.Zone, o *Options) Analysis {
			a := &concurrency{keepAlive: o.KeepAlive}
			a.clients.clients, a.kept.clients = &bySymbol[activeClient]{}, &bySymbol[activeClient]{}
			return a
		},
	}
}

// maxDuration bounds the duration that a source may claim, so that sums cannot overflow:
// 142 years.
const maxDuration = 1 << 52

type concurrency struct {
	keepAlive               time.Duration
	cal                     calendar
	clients, kept, requests sweep
	n, ofClients            int64
	noDuration, noClient    int64
}

func (c *concurrency) Columns() store.Columns { return store.ColDuration | store.ColClient }

func (c *concurrency) Add(b *store.Batch) {
	keep := c.keepAlive.Microseconds()
	for i, t := range b.Time {
		t, from, to := c.cal.next(t)
		c.clients.to(t, from, to)
		c.kept.to(t, from, to)
		c.requests.to(t, from, to)
		if b.Duration[i] < 0 {
			c.noDuration++
			continue
		}
		until := t + min(b.Duration[i], maxDuration)
		c.requests.start(store.None, until)
		c.n++
		if b.Client[i] == store.None {
			c.noClient++
			continue
		}
		c.clients.start(b.Client[i], until)
		c.kept.start(b.Client[i], until+keep)
		c.ofClients++
	}
}

func (c *concurrency) Result() []Result {
	clients, requests := Result{Requests: c.ofClients}, Result{Requests: c.n}
	clients.unknown(c.noDuration+c.noClient, "the duration or the client")
	requests.unknown(c.noDuration, "the duration")
	if c.ofClients > 0 {
		clients.concurrency(&c.clients, "")
		clients.concurrency(&c.kept, fmt.Sprintf(", kept alive %s", c.keepAlive))
		c.cal.note(&clients)
	}
	if c.n > 0 {
		requests.concurrency(&c.requests, "")
		c.cal.note(&requests)
	}
	return []Result{clients, requests}
}

// concurrency adds what a sweep found.
func (r *Result) concurrency(s *sweep, suffix string) {
	s.finish()
	for _, d := range []struct {
		name string
		h    *Hist
		per  float64
	}{{"mean per minute", &s.minutes, 1e3}, {"time-weighted", &s.weighted, 1}} {
		name := d.name + suffix
		r.add("median, "+name, Number, d.h.Quantile(0.5)/d.per)
		r.add("p99, "+name, Number, d.h.Quantile(0.99)/d.per)
		r.add("max, "+name, Number, d.h.Max()/d.per)
		r.Series = append(r.Series, Series{Name: name, Points: d.h.CDF(d.per)})
	}
	r.add("mean"+suffix, Number, s.weighted.Mean())
}
