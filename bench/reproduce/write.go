package reproduce

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "embed"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/internal/chart"
)

//go:embed page.html
var pageHTML string

// picture is something that can be drawn.
type picture interface {
	SVG(o *chart.Options) string
}

// drawn is a picture and the name of its file.
type drawn struct {
	File, Title string
	picture
}

// slug makes a name for links and files.
func slug(s string) string {
	words := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') })
	return strings.Join(words, "-")
}

// heading returns the title of an entry in the report.
func (j *judged) heading() string { return j.Paper + ", " + j.Name + ": " + j.Title }

// anchor returns the anchor of a heading, as the usual repository hosts make it.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		}
		return -1
	}, strings.ToLower(heading))
}

const (
	// mostBars is how many values a picture of bars has at most. A longer table has no picture.
	mostBars = 24
	// wideRange is the ratio of the largest to the smallest value from which on bars are
	// logarithmic.
	wideRange = 50
)

// pictures draws what was measured beside what was published: the curves, and bars of the values of
// each unit.
func (j *judged) pictures() (out []drawn) {
	if j.found == nil {
		return nil
	}
	if p := j.curves(); p != nil {
		out = append(out, drawn{"reproduce-" + j.ID() + ".svg", p.Title, p})
	}
	if strings.HasPrefix(j.Name, "Table") {
		return out
	}
	for _, u := range []chart.Unit{chart.Number, chart.Share, chart.Seconds, chart.Bytes} {
		if b := j.bars(u); b != nil {
			out = append(out, drawn{fmt.Sprintf("reproduce-%s-%s.svg", j.ID(), unitName(u)), b.Title, b})
		}
	}
	return out
}

func unitName(u chart.Unit) string { return [...]string{"number", "bytes", "seconds", "share"}[u] }

// curves draws all curves in one picture. It returns nil if nothing was measured.
func (j *judged) curves() *chart.XY {
	if len(j.found.Curves) == 0 || j.X.Title == "" {
		return nil
	}
	title := j.heading()
	p := &chart.XY{Title: title, Desc: title + ", as published and as measured here", X: j.X, Y: j.Y}
	for _, c := range slices.Concat(j.Curves, j.found.Curves) {
		mark := chart.Line
		switch {
		case c.Single:
			mark = chart.Crosses
		case c.Step:
			mark = chart.Step
		}
		p.Series = append(p.Series, chart.Series{Name: c.Name, Mark: mark, Points: c.Points})
	}
	return p
}

// bars draws the values of one unit, published and measured. It returns nil if there are none, or too
// many.
func (j *judged) bars(u chart.Unit) *chart.Bars {
	title := j.Paper + ", " + j.Name + ": values"
	b := &chart.Bars{Title: title, Desc: title + ", as published and as measured here", X: chart.Axis{Title: j.Title, Unit: u}, Parts: []string{"published", "here"}}
	least, most := math.Inf(1), 0.0
	for _, c := range j.Claims {
		v := j.found.Values[c.Name]
		if c.Unit != u || v.N == 0 {
			continue
		}
		b.Rows = append(b.Rows, chart.Row{Name: c.Name, Values: []float64{c.bound(), v.Median}})
		for _, x := range []float64{c.bound(), v.Median} {
			if x > 0 {
				least, most = min(least, x), max(most, x)
			}
		}
	}
	if len(b.Rows) == 0 || len(b.Rows) > mostBars {
		return nil
	}
	b.X.Log = most/least > wideRange
	return b
}

// report is everything that is written.
type report struct {
	Papers  []Paper
	Entries []*judged
	Limits  []Limit
}

// newReport judges all entries.
func newReport(f figures) *report {
	out := &report{Papers: Papers(), Limits: Limits()}
	for _, e := range Entries() {
		out.Entries = append(out.Entries, e.judge(f[e.ID()]))
	}
	return out
}

// of returns the entries of a paper.
func (r *report) of(p Paper) (out []*judged) {
	for _, j := range r.Entries {
		if j.Paper == p.ID {
			out = append(out, j)
		}
	}
	return out
}

// pictures returns all pictures.
func (r *report) pictures() (out []drawn) {
	for _, j := range r.Entries {
		out = append(out, j.pictures()...)
	}
	return out
}

// verdictText says what came out, in words.
func (j *judged) verdictText() string {
	if j.verdict == NotRun {
		return "not run"
	}
	var parts []string
	for _, v := range []Verdict{Reproduced, Better, Worse, NotRun} {
		if n := j.count(v); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	return j.verdict.String() + " (" + strings.Join(parts, ", ") + ")"
}

// how says how and when an entry was measured, or how to measure it.
func (j *judged) how() string {
	command := "make reproduce ONLY=" + j.Part
	if j.found == nil || j.found.Run == nil {
		p := partByName(j.Part)
		return fmt.Sprintf("Not run: `%s` takes about %d minutes and needs %s.", command, p.Minutes, p.Needs)
	}
	quick := ""
	if j.found.Run.Quick {
		quick = " **A quick look, not a measurement.**"
	}
	run := j.found.Run
	return fmt.Sprintf("Measured by `%s` (`%s`) at %s on %s, rounds: %d; %s.%s", run.Command, command, run.Commit,
		run.Date.UTC().Format("2 January 2006"), run.Rounds, run.Machine, quick)
}

// rows returns the table of an entry.
func (j *judged) rows() (out [][]string) {
	for i, c := range j.Claims {
		here, verdict := "–", j.verdicts[i].String()
		if j.found != nil {
			if v := j.found.Values[c.Name]; v.N > 0 {
				here = c.spread(v)
			}
		}
		if c.Within > 0 {
			verdict += fmt.Sprintf(", tolerance %.0f %%", 100*c.Within)
		}
		out = append(out, []string{c.Name, c.Published(), here, verdict})
	}
	return out
}

// markdown returns the report for the document. Pictures are in the directory img beside it.
func (r *report) markdown() string {
	var w strings.Builder
	fmt.Fprintf(&w, "### Summary\n\n%s\n\n", rule)
	for _, p := range r.Papers {
		fmt.Fprintf(&w, "**%s**: %s. %s\n\n", p.ID, link(p), p.Left)
		var rows [][]string
		for _, j := range r.of(p) {
			rows = append(rows, []string{fmt.Sprintf("[%s](#%s)", j.Name, anchor(j.heading())), j.Title, j.verdictText(), "`" + j.Part + "`"})
		}
		measure.Table(&w, 4, []string{"entry", "what", "verdict", "part"}, rows)
		w.WriteString("\n")
	}
	w.WriteString("### What the authors left\n\nWhat the papers name as future work or as a limit, and where Slipway stands.\n\n")
	var rows [][]string
	for _, l := range r.Limits {
		rows = append(rows, []string{l.Paper, l.What, l.Here})
	}
	measure.Table(&w, 3, []string{"paper", "future work or limit", "Slipway"}, rows)
	for _, j := range r.Entries {
		j.markdown(&w)
	}
	return w.String()
}

func link(p Paper) string {
	if p.Link == "" {
		return p.Title
	}
	return "[" + p.Title + "](" + p.Link + ")"
}

func (j *judged) markdown(w *strings.Builder) {
	fmt.Fprintf(w, "\n### %s\n\n", j.heading())
	fmt.Fprintf(w, "Verdict: **%s**\n\n- In the paper: %s\n- Here: %s\n- Published values: %s.\n- %s\n\n", j.verdictText(), j.Did, j.Differs, j.Source, j.how())
	for _, p := range j.pictures() {
		fmt.Fprintf(w, "![%s](img/%s)\n\n", p.Title, p.File)
	}
	measure.Table(w, 4, []string{"value", "published", "here", "verdict"}, j.rows())
}

// section is an entry on the page.
type section struct {
	ID, Heading, Verdict, Did, Differs, Source, How string
	Rows                                            [][]string
	Pictures                                        []template.HTML
}

// html writes the report as one page that needs nothing else.
func (r *report) html(w io.Writer) error {
	t, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return err
	}
	data := struct {
		Rule     string
		CSS      template.CSS
		Papers   []Paper
		Limits   []Limit
		Sections []section
	}{strings.ReplaceAll(rule, "*", ""), template.CSS(chart.CSS()), r.Papers, r.Limits, nil}
	for _, j := range r.Entries {
		s := section{ID: j.ID(), Heading: j.heading(), Verdict: j.verdictText(), Did: j.Did, Differs: j.Differs,
			Source: j.Source, How: strings.NewReplacer("`", "", "*", "").Replace(j.how()), Rows: j.rows()}
		for _, p := range j.pictures() {
			// The pictures escape all text they are given.
			s.Pictures = append(s.Pictures, template.HTML(p.SVG(&chart.Options{Inline: true})))
		}
		data.Sections = append(data.Sections, s)
	}
	return t.Execute(w, data)
}

// writePictures writes the pictures into a directory, from which it removes the pictures
// of an earlier report.
func (r *report) writePictures(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "reproduce-*.svg"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	for _, p := range r.pictures() {
		if err := os.WriteFile(filepath.Join(dir, p.File), []byte(p.SVG(nil)), 0o644); err != nil {
			return err
		}
	}
	return nil
}
