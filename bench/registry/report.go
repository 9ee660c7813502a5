package registry

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench:begin (scripts/bench.sh writes what is between the two marks) -->",
		End:   "<!-- bench:end -->",
	}
}

// report returns the results as the Markdown of the document.
func report(r *Results, verdict string) string {
	var b strings.Builder
	run := &r.Run
	fmt.Fprintf(&b, "### The run\n\n")
	fmt.Fprintf(&b, "- Command: `%s`\n- Commit: %s; %s; took %s\n", run.Command, run.Commit,
		run.Date.UTC().Format("2 January 2006 15:04 UTC"), (time.Duration(run.TookSec) * time.Second).String())
	fmt.Fprintf(&b, "- Machine: %s\n- Client: %s, on the same machine\n", run.Machine, run.Machine.Go)
	fmt.Fprintf(&b, "- %d rounds of %s s each; %d small images (memory: %d); %d tags in one repository and %d repositories (start, lists); stores of %d and %d blobs, %d of garbage (gc)\n",
		run.Rounds, measure.Figure(run.SliceSec), run.Scale.Images, run.Scale.MemImages, run.Scale.Tags, run.Scale.Repos,
		run.Scale.StoreBlobs[0], run.Scale.StoreBlobs[1], run.Scale.GarbageEach)
	for _, s := range run.Servers {
		if s.Missing != "" {
			fmt.Fprintf(&b, "- %s: not measured: %s\n", s.Name, cell(s.Missing))
		} else {
			fmt.Fprintf(&b, "- %s: %s\n", s.Name, cell(s.Version))
		}
	}
	fmt.Fprintf(&b, "\n### Targets\n\n```text\n%s```\n", verdict)
	for _, sc := range scenarios() {
		if len(r.cases(sc.name)) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", sc.title, sc.about)
		for _, p := range plots(r) {
			if p.scenario == sc.name {
				fmt.Fprintf(&b, "![%s](img/%s)\n\n", p.Chart.Title, p.File)
			}
		}
		figures(&b, r, sc)
		ratios(&b, r, sc)
	}
	return b.String()
}

// cell makes a text fit into a line of Markdown.
func cell(s string) string {
	return strings.NewReplacer("\n", " ", "|", `\|`).Replace(strings.TrimSpace(s))
}

// figures writes a table of everything that was measured in a scenario.
func figures(b *strings.Builder, r *Results, sc *scenario) {
	b.WriteString("| case | server |")
	for _, m := range sc.columns() {
		b.WriteString(" " + m.title + " |")
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---:|", len(sc.columns())) + "\n")
	for _, cas := range r.cases(sc.name) {
		for _, name := range sc.rows(r) {
			fmt.Fprintf(b, "| %s | %s |", cas, name)
			samples := r.group(sc.name, cas, name)
			if len(samples) == 0 && name == nameAccessLog {
				continue // a variant that is not of interest in this case
			}
			if len(samples) == 0 {
				why := "not measured"
				if err := r.failure(sc.name, cas, name); err != "" {
					why = "failed: " + cell(err)
				}
				b.WriteString(" " + why + " |" + strings.Repeat(" |", len(sc.columns())-1) + "\n")
				continue
			}
			for i, m := range sc.columns() {
				s := m.spread(samples)
				if i == 0 || m.title == perSecond.title || m.title == otherCPUs.title {
					fmt.Fprintf(b, " %s |", s)
				} else {
					fmt.Fprintf(b, " %s |", measure.Figure(s.Median))
				}
			}
			b.WriteString("\n")
		}
	}
}

// ratios writes a table of how Slipway compares with each other server.
func ratios(b *strings.Builder, r *Results, sc *scenario) {
	var rows []string
	for _, cas := range r.cases(sc.name) {
		for _, name := range slices.DeleteFunc(sc.rows(r), func(s string) bool { return s == nameSlipway }) {
			c, ok := sc.main.compare(r.group(sc.name, cas, nameSlipway), r.group(sc.name, cas, name))
			if ok {
				rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s |", cas, name, measure.Figure(c.ofMedians), c.rounds))
			}
		}
	}
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n| case | slipway divided by | %s: ratio of medians | ratios of the rounds |\n|---|---|---:|---:|\n%s\n",
			sc.main.title, strings.Join(rows, "\n"))
	}
}
