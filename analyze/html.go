package analyze

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"strings"

	"example.org/slipway/chart"
)

//go:embed report.html
var pageText string

//go:embed report.css
var pageStyle string

// page is what the template is given.
type page struct {
	Style    template.CSS
	Settings []setting
	Zones    []ZoneSummary
	Figures  []pageFigure
	Compared int
	Outside  []string // zones that are not in the paper
}

type setting struct{ Name, Value string }

type pageFigure struct {
	Figure
	Anchor   string
	File     string
	Curves   bool
	Pictures []pagePicture
	Zones    []string
	Rows     []pageRow
	Notes    []pageNote
	Compared []pageComparison
}

type pagePicture struct {
	Caption string
	File    string
	Wide    template.HTML
	Narrow  template.HTML
}

type pageRow struct {
	Name  string
	Cells []string
}

type pageNote struct{ Zone, Text string }

type pageComparison struct {
	Zone, Quantity, Ours, Published, Difference, Source string
	// Mark is "in", "out" or "" for one that cannot be judged.
	Mark string
}

// HTML is the report as one page that needs nothing from outside.
func (r *Report) HTML() ([]byte, error) {
	t, err := template.New("report").Parse(pageText)
	if err != nil {
		return nil, fmt.Errorf("write report: %w", err)
	}
	p := page{Style: template.CSS(pageStyle + chart.CSS()), Settings: r.settings(), Zones: r.Zones}
	for _, z := range r.Zones {
		if z.Paper == "" {
			p.Outside = append(p.Outside, z.Name)
		}
	}
	for i := range r.Figures {
		f := r.Figures[i].page()
		p.Compared += len(f.Compared)
		p.Figures = append(p.Figures, f)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return nil, fmt.Errorf("write report: %w", err)
	}
	return b.Bytes(), nil
}

// settings are those worth a line.
func (r *Report) settings() []setting {
	s := r.Settings
	out := []setting{{"Session (Figure 12)", s.Session}}
	if s.StopAtNext {
		out[0].Value += ", ends at the next manifest"
	}
	out = append(out, setting{"Keep-alive (Figure 13a)", s.KeepAlive}, setting{"Sizes (Figure 6)", "of " + s.SizesOf},
		setting{"Time zone (Figure 14)", s.TimeZone}, setting{"Layers are the same (Figures 10a, 11a)", "by " + string(s.LayersBy)})
	if s.From != "" {
		out = append(out, setting{"From", s.From})
	}
	if s.To != "" {
		out = append(out, setting{"To (not included)", s.To})
	}
	return out
}

func (f *FigureReport) page() pageFigure {
	p := pageFigure{Figure: f.Figure, Anchor: f.file(), File: f.file()}
	for _, pic := range f.pictures() {
		p.Pictures = append(p.Pictures, pagePicture{Caption: pic.caption, File: pic.file,
			// The pictures escape all text they are given.
			Wide:   template.HTML(pic.picture.SVG(&chart.Options{Width: 720, Inline: true})),
			Narrow: template.HTML(pic.picture.SVG(&chart.Options{Width: 330, Inline: true}))})
	}
	p.table(f)
	for _, z := range f.Zones {
		for _, series := range z.Series {
			p.Curves = p.Curves || len(series.Points) > 0
		}
		for _, n := range z.Notes {
			p.Notes = append(p.Notes, pageNote{z.Zone, n})
		}
	}
	for _, c := range f.Comparisons {
		p.Compared = append(p.Compared, c.page())
	}
	return p
}

// table has a row for each number and a column for each zone.
func (p *pageFigure) table(f *FigureReport) {
	rows := map[string]int{}
	row := func(name string) *pageRow {
		i, ok := rows[name]
		if !ok {
			i = len(p.Rows)
			rows[name] = i
			p.Rows = append(p.Rows, pageRow{Name: name, Cells: make([]string, len(f.Zones))})
			for k := range p.Rows[i].Cells {
				p.Rows[i].Cells[k] = "–"
			}
		}
		return &p.Rows[i]
	}
	var unknown int64
	for i, z := range f.Zones {
		p.Zones = append(p.Zones, z.Zone)
		for _, v := range z.Values {
			row(v.Name).Cells[i] = format(v.Value, v.Unit)
		}
		unknown += z.Unknown
	}
	for i, z := range f.Zones {
		row("requests in the figure").Cells[i] = format(float64(z.Requests), Number)
		if unknown > 0 {
			row("requests left out as unknown").Cells[i] = format(float64(z.Unknown), Number)
		}
	}
}

// page writes a comparison for people.
func (c *Comparison) page() pageComparison {
	p := pageComparison{Zone: c.Zone, Quantity: c.Quantity, Ours: "not told by the trace", Published: c.published(), Source: c.Source, Difference: "–"}
	if c.Ours == nil {
		return p
	}
	p.Ours = format(*c.Ours, c.Unit)
	switch d := *c.Difference; {
	case c.NotComparable != "":
		p.Difference = "not comparable: " + c.NotComparable
		return p
	case d == 0 && (c.Low == nil || c.High == nil || *c.Low != *c.High):
		p.Difference, p.Mark = "within", "in"
	case c.Unit == Share:
		p.Difference = fmt.Sprintf("%+.2f points", 100*d)
	case c.Low != nil && c.High != nil && *c.Low == 0 && *c.High == 0:
		p.Difference = fmt.Sprintf("%+.2f", d)
	default:
		p.Difference = fmt.Sprintf("%+.1f %%", 100*d)
	}
	if p.Mark == "" && (c.Low == nil || c.High == nil || *c.Low != *c.High) {
		p.Mark = "out"
	}
	return p
}

// published is the published number or its bounds.
func (c *Comparison) published() string {
	var s string
	switch {
	case c.Low == nil && c.High == nil:
		return "–"
	case c.Low == nil:
		s = "at most " + format(*c.High, c.Unit)
	case c.High == nil:
		s = "at least " + format(*c.Low, c.Unit)
	case *c.Low == *c.High:
		s = format(*c.Low, c.Unit)
	default:
		s = format(*c.Low, c.Unit) + " to " + format(*c.High, c.Unit)
	}
	if c.About {
		s = "about " + s
	}
	return strings.TrimSpace(s)
}
