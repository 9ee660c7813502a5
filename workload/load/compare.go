package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"example.org/slipway/internal/chart"
	"example.org/slipway/internal/report"
)

// Comparison compares several results. The first is the baseline.
type Comparison struct {
	Names []string `json:"names"`
	// Levels has the numbers of pullers of the ways up of all results.
	Levels []ComparedLevel `json:"levels"`
	// Best has the highest rate of each result. Ratios has these rates, divided by the
	// first result's rate.
	Best   []Level   `json:"best"`
	Ratios []float64 `json:"best_ratios"`
	// Notes say why the results are not fully comparable.
	Notes   []string `json:"notes,omitempty"`
	results []*Result
}

// ComparedLevel has the rates at one number of pullers, one rate for each result. It is 0
// for a result without that number.
type ComparedLevel struct {
	Pullers int       `json:"pullers"`
	Rates   []float64 `json:"rates"`
	Ratios  []float64 `json:"ratios"`
}

// Compare compares results. It needs at least two.
func Compare(results []*Result) (*Comparison, error) {
	if len(results) < 2 {
		return nil, errors.New("a comparison needs two results")
	}
	c := &Comparison{results: results}
	rates := map[int][]float64{}
	for i, r := range results {
		c.Names = append(c.Names, r.Name)
		c.Best = append(c.Best, r.Total.Best)
		c.Ratios = append(c.Ratios, ratio(r.Total.Best.Rate, results[0].Total.Best.Rate))
		for j := range r.Steps {
			if s := &r.Steps[j]; !s.Down {
				if rates[s.Pullers] == nil {
					rates[s.Pullers] = make([]float64, len(results))
				}
				rates[s.Pullers][i] = r.rate(s)
			}
		}
	}
	for pullers, list := range rates {
		l := ComparedLevel{Pullers: pullers, Rates: list}
		for _, v := range list {
			l.Ratios = append(l.Ratios, ratio(v, list[0]))
		}
		c.Levels = append(c.Levels, l)
	}
	slices.SortFunc(c.Levels, func(a, b ComparedLevel) int { return a.Pullers - b.Pullers })
	c.Notes = unlike(results)
	return c, nil
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// unlike returns how the results differ apart from the registry.
func unlike(results []*Result) []string {
	var notes []string
	first := results[0]
	for _, r := range results[1:] {
		switch {
		case r.Mode != first.Mode:
			notes = append(notes, fmt.Sprintf("%s is %s, %s is %s", first.Name, first.Mode, r.Name, r.Mode))
		case r.Images != first.Images:
			notes = append(notes, fmt.Sprintf("%s and %s pulled different images", first.Name, r.Name))
		}
		if r.Environment.CPUs != first.Environment.CPUs || r.Environment.Arch != first.Environment.Arch {
			notes = append(notes, fmt.Sprintf("the drivers of %s and %s ran on different machines", first.Name, r.Name))
		}
	}
	for _, r := range results {
		for _, n := range r.Notes {
			notes = append(notes, r.Name+": "+n)
		}
		if !r.Complete {
			notes = append(notes, r.Name+": the run ended before its time")
		}
	}
	return notes
}

// WriteJSON writes the comparison as JSON.
func (c *Comparison) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(c)
}

// WriteText writes the comparison for a terminal.
func (c *Comparison) WriteText(w io.Writer) error { return c.page().WriteText(w) }

// WriteHTML writes the comparison as one HTML page that refers to no other files.
func (c *Comparison) WriteHTML(w io.Writer) error { return c.page().WriteHTML(w) }

func (c *Comparison) page() *report.Page {
	first := c.results[0]
	what := first.what()
	p := &report.Page{Title: "Load compared", Lists: []report.List{{Title: "To be known", Items: c.Notes, Warning: true}},
		Tables: []report.Table{c.levelTable(what), c.totalTable()},
		Notes: []report.Note{
			{Name: "x " + first.Name, Text: "How many times the rate of " + first.Name + " with as many pullers. Rates are those of the way up."},
			{Name: "p50, p99", Text: "How long a whole image took, over the whole run."},
			{Name: "driver CPU, server CPU", Text: "CPU time for each of the " + what + " that succeeded; that of the server where its process was watched."}}}
	for i, r := range c.results {
		line := fmt.Sprintf("%s: %s %s a second at best, with %d pullers", r.Name, rateText(r.Total.Best.Rate), r.what(), r.Total.Best.Pullers)
		if i > 0 {
			line += fmt.Sprintf("; %s times that of %s", ratioText(c.Ratios[i]), first.Name)
		}
		p.Facts = append(p.Facts, line)
	}
	took := chart.Axis{Title: "time of a whole image", Unit: chart.Seconds, Log: true}
	p.Charts = []report.Figure{
		figure(overPullers("Rate by the number of pullers", chart.Axis{Title: what + " a second"}, c.results, false, curve{"", first.rate})),
		figure(overTime(c.results, "Rate over time", what+" a second", chart.Line, func(t *Tally) float64 { return t.Rate })),
		figure(overPullers("Median time of an image", took, c.results, false, curve{"", func(s *Step) float64 { return s.Image.P50 / 1e3 }})),
		figure(overPullers("99th percentile of the time of an image", took, c.results, false, curve{"", func(s *Step) float64 { return s.Image.P99 / 1e3 }})),
	}
	watched := slices.DeleteFunc(slices.Clone(c.results), func(r *Result) bool { return !r.serverWatched() })
	if len(watched) > 0 {
		x := overPullers("CPU time of the server", chart.Axis{Title: "for each of the " + what, Unit: chart.Seconds}, watched, false, curve{"", serverEach})
		if len(watched) == 1 {
			x.Title += " " + watched[0].Name
		}
		p.Charts = append(p.Charts, figure(x))
	}
	return p
}

func (c *Comparison) levelTable(what string) report.Table {
	t := report.Table{Title: "Rates", Caption: "Of " + what + " a second, a row for each number of pullers", Head: []string{"pullers"}}
	for i, name := range c.Names {
		t.Head = append(t.Head, name)
		if i > 0 {
			t.Head = append(t.Head, "x "+c.Names[0])
		}
	}
	for _, l := range c.Levels {
		row := []string{strconv.Itoa(l.Pullers)}
		for i, v := range l.Rates {
			row = append(row, orDash(v))
			if i > 0 {
				row = append(row, ratioText(l.Ratios[i]))
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func orDash(v float64) string {
	if v == 0 {
		return "-"
	}
	return rateText(v)
}

func (c *Comparison) totalTable() report.Table {
	t := report.Table{Title: "Whole runs", Caption: "A row for each result", Names: 2,
		Head: []string{"result", "mode", "images", "failed", "wrong", "p50", "p99", "driver CPU", "server CPU", "server memory"}}
	for _, r := range c.results {
		o := &r.Total
		cpu, memory := "-", "-"
		if r.serverWatched() {
			cpu, memory = msText(o.ServerCPU), report.Bytes(float64(o.ServerMemory))
		}
		t.Rows = append(t.Rows, []string{r.Name, r.Mode, strconv.FormatInt(o.Images, 10), strconv.FormatInt(o.Failed, 10), strconv.FormatInt(r.Wrong(), 10),
			msText(o.Image.P50), msText(o.Image.P99), msText(o.ClientCPU), cpu, memory})
	}
	return t
}
