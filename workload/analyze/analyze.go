// Package analyze describes the workload of a registry by every table and figure of Anwar
// et al., "Improving Docker Registry Design based on Production Workload Analysis"
// (FAST'18). It computes them from a trace in one pass.
//
// An [Analysis] sees the requests of one zone once, in order of time, in batches of
// columns. At the end it returns the [Result] of one or more figures. All figures of the
// paper are made in this way, and so are the figures of a [Plugin] of another author.
// [Run] reads each zone of a store once for all analyses, and several zones at the same
// time. A [Report] holds the results beside the numbers of the paper, and is written as
// CSV, JSON, SVG and one page of HTML.
//
// [Figure.Definition] says exactly what a figure counts; docs/analysis.md has all
// definitions. If a source lacks a size or a duration, the request is left out of the
// figures that need it, and these figures say how many requests they lack. What is
// unknown is never counted as 0.
package analyze

import (
	"fmt"
	"math"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace/store"
)

// Analysis computes figures of one zone. It is used by one goroutine at a time.
type Analysis interface {
	// Columns returns the columns that Add reads, beside the time.
	Columns() store.Columns
	// Add takes the next requests, none of which is earlier than the requests before. The
	// result must not depend on where one batch ends and the next begins. Add must not
	// keep the batch: its memory is used again.
	Add(b *store.Batch)
	// Result is called once, after the last batch. It returns one result for each figure
	// of the plug-in, in their order.
	Result() []Result
}

// Plugin makes one or more figures.
type Plugin struct {
	// Figures are the figures that the plug-in makes. No other plug-in may use their ids.
	Figures []Figure
	// New begins the analysis of a zone. It may be called for several zones at once.
	New func(zone store.Zone, o *Options) Analysis
}

// Figure describes a figure.
type Figure struct {
	// ID names it in file names and links: lower-case letters, digits and '-'.
	ID    string `json:"id"`
	Title string `json:"title"`
	// Definition says what is computed, in full.
	Definition string `json:"definition"`
	// Error says how far the numbers may be from the truth. It is empty if they are
	// exact.
	Error string `json:"error,omitempty"`
	Plot  Plot   `json:"-"`
}

// PlotKind is how a figure is drawn.
type PlotKind uint8

// These are the kinds of plots.
const (
	// NoPlot is for a figure that is a table.
	NoPlot PlotKind = iota
	// PlotCDF draws a cumulative distribution for each series.
	PlotCDF
	// PlotLines draws a line for each series.
	PlotLines
	// PlotBars draws a bar for each zone, from the first point of its first series.
	PlotBars
	// PlotStacked draws a bar for each zone, made of the points of its first series.
	PlotStacked
	// PlotColumns draws a group of columns for each zone, one for each point of its
	// first series.
	PlotColumns
	// PlotBands draws a line with a band from Low to High for the first series, and
	// the second as dots.
	PlotBands
)

// Plot says how a figure is drawn.
type Plot struct {
	Kind PlotKind
	X, Y chart.Axis
	// PerZone draws a picture of each zone. Otherwise the zones share one picture, or one
	// for each series if there are several zones and several series.
	PerZone bool
}

// Unit is what a value counts.
type Unit string

// These are the units.
const (
	Number  Unit = "number"
	Bytes   Unit = "bytes"
	Seconds Unit = "seconds"
	// Share is a part of one.
	Share Unit = "share"
)

// Value is one number of a figure.
type Value struct {
	Name  string  `json:"name"`
	Unit  Unit    `json:"unit"`
	Value float64 `json:"value"`
}

// Point is a point of a series. Label names the category of a bar; Low and High are
// the ends of a band.
type Point struct {
	Label string  `json:"label,omitempty"`
	X     float64 `json:"x"`
	Y     float64 `json:"y"`
	Low   float64 `json:"low,omitempty"`
	High  float64 `json:"high,omitempty"`
}

// Series is a curve or a group of bars.
type Series struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Result is a figure of one zone.
type Result struct {
	// Requests is the number of requests behind the figure.
	Requests int64 `json:"requests"`
	// Unknown is the number of requests that are left out because the source lacks
	// something that the figure needs.
	Unknown int64 `json:"unknown"`
	// Notes are sentences a reader must know, such as how many days are absent.
	Notes []string `json:"notes,omitempty"`
	// Values are the figure's numbers. A value that is not defined, such as the median of
	// nothing, is left out.
	Values []Value  `json:"values"`
	Series []Series `json:"series,omitempty"`
}

// Value returns a value by its name.
func (r *Result) Value(name string) (float64, bool) {
	for _, v := range r.Values {
		if v.Name == name {
			return v.Value, true
		}
	}
	return 0, false
}

// check returns an error if a number is NaN or infinite: JSON cannot hold it.
func (r *Result) check() error {
	none := func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }
	for _, v := range r.Values {
		if none(v.Value) {
			return fmt.Errorf("value %q is %v", v.Name, v.Value)
		}
	}
	for _, s := range r.Series {
		for i, p := range s.Points {
			if none(p.X) || none(p.Y) || none(p.Low) || none(p.High) {
				return fmt.Errorf("point %d of series %q is %+v", i, s.Name, p)
			}
		}
	}
	return nil
}

// add adds a value unless it is NaN or infinite.
func (r *Result) add(name string, u Unit, v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		r.Values = append(r.Values, Value{name, u, v})
	}
}

// count adds a number of something.
func (r *Result) count(name string, n int64) { r.add(name, Number, float64(n)) }

// share adds a part of a whole. It adds nothing if the whole is 0.
func (r *Result) share(name string, part, whole int64) {
	if whole > 0 {
		r.add(name, Share, float64(part)/float64(whole))
	}
}

func (r *Result) note(s string) { r.Notes = append(r.Notes, s) }

// Builtin returns the plug-ins of all figures of the paper, in its order.
func Builtin() []Plugin {
	return []Plugin{table1(), figure4(), figure5(), figure6(), figure7(), figure8(), figure9(),
		popularity(), figure12(), figure13(), figure14(), figure15()}
}
