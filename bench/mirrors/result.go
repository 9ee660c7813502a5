package mirrors

import (
	"cmp"

	"example.org/slipway/integration/bench/measure"
)

// Results are everything that was measured. A scenario that was not measured is nil.
type Results struct {
	Load  *Load  `json:"load,omitempty"`
	Large *Large `json:"large,omitempty"`
	Crowd *Crowd `json:"crowd,omitempty"`
}

// Parts returns what was measured.
func (r *Results) Parts() []measure.Part { return measure.Measured(r.Load, r.Large, r.Crowd) }

// Fill takes from old the results of scenarios that were not measured this time.
func (r *Results) Fill(old *Results) {
	r.Load = cmp.Or(r.Load, old.Load)
	r.Large = cmp.Or(r.Large, old.Large)
	r.Crowd = cmp.Or(r.Crowd, old.Crowd)
}

// Run says how, when and on what a scenario was measured.
type Run struct {
	measure.Run
	// Servers lists the servers that took part, with their versions, or the reason why they did
	// not.
	Servers []string `json:"servers"`
}

// Head returns what the document says of the run.
func (r *Run) Head() string {
	head := r.Run.Head()
	for _, s := range r.Servers {
		head += "\n- " + s
	}
	return head
}

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-mirrors:begin (scripts/bench-mirrors.sh writes what is between the two marks) -->",
		End:   "<!-- bench-mirrors:end -->",
	}
}
