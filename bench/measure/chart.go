package measure

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Chart shows figures on a logarithmic scale, because the servers differ too much for any
// other scale. If it has lines, the figures go up and the series go across the columns.
// Otherwise the figures go to the right and each series has a row.
type Chart struct {
	Title   string
	Across  string // what the columns stand for
	Columns []string
	Series  []Series
	Lines   bool
}

// Series is one of the things that a chart compares. N is 0 if it was not measured.
type Series struct {
	Name   string
	Points []Spread
}

// colour returns a colour that colour-blind people can distinguish from the others (Okabe
// and Ito).
func colour(i int) string {
	list := [...]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}
	return list[i%len(list)]
}

// These are the sizes of a chart in pixels.
const (
	chartWidth  = 720
	rowHeight   = 34
	linesHeight = 300
	marginTop   = 44
	marginLeft  = 70
	marginNames = 180 // space for the names of the series
	marginFoot  = 52
)

// SVG returns the chart as an SVG picture.
func (c Chart) SVG() string {
	height := marginTop + marginFoot + rowHeight*len(c.Series)
	if c.Lines {
		height = marginTop + marginFoot + linesHeight
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n",
		chartWidth, height, chartWidth, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", html.EscapeString(c.Title))
	text(&b, 12, 24, "start", c.Title)
	if c.Lines {
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

// axis is a logarithmic scale. Each end is a power of ten, or two or five times a power
// of ten.
type axis struct {
	ticks    []float64
	from, to float64 // pixels
}

// newAxis returns the axis for the figures of a chart.
func (c Chart) newAxis(from, to float64) axis {
	least, most := math.Inf(1), math.Inf(-1)
	for _, s := range c.Series {
		for _, p := range s.Points {
			if p.N > 0 && p.Min > 0 {
				least, most = min(least, p.Min), max(most, p.Max)
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

// at returns the position of a figure in pixels.
func (a axis) at(f float64) float64 {
	first, last := math.Log(a.ticks[0]), math.Log(a.ticks[len(a.ticks)-1])
	return a.from + (a.to-a.from)*(math.Log(max(f, a.ticks[0]))-first)/(last-first)
}

// drawRows draws a row for each series, with its median and spread.
func (c Chart) drawRows(b *strings.Builder) {
	x := c.newAxis(marginNames, chartWidth-60)
	bottom := float64(marginTop + rowHeight*len(c.Series))
	for _, t := range x.ticks {
		segment(b, x.at(t), marginTop, x.at(t), bottom, "#dddddd", 1)
		text(b, x.at(t), bottom+18, "middle", Figure(t))
	}
	text(b, chartWidth/2, bottom+40, "middle", "logarithmic scale; point: median of the rounds, bar: least to greatest")
	for i, s := range c.Series {
		y := marginTop + rowHeight*(float64(i)+0.5)
		p := s.Points[0]
		text(b, marginNames-10, y+4, "end", s.Name)
		segment(b, x.at(p.Min), y, x.at(p.Max), y, colour(i), 3)
		dot(b, x.at(p.Median), y, colour(i))
		text(b, x.at(p.Max)+10, y+4, "start", Figure(p.Median))
	}
}

// drawLines draws a line for each series.
func (c Chart) drawLines(b *strings.Builder) {
	bottom := float64(marginTop + linesHeight)
	right := float64(chartWidth - marginNames)
	y := c.newAxis(bottom, marginTop)
	for _, t := range y.ticks {
		segment(b, marginLeft, y.at(t), right, y.at(t), "#dddddd", 1)
		text(b, marginLeft-8, y.at(t)+4, "end", Figure(t))
	}
	place := func(column int) float64 {
		return marginLeft + (right-marginLeft)*(float64(column)+0.5)/float64(len(c.Columns))
	}
	for i, label := range c.Columns {
		text(b, place(i), bottom+18, "middle", label)
	}
	text(b, (marginLeft+right)/2, bottom+40, "middle", c.Across+" (logarithmic scale; bars: least to greatest)")
	for i, s := range c.Series {
		var path []string
		for column, p := range s.Points {
			if p.N == 0 {
				continue
			}
			path = append(path, fmt.Sprintf("%.1f,%.1f", place(column), y.at(p.Median)))
			segment(b, place(column), y.at(p.Min), place(column), y.at(p.Max), colour(i), 2)
			dot(b, place(column), y.at(p.Median), colour(i))
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, " "), colour(i))
		legend := marginTop + 20*(float64(i)+0.5)
		dot(b, right+16, legend, colour(i))
		text(b, right+28, legend+4, "start", s.Name)
	}
}
