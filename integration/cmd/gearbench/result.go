package main

import "example.org/slipway/integration/internal/measure"

// Run says how, when and on what a scenario was measured.
type Run struct {
	measure.Run
	Set string `json:"set"`
}

// Head is what the document says of the run.
func (r *Run) Head() string { return r.Run.Head() + "\n- Images: " + r.Set }

// Results are everything that was measured; a scenario that was not is nil.
type Results struct {
	Storage     *Storage     `json:"storage,omitempty"`
	Oracle      *Oracle      `json:"oracle,omitempty"`
	Serving     *Serving     `json:"serving,omitempty"`
	Speed       *Speed       `json:"speed,omitempty"`
	Push        *Push        `json:"push,omitempty"`
	Determinism *Determinism `json:"determinism,omitempty"`
}

// Parts returns what was measured.
func (r *Results) Parts() []measure.Part {
	var out []measure.Part
	if r.Storage != nil {
		out = append(out, r.Storage)
	}
	if r.Oracle != nil {
		out = append(out, r.Oracle)
	}
	if r.Speed != nil {
		out = append(out, r.Speed)
	}
	if r.Push != nil {
		out = append(out, r.Push)
	}
	if r.Serving != nil {
		out = append(out, r.Serving)
	}
	if r.Determinism != nil {
		out = append(out, r.Determinism)
	}
	return out
}

// Fill takes from old what was not measured this time.
func (r *Results) Fill(old *Results) {
	if r.Storage == nil {
		r.Storage = old.Storage
	}
	if r.Oracle == nil {
		r.Oracle = old.Oracle
	}
	if r.Serving == nil {
		r.Serving = old.Serving
	}
	if r.Speed == nil {
		r.Speed = old.Speed
	}
	if r.Push == nil {
		r.Push = old.Push
	}
	if r.Determinism == nil {
		r.Determinism = old.Determinism
	}
}
