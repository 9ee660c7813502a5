package tiers

import (
	"cmp"

	"example.org/slipway/integration/bench/measure"
)

// Results are everything that was measured. A scenario that was not measured is nil.
type Results struct {
	Fig16    *Fig16    `json:"fig16,omitempty"`
	Hits     *Hits     `json:"hits,omitempty"`
	Ratios   *Ratios   `json:"ratios,omitempty"`
	Prefetch *Prefetch `json:"prefetch,omitempty"`
	Crowd    *Crowd    `json:"crowd,omitempty"`
	Start    *Start    `json:"start,omitempty"`
	Replicas *Replicas `json:"replicas,omitempty"`
}

// Parts returns what was measured.
func (r *Results) Parts() []measure.Part {
	return measure.Measured(r.Fig16, r.Hits, r.Ratios, r.Prefetch, r.Crowd, r.Start, r.Replicas)
}

// Fill takes from old the results of scenarios that were not measured this time.
func (r *Results) Fill(old *Results) {
	r.Fig16 = cmp.Or(r.Fig16, old.Fig16)
	r.Hits = cmp.Or(r.Hits, old.Hits)
	r.Ratios = cmp.Or(r.Ratios, old.Ratios)
	r.Prefetch = cmp.Or(r.Prefetch, old.Prefetch)
	r.Crowd = cmp.Or(r.Crowd, old.Crowd)
	r.Start = cmp.Or(r.Start, old.Start)
	r.Replicas = cmp.Or(r.Replicas, old.Replicas)
}

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-tiers:begin (scripts/bench-tiers.sh writes what is between the two marks) -->",
		End:   "<!-- bench-tiers:end -->",
	}
}
