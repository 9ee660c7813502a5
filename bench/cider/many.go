package cider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/ctrnode"
)

// Node10 holds deployments of several containers at once on one node.
type Node10 struct {
	Run         measure.Run  `json:"run"`
	Mbit        int          `json:"mbit"`
	Set         Setting      `json:"setting,omitzero"`
	Deployments []Deployment `json:"deployments"`
}

// Nodes holds deployments of several containers on several nodes at once.
type Nodes struct {
	Run         measure.Run  `json:"run"`
	Mbit        int          `json:"mbit"`
	Uplink      int          `json:"uplink_mbit"`
	Set         Setting      `json:"setting,omitzero"`
	Deployments []Deployment `json:"deployments"`
}

// crowd returns the series of the paper's experiments with many containers.
func crowd() []string { return []string{"nginx", "postgres", "python"} }

func runNode10(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Node10{Mbit: b.o.mbit, Set: b.o.setting()}
	b.results.Node10 = out
	defer func() { out.Run = b.Since(began) }()
	containers, err := measure.Numbers(b.o.containers, 1, 100)
	if err != nil {
		return err
	}
	return b.crowds(ctx, []int{1}, containers, &out.Deployments)
}

func runNodes(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Nodes{Mbit: b.o.mbit, Uplink: b.o.uplinkMbit, Set: b.o.setting()}
	b.results.Nodes = out
	defer func() { out.Run = b.Since(began) }()
	nodes, err := measure.Numbers(b.o.nodes, 1, 100)
	if err != nil {
		return err
	}
	containers, err := measure.Numbers(b.o.containers, 1, 100)
	if err != nil {
		return err
	}
	return b.crowds(ctx, nodes, []int{slices.Max(containers)}, &out.Deployments)
}

// crowds measures every number of containers on every number of nodes.
func (b *bench) crowds(ctx context.Context, nodes, containers []int, out *[]Deployment) error {
	images, err := b.chosen(crowd())
	if err != nil {
		return err
	}
	if err := b.ready(ctx, images); err != nil {
		return err
	}
	var errs []error
	for round := range b.o.Rounds {
		for _, im := range images {
			for _, n := range nodes {
				for _, c := range containers {
					errs = append(errs, b.deployments(ctx, im, n, c, round, out))
					if ctx.Err() != nil {
						return errors.Join(errs...)
					}
				}
			}
		}
	}
	return errors.Join(errs...)
}

// counts returns the numbers of nodes, or of containers on each, that were deployed.
func counts(list []Deployment, of func(*Deployment) int) (out []int) {
	for i := range list {
		if n := of(&list[i]); !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

func containersOf(d *Deployment) int { return d.Containers }
func nodesOf(d *Deployment) int      { return d.Nodes }
func cephBytes(d *Deployment) float64 {
	return float64(d.CephBytes) / 1e6 / float64(d.Nodes)
}

// Title returns the heading.
func (x *Node10) Title() string { return "Several containers on one node" }

// Head says how the part was measured.
func (x *Node10) Head() string {
	return x.Run.Head() + fmt.Sprintf("\n- Links of %d Mbit/s", x.Mbit) + x.Set.String()
}

// About says what was done.
func (x *Node10) About() string {
	return "A new node pulls an image once and starts the given number of containers of it at the same time; the figures are means over the containers, from nothing until their tasks are done, and over the images. Cider's own figures (10 at once of nginx, 109 MB, postgres, 269 MB, python, 684 MB): network -52 %, local -63 %."
}

// Targets returns the paper's targets, and the target that the bytes read do not grow.
func (x *Node10) Targets() []measure.Target {
	most := lastOf(counts(x.Deployments, containersOf))
	one := mean(x.Deployments, cell{way: ctrnode.VolumeLocal, containers: 1}, cephBytes)
	all := mean(x.Deployments, cell{way: ctrnode.VolumeLocal, containers: most}, cephBytes)
	bytes := measure.Target{Scenario: "node10", What: fmt.Sprintf("bytes from Ceph of %d containers / of one, local", most), Limit: 1.1, Missing: one == 0}
	if one > 0 {
		bytes.Figure = all / one
	}
	return []measure.Target{
		target("node10", fmt.Sprintf("local below the plain pull, %d at once", most), ctrnode.VolumeLocal, 63, x.Deployments, 1, most),
		target("node10", fmt.Sprintf("network below the plain pull, %d at once", most), ctrnode.VolumeNetwork, 52, x.Deployments, 1, most),
		bytes,
	}
}

func lastOf(list []int) int {
	if len(list) == 0 {
		return 0
	}
	return list[len(list)-1]
}

// Write writes the tables.
func (x *Node10) Write(w *strings.Builder) {
	writeCrowd(w, x.Deployments, "containers", counts(x.Deployments, containersOf), func(way, im string, n int) cell { return cell{im, way, 1, n} })
}

// Pictures returns the mean times, as in Figure 8, and the bytes.
func (x *Node10) Pictures() []measure.Picture {
	of := func(way string, n int) cell { return cell{"", way, 1, n} }
	columns := counts(x.Deployments, containersOf)
	return []measure.Picture{
		{File: "cider-node10.svg", Chart: crowdChart(x.Deployments, "Deployment on one node, s (paper: Figure 8)", "containers at once", columns, of, (*Deployment).TotalSec)},
		{File: "cider-bytes.svg", Chart: crowdChart(x.Deployments, "Bytes from Ceph on one node, MB", "containers at once", columns, of, cephBytes)},
	}
}

// Title returns the heading.
func (x *Nodes) Title() string { return "Several nodes" }

// Head says how the part was measured.
func (x *Nodes) Head() string {
	return x.Run.Head() + fmt.Sprintf("\n- Links of %d Mbit/s, an uplink of %d Mbit/s for registry and Ceph together", x.Mbit, x.Uplink) + x.Set.String()
}

// About says what was done.
func (x *Nodes) About() string {
	return "Nodes, each with an agent and a containerd in a namespace of this machine, deploy the same image at the same time, and each starts the same number of containers. Figures are means over all containers. All nodes, the registry and Ceph share this machine's processors, unlike in the paper. For this reason alone, times grow with the number of nodes in every mode. Cider's own figures (10 nodes with 10 containers each): network takes about twice the time of local; local -62 %, below 5 s."
}

// Targets returns the targets of this scenario.
func (x *Nodes) Targets() []measure.Target {
	n, c := lastOf(counts(x.Deployments, nodesOf)), lastOf(counts(x.Deployments, containersOf))
	return []measure.Target{target("nodes", fmt.Sprintf("local below the plain pull, %d nodes with %d containers", n, c), ctrnode.VolumeLocal, 63, x.Deployments, n, c)}
}

// Write writes the tables.
func (x *Nodes) Write(w *strings.Builder) {
	writeCrowd(w, x.Deployments, "nodes", counts(x.Deployments, nodesOf), func(way, im string, n int) cell { return cell{im, way, n, 0} })
}

// Pictures returns the mean times, as in Figure 9.
func (x *Nodes) Pictures() []measure.Picture {
	c := lastOf(counts(x.Deployments, containersOf))
	chart := crowdChart(x.Deployments, fmt.Sprintf("Deployment of %d containers on each node, s (paper: Figure 9)", c), "nodes", counts(x.Deployments, nodesOf),
		func(way string, n int) cell { return cell{"", way, n, 0} }, (*Deployment).TotalSec)
	return []measure.Picture{{File: "cider-nodes.svg", Chart: chart}}
}

// writeCrowd writes a row for each image and number.
func writeCrowd(w *strings.Builder, list []Deployment, what string, numbers []int, of func(way, im string, n int) cell) {
	head := []string{"image", what}
	for _, way := range waysIn(list) {
		head = append(head, wayTitle(way)+" s", "CPU s", "MB from Ceph")
	}
	var rows [][]string
	for _, im := range imagesIn(list) {
		for _, n := range numbers {
			row := []string{im, fmt.Sprint(n)}
			for _, way := range waysIn(list) {
				cpu, bytes := "-", "-"
				if sp := of(way, im, n).spread(list, func(d *Deployment) float64 { return d.CPUSec }); sp.Median > 0 {
					cpu = measure.Figure(sp.Median)
				}
				if sp := of(way, im, n).spread(list, func(d *Deployment) float64 { return float64(d.CephBytes) / 1e6 }); sp.Median > 0 {
					bytes = measure.Figure(sp.Median)
				}
				row = append(row, of(way, im, n).spread(list, (*Deployment).TotalSec).String(), cpu, bytes)
			}
			rows = append(rows, row)
		}
	}
	measure.Table(w, 1, head, rows)
	if rows := failures(list); len(rows) > 0 {
		w.WriteString("\nDeployments that failed:\n\n")
		measure.Table(w, 3, []string{"image", "way", "failure"}, rows)
	}
}

// crowdChart returns a chart of the mean over images, by number.
func crowdChart(list []Deployment, title, across string, numbers []int, of func(way string, n int) cell, figure func(*Deployment) float64) measure.Chart {
	c := measure.Chart{Title: title, Across: across, Lines: true}
	for _, n := range numbers {
		c.Columns = append(c.Columns, fmt.Sprint(n))
	}
	for _, way := range waysIn(list) {
		line := measure.Series{Name: wayTitle(way)}
		for _, n := range numbers {
			p := measure.Spread{}
			if m := mean(list, of(way, n), figure); m > 0 {
				p = measure.Spread{N: 1, Median: m, Min: m, Max: m}
			}
			line.Points = append(line.Points, p)
		}
		c.Series = append(c.Series, line)
	}
	return c
}
