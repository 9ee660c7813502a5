// Package chart draws figures as SVG: lines, cumulative distributions, scatters
// with bands, bars and columns.
//
// A picture has everything a reader needs: a title, axes with their units, ticks at round
// numbers and a legend. Colour-blind people can distinguish its colours. Series also
// differ by their dashes, and a viewer who prefers a dark screen gets a dark picture.
// Screen readers find a title and a description. All text is escaped. Values that are not
// numbers are left out, and a picture without data says so.
package chart

import (
	"fmt"
	"hash/fnv"
	"strings"
	"unicode/utf8"
)

// Options say how a picture is drawn. The zero value is a picture that stands by
// itself, 720 pixels wide.
type Options struct {
	// Width is the width in pixels. Default 720; less than 300 counts as 300. Letters
	// have the same size at every width, so a narrow picture suits a narrow screen.
	Width int
	// Inline leaves out the visible title and the style, for pictures in a page that has
	// both: see CSS. Screen readers still get the title.
	Inline bool
}

func (o *Options) width() float64 {
	if o == nil || o.Width == 0 {
		return 720
	}
	return float64(max(o.Width, 300))
}

func (o *Options) inline() bool { return o != nil && o.Inline }

// Unit is what an axis counts. It decides how its numbers are written.
type Unit uint8

// These are the units.
const (
	// Number is a plain number.
	Number Unit = iota
	// Bytes are written with decimal prefixes: kB is 1000 bytes.
	Bytes
	// Seconds are written as µs, ms or s.
	Seconds
	// Share is a part of one, written in per cent.
	Share
)

// Axis is one side of a picture.
type Axis struct {
	// Title says what the axis shows; the unit stands beside its numbers.
	Title string
	Unit  Unit
	// Log makes the axis logarithmic. If there are values of 0 or less, they lie at a
	// tick 0 at its beginning, with a gap before the rest.
	Log bool
	// Full makes an axis of shares reach from 0 to 1, whatever the data. A logarithmic
	// one begins at the smallest share.
	Full bool
}

// These are sizes in pixels.
const (
	fontSize   = 12
	titleSize  = 15
	lineHeight = 18
	gap        = 8
	// charWidth is the width reserved for a letter, because the viewer's font is not
	// known here.
	charWidth = 6.7
	// titleWidth is the same for a title.
	titleWidth = 8.6
)

// colours returns the colours of the series for a light and a dark background. They are
// the colours of Okabe and Ito, made darker or lighter until each has a contrast of 3 to
// its background.
func colours() (light, dark [8]string) {
	return [8]string{"#0072b2", "#c8500a", "#00805d", "#a6508b", "#8a6500", "#2b8cc4", "#4d4d4d", "#7a3fb0"},
		[8]string{"#5fb4ee", "#ff8f4f", "#2fc79a", "#eba3d0", "#eec04a", "#a5dcff", "#c8ccd1", "#bd9bf0"}
}

// dash returns the pattern of a series's line. Together with the colour it distinguishes
// series. It must do so alone for people who see no colours.
func dash(i int) string {
	return [...]string{"", "7 3", "2 2", "9 3 2 3", "5 2 1 2 1 2", "12 4", "1 3", "4 4"}[i%8]
}

// CSS returns the style of all pictures, for a page with inline pictures. All its rules
// are below the class "slipway-chart".
func CSS() string {
	var b strings.Builder
	light, dark := colours()
	b.WriteString(".slipway-chart{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}\n")
	fmt.Fprintf(&b, ".slipway-chart text{font-size:%dpx}\n", fontSize)
	fmt.Fprintf(&b, ".slipway-chart text.title{font-size:%dpx;font-weight:600}\n", titleSize)
	b.WriteString(".slipway-chart .grid{stroke-width:1}.slipway-chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round}\n")
	b.WriteString(".slipway-chart .band{fill-opacity:.2}.slipway-chart .dot{fill:none;stroke-width:3;stroke-linecap:round;stroke-opacity:.3}.slipway-chart .weak{fill-opacity:.5}\n")
	ground := func(prefix, bg, ink, dim, grid string, list [8]string) {
		fmt.Fprintf(&b, "%s.slipway-chart .ground{fill:%s}.slipway-chart text{fill:%s}.slipway-chart text.dim{fill:%s}", prefix, bg, ink, dim)
		fmt.Fprintf(&b, ".slipway-chart .grid{stroke:%s}.slipway-chart .rule{stroke:%s}", grid, dim)
		for i, c := range list {
			fmt.Fprintf(&b, ".slipway-chart .s%d{stroke:%s}.slipway-chart .f%d{fill:%s}", i, c, i, c)
		}
	}
	ground("", "#ffffff", "#1c2126", "#57606a", "#dde2e7", light)
	ground("\n@media (prefers-color-scheme:dark){", "#12161b", "#e6e9ec", "#a3acb5", "#2c343c", dark)
	b.WriteString("}\n")
	return b.String()
}

// canvas is a picture that is being drawn.
type canvas struct {
	strings.Builder
}

// open begins a picture. It draws the title unless the picture is inline. top is where
// the rest may begin.
func open(o *Options, title, desc string, height func(top float64) float64) (c *canvas, top, h float64) {
	c = &canvas{}
	w := o.width()
	top = gap
	var lines []string
	if !o.inline() && title != "" {
		lines = wrap(title, int((w-2*gap)/titleWidth))
		top += float64(len(lines))*(titleSize+5) + gap
	}
	h = height(top)
	id := fnv.New64a()
	fmt.Fprintf(id, "%s\x00%s\x00%v\x00%v", title, desc, w, h)
	name := fmt.Sprintf("c%x", id.Sum64())
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" class="slipway-chart" role="img" aria-labelledby="%st %sd" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f">`+"\n",
		name, name, w, h, w, h)
	fmt.Fprintf(c, `<title id="%st">`, name)
	c.escape(title)
	fmt.Fprintf(c, `</title><desc id="%sd">`, name)
	c.escape(desc)
	c.WriteString("</desc>\n")
	if !o.inline() {
		fmt.Fprintf(c, "<style>\n%s</style>\n", CSS())
		fmt.Fprintf(c, `<rect class="ground" width="%.0f" height="%.0f"/>`+"\n", w, h)
	}
	for i, l := range lines {
		c.text(gap, gap+titleSize+float64(i)*(titleSize+5), "start", "title", l)
	}
	return c, top, h
}

func (c *canvas) close() string {
	c.WriteString("</svg>\n")
	return c.String()
}

// text writes a line of text; class may be empty.
func (c *canvas) text(x, y float64, anchor, class, s string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s"`, x, y, anchor)
	if class != "" {
		fmt.Fprintf(c, ` class="%s"`, class)
	}
	c.WriteByte('>')
	c.escape(s)
	c.WriteString("</text>\n")
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// rect draws a bar. tip is its tooltip.
func (c *canvas) rect(class string, x, y, w, h float64, tip string) {
	fmt.Fprintf(c, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"`, class, x, y, max(w, 0), max(h, 0))
	if tip == "" {
		c.WriteString("/>\n")
		return
	}
	c.WriteString("><title>")
	c.escape(tip)
	c.WriteString("</title></rect>\n")
}

// noData says that there is nothing to draw.
func (c *canvas) noData(x, y float64) { c.text(x, y, "middle", "dim", "no data") }

// legendKey draws the symbol of series i, 20 pixels wide, with its middle at y.
type legendKey func(c *canvas, i int, x, y float64)

func boxKey(c *canvas, i int, x, y float64) { c.rect(fill(i), x, y-5, 14, 10, "") }

// legend writes the names of the series, in as many lines as it takes.
func (c *canvas) legend(names []string, key legendKey, top, width float64) {
	x, y := float64(gap), top
	for i, name := range names {
		need := 26 + textWidth(name) + 2*gap
		if x > gap && x+need > width {
			x, y = gap, y+lineHeight
		}
		key(c, i, x, y+8)
		c.text(x+26, y+12, "start", "", name)
		x += need
	}
}

// legendHeight returns the height of the legend.
func legendHeight(names []string, width float64) float64 {
	x, lines := float64(gap), 1
	for _, name := range names {
		need := 26 + textWidth(name) + 2*gap
		if x > gap && x+need > width {
			x, lines = gap, lines+1
		}
		x += need
	}
	if len(names) == 0 {
		return 0
	}
	return float64(lines)*lineHeight + gap
}

// stroke and fill return the classes of series i.
func stroke(i int) string { return fmt.Sprintf("line s%d", i%8) }
func fill(i int) string   { return fmt.Sprintf("f%d", i%8) }

// dashes ends a class attribute and adds the pattern of series i. It leaves a quote open,
// which the caller closes.
func dashes(i int) string {
	if d := dash(i); d != "" {
		return `" stroke-dasharray="` + d
	}
	return ""
}

func textWidth(s string) float64 { return float64(utf8.RuneCountInString(s)) * charWidth }

// clip shortens a text to a number of letters.
func clip(s string, letters int) string {
	if utf8.RuneCountInString(s) <= letters {
		return s
	}
	r := []rune(s)
	return string(r[:max(letters-1, 0)]) + "…"
}

// wrap breaks a text into lines at spaces.
func wrap(s string, letters int) []string {
	var lines []string
	var line string
	for _, word := range strings.Fields(s) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > letters {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
