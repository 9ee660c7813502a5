package analyze

import (
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/internal/chart"
)

// picture is one of a figure's pictures.
type picture struct {
	// file is the name of its file without the extension.
	file string
	// caption distinguishes the picture from the figure's others. It is empty if there
	// are no others.
	caption string
	picture interface {
		SVG(o *chart.Options) string
	}
}

// pictures draws a figure. It makes one picture for each zone, or one picture for all
// zones together, or one for each series if there are several.
func (f *FigureReport) pictures() []picture {
	if f.Plot.Kind == NoPlot {
		return nil
	}
	if f.Plot.PerZone {
		return f.perZone()
	}
	switch f.Plot.Kind {
	case PlotBars, PlotStacked:
		return []picture{{file: f.file(), picture: f.bars()}}
	case PlotColumns:
		return []picture{{file: f.file(), picture: f.columns(f.Title, f.Zones)}}
	}
	names := f.seriesNames()
	if len(names) < 2 || len(f.Zones) < 2 {
		return []picture{{file: f.file(), picture: f.curves(f.Title, f.Zones, "")}}
	}
	var out []picture
	for i, name := range names {
		out = append(out, picture{file: fmt.Sprintf("%s-%d", f.file(), i+1), caption: name, picture: f.curves(f.Title+": "+name, f.Zones, name)})
	}
	return out
}

func (f *FigureReport) perZone() []picture {
	var out []picture
	for i := range f.Zones {
		z := f.Zones[i : i+1]
		p := picture{file: f.file() + "-" + z[0].Zone, caption: z[0].Zone}
		if f.Plot.Kind == PlotColumns {
			p.picture = f.columns(f.Title+": "+z[0].Zone, z)
		} else {
			p.picture = f.curves(f.Title+": "+z[0].Zone, z, "")
		}
		out = append(out, p)
	}
	return out
}

// seriesNames returns the names of the series of all zones, in order of their first
// appearance.
func (f *FigureReport) seriesNames() []string {
	var out []string
	for _, z := range f.Zones {
		for _, s := range z.Series {
			if !slices.Contains(out, s.Name) {
				out = append(out, s.Name)
			}
		}
	}
	return out
}

// curves draws the series of some zones: all series, or the series of one name.
func (f *FigureReport) curves(title string, zones []ZoneResult, only string) *chart.XY {
	p := &chart.XY{Title: title, Desc: f.describe(zones), X: f.Plot.X, Y: f.Plot.Y}
	for _, z := range zones {
		for i, s := range z.Series {
			if only != "" && s.Name != only {
				continue
			}
			name := z.Zone
			if len(zones) == 1 && len(z.Series) > 1 {
				name = s.Name
			}
			line := chart.Series{Name: name}
			switch {
			case f.Plot.Kind == PlotCDF:
				line.Mark = chart.Step
			case f.Plot.Kind == PlotBands && i == 0:
				line.Mark = chart.Band
			case f.Plot.Kind == PlotBands:
				line.Mark = chart.Dots
			}
			for _, q := range s.Points {
				line.Points = append(line.Points, chart.Point{X: q.X, Y: q.Y, Low: q.Low, High: q.High})
			}
			p.Series = append(p.Series, line)
		}
	}
	return p
}

func (f *FigureReport) columns(title string, zones []ZoneResult) *chart.Columns {
	p := &chart.Columns{Title: title, Desc: f.describe(zones), XTitle: f.Plot.X.Title, Y: f.Plot.Y}
	for _, z := range zones {
		g := chart.Group{Name: z.Zone}
		if len(z.Series) > 0 {
			for _, q := range z.Series[0].Points {
				g.Names, g.Values = append(g.Names, q.Label), append(g.Values, q.Y)
			}
		}
		p.Groups = append(p.Groups, g)
	}
	return p
}

// bars draws a bar for each zone. A zone without data has no bar, and a note says so.
func (f *FigureReport) bars() *chart.Bars {
	p := &chart.Bars{Title: f.Title, Desc: f.describe(f.Zones), X: f.Plot.X, Stacked: f.Plot.Kind == PlotStacked}
	var parts []string
	for _, z := range f.Zones {
		for _, s := range z.Series {
			for _, q := range s.Points {
				if !slices.Contains(parts, q.Label) {
					parts = append(parts, q.Label)
				}
			}
		}
	}
	if p.Stacked {
		p.Parts = parts
	}
	for _, z := range f.Zones {
		row := chart.Row{Name: z.Zone, Values: make([]float64, len(parts))}
		if len(z.Series) == 0 || len(z.Series[0].Points) == 0 {
			row.Values, row.Label = nil, "no data"
		} else {
			for _, q := range z.Series[0].Points {
				row.Values[slices.Index(parts, q.Label)] = q.Y
			}
		}
		p.Rows = append(p.Rows, row)
	}
	return p
}

// describe describes a picture to people who cannot see it, by the first numbers of each
// zone.
func (f *FigureReport) describe(zones []ZoneResult) string {
	const most = 4
	var b strings.Builder
	b.WriteString(f.Title)
	b.WriteByte('.')
	for _, z := range zones {
		b.WriteString(" " + z.Zone + ": ")
		if len(z.Values) == 0 {
			b.WriteString("no data.")
			continue
		}
		for i, v := range z.Values[:min(len(z.Values), most)] {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(v.Name + " " + format(v.Value, v.Unit))
		}
		b.WriteByte('.')
	}
	return b.String()
}
