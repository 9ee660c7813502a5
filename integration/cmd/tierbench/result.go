package main

import "example.org/slipway/integration/internal/measure"

// Results are everything that was measured; a scenario that was not is nil.
type Results struct {
	Fig16    *Fig16    `json:"fig16,omitempty"`
	Hits     *Hits     `json:"hits,omitempty"`
	Ratios   *Ratios   `json:"ratios,omitempty"`
	Prefetch *Prefetch `json:"prefetch,omitempty"`
	Crowd    *Crowd    `json:"crowd,omitempty"`
	Start    *Start    `json:"start,omitempty"`
}

// Parts returns what was measured.
func (r *Results) Parts() []measure.Part {
	var out []measure.Part
	if r.Fig16 != nil {
		out = append(out, r.Fig16)
	}
	if r.Hits != nil {
		out = append(out, r.Hits)
	}
	if r.Ratios != nil {
		out = append(out, r.Ratios)
	}
	if r.Prefetch != nil {
		out = append(out, r.Prefetch)
	}
	if r.Crowd != nil {
		out = append(out, r.Crowd)
	}
	if r.Start != nil {
		out = append(out, r.Start)
	}
	return out
}

// Fill takes from old what was not measured this time.
func (r *Results) Fill(old *Results) {
	if r.Fig16 == nil {
		r.Fig16 = old.Fig16
	}
	if r.Hits == nil {
		r.Hits = old.Hits
	}
	if r.Ratios == nil {
		r.Ratios = old.Ratios
	}
	if r.Prefetch == nil {
		r.Prefetch = old.Prefetch
	}
	if r.Crowd == nil {
		r.Crowd = old.Crowd
	}
	if r.Start == nil {
		r.Start = old.Start
	}
}

// marks are the lines between which the generated part of the document lies.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-tiers:begin (scripts/bench-tiers.sh writes what is between the two marks) -->",
		End:   "<!-- bench-tiers:end -->",
	}
}
