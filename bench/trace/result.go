package trace

import (
	"cmp"

	"example.org/slipway/integration/bench/measure"
)

// Results are everything that was measured. A scenario that was not measured is nil.
type Results struct {
	Import   *Import   `json:"import,omitempty"`
	Analyse  *Analyse  `json:"analyse,omitempty"`
	Figures  *Figures  `json:"figures,omitempty"`
	Timely   *Timely   `json:"timely,omitempty"`
	Compare  *Compare  `json:"compare,omitempty"`
	Simulate *Simulate `json:"simulate,omitempty"`
}

// Parts returns what was measured.
func (r *Results) Parts() []measure.Part {
	return measure.Measured(r.Import, r.Analyse, r.Figures, r.Timely, r.Compare, r.Simulate)
}

// Fill takes from old the results of scenarios that were not measured this time.
func (r *Results) Fill(old *Results) {
	r.Import = cmp.Or(r.Import, old.Import)
	r.Analyse = cmp.Or(r.Analyse, old.Analyse)
	r.Figures = cmp.Or(r.Figures, old.Figures)
	r.Timely = cmp.Or(r.Timely, old.Timely)
	r.Compare = cmp.Or(r.Compare, old.Compare)
	r.Simulate = cmp.Or(r.Simulate, old.Simulate)
}

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-trace:begin (scripts/bench-trace.sh writes what is between the two marks) -->",
		End:   "<!-- bench-trace:end -->",
	}
}
