package cider

import (
	"cmp"
	"fmt"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/ctrnode"
)

// Results are everything that was measured. A scenario that was not measured is nil.
type Results struct {
	Equality   *Equality   `json:"equality,omitempty"`
	Series     *Series     `json:"series,omitempty"`
	Single     *Single     `json:"single,omitempty"`
	Node10     *Node10     `json:"node10,omitempty"`
	Nodes      *Nodes      `json:"nodes,omitempty"`
	PageCache  *PageCache  `json:"pagecache,omitempty"`
	Throughput *Throughput `json:"throughput,omitempty"`
}

// Parts returns what was measured.
func (r *Results) Parts() []measure.Part {
	return measure.Measured(r.Equality, r.Series, r.Single, r.Node10, r.Nodes, r.PageCache, r.Throughput)
}

// Fill takes from old the results of scenarios that were not measured this time.
func (r *Results) Fill(old *Results) {
	r.Equality = cmp.Or(r.Equality, old.Equality)
	r.Series = cmp.Or(r.Series, old.Series)
	r.Single = cmp.Or(r.Single, old.Single)
	r.Node10 = cmp.Or(r.Node10, old.Node10)
	r.Nodes = cmp.Or(r.Nodes, old.Nodes)
	r.PageCache = cmp.Or(r.PageCache, old.PageCache)
	r.Throughput = cmp.Or(r.Throughput, old.Throughput)
}

// Setting says what bounds a node, and where the clock of a deployment ends.
type Setting struct {
	Light  bool    `json:"light,omitempty"`
	DiskMB int     `json:"disk_mb_per_sec,omitempty"`
	CPUs   float64 `json:"cpus,omitempty"`
}

// String returns lines of a Markdown list, each after a line feed.
func (s Setting) String() (text string) {
	if s.Light {
		text += "\n- The clock ends at start-up: a container only starts a program of its image"
	}
	if s.DiskMB > 0 {
		text += fmt.Sprintf("\n- A node's disk reads and writes %d MB/s, checked before each deployment", s.DiskMB)
	}
	if s.CPUs > 0 {
		text += fmt.Sprintf("\n- A node and its containers use at most %g processors", s.CPUs)
	}
	return text
}

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-cider:begin (scripts/bench-cider.sh writes what is between the two marks) -->",
		End:   "<!-- bench-cider:end -->",
	}
}

// wayTitle returns a way's name for a report.
func wayTitle(way string) string {
	switch way {
	case ctrnode.Plain:
		return "plain pull"
	case ctrnode.Gear:
		return "Gear"
	case ctrnode.VolumeLocal:
		return "volume, local"
	case ctrnode.VolumeNetwork:
		return "volume, network"
	}
	return way
}

// waysIn returns the ways of the deployments, in a fixed order.
func waysIn(list []Deployment) (out []string) {
	for _, w := range []string{ctrnode.Plain, ctrnode.Gear, ctrnode.VolumeLocal, ctrnode.VolumeNetwork} {
		for i := range list {
			if list[i].Way == w {
				out = append(out, w)
				break
			}
		}
	}
	return out
}

// imagesIn returns the deployed images, in the order in which they appear.
func imagesIn(list []Deployment) (out []string) {
	seen := map[string]bool{}
	for i := range list {
		if !seen[list[i].Image] {
			seen[list[i].Image] = true
			out = append(out, list[i].Image)
		}
	}
	return out
}

// cell selects deployments.
type cell struct {
	image, way        string // "" means any
	nodes, containers int    // 0 means any
}

// spread returns the spread of a figure over a cell's successful deployments.
func (c cell) spread(list []Deployment, of func(*Deployment) float64) measure.Spread {
	var v []float64
	for i := range list {
		d := &list[i]
		if d.Failure == "" && (c.image == "" || d.Image == c.image) && (c.way == "" || d.Way == c.way) &&
			(c.nodes == 0 || d.Nodes == c.nodes) && (c.containers == 0 || d.Containers == c.containers) {
			v = append(v, of(d))
		}
	}
	return measure.SpreadOf(v)
}

// mean returns the mean, over images, of the medians of a cell's deployments. It covers
// only the images that all ways have. If there are none, it is 0.
func mean(list []Deployment, c cell, of func(*Deployment) float64) float64 {
	var sum float64
	var n int
	for _, im := range imagesIn(list) {
		complete := true
		for _, w := range waysIn(list) {
			complete = complete && cell{im, w, c.nodes, c.containers}.spread(list, of).N > 0
		}
		if c.image = im; complete {
			sum += c.spread(list, of).Median
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// target returns a target for a promised reduction.
func target(scenario, what, way string, limit float64, list []Deployment, nodes, containers int) measure.Target {
	plain := mean(list, cell{"", ctrnode.Plain, nodes, containers}, (*Deployment).TotalSec)
	took := mean(list, cell{"", way, nodes, containers}, (*Deployment).TotalSec)
	t := measure.Target{Scenario: scenario, What: what, Limit: limit, AtLeast: true, Unit: " %", Missing: plain == 0 || took == 0}
	if !t.Missing {
		t.Figure = 100 * (1 - took/plain)
	}
	return t
}

// failures returns rows for the deployments that failed.
func failures(list []Deployment) (rows [][]string) {
	for i := range list {
		if d := &list[i]; d.Failure != "" {
			rows = append(rows, []string{d.Image, wayTitle(d.Way), measure.FirstLine(d.Failure)})
		}
	}
	return rows
}
