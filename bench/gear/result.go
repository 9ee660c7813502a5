package gear

import (
	"cmp"

	"example.org/slipway/integration/bench/measure"
)

// Run says how, when and on what a scenario was measured.
type Run struct {
	measure.Run
	Set string `json:"set"`
}

// Head returns what the document says of the run.
func (r *Run) Head() string { return r.Run.Head() + "\n- Images: " + r.Set }

// Results are everything that was measured. A scenario that was not measured is nil.
type Results struct {
	Storage     *Storage     `json:"storage,omitempty"`
	Oracle      *Oracle      `json:"oracle,omitempty"`
	Serving     *Serving     `json:"serving,omitempty"`
	Speed       *Speed       `json:"speed,omitempty"`
	Push        *Push        `json:"push,omitempty"`
	Determinism *Determinism `json:"determinism,omitempty"`
	Convert     *Convert     `json:"convert,omitempty"`
}

// Parts returns what was measured.
func (r *Results) Parts() []measure.Part {
	return measure.Measured(r.Storage, r.Oracle, r.Speed, r.Push, r.Convert, r.Serving, r.Determinism)
}

// Fill takes from old the results of scenarios that were not measured this time.
func (r *Results) Fill(old *Results) {
	r.Storage = cmp.Or(r.Storage, old.Storage)
	r.Oracle = cmp.Or(r.Oracle, old.Oracle)
	r.Serving = cmp.Or(r.Serving, old.Serving)
	r.Speed = cmp.Or(r.Speed, old.Speed)
	r.Push = cmp.Or(r.Push, old.Push)
	r.Determinism = cmp.Or(r.Determinism, old.Determinism)
	r.Convert = cmp.Or(r.Convert, old.Convert)
}
