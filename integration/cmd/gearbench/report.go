package main

import (
	"fmt"
	"strings"
	"time"

	"example.org/slipway/integration/internal/measure"
)

// marks are the lines between which the generated part of the document lies.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-gear:begin (scripts/bench-gear.sh writes what is between the two marks) -->",
		End:   "<!-- bench-gear:end -->",
	}
}

// report writes the results as the Markdown of the document.
func report(r *Results, verdict string) string {
	var w strings.Builder
	fmt.Fprintf(&w, "### Targets\n\n```text\n%s```\n", verdict)
	for _, p := range r.parts() {
		run := p.run()
		fmt.Fprintf(&w, "\n### %s\n\n%s\n\n", p.title(), p.about())
		quick := ""
		if run.Quick {
			quick = "; **a quick look, not a measurement**"
		}
		fmt.Fprintf(&w, "- Command: `%s`%s\n- Commit: %s; %s; took %s\n- Machine: %s; %s\n- Images: %s\n\n", run.Command, quick, run.Commit,
			run.Date.UTC().Format("2 January 2006 15:04 UTC"), (time.Duration(run.TookSec) * time.Second).String(), run.Machine, run.Machine.Go, run.Set)
		for _, pic := range p.pictures() {
			fmt.Fprintf(&w, "![%s](img/%s)\n\n", pic.Chart.Title, pic.File)
		}
		p.write(&w)
	}
	return w.String()
}

func percent(share float64) string { return fmt.Sprintf("%.1f", 100*share) }

// saved is the share that new saves of old.
func saved(old, new int64) float64 {
	if old == 0 {
		return 0
	}
	return 1 - float64(new)/float64(old)
}
