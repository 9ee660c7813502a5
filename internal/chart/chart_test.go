package chart_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"example.org/slipway/internal/chart"
)

// picture is any kind of chart.
type picture interface {
	SVG(o *chart.Options) string
}

// parsed holds the texts and elements of a picture.
type parsed struct {
	texts, titles []string
	elements      map[string]int
}

// parse reads a picture as XML. It checks that every length is a number and lies within
// the picture.
func parse(t testing.TB, svg string) parsed {
	t.Helper()
	p := parsed{elements: map[string]int{}}
	var width, height float64
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return p
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v\n%s", err, svg)
		}
		start, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		p.elements[start.Name.Local]++
		for _, a := range start.Attr {
			v, err := strconv.ParseFloat(a.Value, 64)
			switch a.Name.Local {
			case "width", "height":
				if err != nil || !(v >= 0) {
					t.Fatalf("%s has the %s %q", start.Name.Local, a.Name.Local, a.Value)
				}
				if start.Name.Local == "svg" && a.Name.Local == "width" {
					width = v
				} else if start.Name.Local == "svg" {
					height = v
				}
			case "x", "x1", "x2":
				if err != nil || !(v >= -1 && v <= width+1) {
					t.Fatalf("%s is at %s %q of a picture %v wide", start.Name.Local, a.Name.Local, a.Value, width)
				}
			case "y", "y1", "y2":
				if err != nil || !(v >= -1 && v <= height+1) {
					t.Fatalf("%s is at %s %q of a picture %v high", start.Name.Local, a.Name.Local, a.Value, height)
				}
			case "d", "points":
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Fatalf("a line through %q", a.Value)
				}
			}
		}
		if name := start.Name.Local; name == "text" || name == "title" || name == "desc" {
			var s string
			if err := dec.DecodeElement(&s, &start); err != nil {
				t.Fatal(err)
			}
			if name == "text" {
				p.texts = append(p.texts, s)
			} else {
				p.titles = append(p.titles, s)
			}
		}
	}
}

func (p parsed) has(t *testing.T, texts ...string) {
	t.Helper()
	all := "\n" + strings.Join(p.texts, "\n") + "\n"
	for _, want := range texts {
		if !strings.Contains(all, "\n"+want+"\n") {
			t.Errorf("there is no text %q in %q", want, p.texts)
		}
	}
}

func TestCDF(t *testing.T) {
	c := &chart.XY{Title: "Sizes", Desc: "half are below 1 kB", X: chart.Axis{Title: "size", Unit: chart.Bytes, Log: true}, Y: chart.Axis{Title: "share", Unit: chart.Share, Full: true},
		Series: []chart.Series{{Name: "here", Mark: chart.Step, Points: []chart.Point{{X: 0, Y: 0.25}, {X: 1000, Y: 0.5}, {X: 1e6, Y: 1}}}, {Name: "there", Mark: chart.Step}}}
	svg := c.SVG(nil)
	p := parse(t, svg)
	p.has(t, "Sizes", "↑ share", "size (logarithmic) →", "0 B", "1 kB", "1 MB", "0 %", "100 %", "here", "there")
	if fmt.Sprint(p.titles) != "[Sizes half are below 1 kB]" {
		t.Errorf("a screen reader is told %q", p.titles)
	}
	for _, want := range []string{`role="img"`, "aria-labelledby", "prefers-color-scheme:dark", "stroke-dasharray"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture has no %s", want)
		}
	}
	// A step rises at its point: from the bottom at 0 to 50 % at 1 kB.
	path := regexp.MustCompile(`class="line s0" d="M([\d.]+) ([\d.]+)V([\d.]+)H([\d.]+)V([\d.]+)H`).FindStringSubmatch(svg)
	if path == nil {
		t.Fatalf("the first series is no staircase:\n%s", svg)
	}
	at := func(i int) float64 { v, _ := strconv.ParseFloat(path[i], 64); return v }
	if full := at(2) - at(3); math.Abs((at(2)-at(5))/full-2) > 0.01 {
		t.Errorf("25 %% are %.1f high and 50 %% %.1f", full, at(2)-at(5))
	}
	inline := c.SVG(&chart.Options{Inline: true, Width: 340})
	if strings.Contains(inline, "<style>") || !strings.Contains(inline, `width="340"`) {
		t.Error("an inline picture brings its style, or has not the width it should")
	}
}

func TestBands(t *testing.T) {
	c := &chart.XY{Title: "t", X: chart.Axis{Title: "x"}, Y: chart.Axis{Title: "y", Unit: chart.Seconds, Log: true}, Series: []chart.Series{
		{Name: "median", Mark: chart.Band, Points: []chart.Point{{X: 1, Y: 0.01, Low: 0.001, High: 1}, {X: 2, Y: 0.02, Low: 0.002, High: 2}}},
		{Name: "all", Mark: chart.Dots, Points: []chart.Point{{X: 1, Y: 0.5}, {X: 2, Y: math.NaN()}, {X: math.Inf(1), Y: 1}}},
		{Name: "single", Mark: chart.Crosses, Points: []chart.Point{{X: 1, Y: 0.5}, {X: 2, Y: math.NaN()}, {X: 2, Y: 0.1}}}}}
	svg := c.SVG(nil)
	p := parse(t, svg)
	p.has(t, "1 ms", "10 ms", "1 s", "10 s", "median", "all", "single")
	if n := strings.Count(svg, "l10 10m-10 0l10 -10"); n != 3 { // one in the legend and two in the plot
		t.Errorf("%d crosses in\n%s", n, svg)
	}
	if p.elements["polygon"] != 1 || strings.Count(svg, "h0\"/>") != 2 { // one in the legend and one in the plot, where one of three is a point
		t.Errorf("elements %v in\n%s", p.elements, svg)
	}
}

func TestBars(t *testing.T) {
	rows := []chart.Row{{Name: "a", Values: []float64{30, 10}}, {Name: "b", Values: []float64{20, math.NaN()}, Weak: true}, {Name: "c"}}
	side := parse(t, (&chart.Bars{Title: "t", X: chart.Axis{Title: "n"}, Parts: []string{"p", "q"}, Rows: rows}).SVG(nil))
	side.has(t, "30", "10", "20", "no data", "p", "q", "a", "b", "c", "n →")
	stacked := (&chart.Bars{Title: "t", X: chart.Axis{Title: "n"}, Parts: []string{"p", "q"}, Stacked: true, Rows: rows}).SVG(nil)
	bars := regexp.MustCompile(`class="f(\d)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="15.0"><title>a, `).FindAllStringSubmatch(stacked, -1)
	if len(bars) != 2 {
		t.Fatalf("row a has %d parts in\n%s", len(bars), stacked)
	}
	x := func(i, k int) float64 { v, _ := strconv.ParseFloat(bars[i][k], 64); return v }
	if math.Abs(x(0, 2)+x(0, 3)-x(1, 2)) > 0.11 || math.Abs(x(0, 3)-3*x(1, 3)) > 0.3 {
		t.Errorf("parts of 30 and 10 lie at %v", bars)
	}
	parse(t, (&chart.Bars{X: chart.Axis{Log: true}, Rows: []chart.Row{{Name: "x", Values: []float64{10}, Label: "ten"}}}).SVG(nil)).has(t, "ten", "0", "10")
}

func TestColumns(t *testing.T) {
	one := &chart.Columns{Title: "t", XTitle: "hour", Y: chart.Axis{Title: "n"}, Groups: []chart.Group{{Name: "z", Names: []string{"00", "01"}, Values: []float64{5, 10}}}}
	parse(t, one.SVG(nil)).has(t, "00", "01", "hour →", "↑ n", "10")
	one.Groups = append(one.Groups, chart.Group{Name: "w", Names: []string{"00"}, Values: []float64{1}})
	parse(t, one.SVG(nil)).has(t, "z", "w")
	one.Groups = []chart.Group{{Names: []string{"00"}, Values: []float64{math.NaN()}}}
	parse(t, one.SVG(nil)).has(t, "no data")
}

// TestTiniestNumbers checks that numbers without any steps between them give an axis from
// 0 to 1.
func TestTiniestNumbers(t *testing.T) {
	p := parse(t, (&chart.Columns{Groups: []chart.Group{{Names: []string{"a"}, Values: []float64{math.SmallestNonzeroFloat64}}}}).SVG(nil))
	p.has(t, "0", "1")
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		v    float64
		unit chart.Unit
		want string
	}{
		{0, chart.Number, "0"}, {1234567, chart.Number, "1,234,567"}, {-1234, chart.Number, "-1,234"}, {0.25, chart.Number, "0.25"}, {999.96, chart.Number, "1,000"}, {999.94, chart.Number, "999.9"}, {0.1 + 0.2, chart.Number, "0.3"}, {1e20, chart.Number, "1e+20"}, {1e-9, chart.Number, "1e-09"},
		{0, chart.Bytes, "0 B"}, {999, chart.Bytes, "999 B"}, {1000, chart.Bytes, "1 kB"}, {107.5e12, chart.Bytes, "107.5 TB"}, {5e18, chart.Bytes, "5,000 PB"},
		{0, chart.Seconds, "0 s"}, {1e-6, chart.Seconds, "1 µs"}, {0.256, chart.Seconds, "256 ms"}, {90, chart.Seconds, "90 s"},
		{0.5, chart.Share, "50 %"}, {0.00001, chart.Share, "0.001 %"},
		{math.NaN(), chart.Number, "–"}, {math.Inf(-1), chart.Share, "∞"},
	} {
		if got := chart.Format(c.v, c.unit); got != c.want {
			t.Errorf("Format(%v, %d) is %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}

// FuzzCharts checks that a picture is well-formed, has its title and stays within its
// bounds, whatever it is given.
func FuzzCharts(f *testing.F) {
	f.Add(1.0, 2.0, 3.0, "title", "name", 720, false, uint8(0))
	f.Add(math.NaN(), math.Inf(1), math.Inf(-1), "<script>&\"'", "]]>\x00\xff", 0, true, uint8(1))
	f.Add(0.0, 0.0, 0.0, "", "", -5, true, uint8(2))
	f.Add(math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, strings.Repeat("long ", 100), strings.Repeat("ü", 300), 300, false, uint8(3))
	f.Add(1e-300, 1e299, 1.0, "t", "n", 10, true, uint8(3))
	f.Fuzz(func(t *testing.T, a, b, c float64, title, name string, width int, log bool, flags uint8) {
		axis := chart.Axis{Title: name, Unit: chart.Unit(flags % 5), Log: log, Full: flags&64 != 0}
		var points []chart.Point
		for _, x := range []float64{a, b, c}[:min(flags>>3&3, 3)] {
			points = append(points, chart.Point{X: x, Y: b, Low: c, High: a})
		}
		xy := &chart.XY{Title: title, Desc: name, X: axis, Y: axis}
		for m := chart.Line; m <= chart.Crosses; m++ {
			xy.Series = append(xy.Series, chart.Series{Name: name, Mark: m, Points: points})
		}
		values := []float64{a, b, c}[:min(flags>>5&3, 3)]
		for _, p := range []picture{xy,
			&chart.Bars{Title: title, Desc: name, X: axis, Parts: []string{name, title}, Stacked: flags&1 != 0, Rows: []chart.Row{{Name: name, Values: values, Label: title}, {Name: title, Values: values}}},
			&chart.Columns{Title: title, Desc: name, Y: axis, XTitle: name, Groups: []chart.Group{{Name: name, Names: []string{name, title}, Values: values}, {Name: title}}[:1+flags&1]},
			&chart.XY{}, &chart.Bars{}, &chart.Columns{}} {
			svg := p.SVG(&chart.Options{Width: width % 4000, Inline: log})
			if got := parse(t, svg); len(got.titles) < 2 {
				t.Fatalf("the picture has no title and description:\n%s", svg)
			}
		}
	})
}
