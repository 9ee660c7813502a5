package chart

import (
	"fmt"
	"math"
)

// Mark is how a series is drawn.
type Mark uint8

// These are the marks.
const (
	// Line joins the points.
	Line Mark = iota
	// Step keeps each value until the next point, as in a cumulative distribution, which
	// begins at 0.
	Step
	// Dots draws each point.
	Dots
	// Band fills the area between Low and High, and joins the points.
	Band
	// Crosses draws each point large, for a few points that must be seen.
	Crosses
)

// Point is a point of a series. Low and High matter for bands only.
type Point struct {
	X, Y      float64
	Low, High float64
}

// Series are points that belong together, in order of X but for dots.
type Series struct {
	Name   string
	Mark   Mark
	Points []Point
}

// XY is a picture with two axes.
type XY struct {
	Title string
	// Desc describes the picture to people who cannot see it.
	Desc   string
	X, Y   Axis
	Series []Series
}

// xyFrame is the area of the plot within the picture.
type xyFrame struct {
	left, right, top, bottom float64
	x, y                     scale
}

// SVG returns the picture.
func (p *XY) SVG(o *Options) string {
	w := o.width()
	names := make([]string, 0, len(p.Series))
	if len(p.Series) > 1 {
		for _, s := range p.Series {
			names = append(names, clip(s.Name, int((w-60)/charWidth)))
		}
	}
	plot := min(max(w*0.5, 220), 320)
	legend := legendHeight(names, w)
	c, top, _ := open(o, p.Title, p.Desc, func(top float64) float64 {
		return top + legend + lineHeight + gap + plot + 2*lineHeight + 2*gap
	})
	c.legend(names, p.key, top, w)
	top += legend
	f := p.frame(w, top+lineHeight+gap, top+lineHeight+gap+plot)
	f.draw(c, top)
	if !p.any() {
		c.noData((f.left+f.right)/2, (f.top+f.bottom)/2)
		return c.close()
	}
	for i, s := range p.Series { // under all lines
		if s.Mark == Dots {
			f.dots(c, i, s.Points)
		}
	}
	for i, s := range p.Series {
		switch s.Mark {
		case Dots:
		case Crosses:
			f.crosses(c, i, s.Points)
		case Band:
			f.band(c, i, s.Points)
			f.path(c, i, s.Points, false)
		default:
			f.path(c, i, s.Points, s.Mark == Step)
		}
	}
	return c.close()
}

// key draws the symbol of a series in the legend.
func (p *XY) key(c *canvas, i int, x, y float64) {
	switch p.Series[i].Mark {
	case Dots:
		fmt.Fprintf(c, `<path class="dot s%d" d="M%.1f %.1fh0M%.1f %.1fh0M%.1f %.1fh0"/>`+"\n", i%8, x+3, y+2, x+9, y-2, x+15, y+1)
		return
	case Crosses:
		c.cross(i, x+10, y)
		return
	case Band:
		c.rect("band "+fill(i), x, y-5, 20, 10, "")
	}
	c.line(stroke(i)+dashes(i), x, y, x+20, y)
}

func (p *XY) any() bool {
	for _, s := range p.Series {
		for _, q := range s.Points {
			if finite(q.X) && finite(q.Y) {
				return true
			}
		}
	}
	return false
}

func (p *XY) frame(w, top, bottom float64) xyFrame {
	var xs, ys []float64
	for _, s := range p.Series {
		for _, q := range s.Points {
			if !finite(q.X) || !finite(q.Y) {
				continue
			}
			xs, ys = append(xs, q.X), append(ys, q.Y)
			if s.Mark == Band {
				ys = append(ys, q.Low, q.High)
			}
		}
	}
	f := xyFrame{top: top, bottom: bottom, right: w - 3*gap}
	f.y = newScale(p.Y, ys, int((bottom-top)/40))
	for _, l := range f.y.labels() {
		f.left = max(f.left, textWidth(l))
	}
	f.left += 2 * gap
	f.x = newScale(p.X, xs, int((f.right-f.left)/62))
	f.x.from, f.x.to = f.left, f.right
	f.y.from, f.y.to = f.bottom, f.top
	return f
}

// draw draws the grid, the ticks and the titles of the axes. The title of the vertical
// axis is horizontal above it, where it can be read.
func (f *xyFrame) draw(c *canvas, top float64) {
	c.text(gap, top+12, "start", "dim", f.y.axis.caption("↑ ", "", f.right-gap))
	for i, l := range f.y.labels() {
		y := f.y.at(f.y.ticks[i])
		c.line("grid", f.left, y, f.right, y)
		c.text(f.left-gap, y+4, "end", "", l)
	}
	for i, l := range f.x.labels() {
		x := f.x.at(f.x.ticks[i])
		c.line("grid", x, f.top, x, f.bottom)
		c.text(x, f.bottom+lineHeight, "middle", "", l)
	}
	c.line("rule", f.left, f.bottom, f.right, f.bottom)
	c.text(f.right, f.bottom+2*lineHeight+2, "end", "dim", f.x.axis.caption("", " →", f.right-gap))
}

// caption returns the axis's title, shortened to the width. If necessary it does not
// mention that the axis is logarithmic, because the ticks show that, too.
func (a Axis) caption(before, after string, width float64) string {
	if full := before + a.Title + " (logarithmic)" + after; a.Log && textWidth(full) <= width {
		return full
	}
	return before + clip(a.Title, int((width-textWidth(before+after))/charWidth)) + after
}

// path draws a line. A cumulative distribution rises from the bottom at its first
// point, and stays at the height of its last one.
func (f *xyFrame) path(c *canvas, series int, points []Point, step bool) {
	fmt.Fprintf(c, `<path class="%s%s" d="`, stroke(series), dashes(series))
	first := true
	lastX, lastY := math.Inf(-1), math.Inf(-1)
	for _, p := range points {
		if !finite(p.X) || !finite(p.Y) {
			continue
		}
		x, y := f.x.at(p.X), f.y.at(p.Y)
		switch {
		case first && step:
			fmt.Fprintf(c, "M%.1f %.1fV%.1f", x, f.bottom, y)
		case first:
			fmt.Fprintf(c, "M%.1f %.1f", x, y)
		case math.Abs(x-lastX) < 0.05 && math.Abs(y-lastY) < 0.05:
			continue
		case step:
			fmt.Fprintf(c, "H%.1fV%.1f", x, y)
		default:
			fmt.Fprintf(c, "L%.1f %.1f", x, y)
		}
		first, lastX, lastY = false, x, y
	}
	if step && !first {
		fmt.Fprintf(c, "H%.1f", f.right)
	}
	c.WriteString("\"/>\n")
}

// band fills between Low and High.
func (f *xyFrame) band(c *canvas, series int, points []Point) {
	fmt.Fprintf(c, `<polygon class="band %s" points="`, fill(series))
	for _, p := range points {
		if finite(p.X) && finite(p.Y) && finite(p.High) {
			fmt.Fprintf(c, "%.1f,%.1f ", f.x.at(p.X), f.y.at(p.High))
		}
	}
	for i := len(points) - 1; i >= 0; i-- {
		if p := points[i]; finite(p.X) && finite(p.Y) && finite(p.Low) {
			fmt.Fprintf(c, "%.1f,%.1f ", f.x.at(p.X), f.y.at(p.Low))
		}
	}
	c.WriteString("\"/>\n")
}

// dots draws all dots as one path of strokes without length: a thousand elements would
// take ten times the room.
func (f *xyFrame) dots(c *canvas, series int, points []Point) {
	fmt.Fprintf(c, `<path class="dot s%d" d="`, series%8)
	for _, p := range points {
		if finite(p.X) && finite(p.Y) {
			fmt.Fprintf(c, "M%.1f %.1fh0", f.x.at(p.X), f.y.at(p.Y))
		}
	}
	c.WriteString("\"/>\n")
}

// crosses draws each point as a cross.
func (f *xyFrame) crosses(c *canvas, series int, points []Point) {
	for _, p := range points {
		if finite(p.X) && finite(p.Y) {
			c.cross(series, f.x.at(p.X), f.y.at(p.Y))
		}
	}
}

// cross draws a cross with its middle at a point.
func (c *canvas) cross(series int, x, y float64) {
	fmt.Fprintf(c, `<path class="%s" d="M%.1f %.1fl10 10m-10 0l10 -10"/>`+"\n", stroke(series), x-5, y-5)
}
