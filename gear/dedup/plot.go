package dedup

import (
	"fmt"
	"os"
	"path/filepath"

	"example.org/slipway/internal/chart"
)

// WriteSVG draws the report into a directory, which it creates if necessary:
// table2-bytes.svg, table2-objects.svg (on a logarithmic scale), figure7.svg and, if it
// is known what the images need, figure2.svg.
func (r *Report) WriteSVG(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, c := range r.charts() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c.SVG(nil)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) charts() map[string]*chart.Bars {
	size := &chart.Bars{Title: fmt.Sprintf("Storage of %d images", r.Images), X: chart.Axis{Title: "compressed", Unit: chart.Bytes}}
	objects := &chart.Bars{Title: fmt.Sprintf("Objects of %d images", r.Images), X: chart.Axis{Title: "number", Log: true}}
	for _, row := range r.All.Rows {
		weak := row.Dedup != File
		size.Rows = append(size.Rows, bar(row.Dedup.String(), float64(row.StoredBytes), bytesText(row.StoredBytes), weak))
		objects.Rows = append(objects.Rows, bar(row.Dedup.String(), float64(row.Objects), thousands(row.Objects)+" "+row.Dedup.objects(), weak))
	}
	saving := &chart.Bars{Title: "Saved by sharing files instead of layers", X: chart.Axis{Title: "part of the bytes of shared layers", Unit: chart.Share}}
	add := func(g Group, label string, weak bool) {
		v := g.Rows[File].SavedOfLayer
		saving.Rows = append(saving.Rows, bar(label, v, percent(v), weak))
	}
	for _, g := range r.Series {
		add(g, fmt.Sprintf("%s (%d)", g.Name, g.Images), true)
	}
	for _, g := range r.Categories {
		add(g, fmt.Sprintf("%s (%d)", g.Name, g.Images), false)
	}
	add(r.All, fmt.Sprintf("all together (%d)", r.Images), false)
	charts := map[string]*chart.Bars{"table2-bytes.svg": size, "table2-objects.svg": objects, "figure7.svg": saving}
	if len(r.Redundancy) > 0 {
		redundant := &chart.Bars{Title: "Redundancy of the files that images need", X: chart.Axis{Title: "part of the bytes needed", Unit: chart.Share}}
		for i, x := range r.Redundancy {
			name, together := x.Name, i > 0 && i == len(r.Redundancy)-1
			if together {
				name = "all together"
			}
			redundant.Rows = append(redundant.Rows, bar(fmt.Sprintf("%s (%d)", name, x.Images), x.Redundant, percent(x.Redundant), !together))
		}
		charts["figure2.svg"] = redundant
	}
	for _, c := range charts {
		c.Desc = c.Title + "."
		for _, row := range c.Rows {
			c.Desc += " " + row.Name + ": " + row.Label + "."
		}
	}
	return charts
}

// bar returns a bar with its label at the end.
func bar(name string, value float64, label string, weak bool) chart.Row {
	return chart.Row{Name: name, Values: []float64{value}, Label: label, Weak: weak}
}
