package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// plot is a picture of a scenario's results.
type plot struct{ scenario, file, title, svg string }

// plots returns the pictures for which there is something to show.
func plots(r *Results) []plot {
	var out []plot
	add := func(scenario, file string, c chart) {
		if len(c.series) > 0 {
			out = append(out, plot{scenario, file, c.title, c.svg()})
		}
	}
	add("pull", "bench-pull.svg", pullChart(r))
	add("head", "bench-head.svg", lineChart(r, "head", cpuMs, "Server CPU of a HEAD by tag, in ms", "tags in the repository",
		tagCounts[:], caseTags, func(n int) string { return fmt.Sprint(n) }))
	add("blob", "bench-blob.svg", lineChart(r, "blob", cpuPerGB, "Server CPU of blob downloads, in s per GB", "size of the blob",
		blobSizes[:], caseSize, caseSize))
	return out
}

// writePlots writes the pictures into a directory.
func writePlots(dir string, list []plot) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range list {
		if err := os.WriteFile(filepath.Join(dir, p.file), []byte(p.svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// chart shows figures on a logarithmic scale: the servers lie too far apart for
// any other. With lines the figures go up and the series across the columns,
// else the figures go to the right and each series has a row.
type chart struct {
	title   string
	across  string // what the columns are
	columns []string
	series  []series
	lines   bool
}

// series is one server; n is 0 where it was not measured.
type series struct {
	name   string
	points []spread
}

func scenarioNamed(name string) *scenario {
	for _, sc := range scenarios() {
		if sc.name == name {
			return sc
		}
	}
	return nil
}

func pullChart(r *Results) chart {
	cas := caseClients(10)
	c := chart{title: "Server CPU of a pull of a small image by 10 clients, in ms"}
	for _, name := range scenarioNamed("pull").rows(r) {
		if s := cpuMs.spread(r.group("pull", cas, name)); s.n > 0 {
			c.series = append(c.series, series{name, []spread{s}})
		}
	}
	return c
}

func lineChart(r *Results, scenario string, m metric, title, across string, columns []int, cas, label func(int) string) chart {
	c := chart{title: title, across: across, lines: true}
	for _, n := range columns {
		c.columns = append(c.columns, label(n))
	}
	for _, name := range scenarioNamed(scenario).rows(r) {
		s := series{name: name}
		found := false
		for _, n := range columns {
			p := m.spread(r.group(scenario, cas(n), name))
			s.points = append(s.points, p)
			found = found || p.n > 0
		}
		if found {
			c.series = append(c.series, s)
		}
	}
	return c
}

// colours that people who see few can tell apart (Okabe and Ito).
func colour(i int) string {
	list := [...]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}
	return list[i%len(list)]
}

// Sizes of a chart in pixels.
const (
	chartWidth  = 720
	rowHeight   = 34
	linesHeight = 300
	marginTop   = 44
	marginLeft  = 70
	marginNames = 180 // room for the names of the series
	marginFoot  = 52
)

func (c chart) svg() string {
	height := marginTop + marginFoot + rowHeight*len(c.series)
	if c.lines {
		height = marginTop + marginFoot + linesHeight
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n",
		chartWidth, height, chartWidth, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", html.EscapeString(c.title))
	text(&b, 12, 24, "start", c.title)
	if c.lines {
		c.drawLines(&b)
	} else {
		c.drawRows(&b)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func text(b *strings.Builder, x, y float64, anchor, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#222222">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
}

func segment(b *strings.Builder, x1, y1, x2, y2 float64, stroke string, width int) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%d"/>`+"\n", x1, y1, x2, y2, stroke, width)
}

func dot(b *strings.Builder, x, y float64, fill string) {
	fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="5" fill="%s"/>`+"\n", x, y, fill)
}

// axis is a logarithmic scale from one power of ten, or two or five times one,
// to another.
type axis struct {
	ticks    []float64
	from, to float64 // pixels
}

// newAxis returns the axis for the figures of a chart.
func (c chart) newAxis(from, to float64) axis {
	least, most := math.Inf(1), math.Inf(-1)
	for _, s := range c.series {
		for _, p := range s.points {
			if p.n > 0 && p.min > 0 {
				least, most = min(least, p.min), max(most, p.max)
			}
		}
	}
	a := axis{from: from, to: to}
	if math.IsInf(least, 0) { // no figure above 0
		least, most = 1, 1
	}
	for e := math.Floor(math.Log10(least)); ; e++ {
		for _, f := range []float64{1, 2, 5} {
			tick := f * math.Pow(10, e)
			if n := len(a.ticks); n == 1 && tick <= least {
				a.ticks = a.ticks[:0] // the axis may begin later
			} else if n > 1 && a.ticks[n-1] >= most {
				return a
			}
			a.ticks = append(a.ticks, tick)
		}
	}
}

// at returns the place of a figure in pixels.
func (a axis) at(f float64) float64 {
	first, last := math.Log(a.ticks[0]), math.Log(a.ticks[len(a.ticks)-1])
	return a.from + (a.to-a.from)*(math.Log(max(f, a.ticks[0]))-first)/(last-first)
}

// drawRows draws a row for each series, with its median and spread.
func (c chart) drawRows(b *strings.Builder) {
	x := c.newAxis(marginNames, chartWidth-60)
	bottom := float64(marginTop + rowHeight*len(c.series))
	for _, t := range x.ticks {
		segment(b, x.at(t), marginTop, x.at(t), bottom, "#dddddd", 1)
		text(b, x.at(t), bottom+18, "middle", figure(t))
	}
	text(b, chartWidth/2, bottom+40, "middle", "logarithmic scale; point: median of the rounds, bar: least to greatest")
	for i, s := range c.series {
		y := marginTop + rowHeight*(float64(i)+0.5)
		p := s.points[0]
		text(b, marginNames-10, y+4, "end", s.name)
		segment(b, x.at(p.min), y, x.at(p.max), y, colour(i), 3)
		dot(b, x.at(p.median), y, colour(i))
		text(b, x.at(p.max)+10, y+4, "start", figure(p.median))
	}
}

// drawLines draws a line for each series.
func (c chart) drawLines(b *strings.Builder) {
	bottom := float64(marginTop + linesHeight)
	right := float64(chartWidth - marginNames)
	y := c.newAxis(bottom, marginTop)
	for _, t := range y.ticks {
		segment(b, marginLeft, y.at(t), right, y.at(t), "#dddddd", 1)
		text(b, marginLeft-8, y.at(t)+4, "end", figure(t))
	}
	place := func(column int) float64 {
		return marginLeft + (right-marginLeft)*(float64(column)+0.5)/float64(len(c.columns))
	}
	for i, label := range c.columns {
		text(b, place(i), bottom+18, "middle", label)
	}
	text(b, (marginLeft+right)/2, bottom+40, "middle", c.across+" (logarithmic scale; bars: least to greatest)")
	for i, s := range c.series {
		var path []string
		for column, p := range s.points {
			if p.n == 0 {
				continue
			}
			path = append(path, fmt.Sprintf("%.1f,%.1f", place(column), y.at(p.median)))
			segment(b, place(column), y.at(p.min), place(column), y.at(p.max), colour(i), 2)
			dot(b, place(column), y.at(p.median), colour(i))
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, " "), colour(i))
		legend := marginTop + 20*(float64(i)+0.5)
		dot(b, right+16, legend, colour(i))
		text(b, right+28, legend+4, "start", s.name)
	}
}
