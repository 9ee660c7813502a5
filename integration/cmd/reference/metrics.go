package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const metricsHead = `# Metrics

Servers serve their metrics at ` + "`/metrics`" + ` of ` + "`http.debug.addr`" + `, node agents at ` + "`metrics.addr`" + `, and a replay at
` + "`--metrics`" + `. There are also metrics of the Go runtime and of the process (` + "`go_*`" + `, ` + "`process_*`" + `). A part that is
not configured has no metrics. [Dashboards and rules](../dashboards.md) use these metrics.
`

// programs are the parts of the page. Each part covers a package that runs a program, and
// everything below that package. The first part also gets the metrics that no other part
// has.
var programs = []struct{ title, pkg string }{
	{"Registry", ""},
	{"Node agent", "agent"},
	{"Replay", "workload/replay"},
}

// metricsPage returns the page of the metrics that the sources below root define.
func metricsPage(root string) (string, error) {
	list, err := findMetrics(root)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(made + metricsHead)
	for _, p := range programs {
		fmt.Fprintf(&b, "\n## %s\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n", p.title)
		for _, m := range list {
			if programOf(m.pkg) == p.title {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, labelList(m.labels), escape(m.help))
			}
		}
	}
	return b.String(), nil
}

func programOf(pkg string) string {
	for _, p := range programs[1:] {
		if pkg == p.pkg || strings.HasPrefix(pkg, p.pkg+"/") {
			return p.title
		}
	}
	return programs[0].title
}

func labelList(labels []string) string {
	var list []string
	for _, l := range labels {
		list = append(list, "`"+l+"`")
	}
	return strings.Join(list, ", ")
}

// metric describes a metric.
type metric struct {
	pkg, name, kind, help string
	labels                []string
}

// merge sorts metrics by name and merges the definitions of a metric that is defined in
// several places.
func merge(list []metric) ([]metric, error) {
	slices.SortStableFunc(list, func(a, b metric) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.help, b.help)) })
	var out []metric
	for _, m := range list {
		if n := len(out); n > 0 && out[n-1].name == m.name {
			last := &out[n-1]
			if last.help != m.help || last.kind != m.kind {
				return nil, fmt.Errorf("metric %s is defined twice: %s %q, %s %q", m.name, last.kind, last.help, m.kind, m.help)
			}
			for _, l := range m.labels {
				if !slices.Contains(last.labels, l) {
					last.labels = append(last.labels, l)
				}
			}
			continue
		}
		out = append(out, m)
	}
	return out, nil
}
