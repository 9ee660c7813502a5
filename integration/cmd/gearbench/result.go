package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"example.org/slipway/integration/internal/measure"
)

// Run says how, when and on what a scenario was measured.
type Run struct {
	Date    time.Time       `json:"date"`
	Commit  string          `json:"commit"`
	Command string          `json:"command"`
	Machine measure.Machine `json:"machine"`
	Rounds  int             `json:"rounds"`
	TookSec float64         `json:"took_sec"`
	Quick   bool            `json:"quick,omitempty"`
	Set     string          `json:"set"`
}

// Results are everything that was measured; a scenario that was not is nil.
type Results struct {
	Storage     *Storage     `json:"storage,omitempty"`
	Oracle      *Oracle      `json:"oracle,omitempty"`
	Serving     *Serving     `json:"serving,omitempty"`
	Speed       *Speed       `json:"speed,omitempty"`
	Push        *Push        `json:"push,omitempty"`
	Determinism *Determinism `json:"determinism,omitempty"`
}

// part is the outcome of a scenario.
type part interface {
	title() string
	about() string
	run() *Run
	targets() []target
	write(w *strings.Builder)
	pictures() []measure.Picture
}

// parts returns what was measured.
func (r *Results) parts() []part {
	var out []part
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

// pictures are the plots of what was measured.
func (r *Results) pictures() []measure.Picture {
	var out []measure.Picture
	for _, p := range r.parts() {
		out = append(out, p.pictures()...)
	}
	return out
}

// fill takes from old what was not measured this time.
func (r *Results) fill(old *Results) {
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

// target is something the project promises.
type target struct {
	scenario, what string
	// limit of the figure; atLeast turns it from a maximum into a minimum.
	limit   float64
	atLeast bool
	unit    string
	figure  float64
	// rounds is the spread that stands beside the figure; N 0: there is none.
	rounds measure.Spread
	// missing tells that the figure could not be measured.
	missing bool
}

// ofSpread is a target that the median of some figures has to meet.
func ofSpread(scenario, what string, limit float64, atLeast bool, figures []float64) target {
	s := measure.SpreadOf(figures)
	return target{scenario: scenario, what: what, limit: limit, atLeast: atLeast, figure: s.Median, rounds: s, missing: s.N == 0}
}

// met tells whether the target is.
func (t *target) met() bool {
	if t.atLeast {
		return t.figure >= t.limit
	}
	return t.figure <= t.limit
}

// check prints whether each target is met and returns whether none is missed.
// What could not be measured is not missed, but is said.
func check(w io.Writer, r *Results) bool {
	good := true
	for _, p := range r.parts() {
		for _, t := range p.targets() {
			relation := "at most"
			if t.atLeast {
				relation = "at least"
			}
			if t.missing {
				fmt.Fprintf(w, "----  %-11s %s: not measured (%s %s%s)\n", t.scenario, t.what, relation, measure.Figure(t.limit), t.unit)
				continue
			}
			verdict := "PASS"
			if !t.met() {
				verdict, good = "FAIL", false
			}
			rounds := ""
			if t.rounds.N > 1 {
				rounds = fmt.Sprintf("; %s to %s", measure.Figure(t.rounds.Min), measure.Figure(t.rounds.Max))
			}
			fmt.Fprintf(w, "%s  %-11s %s: %s%s (%s %s%s%s)\n", verdict, t.scenario, t.what, measure.Figure(t.figure), t.unit,
				relation, measure.Figure(t.limit), t.unit, rounds)
		}
	}
	return good
}
