package trace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Figures compares the published figures with the figures that the analysis finds in
// synthetic traces.
type Figures struct {
	Run    measure.Run  `json:"run"`
	Traces []FigureList `json:"traces"`
}

// FigureList holds the figures of one set of traces.
type FigureList struct {
	Name string `json:"name"`
	// Met is the number of figures within their tolerance. Missed lists the figures
	// outside it, and NotFound lists the figures that the analysis does not have.
	Met      int      `json:"met"`
	Missed   []Found  `json:"missed,omitempty"`
	NotFound []string `json:"not_found,omitempty"`
}

// Found is a published figure with the value that was found.
type Found struct {
	Published
	Got float64 `json:"got"`
}

func runFigures(b *bench, ctx context.Context) error {
	began := time.Now()
	if b.o.published == "" {
		return errors.New("which figures were published? Give -published or SLIPWAY_PUBLISHED")
	}
	text, err := os.ReadFile(b.o.published)
	if err != nil {
		return err
	}
	published, err := parsePublished(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", b.o.published, err)
	}
	out := &Figures{}
	if !b.Run.Quick {
		l, err := b.statedFigures(ctx, published)
		if err != nil {
			return err
		}
		out.Traces = append(out.Traces, *l)
	}
	if b.analysed == nil && b.Run.Quick {
		if err := runAnalyse(b, ctx); err != nil {
			return err
		}
	}
	if b.analysed != nil {
		rep, err := readReport(b.analysed.dir)
		if err != nil {
			return err
		}
		l := rep.judge(fmt.Sprintf("%d requests of seven zones", b.analysed.requests), published)
		out.Traces = append(out.Traces, *l)
	}
	for _, l := range out.Traces {
		b.Logf("%s: %d figures met, %d not, %d not in the analysis", l.Name, l.Met, len(l.Missed), len(l.NotFound))
	}
	out.Run = b.Since(began)
	b.results.Figures = out
	return nil
}

// statedFigures makes the traces for which the tolerances are stated.
func (b *bench) statedFigures(ctx context.Context, published []Published) (*FigureList, error) {
	store, report := b.NewDir(), b.NewDir()
	defer b.Remove(store, report)
	seen := map[string]bool{}
	for _, p := range published {
		if seen[p.Zone] || p.Zone == allZones {
			continue
		}
		seen[p.Zone] = true
		requests := "300000"
		if p.Zone == "dal" {
			requests = "857000"
		}
		if _, _, err := b.Slipway(ctx, 0, "trace", "generate", "--zone", p.Zone, "--seed", "1", "--requests", requests, "-o", store); err != nil {
			return nil, err
		}
	}
	if _, _, err := b.Slipway(ctx, 0, "trace", "analyze", store, "-o", report); err != nil {
		return nil, err
	}
	rep, err := readReport(report)
	if err != nil {
		return nil, err
	}
	rep.partial = true
	return rep.judge("300000 requests of each zone, 857000 of dal", published), nil
}

// judge compares a report with the published figures.
func (r *report) judge(name string, published []Published) *FigureList {
	l := &FigureList{Name: name}
	for _, p := range published {
		got, ok := r.find(p)
		switch {
		case !ok:
			l.NotFound = append(l.NotFound, p.Zone+": "+p.Name)
		case got >= p.Low && got <= p.High:
			l.Met++
		default:
			l.Missed = append(l.Missed, Found{p, got})
		}
	}
	return l
}

// Title is the heading.
func (f *Figures) Title() string { return "Published figures" }

// Head says how the part was measured.
func (f *Figures) Head() string { return f.Run.Head() }

// About says what was done.
func (f *Figures) About() string {
	return "Each figure of [synthetic-traces.md](synthetic-traces.md), with its tolerance, beside what `slipway trace analyze` says of generated traces: of the traces for which the tolerances are stated, and of the trace that was analysed above. " +
		"The analysis counts some things in another way than the project's own test of the generator: clients without their pings, and sizes in the analysis' own bins. \"Not in the analysis\" are figures that it counts in a quite different way, or not at all."
}

// Targets returns what is promised.
func (f *Figures) Targets() []measure.Target {
	var out []measure.Target
	for _, l := range f.Traces {
		out = append(out, measure.Target{Scenario: "figures", What: "not met, " + l.Name, Figure: float64(len(l.Missed)), Missing: f.Run.Quick})
	}
	return out
}

// Write writes the tables.
func (f *Figures) Write(w *strings.Builder) {
	var rows, missed [][]string
	for _, l := range f.Traces {
		rows = append(rows, []string{l.Name, fmt.Sprint(l.Met), fmt.Sprint(len(l.Missed)), fmt.Sprint(len(l.NotFound))})
		for _, m := range l.Missed {
			missed = append(missed, []string{l.Name, m.Zone, m.Name, fmt.Sprintf("%.4g to %.4g", m.Low, m.High), fmt.Sprintf("%.4g", m.Got)})
		}
	}
	measure.Table(w, 1, []string{"traces", "met", "not met", "not in the analysis"}, rows)
	if len(missed) > 0 {
		w.WriteString("\nNot met:\n\n")
		measure.Table(w, 3, []string{"traces", "zone", "figure", "accepted", "found"}, missed)
	}
	for _, l := range f.Traces {
		if names := zonesOfNames(l.NotFound); names != "" {
			fmt.Fprintf(w, "\nNot in the analysis of %s: %s.\n", l.Name, names)
		}
	}
}

// zonesOfNames joins names "ZONE: FIGURE", each figure once.
func zonesOfNames(list []string) string {
	var order []string
	zones := map[string][]string{}
	for _, s := range list {
		zone, figure, _ := strings.Cut(s, ": ")
		if zones[figure] == nil {
			order = append(order, figure)
		}
		zones[figure] = append(zones[figure], zone)
	}
	for i, figure := range order {
		order[i] = figure + " (" + strings.Join(zones[figure], " ") + ")"
	}
	return strings.Join(order, "; ")
}

// Pictures returns no pictures: slipway trace analyze makes its own.
func (f *Figures) Pictures() []measure.Picture { return nil }
