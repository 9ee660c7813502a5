package start

import (
	"cmp"

	"example.org/slipway/integration/bench/measure"
)

// Run says how, when and on what a scenario was measured.
type Run struct {
	measure.Run
	Links []Link `json:"links"`
}

// Results are everything that was measured. A scenario that was not measured is nil.
type Results struct {
	Start *Start `json:"start,omitempty"`
	Bytes *Bytes `json:"bytes,omitempty"`
	Local *Local `json:"local,omitempty"`
	// Sequence, Cycles and Touch run only if they are asked for.
	Sequence *Sequence `json:"sequence,omitempty"`
	Cycles   *Cycles   `json:"cycles,omitempty"`
	Touch    *Touch    `json:"touch,omitempty"`
}

// Fill takes from old the results of scenarios that were not measured this time.
func (r *Results) Fill(old *Results) {
	r.Start = cmp.Or(r.Start, old.Start)
	r.Bytes = cmp.Or(r.Bytes, old.Bytes)
	r.Local = cmp.Or(r.Local, old.Local)
	r.Sequence = cmp.Or(r.Sequence, old.Sequence)
	r.Cycles = cmp.Or(r.Cycles, old.Cycles)
	r.Touch = cmp.Or(r.Touch, old.Touch)
}
