package dedup

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// WriteSVG draws the report into a directory, which is made if it is missing:
// table2-bytes.svg, table2-objects.svg (on a logarithmic scale), figure7.svg
// and, where it is known what the images need, figure2.svg.
func (r *Report) WriteSVG(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, c := range r.charts() {
		b, err := c.draw()
		if err != nil {
			return fmt.Errorf("draw %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
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

// Lengths of a chart.
const (
	chartWidth = 18 * vg.Centimeter // more where names are long
	barHeight  = 0.62 * vg.Centimeter
	chartRest  = 3 * vg.Centimeter // title, axis, margins
	margin     = 0.25 * vg.Centimeter
	// wider is by how much the viewer's font may be wider than the one that
	// texts are measured with; an SVG file only names its font.
	wider = 1.35
)

// draw returns the chart as SVG.
func (c chart) draw() ([]byte, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text = c.title, c.axis
	p.Title.Padding, p.X.Label.Padding = margin, margin
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.X.Tick.Label} {
		style.Font.Variant = "Sans"
	}
	most, least := 0.0, 0.0
	var names, labels vg.Length
	for _, b := range c.bars {
		most, least = max(most, b.value), min(least, b.value)
		names = max(names, p.X.Tick.Label.Width(b.name)*wider)
		labels = max(labels, p.X.Tick.Label.Width(b.label)*wider)
	}
	p.HideY()
	p.Y.Min, p.Y.Max = -0.6, float64(len(c.bars))-0.4
	p.X.Min, p.X.Max, p.X.Tick.Marker = least, max(most, 1e-9), plainTicks{}
	if c.log {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
		p.X.Min, p.X.Max = 1, max(most, 10)
	}
	p.Add(c)
	canvas := vgsvg.New(max(chartWidth, names+labels+chartWidth/2), chartRest+barHeight*vg.Length(len(c.bars)))
	p.Draw(draw.Crop(draw.New(canvas), names+2*margin, -labels-2*margin, margin, -margin))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

var _ plot.Plotter = chart{}

// Plot implements [plot.Plotter].
func (c chart) Plot(canvas draw.Canvas, p *plot.Plot) {
	const halfBar = 0.36 // of the distance of two bars
	x, y := p.Transforms(&canvas)
	zero := x(max(p.X.Min, 0))
	if c.log {
		zero = x(p.X.Min)
	}
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XLeft, text.YCenter
	for i, b := range c.bars {
		at := float64(len(c.bars) - 1 - i)
		value := b.value
		if c.log {
			value = max(value, p.X.Min)
		}
		fill := color.NRGBA{R: 0x7f, G: 0xa8, B: 0xc9, A: 0xff}
		if b.strong {
			fill = color.NRGBA{R: 0x1f, G: 0x5f, B: 0x8b, A: 0xff}
		}
		lower, upper, end := y(at-halfBar), y(at+halfBar), x(value)
		canvas.FillPolygon(fill, []vg.Point{{X: zero, Y: lower}, {X: end, Y: lower}, {X: end, Y: upper}, {X: zero, Y: upper}})
		canvas.FillText(style, vg.Point{X: max(end, zero) + margin/2, Y: y(at)}, b.label)
		canvas.FillText(style, vg.Point{X: margin, Y: y(at)}, b.name)
	}
}

// plainTicks are gonum's ticks without zeros at the end of their labels.
type plainTicks struct{}

var _ plot.Ticker = plainTicks{}

// Ticks implements [plot.Ticker].
func (plainTicks) Ticks(least, most float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(least, most)
	for i, t := range ticks {
		if !t.IsMinor() {
			ticks[i].Label = strconv.FormatFloat(math.Round(t.Value*1e9)/1e9, 'g', -1, 64)
		}
	}
	return ticks
}

// decades are ticks at the powers of ten.
type decades struct{}

var _ plot.Ticker = decades{}

// Ticks implements [plot.Ticker].
func (decades) Ticks(least, most float64) (ticks []plot.Tick) {
	for v := 1.0; v <= most; v *= 10 {
		if v >= least {
			ticks = append(ticks, plot.Tick{Value: v, Label: thousands(int64(v))})
		}
	}
	return ticks
}
