package main

import "example.org/slipway/integration/internal/measure"

// Run says how, when and on what a scenario was measured.
type Run struct {
	measure.Run
	Links []Link `json:"links"`
}

// Results are everything that was measured; a scenario that was not is nil.
type Results struct {
	Start *Start `json:"start,omitempty"`
	Bytes *Bytes `json:"bytes,omitempty"`
	Local *Local `json:"local,omitempty"`
}

// fill takes from old what was not measured this time.
func (r *Results) fill(old *Results) {
	if r.Start == nil {
		r.Start = old.Start
	}
	if r.Bytes == nil {
		r.Bytes = old.Bytes
	}
	if r.Local == nil {
		r.Local = old.Local
	}
}
