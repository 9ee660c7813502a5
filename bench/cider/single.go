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

// Single holds deployments of one container on one node, over the images of the corpus.
type Single struct {
	Run         measure.Run  `json:"run"`
	Mbit        int          `json:"mbit"`
	Set         Setting      `json:"setting,omitzero"`
	Deployments []Deployment `json:"deployments"`
	// Sizes are the images' sizes: all layers, compressed.
	Sizes map[string]int64 `json:"sizes"`
}

func runSingle(b *bench, ctx context.Context) error {
	began := time.Now()
	images, err := b.chosen(nil)
	if err != nil {
		return err
	}
	if err := b.ready(ctx, images); err != nil {
		return err
	}
	out := &Single{Mbit: b.o.mbit, Set: b.o.setting(), Sizes: map[string]int64{}}
	b.results.Single = out
	defer func() { out.Run = b.Since(began) }()
	var errs []error
	for round := range b.o.Rounds {
		for _, im := range images {
			out.Sizes[im.String()] = im.Bytes()
			errs = append(errs, b.deployments(ctx, im, 1, 1, round, &out.Deployments))
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

// slope returns by how many seconds a way's deployment grows with each MB of image. It fits the
// images' medians by least squares.
func (s *Single) slope(way string) (secPerMB float64, ok bool) {
	var xs, ys []float64
	for _, im := range imagesIn(s.Deployments) {
		if sp := (cell{image: im, way: way}).spread(s.Deployments, (*Deployment).TotalSec); sp.N > 0 {
			// The task's own time does not depend on how the image came. The plain run
			// shows how long the task takes with a local image. That time is subtracted
			// from all ways alike.
			run := (cell{image: im, way: ctrnode.Plain}).spread(s.Deployments, func(d *Deployment) float64 { return d.RunSec })
			xs, ys = append(xs, float64(s.Sizes[im])/1e6), append(ys, sp.Median-run.Median)
		}
	}
	n := float64(len(xs))
	if n < 2 {
		return 0, false
	}
	var sx, sy, sxx, sxy float64
	for i := range xs {
		sx, sy, sxx, sxy = sx+xs[i], sy+ys[i], sxx+xs[i]*xs[i], sxy+xs[i]*ys[i]
	}
	if d := n*sxx - sx*sx; d != 0 {
		return (n*sxy - sx*sy) / d, true
	}
	return 0, false
}

// Title returns the heading.
func (s *Single) Title() string { return "One container" }

// Head says how the part was measured.
func (s *Single) Head() string {
	return s.Run.Head() + fmt.Sprintf("\n- Links of %d Mbit/s", s.Mbit) + s.Set.String()
}

// About says what was done.
func (s *Single) About() string {
	return "A new node pulls one image and runs its series' task once. The time is measured from nothing until the task is done. Nodes have the same link in all modes, and the registry and Ceph have the same uplink. With volumes, the pull loads metadata and, in local mode, mounts the image. In network mode, clone and mount are part of the run. The order of the modes changes from round to round. Cider's own figures (12 machines, 10 Gbit/s, 12 disks, 69 images of 347 MB in the mean): 13.4 s plain, of which the pull takes 12.3 s; network -82 %, local -85 %, both independent of the image's size."
}

// Targets returns the paper's targets.
func (s *Single) Targets() []measure.Target {
	list := []measure.Target{
		target("single", "local below the plain pull, mean", ctrnode.VolumeLocal, 85, s.Deployments, 1, 1),
		target("single", "network below the plain pull, mean", ctrnode.VolumeNetwork, 82, s.Deployments, 1, 1),
	}
	plain, ok := s.slope(ctrnode.Plain)
	for _, way := range []string{ctrnode.VolumeLocal, ctrnode.VolumeNetwork} {
		t := measure.Target{Scenario: "single", What: "growth with the image's size, " + way + " / plain", Limit: 0.05, Missing: true}
		if own, known := s.slope(way); ok && known && plain > 0 {
			t.Figure, t.Missing = own/plain, false
		}
		list = append(list, t)
	}
	return list
}

// Write writes the tables: every image in every way, the comparison, and the times by step.
func (s *Single) Write(w *strings.Builder) {
	ways := waysIn(s.Deployments)
	head := []string{"image", "MB"}
	for _, way := range ways {
		head = append(head, wayTitle(way)+" s")
	}
	images := imagesIn(s.Deployments)
	slices.SortStableFunc(images, func(a, b string) int { return int(s.Sizes[a] - s.Sizes[b]) })
	var rows [][]string
	for _, im := range images {
		row := []string{im, measure.Megabytes(s.Sizes[im])}
		for _, way := range ways {
			row = append(row, cell{image: im, way: way}.spread(s.Deployments, (*Deployment).TotalSec).String())
		}
		rows = append(rows, row)
	}
	measure.Table(w, 1, head, rows)
	w.WriteString("\nWhat each way costs, as the mean over the images that all ways have:\n\n")
	rows = nil
	for _, way := range ways {
		of := func(f func(*Deployment) float64) string {
			return measure.Figure(mean(s.Deployments, cell{way: way}, f))
		}
		row := []string{wayTitle(way), of((*Deployment).TotalSec), of(func(d *Deployment) float64 { return d.PullSec }),
			of(func(d *Deployment) float64 { return d.RunSec }), of(func(d *Deployment) float64 { return d.CPUSec }),
			of(func(d *Deployment) float64 { return float64(d.LinkBytes) / 1e6 }), of(func(d *Deployment) float64 { return float64(d.CephBytes) / 1e6 }),
			of(func(d *Deployment) float64 { return float64(d.CephWritten) / 1e6 })}
		for _, step := range steps() {
			row = append(row, of(func(d *Deployment) float64 { return 1e3 * d.Steps[step] }))
		}
		rows = append(rows, row)
	}
	head = []string{"way", "s", "pull s", "run s", "CPU s", "MB over the link", "MB from Ceph", "MB to Ceph"}
	for _, step := range steps() {
		head = append(head, step+" ms")
	}
	measure.Table(w, 1, head, rows)
	if rows := failures(s.Deployments); len(rows) > 0 {
		w.WriteString("\nDeployments that failed:\n\n")
		measure.Table(w, 3, []string{"image", "way", "failure"}, rows)
	}
}

// steps returns the agent's steps that belong to a deployment.
func steps() []string { return []string{"credential", "clone", "map", "attach", "mount"} }

// Pictures returns the images by size, as in Figure 7.
func (s *Single) Pictures() []measure.Picture {
	images := imagesIn(s.Deployments)
	slices.SortStableFunc(images, func(a, b string) int { return int(s.Sizes[a] - s.Sizes[b]) })
	c := measure.Chart{Title: "Deployment of one container, s, by size of the image (paper: Figure 7)", Across: "compressed size of the image, MB", Lines: true}
	for _, im := range images {
		c.Columns = append(c.Columns, measure.Figure(float64(s.Sizes[im])/1e6))
	}
	for _, way := range waysIn(s.Deployments) {
		line := measure.Series{Name: wayTitle(way)}
		for _, im := range images {
			line.Points = append(line.Points, cell{image: im, way: way}.spread(s.Deployments, (*Deployment).TotalSec))
		}
		c.Series = append(c.Series, line)
	}
	return []measure.Picture{{File: "cider-single.svg", Chart: c}}
}
