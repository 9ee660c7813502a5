package registry

import (
	"fmt"

	"example.org/slipway/integration/bench/measure"
)

// plot is a picture of a scenario's results.
type plot struct {
	scenario string
	measure.Picture
}

// plots returns the pictures that have something to show.
func plots(r *Results) []plot {
	var out []plot
	add := func(scenario, file string, c measure.Chart) {
		if len(c.Series) > 0 {
			out = append(out, plot{scenario, measure.Picture{File: file, Chart: c}})
		}
	}
	add("pull", "bench-pull.svg", pullChart(r))
	add("head", "bench-head.svg", lineChart(r, "head", cpuMs, "Server CPU of a HEAD by tag, in ms", "tags in the repository",
		tagCounts[:], caseTags, func(n int) string { return fmt.Sprint(n) }))
	add("blob", "bench-blob.svg", lineChart(r, "blob", cpuPerGB, "Server CPU of blob downloads, in s per GB", "size of the blob",
		blobSizes[:], caseSize, caseSize))
	return out
}

func scenarioNamed(name string) *scenario {
	for _, sc := range scenarios() {
		if sc.name == name {
			return sc
		}
	}
	return nil
}

func pullChart(r *Results) measure.Chart {
	cas := caseClients(10)
	c := measure.Chart{Title: "Server CPU of a pull of a small image by 10 clients, in ms"}
	for _, name := range scenarioNamed("pull").rows(r) {
		if s := cpuMs.spread(r.group("pull", cas, name)); s.N > 0 {
			c.Series = append(c.Series, measure.Series{Name: name, Points: []measure.Spread{s}})
		}
	}
	return c
}

func lineChart(r *Results, scenario string, m metric, title, across string, columns []int, cas, label func(int) string) measure.Chart {
	c := measure.Chart{Title: title, Across: across, Lines: true}
	for _, n := range columns {
		c.Columns = append(c.Columns, label(n))
	}
	for _, name := range scenarioNamed(scenario).rows(r) {
		s := measure.Series{Name: name}
		found := false
		for _, n := range columns {
			p := m.spread(r.group(scenario, cas(n), name))
			s.Points = append(s.Points, p)
			found = found || p.N > 0
		}
		if found {
			c.Series = append(c.Series, s)
		}
	}
	return c
}
