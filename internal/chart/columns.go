package chart

import "unicode/utf8"

// Columns is a picture of bars side by side: one group, such as the hours of a day, or
// several groups.
type Columns struct {
	Title string
	// Desc describes the picture to people who cannot see it.
	Desc string
	// XTitle says what the names below the columns stand for. With several groups, it
	// says what the columns of each group stand for.
	XTitle string
	Y      Axis
	Groups []Group
}

// Group is columns that belong together.
type Group struct {
	// Name stands below the group if there are several.
	Name string
	// Names has the names of the columns. They stand below the columns if there is only
	// one group.
	Names  []string
	Values []float64
}

// SVG returns the picture.
func (p *Columns) SVG(o *Options) string {
	w := o.width()
	plot := min(max(w*0.4, 160), 220)
	c, top, _ := open(o, p.Title, p.Desc, func(top float64) float64 {
		return top + lineHeight + gap + plot + 2*lineHeight + 2*gap
	})
	f := xyFrame{top: top + lineHeight + gap, bottom: top + lineHeight + gap + plot, right: w - 2*gap}
	var values []float64
	for _, g := range p.Groups {
		for _, v := range g.Values {
			if finite(v) {
				values = append(values, v)
			}
		}
	}
	f.y = newScale(p.Y, values, int(plot/40))
	f.y.from, f.y.to = f.bottom, f.top
	for _, l := range f.y.labels() {
		f.left = max(f.left, textWidth(l))
	}
	f.left += 2 * gap
	c.text(gap, top+12, "start", "dim", p.Y.caption("↑ ", "", f.right-gap))
	for i, l := range f.y.labels() {
		y := f.y.at(f.y.ticks[i])
		c.line("grid", f.left, y, f.right, y)
		c.text(f.left-gap, y+4, "end", "", l)
	}
	if len(values) == 0 {
		c.noData((f.left+f.right)/2, (f.top+f.bottom)/2)
	}
	for i := range p.Groups {
		width := (f.right - f.left) / float64(len(p.Groups))
		p.group(c, &f, p.Groups[i], f.left+float64(i)*width, width)
	}
	c.line("rule", f.left, f.y.at(0), f.right, f.y.at(0))
	c.text(f.right, f.bottom+2*lineHeight+2, "end", "dim", clip(p.XTitle+" →", int((f.right-gap)/charWidth)))
	return c.close()
}

// group draws the columns of a group. Below them it writes as many of their names as fit,
// or the name of the group.
func (p *Columns) group(c *canvas, f *xyFrame, g Group, left, width float64) {
	n := min(len(g.Names), len(g.Values))
	if n == 0 {
		return
	}
	if len(p.Groups) > 1 {
		c.text(left+width/2, f.bottom+lineHeight, "middle", "", clip(g.Name, int(width/charWidth)-1))
		left, width = left+width*0.06, width*0.88
	}
	step := width / float64(n)
	widest := 1
	for _, name := range g.Names {
		widest = max(widest, utf8.RuneCountInString(name))
	}
	each := max(1, int((float64(widest)+0.5)*charWidth/step+1))
	for i := range n {
		x := left + float64(i)*step
		if len(p.Groups) == 1 && i%each == 0 {
			c.text(x+step/2, f.bottom+lineHeight, "middle", "", g.Names[i])
		}
		if v := g.Values[i]; finite(v) {
			from, to := f.y.at(0), f.y.at(v)
			tip := g.Names[i] + ": " + Format(v, p.Y.Unit)
			if g.Name != "" {
				tip = g.Name + ", " + tip
			}
			c.rect(fill(0), x+step*0.1, min(from, to), step*0.8, max(from, to)-min(from, to), tip)
		}
	}
}
