package load

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/internal/chart"
	"example.org/slipway/internal/report"
)

// WriteText writes the result for a terminal.
func (r *Result) WriteText(w io.Writer) error { return r.page().WriteText(w) }

// WriteHTML writes the result as one HTML page that refers to no other files.
func (r *Result) WriteHTML(w io.Writer) error { return r.page().WriteHTML(w) }

func (r *Result) page() *report.Page {
	p := &report.Page{Title: "Load on " + r.Name, Facts: r.facts(), Tables: []report.Table{r.stepTable()}, Notes: stepNotes(r)}
	p.Lists = append(p.Lists, report.List{Title: "To be known", Items: r.Notes, Warning: true}, report.List{Title: "What went wrong", Items: r.faultLines(), Warning: true})
	one := []*Result{r}
	p.Charts = append(p.Charts,
		figure(overPullers("Rate by the number of pullers", chart.Axis{Title: r.what() + " a second"}, one, true, curve{"", r.rate})),
		figure(r.times()),
		figure(overTime(one, "Rate over time", r.what()+" a second", chart.Line, func(t *Tally) float64 { return t.Rate })),
		figure(overTime(one, "Pullers over time", "pullers", chart.Step, func(t *Tally) float64 { return float64(t.Pullers) })),
		figure(r.shares()))
	if r.serverWatched() {
		p.Charts = append(p.Charts, figure(overPullers("CPU time of the server", chart.Axis{Title: "for each of the " + r.what(), Unit: chart.Seconds}, one, true, curve{"", serverEach})))
	}
	if r.Total.Failed > 0 {
		p.Charts = append(p.Charts, figure(overTime(one, "Failures over time", "failures a second", chart.Line, func(t *Tally) float64 { return float64(t.Failed) / max(t.Seconds, 1e-9) })))
	}
	if t := r.kindTable(); len(t.Rows) > 0 {
		p.Tables = append(p.Tables, t)
	}
	p.Tables = append(p.Tables, r.optionTable())
	return p
}

func figure(x *chart.XY) report.Figure { return report.NewHalf(x.Title, x) }

// facts returns what a reader wants to know first.
func (r *Result) facts() []string {
	t := &r.Total
	mode := map[string]string{"cached": "pulls of what the registry has", "pull-through": "pulls through to the upstream, pruned after each pass",
		"mixed": "a mix of operations", "cold at first": "pulls, of which the first were new to the registry"}[r.Mode]
	facts := []string{
		fmt.Sprintf("%s: %s of %d images in %d parts, each with %.3g requests and %s", r.Target, mode, r.Images.Count, r.Images.Patterns, r.Images.Requests, report.Bytes(r.Images.Bytes)),
		fmt.Sprintf("best: %s %s a second with %d pullers", rateText(t.Best.Rate), r.what(), t.Best.Pullers),
	}
	if k := r.Knee; k != nil {
		facts = append(facts, fmt.Sprintf("knee: at %.3g pullers and %s %s a second; a puller more brought %s a second before it and %s behind it",
			k.Pullers, rateText(k.Rate), r.what(), rateText(k.Before), rateText(k.Behind)))
	}
	facts = append(facts,
		fmt.Sprintf("%d images, %d requests and %s in %s; %d failed; each manifest and layer was checked against its digest and %d were wrong",
			t.Images, t.Requests, report.Bytes(float64(t.Bytes)), secondsText(t.Seconds), t.Failed, r.Wrong()),
		fmt.Sprintf("an image took %s in the median, %s at p99; the driver took %s of CPU for each of the %s", msText(t.Image.P50), msText(t.Image.P99), msText(t.ClientCPU), r.what()))
	if r.serverWatched() {
		facts = append(facts, fmt.Sprintf("the server took %s of CPU for each of the %s, and at most %s of memory", msText(t.ServerCPU), r.what(), report.Bytes(float64(t.ServerMemory))))
	}
	if p := r.Pushed; p != nil && p.Images > 0 {
		facts = append(facts, fmt.Sprintf("pushed before: %d images of %s in %s; %d were there", p.Images, report.Bytes(float64(p.Bytes)), secondsText(p.Seconds), p.Present))
	}
	if !r.Complete {
		facts = append(facts, "the run ended before its time")
	}
	return facts
}

func (r *Result) serverWatched() bool { return r.Total.ServerCPU > 0 || r.Total.ServerMemory > 0 }

func (r *Result) faultLines() []string {
	var out []string
	for _, f := range r.Faults {
		out = append(out, fmt.Sprintf("%d x %s, such as %s", f.Count, f.Kind, f.Example))
	}
	return out
}

// serverEach returns the CPU time of the server per operation, in seconds.
func serverEach(s *Step) float64 {
	if s.Operations == 0 {
		return 0
	}
	return s.ServerCPU / float64(s.Operations)
}

// curve is a curve of one figure of each step.
type curve struct {
	name string
	of   func(*Step) float64
}

// overPullers draws a figure of the steps of results over the number of pullers. If both
// is true, the way down has curves beside the curves of the way up; otherwise it is left
// out.
func overPullers(title string, y chart.Axis, results []*Result, both bool, curves ...curve) *chart.XY {
	x := &chart.XY{Title: title, Desc: title, X: chart.Axis{Title: "pullers"}, Y: y}
	for _, r := range results {
		for _, c := range curves {
			name := c.name
			if len(results) > 1 {
				name = strings.TrimSpace(r.Name + " " + c.name)
			}
			up, down := wayUp(r.Steps, c.of), wayDown(r.Steps, c.of)
			if both && len(down) > 0 {
				x.Series = append(x.Series, chart.Series{Name: strings.TrimSpace(name + " going up"), Points: up},
					chart.Series{Name: strings.TrimSpace(name + " going down"), Points: down})
				continue
			}
			x.Series = append(x.Series, chart.Series{Name: name, Points: up})
		}
	}
	return x
}

func wayUp(steps []Step, of func(*Step) float64) (points []chart.Point) {
	for i := range steps {
		if !steps[i].Down {
			points = append(points, chart.Point{X: float64(steps[i].Pullers), Y: of(&steps[i])})
		}
	}
	return points
}

// wayDown returns the points of the way down, in the order of pullers. It begins at the
// top, where the way up ends.
func wayDown(steps []Step, of func(*Step) float64) (points []chart.Point) {
	for i := range steps {
		if steps[i].Down && len(points) == 0 && i > 0 {
			points = append(points, chart.Point{X: float64(steps[i-1].Pullers), Y: of(&steps[i-1])})
		}
		if steps[i].Down {
			points = append(points, chart.Point{X: float64(steps[i].Pullers), Y: of(&steps[i])})
		}
	}
	slices.Reverse(points)
	return points
}

// maxPoints bounds the points of a curve over time.
const maxPoints = 600

// overTime draws a figure of the tallies over time.
func overTime(results []*Result, title, y string, mark chart.Mark, of func(*Tally) float64) *chart.XY {
	x := &chart.XY{Title: title, Desc: title, X: chart.Axis{Title: "time of the run", Unit: chart.Seconds}, Y: chart.Axis{Title: y}}
	for _, r := range results {
		s := chart.Series{Name: r.Name, Mark: mark}
		every := (len(r.Tallies) + maxPoints - 1) / maxPoints
		for i := 0; i < len(r.Tallies); i += every {
			sum, weight := 0.0, 0.0
			for _, t := range r.Tallies[i:min(i+every, len(r.Tallies))] {
				w := max(t.Seconds, 1e-9)
				sum, weight = sum+w*of(&t), weight+w
			}
			t := r.Tallies[i]
			s.Points = append(s.Points, chart.Point{X: t.At - t.Seconds/2, Y: sum / weight})
		}
		x.Series = append(x.Series, s)
	}
	return x
}

// times draws how long pulling an image takes.
func (r *Result) times() *chart.XY {
	return overPullers("Time of an image by the number of pullers", chart.Axis{Title: "time of a whole image", Unit: chart.Seconds, Log: true}, []*Result{r}, false,
		curve{"p50", func(s *Step) float64 { return s.Image.P50 / 1e3 }},
		curve{"p99", func(s *Step) float64 { return s.Image.P99 / 1e3 }},
		curve{"longest", func(s *Step) float64 { return s.Image.Max / 1e3 }})
}

// shares draws which processes used the processors.
func (r *Result) shares() *chart.XY {
	return overPullers("Processors of the driver's machine", chart.Axis{Title: "share of the processors", Unit: chart.Share, Full: true}, []*Result{r}, false,
		curve{"the driver", func(s *Step) float64 { return min(s.ClientShare, 1) }},
		curve{"everybody", func(s *Step) float64 { return min(s.MachineShare, 1) }})
}

func (r *Result) stepTable() report.Table {
	t := report.Table{Title: "Steps", Caption: "A row for each number of pullers, in the order of the run", Names: 0,
		Head: []string{"pullers", r.what() + "/s", "MB/s", "requests/s", "p50", "p99", "longest", "request", "failed", "driver %", "machine %"}}
	if r.serverWatched() {
		t.Head = append(t.Head, "server CPU")
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		sec := max(s.Seconds, 1e-9)
		row := []string{strconv.Itoa(s.Pullers), rateText(r.rate(s)), rateText(float64(s.Bytes) / 1e6 / sec), rateText(float64(s.Requests) / sec),
			msText(s.Image.P50), msText(s.Image.P99), msText(s.Image.Max), msText(s.Request.P50),
			strconv.FormatInt(s.Failed, 10), fmt.Sprintf("%.0f", 100*s.ClientShare), fmt.Sprintf("%.0f", 100*s.MachineShare)}
		if r.serverWatched() {
			row = append(row, msText(1e3*serverEach(s)))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func stepNotes(r *Result) []report.Note {
	notes := []report.Note{
		{Name: r.what() + "/s", Text: "What the driver itself counted: whole images, each with its manifests, configuration and layers, all of them right. Pruning takes time of which no images come."},
		{Name: "p50 to longest", Text: "How long a whole image took; request: the median of one request, to the last byte of the answer."},
		{Name: "driver %, machine %", Text: "CPU time of the driver, and of everything on its machine, of what its processors have. Above 85 % for the driver its rates are its own limit."},
	}
	if r.serverWatched() {
		notes = append(notes, report.Note{Name: "server CPU", Text: "CPU time of the process that was watched, for each of what succeeded."})
	}
	return notes
}

// kindTable returns a table of the operations by kind, over the whole run.
func (r *Result) kindTable() report.Table {
	t := report.Table{Title: "Operations by kind", Caption: "A row for each kind and number of pullers", Names: 1, Head: []string{"kind", "pullers", "done", "failed", "mean", "p50", "p99", "longest"}}
	for o := range ops {
		for i := range r.Steps {
			s := &r.Steps[i]
			if k, ok := s.Kinds[o.String()]; ok {
				t.Rows = append(t.Rows, []string{o.String(), strconv.Itoa(s.Pullers), strconv.FormatInt(k.Done, 10), strconv.FormatInt(k.Failed, 10),
					msText(k.Times.Mean), msText(k.Times.P50), msText(k.Times.P99), msText(k.Times.Max)})
			}
		}
	}
	return t
}

func (r *Result) optionTable() report.Table {
	t := report.Table{Title: "How it was measured", Caption: "Options that were given, and where it ran", Names: 2, Head: []string{"what", "value"}}
	names := make([]string, 0, len(r.Options))
	for name := range r.Options {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t.Rows = append(t.Rows, []string{"--" + name, r.Options[name]})
	}
	e := r.Environment
	t.Rows = append(t.Rows, []string{"begun", r.Began.Format("2006-01-02 15:04:05 UTC")},
		[]string{"slipway", e.Slipway}, []string{"machine", fmt.Sprintf("%s, %s/%s, %d processors", e.Go, e.OS, e.Arch, e.CPUs)})
	return t
}

// rateText formats a number with at least three digits.
func rateText(v float64) string {
	switch a := max(v, -v); {
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// ratioText formats a ratio.
func ratioText(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }

// msText formats milliseconds.
func msText(ms float64) string {
	switch {
	case ms >= 10000:
		return rateText(ms/1e3) + " s"
	case ms >= 1 || ms == 0:
		return rateText(ms) + " ms"
	}
	return strconv.FormatFloat(1e3*ms, 'f', 0, 64) + " µs"
}

func secondsText(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond).String()
}
