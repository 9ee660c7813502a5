package measure

import (
	"fmt"
	"io"
)

// Target is something the project promises.
type Target struct {
	Scenario, What string
	// Limit of the figure; AtLeast turns it from a maximum into a minimum.
	Limit   float64
	AtLeast bool
	Unit    string // of the figure, with the space before it
	Figure  float64
	// Rounds is the spread that stands beside the figure; N 0: there is none.
	Rounds Spread
	// Missing tells that the figure could not be measured.
	Missing bool
}

// TargetOf is a target that the median of some figures has to meet; without figures it
// is missing.
func TargetOf(scenario, what string, limit float64, atLeast bool, figures []float64) Target {
	s := SpreadOf(figures)
	return Target{Scenario: scenario, What: what, Limit: limit, AtLeast: atLeast, Figure: s.Median, Rounds: s, Missing: s.N == 0}
}

// Met tells whether the target is.
func (t *Target) Met() bool {
	if t.AtLeast {
		return t.Figure >= t.Limit
	}
	return t.Figure <= t.Limit
}

// Check prints whether each target is met and returns whether none is missed. What
// could not be measured is not missed, but is said.
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
