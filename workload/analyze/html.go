package analyze

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"strings"

	"example.org/slipway/internal/chart"
)

//go:embed report.html
var pageText string

//go:embed report.css
var pageStyle string

// page is the data of the template.
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
	// Compared has a row for each published quantity and a cell for each of
	// ComparedZones. Partial reports that one of these zones covers only a part of the
	// paper's period.
	Compared      []pageComparison
	ComparedZones []comparedZone
	Partial       bool
}

// comparedZone is a zone with published numbers. Part says which part of the paper's
// period its totals cover. It is empty if they cover all of it, or if there are no
// totals.
type comparedZone struct{ Name, Part string }

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

// pageComparison is a published quantity of all zones.
type pageComparison struct {
	Quantity, Source string
	Cells            []pageCompared
}

// pageCompared is a published number, shown below the trace's. The zero value means that
// there is none.
type pageCompared struct {
	Ours, Published, Difference string
	// Part says which part of the paper's period the zone covers, if the number cannot be
	// compared for that reason.
	Part string
	// Mark is "in", "out", or "" for a number that cannot be judged.
	Mark string
}

// HTML returns the report as one page that needs nothing from outside.
func (r *Report) HTML() ([]byte, error) {
	t, err := template.New("report").Funcs(template.FuncMap{"count": func(n int64) string { return format(float64(n), Number) }}).Parse(pageText)
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

// settings returns the settings that the report names.
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
	p.compare(f.Comparisons)
	return p
}

// compare makes a row for each quantity of a source and a column for each zone that was
// published. A source may have two numbers of a quantity, one of the zone and one of all
// zones. These become two rows.
func (p *pageFigure) compare(all []Comparison) {
	type key struct {
		zone, quantity, source string
		nth                    int
	}
	zones, rows, times := map[string]int{}, map[key]int{}, map[key]int{}
	for i := range all {
		c := &all[i]
		z, ok := zones[c.Zone]
		if !ok {
			z = len(p.ComparedZones)
			zones[c.Zone] = z
			p.ComparedZones = append(p.ComparedZones, comparedZone{Name: c.Zone})
		}
		if c.NotComparable != "" {
			p.ComparedZones[z].Part, p.Partial = c.NotComparable, true
		}
		k := key{zone: c.Zone, quantity: c.Quantity, source: c.Source}
		times[k]++
		k.zone, k.nth = "", times[k]
		if _, ok := rows[k]; !ok {
			rows[k] = len(p.Compared)
			p.Compared = append(p.Compared, pageComparison{Quantity: c.Quantity, Source: c.Source})
		}
		row := &p.Compared[rows[k]]
		row.fill(z + 1)
		row.Cells[z] = c.page()
	}
	for i := range p.Compared {
		p.Compared[i].fill(len(p.ComparedZones))
	}
}

// fill adds empty cells until there are n.
func (c *pageComparison) fill(n int) {
	for len(c.Cells) < n {
		c.Cells = append(c.Cells, pageCompared{})
	}
}

// table makes a row for each number and a column for each zone.
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
func (c *Comparison) page() pageCompared {
	p := pageCompared{Ours: "not told", Published: c.published(), Part: c.NotComparable}
	if c.Ours == nil {
		return p
	}
	p.Ours = format(*c.Ours, c.Unit)
	switch d := *c.Difference; {
	case c.NotComparable != "":
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

// published returns the published number or its bounds, with no more digits than it has.
func (c *Comparison) published() string {
	format := func(v float64, u Unit) string {
		if u == Share {
			return chart.Format(v, chart.Share)
		}
		return format(v, u)
	}
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
