package chart

import (
	"math"
	"unicode/utf8"
)

// Bars is a picture of bars one below the other, so that the names of many can be read. A
// bar may have several parts, either stacked or one below the other.
type Bars struct {
	Title string
	// Desc describes the picture to people who cannot see it.
	Desc string
	X    Axis
	// Parts are the names of the values of each row; none for one value.
	Parts   []string
	Stacked bool
	Rows    []Row
}

// Row is a bar with its parts.
type Row struct {
	Name   string
	Values []float64
	// Label stands at the bar's end; by default it is the value, and for stacked
	// bars nothing. A row without values says that it has no data.
	Label string
	// Weak draws the bar in a weaker colour.
	Weak bool
}

const (
	barHeight = 16
	barStep   = 24
)

// SVG returns the picture.
func (b *Bars) SVG(o *Options) string {
	w := o.width()
	legend := legendHeight(b.Parts, w)
	var rows float64
	var names, labels int
	for _, r := range b.Rows {
		rows += b.height(r)
		names = max(names, utf8.RuneCountInString(r.Name))
		for i := range r.Values {
			labels = max(labels, utf8.RuneCountInString(b.label(r, i)))
		}
	}
	rows = max(rows, 2*barStep)
	names = min(names, int(w*0.45/charWidth))
	c, top, _ := open(o, b.Title, b.Desc, func(top float64) float64 {
		return top + legend + rows + 2*lineHeight + 2*gap
	})
	c.legend(b.Parts, boxKey, top, w)
	top += legend
	bottom := top + rows
	left, right := float64(names)*charWidth+2*gap, w-float64(labels)*charWidth-2*gap
	right = max(right-gap, left+60)
	x := newScale(b.X, b.values(), int((right-left)/62))
	x.from, x.to = left, right
	for i, l := range x.labels() {
		c.line("grid", x.at(x.ticks[i]), top, x.at(x.ticks[i]), bottom)
		c.text(x.at(x.ticks[i]), bottom+lineHeight, "middle", "", l)
	}
	c.text(w-gap, bottom+2*lineHeight+2, "end", "dim", b.X.caption("", " →", w-2*gap))
	y := top
	for _, r := range b.Rows {
		c.text(left-gap, y+b.height(r)/2+4, "end", "", clip(r.Name, names))
		b.row(c, &x, r, y)
		y += b.height(r)
	}
	if len(b.Rows) == 0 {
		c.noData((left+right)/2, (top+bottom)/2)
	}
	return c.close()
}

// height returns the height of a row in pixels.
func (b *Bars) height(r Row) float64 {
	if b.Stacked || len(r.Values) < 2 {
		return barStep
	}
	return float64(len(r.Values))*barHeight + gap
}

// label returns the text at the end of value i of a row.
func (b *Bars) label(r Row, i int) string {
	switch {
	case r.Label != "":
		if i == len(r.Values)-1 {
			return r.Label
		}
		return ""
	case b.Stacked:
		return ""
	}
	return Format(r.Values[i], b.X.Unit)
}

// values returns the values that the axis must hold.
func (b *Bars) values() []float64 {
	var out []float64
	if b.X.Log { // otherwise the shortest bar would have no length
		out = append(out, 0)
	}
	for _, r := range b.Rows {
		var sum float64
		for _, v := range r.Values {
			if !finite(v) {
				continue
			}
			sum += v
			if !b.Stacked {
				out = append(out, v)
			}
		}
		if b.Stacked {
			out = append(out, sum)
		}
	}
	return out
}

func (b *Bars) row(c *canvas, x *scale, r Row, y float64) {
	y += float64(barStep-barHeight) / 2
	if len(r.Values) == 0 {
		c.text(x.at(0)+gap/2, y+barHeight-4, "start", "dim", "no data")
	}
	var sum float64
	end := x.at(0)
	for i, v := range r.Values {
		label := b.label(r, i)
		if !finite(v) {
			c.text(x.at(0)+gap/2, y+barHeight-4, "start", "dim", "no data")
			if !b.Stacked {
				y += barHeight
			}
			continue
		}
		class := fill(i)
		if r.Weak {
			class += " weak"
		}
		from, to := x.at(0), x.at(v)
		if b.Stacked {
			from, to = x.at(sum), x.at(sum+v)
			sum += v
		}
		end = max(end, from, to)
		c.rect(class, min(from, to), y, math.Abs(to-from), barHeight-1, b.tip(r, i, v))
		if label != "" {
			c.text(end+gap/2, y+barHeight-4, "start", "", label)
		}
		if !b.Stacked {
			y += barHeight
			end = x.at(0)
		}
	}
}

// tip returns the tooltip of a part.
func (b *Bars) tip(r Row, i int, v float64) string {
	s := r.Name
	if i < len(b.Parts) {
		s += ", " + b.Parts[i]
	}
	return s + ": " + Format(v, b.X.Unit)
}
