package peers

import (
	"cmp"
	"fmt"
	"strings"

	"example.org/slipway/integration/bench/measure"
)

// Results are everything that was measured. A scenario that was not measured is nil.
type Results struct {
	Together  *Together  `json:"together,omitempty"`
	Staggered *Staggered `json:"staggered,omitempty"`
}

// Parts returns what was measured.
func (r *Results) Parts() []measure.Part { return measure.Measured(r.Together, r.Staggered) }

// Fill takes from old the results of scenarios that were not measured this time.
func (r *Results) Fill(old *Results) {
	r.Together, r.Staggered = cmp.Or(r.Together, old.Together), cmp.Or(r.Staggered, old.Staggered)
}

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-peers:begin (scripts/bench-peers.sh writes what is between the two marks) -->",
		End:   "<!-- bench-peers:end -->",
	}
}

// Run says how, when and on what a scenario was measured.
type Run struct {
	measure.Run
	// Systems lists the versions of other systems, or why they were not measured.
	Systems []string `json:"systems,omitempty"`
}

// Series holds the roll-outs of a scenario.
type Series struct {
	Run      Run       `json:"run"`
	Image    string    `json:"image"`
	Mbit     int       `json:"mbit"`
	Rollouts []Rollout `json:"rollouts"`
}

// Head says how the part was measured.
func (s *Series) Head() string {
	head := s.Run.Head() + "\n- Image: " + s.Image + fmt.Sprintf("\n- Links: %d Mbit/s", s.Mbit)
	for _, about := range s.Run.Systems {
		head += "\n- " + about
	}
	return head
}

// nodes returns how many nodes all roll-outs but those of a node alone have.
func (s *Series) nodes() (n int) {
	for i := range s.Rollouts {
		n = max(n, s.Rollouts[i].Nodes)
	}
	return n
}

// figures returns a figure of each round of a system's roll-outs with a number of nodes.
func (s *Series) figures(system string, nodes int, of func(*Rollout) float64) (out []float64) {
	for i := range s.Rollouts {
		if r := &s.Rollouts[i]; r.System == system && r.Nodes == nodes {
			out = append(out, of(r))
		}
	}
	return out
}

// times returns by how much a figure of each round is greater with all nodes than with one.
func (s *Series) times(system string, of func(*Rollout) float64) (out []float64) {
	one, all := s.figures(system, 1, of), s.figures(system, s.nodes(), of)
	for i := range min(len(one), len(all)) {
		out = append(out, all[i]/one[i])
	}
	return out
}

func sent(r *Rollout) float64 { return float64(r.Sent) / 1e6 }

// targets are those of the issue that asked for the exchange of files between nodes.
func (s *Series) targets(scenario string) []measure.Target {
	return []measure.Target{
		measure.TargetOf(scenario, fmt.Sprintf("what the registry sends to %d nodes / to one", s.nodes()), 1.5, false, s.times(nameSlipway, sent)),
		measure.TargetOf(scenario, fmt.Sprintf("time of the slowest of %d nodes / of one", s.nodes()), 2.5, false, s.times(nameSlipway, (*Rollout).Slowest)),
	}
}

// Write writes the table.
func (s *Series) Write(w *strings.Builder) {
	var rows [][]string
	for _, name := range systems {
		all := s.figures(name, s.nodes(), sent)
		if len(all) == 0 {
			continue
		}
		row := []string{name}
		for _, f := range [][]float64{s.figures(name, 1, sent), all, s.times(name, sent), s.figures(name, 1, (*Rollout).Slowest), s.figures(name, s.nodes(), (*Rollout).Slowest)} {
			row = append(row, measure.SpreadOf(f).String())
		}
		rows = append(rows, row)
	}
	measure.Table(w, 1, []string{"system", "MB to one node", fmt.Sprintf("MB to %d", s.nodes()), "times as many", "one node, s", "slowest, s"}, rows)
}

// Pictures returns no pictures.
func (s *Series) Pictures() []measure.Picture { return nil }

const about = "`plain` is containerd alone, which gets everything from the registry. `spegel` is containerd with Spegel as a mirror; its nodes know each other before the roll-out begins. `slipway` is containerd with Slipway's agent, which fetches whole images (`fetch.mode: eager`) and gets files from other nodes. "

// Together is a roll-out in which all nodes start at the same moment.
type Together struct{ Series }

// Title is the heading.
func (t *Together) Title() string { return "All nodes at once" }

// About says what was done.
func (t *Together) About() string {
	return about + fmt.Sprintf("All %d nodes begin to pull at the same moment.", t.nodes())
}

// Targets returns the targets of the exchange.
func (t *Together) Targets() []measure.Target { return t.targets(sceneTogether) }

// Staggered is a roll-out in groups.
type Staggered struct {
	Series
	Group    int     `json:"group"`
	EverySec float64 `json:"every_sec"`
}

// Title is the heading.
func (t *Staggered) Title() string { return "Nodes in groups" }

// About says what was done.
func (t *Staggered) About() string {
	return about + fmt.Sprintf("%d of the %d nodes begin every %g s. A node's time counts from its own start.", t.Group, t.nodes(), t.EverySec)
}

// Targets returns the targets of the exchange.
func (t *Staggered) Targets() []measure.Target { return t.targets(sceneStaggered) }
