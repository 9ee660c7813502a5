package main

import "example.org/slipway/integration/internal/measure"

// Results are everything that was measured; a scenario that was not is nil.
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
	var out []measure.Part
	if r.Import != nil {
		out = append(out, r.Import)
	}
	if r.Analyse != nil {
		out = append(out, r.Analyse)
	}
	if r.Figures != nil {
		out = append(out, r.Figures)
	}
	if r.Timely != nil {
		out = append(out, r.Timely)
	}
	if r.Compare != nil {
		out = append(out, r.Compare)
	}
	if r.Simulate != nil {
		out = append(out, r.Simulate)
	}
	return out
}

// Fill takes from old what was not measured this time.
func (r *Results) Fill(old *Results) {
	if r.Import == nil {
		r.Import = old.Import
	}
	if r.Analyse == nil {
		r.Analyse = old.Analyse
	}
	if r.Figures == nil {
		r.Figures = old.Figures
	}
	if r.Timely == nil {
		r.Timely = old.Timely
	}
	if r.Compare == nil {
		r.Compare = old.Compare
	}
	if r.Simulate == nil {
		r.Simulate = old.Simulate
	}
}

// marks are the lines between which the generated part of the document lies.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-trace:begin (scripts/bench-trace.sh writes what is between the two marks) -->",
		End:   "<!-- bench-trace:end -->",
	}
}
