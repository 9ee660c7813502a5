package dedup

import (
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// WriteSVG draws the report into a directory, which is made if it is missing:
// table2-bytes.svg, table2-objects.svg (on a logarithmic scale), figure7.svg
// and, where it is known what the images need, figure2.svg.
func (r *Report) WriteSVG(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, c := range r.charts() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c.svg()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) charts() map[string]chart {
	size := chart{title: fmt.Sprintf("Storage of %d images", r.Images), axis: "gigabytes, compressed"}
	objects := chart{title: fmt.Sprintf("Objects of %d images", r.Images), axis: "number", log: true}
	for _, row := range r.All.Rows {
		size.bars = append(size.bars, bar{row.Dedup.String(), float64(row.StoredBytes) / 1e9, bytesText(row.StoredBytes), row.Dedup == File})
		objects.bars = append(objects.bars, bar{row.Dedup.String(), float64(row.Objects), thousands(row.Objects) + " " + row.Dedup.objects(), row.Dedup == File})
	}
	saving := chart{title: "Saved by sharing files instead of layers", axis: "% of the bytes of shared layers"}
	add := func(g Group, label string, strong bool) {
		v := g.Rows[File].SavedOfLayer
		saving.bars = append(saving.bars, bar{label, 100 * v, percent(v), strong})
	}
	for _, g := range r.Series {
		add(g, fmt.Sprintf("%s (%d)", g.Name, g.Images), false)
	}
	for _, g := range r.Categories {
		add(g, fmt.Sprintf("%s (%d)", g.Name, g.Images), true)
	}
	add(r.All, fmt.Sprintf("all together (%d)", r.Images), true)
	charts := map[string]chart{"table2-bytes.svg": size, "table2-objects.svg": objects, "figure7.svg": saving}
	if len(r.Redundancy) == 0 {
		return charts
	}
	redundant := chart{title: "Redundancy of the files that images need", axis: "% of the bytes needed"}
	for i, x := range r.Redundancy {
		name, together := x.Name, i > 0 && i == len(r.Redundancy)-1
		if together {
			name = "all together"
		}
		redundant.bars = append(redundant.bars, bar{fmt.Sprintf("%s (%d)", name, x.Images), 100 * x.Redundant, percent(x.Redundant), together})
	}
	charts["figure2.svg"] = redundant
	return charts
}

// chart is a chart of bars that lie one below the other, so that the names of
// many series can be read.
type chart struct {
	title, axis string
	log         bool
	bars        []bar
}

// bar is one bar; label stands at its end.
type bar struct {
	name   string
	value  float64
	label  string
	strong bool
}

// Lengths of a chart in pixels.
const (
	plotWidth = 480
	barHeight = 16
	barStep   = 24
	margin    = 10
	chartTop  = 40 // the title
	chartFoot = 60 // the numbers and the name of the axis
	fontSize  = 13
	// charWidth is room for a character of the viewer's font: an SVG file only
	// names its font.
	charWidth = 8
)

// svg returns the picture.
func (c chart) svg() string {
	var names, labels int
	for _, b := range c.bars {
		names, labels = max(names, utf8.RuneCountInString(b.name)), max(labels, utf8.RuneCountInString(b.label))
	}
	left := float64(names*charWidth + 2*margin)
	width := int(left) + plotWidth + labels*charWidth + 2*margin
	bottom := float64(chartTop + barStep*len(c.bars))
	height := int(bottom) + chartFoot
	x := c.newAxis(left, left+plotWidth)

	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="%d">`+"\n",
		width, height, width, height, fontSize)
	s.WriteString(`<rect width="100%" height="100%" fill="#ffffff"/>` + "\n")
	writeText(&s, left, 24, "start", c.title)
	for _, t := range x.ticks {
		at := x.at(t)
		fmt.Fprintf(&s, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%.1f" stroke="#dddddd"/>`+"\n", at, chartTop, at, bottom)
		label := strconv.FormatFloat(t, 'g', 6, 64)
		if c.log {
			label = thousands(int64(t))
		}
		writeText(&s, at, bottom+18, "middle", label)
	}
	writeText(&s, left+plotWidth/2, bottom+42, "middle", c.axis)
	for i, b := range c.bars {
		y := float64(chartTop + barStep*i + (barStep-barHeight)/2)
		from, to := x.at(0), x.at(b.value)
		fill := "#7fa8c9"
		if b.strong {
			fill = "#1f5f8b"
		}
		fmt.Fprintf(&s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"/>`+"\n", min(from, to), y, max(from, to)-min(from, to), barHeight, fill)
		writeText(&s, left-margin, y+barHeight-4, "end", b.name)
		writeText(&s, max(from, to)+margin/2, y+barHeight-4, "start", b.label)
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func writeText(s *strings.Builder, x, y float64, anchor, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#222222">`, x, y, anchor)
	_ = xml.EscapeText(s, []byte(text)) // a strings.Builder takes everything
	s.WriteString("</text>\n")
}

// axis is the scale of a chart. Its ends are its first and last tick.
type axis struct {
	ticks    []float64
	log      bool
	from, to float64 // pixels
}

// newAxis returns the axis on which all bars of the chart fit. One that is not
// logarithmic holds 0.
func (c chart) newAxis(from, to float64) axis {
	a := axis{log: c.log, from: from, to: to}
	var least, most float64
	for _, b := range c.bars {
		least, most = min(least, b.value), max(most, b.value)
	}
	if c.log {
		for v := 1.0; ; v *= 10 {
			a.ticks = append(a.ticks, v)
			if len(a.ticks) > 1 && !(v < most) {
				return a
			}
		}
	}
	if most == least {
		most = 1
	}
	step := tickStep(most - least)
	// Whole steps, multiplied: adding them up would add up their error too.
	for i := math.Floor(least / step); ; i++ {
		a.ticks = append(a.ticks, i*step)
		if !(i*step < most) { // what is no number ends it too
			return a
		}
	}
}

// tickStep is the distance of an axis's ticks: a power of ten, or two or five
// times one, so that there are about five.
func tickStep(span float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(span/5)))
	for _, f := range []float64{1, 2, 5} {
		if span/(f*step) <= 6 {
			return f * step
		}
	}
	return 10 * step
}

// at returns the place of a value in pixels.
func (a axis) at(v float64) float64 {
	first, last := a.ticks[0], a.ticks[len(a.ticks)-1]
	if a.log {
		v, first, last = math.Log(max(v, first)), math.Log(first), math.Log(last)
	}
	return a.from + (a.to-a.from)*(v-first)/(last-first)
}
