package measure

import (
	"fmt"
	"io"
)

// Target is a limit for a figure that the project promises to keep.
type Target struct {
	Scenario, What string
	// Limit is the maximum of the figure. With AtLeast it is the minimum.
	Limit   float64
	AtLeast bool
	Unit    string // of the figure, with a leading space
	Figure  float64
	// Rounds is the spread that stands beside the figure. If its N is 0, there is none.
	Rounds Spread
	// Missing says that the figure could not be measured.
	Missing bool
}

// TargetOf returns a target for the median of some figures. Without figures, the target
// is marked as missing.
func TargetOf(scenario, what string, limit float64, atLeast bool, figures []float64) Target {
	s := SpreadOf(figures)
	return Target{Scenario: scenario, What: what, Limit: limit, AtLeast: atLeast, Figure: s.Median, Rounds: s, Missing: s.N == 0}
}

// Met reports whether the target is met.
func (t *Target) Met() bool {
	if t.AtLeast {
		return t.Figure >= t.Limit
	}
	return t.Figure <= t.Limit
}

// Check prints whether each target is met and reports whether none is missed. A target that could
// not be measured does not count as missed, but is printed.
func Check(w io.Writer, targets []Target) bool {
	good := true
	for _, t := range targets {
		relation := "at most"
		if t.AtLeast {
			relation = "at least"
		}
		if t.Missing {
			fmt.Fprintf(w, "----  %-11s %s: not measured (%s %s%s)\n", t.Scenario, t.What, relation, Figure(t.Limit), t.Unit)
			continue
		}
		verdict := "PASS"
		if !t.Met() {
			verdict, good = "FAIL", false
		}
		rounds := ""
		if t.Rounds.N > 1 {
			rounds = fmt.Sprintf("; %s to %s", Figure(t.Rounds.Min), Figure(t.Rounds.Max))
		}
		fmt.Fprintf(w, "%s  %-11s %s: %s%s (%s %s%s%s)\n", verdict, t.Scenario, t.What, Figure(t.Figure), t.Unit,
			relation, Figure(t.Limit), t.Unit, rounds)
	}
	return good
}
