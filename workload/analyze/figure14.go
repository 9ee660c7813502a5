package analyze

import (
	"fmt"
	"time"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace/store"
)

// figure14 makes Figures 14a and 14b of FAST'18: the mean number of requests in each
// hour of the day and on each day of the week.
func figure14() Plugin {
	const how = " Hours and days are those of UTC or, by option, of another time zone; they count from that of the first request to that of the last, unless they lie in absent days (whole days in UTC without any request). " +
		"The first and the last of them are usually recorded in part only, which makes means of short traces too small. Pings are among the requests."
	plot := func(x, y string) Plot {
		return Plot{Kind: PlotColumns, PerZone: true, X: chart.Axis{Title: x}, Y: chart.Axis{Title: y}}
	}
	return Plugin{
		Figures: []Figure{
			{ID: "14a", Title: "Figure 14a: requests by hour of the day", Plot: plot("hour of the day", "requests in an hour"),
				Definition: "For each hour of the day, the number of requests divided by how often there was that hour." + how},
			{ID: "14b", Title: "Figure 14b: requests by day of the week", Plot: plot("day of the week", "requests in a day"),
				Definition: "For each day of the week, the number of requests divided by how often there was that day." + how},
		},
		New: func(_ store.Zone, o *Options) Analysis { return &byClock{loc: o.Location} },
	}
}

type byClock struct {
	loc              *time.Location
	cal              calendar
	n                int64
	slotEnd          int64 // of the hour of the last request
	hour             int
	day              int64 // days since 1970 of the last hour counted, in local time
	weekday          time.Weekday
	hours, hourSlots [24]int64
	days, daySlots   [7]int64
}

func (c *byClock) Columns() store.Columns { return 0 }

func (c *byClock) Add(b *store.Batch) {
	for _, t := range b.Time {
		t, from, to := c.cal.next(t)
		if c.n == 0 {
			c.enter(c.hourOf(t))
		}
		for t >= c.slotEnd {
			// Absent hours are skipped at once: there may be years of them.
			if c.slotEnd >= from && c.slotEnd+microHour <= to {
				c.slotEnd = c.hourOf(to)
			}
			c.enter(c.slotEnd)
		}
		c.n++
		c.hours[c.hour]++
		c.days[c.weekday]++
	}
}

// hourOf returns when the local hour of a time began.
func (c *byClock) hourOf(t int64) int64 {
	_, offset := time.UnixMicro(t).In(c.loc).Zone()
	shift := int64(offset) * microSecond
	return floorDiv(t+shift, microHour)*microHour - shift
}

// enter begins an hour, and a day if it is the first hour of one.
func (c *byClock) enter(at int64) {
	local := time.UnixMicro(at).In(c.loc)
	_, offset := local.Zone()
	day := floorDiv(at+int64(offset)*microSecond, microDay)
	c.hour, c.weekday = local.Hour(), local.Weekday()
	c.hourSlots[c.hour]++
	if c.n == 0 || day != c.day {
		c.daySlots[c.weekday]++
		c.day = day
	}
	c.slotEnd = at + microHour
}

func (c *byClock) Result() []Result {
	hours, days := Result{Requests: c.n}, Result{Requests: c.n}
	var hourPoints, dayPoints []Point
	for h := range 24 {
		if c.hourSlots[h] > 0 {
			mean := float64(c.hours[h]) / float64(c.hourSlots[h])
			hours.add(fmt.Sprintf("%02d", h), Number, mean)
			hourPoints = append(hourPoints, Point{Label: fmt.Sprintf("%02d", h), X: float64(h), Y: mean})
		}
	}
	for i := range 7 { // the week begins on Monday
		d := time.Weekday((i + 1) % 7)
		if c.daySlots[d] > 0 {
			mean := float64(c.days[d]) / float64(c.daySlots[d])
			days.add(d.String()[:3], Number, mean)
			dayPoints = append(dayPoints, Point{Label: d.String()[:3], X: float64(i), Y: mean})
		}
	}
	for _, r := range []*Result{&hours, &days} {
		if c.loc != time.UTC {
			r.note("Time zone: " + c.loc.String() + ".")
		}
		c.cal.note(r)
	}
	hours.Series = []Series{{Name: "hours", Points: hourPoints}}
	days.Series = []Series{{Name: "days", Points: dayPoints}}
	return []Result{hours, days}
}
