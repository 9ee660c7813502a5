package reproduce

import (
	"maps"
	"slices"
	"strings"

	"example.org/slipway/integration/bench/cider"
	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/internal/chart"
)

const (
	ciderPaper = "Cider"
	ciderText  = "the paper's text; no curve was read off"
	// oneMachine says what differs in all of its entries, and likeCider what its deployments have in
	// common with the paper's.
	oneMachine = "All nodes, the registry and Ceph share one machine of two cores and its disk; there, each of twelve machines had 24 cores, 10 Gbit/s and a hard disk for Ceph."
	likeCider  = oneMachine + " As there, links have 10 Gbit/s, the clock ends at start-up (a container only starts a program of its image), and a node's disk is as slow as a hard disk: " +
		"120 MB/s, an assumption, which a check before each deployment proves to hold."
)

// ciderEntries returns the entries of Du et al.
func ciderEntries() []Entry {
	return []Entry{ciderFigure2(), ciderFigure6(), ciderFigure7(), ciderFigure8(), ciderFigure9(), ciderFigure10(), ciderFigure11()}
}

// ciderFigure2 returns the entry for the share of the pull in a plain deployment.
func ciderFigure2() Entry {
	return Entry{Paper: ciderPaper, Name: "Figure 2", Title: "pull and run of a plain deployment", Part: "cider-single", Source: ciderText,
		Did:     "The 69 most popular images of Docker Hub, 347 MB on average: 12.3 s of a deployment of 13.4 s are the pull (92 %). The pull grows with the size, the run does not.",
		Differs: likeCider + " Nine series of 35 to 361 MB.",
		Claims: []Claim{
			exactly("share of the pull", chart.Share, 0.92, Like),
			atLeast("correlation of pull and size", chart.Number, 0.8, Like),
			Claim{Name: "correlation of run and size", Low: -0.5, High: 0.5},
		},
		X: chart.Axis{Title: "size of the image, compressed", Unit: chart.Bytes}, Y: chart.Axis{Title: "seconds", Unit: chart.Seconds},
		Curves: []Curve{{Name: "pull, published mean", Single: true, Points: []chart.Point{{X: 347e6, Y: 12.3}}}, {Name: "run, published mean", Single: true, Points: []chart.Point{{X: 347e6, Y: 1.1}}}},
		Read: func(r *Raw) *Finding {
			s := r.Cider.Single
			if s == nil {
				return nil
			}
			var size, pull, run []float64
			images := slices.Collect(maps.Keys(s.Sizes))
			slices.SortFunc(images, func(a, b string) int { return int(s.Sizes[a] - s.Sizes[b]) })
			pulls, runs := Curve{Name: "pull, here"}, Curve{Name: "run, here"}
			for _, im := range images {
				p := spreadOf(s.Deployments, im, ctrnode.Plain, 0, 0, func(d *cider.Deployment) float64 { return d.PullSec })
				q := spreadOf(s.Deployments, im, ctrnode.Plain, 0, 0, func(d *cider.Deployment) float64 { return d.RunSec })
				if p.N == 0 {
					continue
				}
				x := float64(s.Sizes[im])
				size, pull, run = append(size, x), append(pull, p.Median), append(run, q.Median)
				pulls.Points, runs.Points = append(pulls.Points, chart.Point{X: x, Y: p.Median}), append(runs.Points, chart.Point{X: x, Y: q.Median})
			}
			if len(size) == 0 {
				return nil
			}
			out := &Finding{Run: &s.Run, Curves: []Curve{pulls, runs}, Values: map[string]measure.Spread{"share of the pull": one(mean(pull) / (mean(pull) + mean(run)))}}
			if len(size) > 2 {
				out.Values["correlation of pull and size"], out.Values["correlation of run and size"] = one(correlation(size, pull)), one(correlation(size, run))
			}
			return out
		}}
}

// ciderFigure6 returns the entry for the time of the steps by concurrency.
func ciderFigure6() Entry {
	e := Entry{Paper: ciderPaper, Name: "Figure 6", Title: "load, clone and map by how many run at once", Part: "cider-node10",
		Source: ciderText + ": only the time of load, and that concurrent clones contend for Ceph's metadata",
		Did:    "The steps of a deployment, 1 to 50 at once: load takes 0.2 to 0.3 s, and clones contend for Ceph's global metadata.",
		Differs: likeCider + " Steps are the agent's own times of containers on one node, 1 to 10 at once, and a mean of all. Slipway loads by HTTP, and the paper's " +
			"prototype by rsync; load is the pull in local mode.",
		Claims: []Claim{
			exactly("load", chart.Seconds, 0.25, Less),
			atLeast("clone, most at once / one", chart.Number, 1, Like),
			atLeast("map, most at once / one", chart.Number, 1, Like),
		},
		X: chart.Axis{Title: "containers at once"}, Y: chart.Axis{Title: "mean time of a step", Unit: chart.Seconds, Log: true},
		Curves: []Curve{{Name: "load, published", Points: []chart.Point{{X: 1, Y: 0.25}, {X: 50, Y: 0.25}}}},
	}
	e.Read = func(r *Raw) *Finding {
		n := r.Cider.Node10
		if n == nil {
			return nil
		}
		out := &Finding{Run: &n.Run, Values: map[string]measure.Spread{}}
		out.Values["load"] = spreadOf(n.Deployments, "", ctrnode.VolumeLocal, 0, 1, func(d *cider.Deployment) float64 { return d.PullSec })
		for _, step := range []string{"clone", "map"} {
			c := Curve{Name: step + ", here"}
			for _, at := range countsOf(n.Deployments, func(d *cider.Deployment) int { return d.Containers }) {
				s := spreadOf(n.Deployments, "", ctrnode.VolumeNetwork, 0, at, func(d *cider.Deployment) float64 { return d.Steps[step] / float64(d.Containers) })
				if s.Median > 0 {
					c.Points = append(c.Points, chart.Point{X: float64(at), Y: s.Median})
				}
			}
			if k := len(c.Points); k > 0 {
				out.Curves = append(out.Curves, c)
				out.Values[step+", most at once / one"] = one(c.Points[k-1].Y / c.Points[0].Y)
			}
		}
		return out
	}
	return e
}

// reduction returns the share by which the mean of a way's times over the images is below
// the mean of plain pulls.
func reduction(list []cider.Deployment, way string, nodes, containers int) measure.Spread {
	var plain, took []float64
	for _, im := range imagesOf(list) {
		p := spreadOf(list, im, ctrnode.Plain, nodes, containers, (*cider.Deployment).TotalSec)
		w := spreadOf(list, im, way, nodes, containers, (*cider.Deployment).TotalSec)
		if p.N > 0 && w.N > 0 {
			plain, took = append(plain, p.Median), append(took, w.Median)
		}
	}
	if len(plain) == 0 {
		return measure.Spread{}
	}
	return one(1 - mean(took)/mean(plain))
}

// ciderFigure7 returns the entry for one container.
func ciderFigure7() Entry {
	e := Entry{Paper: ciderPaper, Name: "Figure 7", Title: "deployment of one container by size of the image", Part: "cider-single", Source: ciderText, Differs: likeCider,
		Did: "Network mode takes 2.5 s, 82 % less than a plain pull, and local mode 85 % less, whatever the size.",
		Claims: []Claim{
			exactly("local mode below a plain pull", chart.Share, 0.85, More), exactly("network mode below a plain pull", chart.Share, 0.82, More),
		},
		X: chart.Axis{Title: "size of the image, compressed", Unit: chart.Bytes}, Y: chart.Axis{Title: "deployment", Unit: chart.Seconds, Log: true},
		Curves: []Curve{{Name: "network mode, published mean", Points: []chart.Point{{X: 35e6, Y: 2.5}, {X: 361e6, Y: 2.5}}},
			{Name: "plain pull, published mean", Single: true, Points: []chart.Point{{X: 347e6, Y: 13.4}}}},
	}
	e.Read = func(r *Raw) *Finding {
		s := r.Cider.Single
		if s == nil {
			return nil
		}
		out := &Finding{Run: &s.Run, Values: map[string]measure.Spread{
			"local mode below a plain pull":   reduction(s.Deployments, ctrnode.VolumeLocal, 0, 0),
			"network mode below a plain pull": reduction(s.Deployments, ctrnode.VolumeNetwork, 0, 0)}}
		for _, way := range ways() {
			c := Curve{Name: way.title + ", here"}
			images := imagesOf(s.Deployments)
			slices.SortFunc(images, func(a, b string) int { return int(s.Sizes[a] - s.Sizes[b]) })
			for _, im := range images {
				if v := spreadOf(s.Deployments, im, way.name, 0, 0, (*cider.Deployment).TotalSec); v.N > 0 {
					c.Points = append(c.Points, chart.Point{X: float64(s.Sizes[im]), Y: v.Median})
				}
			}
			if len(c.Points) > 0 {
				out.Curves = append(out.Curves, c)
			}
		}
		return out
	}
	return e
}

// ciderFigure8 returns the entry for several containers on one node.
func ciderFigure8() Entry {
	e := Entry{Paper: ciderPaper, Name: "Figure 8", Title: "containers at once on one node", Part: "cider-node10", Source: ciderText, Differs: likeCider,
		Did: "1 to 10 containers at once of nginx (109 MB), postgres (269 MB) and python (684 MB). Ten at once: network mode 52 % less than a plain pull, local mode 63 % less.",
		Claims: []Claim{
			exactly("ten at once, local mode below a plain pull", chart.Share, 0.63, More), exactly("ten at once, network mode below a plain pull", chart.Share, 0.52, More),
		},
		X: chart.Axis{Title: "containers at once"}, Y: chart.Axis{Title: "mean deployment", Unit: chart.Seconds},
	}
	e.Read = func(r *Raw) *Finding {
		n := r.Cider.Node10
		if n == nil {
			return nil
		}
		return &Finding{Run: &n.Run, Curves: crowd(n.Deployments, func(d *cider.Deployment) int { return d.Containers }, func(n int) (int, int) { return 0, n }),
			Values: map[string]measure.Spread{
				"ten at once, local mode below a plain pull":   reduction(n.Deployments, ctrnode.VolumeLocal, 0, 10),
				"ten at once, network mode below a plain pull": reduction(n.Deployments, ctrnode.VolumeNetwork, 0, 10)}}
	}
	return e
}

// ciderFigure9 returns the entry for several nodes.
func ciderFigure9() Entry {
	e := Entry{Paper: ciderPaper, Name: "Figure 9", Title: "containers on several nodes", Part: "cider-nodes", Source: ciderText,
		Did:     "1 to 10 nodes with 1 to 10 containers each. 100 containers: local mode below 5 s, 62 % less than a plain pull; network mode takes about twice as long.",
		Differs: likeCider + " So times grow with the number of nodes in every mode. A node has a quarter of a processor, so that nodes do not wait for each other. At most four nodes of ten containers.",
		Claims: []Claim{
			exactly("most nodes, local mode below a plain pull", chart.Share, 0.62, More),
			exactly("most nodes, network mode / local mode", chart.Number, 2, Less),
		},
		X: chart.Axis{Title: "nodes"}, Y: chart.Axis{Title: "mean deployment", Unit: chart.Seconds},
		Curves: []Curve{{Name: "local mode, published: below", Single: true, Points: []chart.Point{{X: 10, Y: 5}}}},
	}
	e.Read = func(r *Raw) *Finding {
		n := r.Cider.Nodes
		if n == nil || len(n.Deployments) == 0 {
			return nil
		}
		most := slices.Max(countsOf(n.Deployments, func(d *cider.Deployment) int { return d.Nodes }))
		local, network := reduction(n.Deployments, ctrnode.VolumeLocal, most, 0), reduction(n.Deployments, ctrnode.VolumeNetwork, most, 0)
		out := &Finding{Run: &n.Run, Curves: crowd(n.Deployments, func(d *cider.Deployment) int { return d.Nodes }, func(n int) (int, int) { return n, 0 }),
			Values: map[string]measure.Spread{"most nodes, local mode below a plain pull": local}}
		if local.N > 0 && network.N > 0 && local.Median < 1 {
			out.Values["most nodes, network mode / local mode"] = one((1 - network.Median) / (1 - local.Median))
		}
		return out
	}
	return e
}

// ciderFigure10 returns the entry for the page cache.
func ciderFigure10() Entry {
	return Entry{Paper: ciderPaper, Name: "Figure 10", Title: "page cache of containers of one image", Part: "cider-pagecache", Source: ciderText + ": proportions",
		Did:     "1 and 20 containers of python: in network mode the page cache grows in proportion, in local mode it equals that of Overlay2.",
		Differs: oneMachine,
		Claims: []Claim{
			atLeast("network mode, 20 containers / 1", chart.Number, 10, Like),
			exactly("20 containers, local mode / plain pull", chart.Number, 1, Less),
		},
		Read: func(r *Raw) *Finding {
			p := r.Cider.PageCache
			if p == nil {
				return nil
			}
			bytes := func(way string, containers int) float64 {
				var v []float64
				for _, s := range p.Samples {
					if s.Way == way && s.Containers == containers {
						v = append(v, float64(s.Bytes))
					}
				}
				return measure.SpreadOf(v).Median
			}
			out := &Finding{Run: &p.Run, Values: map[string]measure.Spread{}}
			if single := bytes(ctrnode.VolumeNetwork, 1); single > 0 {
				out.Values["network mode, 20 containers / 1"] = one(bytes(ctrnode.VolumeNetwork, 20) / single)
			}
			if plain := bytes(ctrnode.Plain, 20); plain > 0 {
				out.Values["20 containers, local mode / plain pull"] = one(bytes(ctrnode.VolumeLocal, 20) / plain)
			}
			return out
		}}
}

// ciderFigure11 returns the entry for the throughput of applications.
func ciderFigure11() Entry {
	e := Entry{Paper: ciderPaper, Name: "Figure 11", Title: "throughput of applications", Part: "cider-throughput", Source: ciderText + ": \"very close\", taken as a ratio of 1; the solver loses less than 0.3 %",
		Did: "nginx under wrk, postgres under pgbench (TPC-B) and a solver in python, five minutes each, in local mode beside Overlay2.", Differs: oneMachine + " Ten seconds each, and ab takes the place of wrk."}
	for _, s := range []string{"nginx", "postgres", "python"} {
		c := exactly(s+", local mode / plain pull", chart.Number, 1, More)
		if s == "python" {
			c.Low, c.Within = 0.997, 0.02
		}
		e.Claims = append(e.Claims, c)
	}
	e.Read = func(r *Raw) *Finding {
		t := r.Cider.Throughput
		if t == nil {
			return nil
		}
		out := &Finding{Run: &t.Run, Values: map[string]measure.Spread{}}
		for _, x := range t.List {
			name, _, _ := strings.Cut(x.Name, ",")
			plain, local := measure.SpreadOf(x.PerSec[ctrnode.Plain]), measure.SpreadOf(x.PerSec[ctrnode.VolumeLocal])
			if plain.N > 0 && local.N > 0 && plain.Median > 0 {
				out.Values[name+", local mode / plain pull"] = one(local.Median / plain.Median)
			}
		}
		return out
	}
	return e
}

// ways returns the ways that are drawn.
func ways() []struct{ name, title string } {
	return []struct{ name, title string }{{ctrnode.Plain, "plain pull"}, {ctrnode.VolumeLocal, "local mode"}, {ctrnode.VolumeNetwork, "network mode"}}
}

// crowd returns a curve for each way: the mean over the images, by a number. at returns the nodes and
// the containers that stand for a number; 0 means any.
func crowd(list []cider.Deployment, number func(*cider.Deployment) int, at func(int) (nodes, containers int)) (out []Curve) {
	for _, way := range ways() {
		c := Curve{Name: way.title + ", here"}
		for _, n := range countsOf(list, number) {
			nodes, containers := at(n)
			var v []float64
			for _, im := range imagesOf(list) {
				if s := spreadOf(list, im, way.name, nodes, containers, (*cider.Deployment).TotalSec); s.N > 0 {
					v = append(v, s.Median)
				}
			}
			if len(v) > 0 {
				c.Points = append(c.Points, chart.Point{X: float64(n), Y: mean(v)})
			}
		}
		if len(c.Points) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// spreadOf returns the spread of a figure over the deployments that went well. "" and 0 mean any.
func spreadOf(list []cider.Deployment, image, way string, nodes, containers int, of func(*cider.Deployment) float64) measure.Spread {
	var v []float64
	for i := range list {
		d := &list[i]
		if d.Failure == "" && (image == "" || d.Image == image) && d.Way == way && (nodes == 0 || d.Nodes == nodes) && (containers == 0 || d.Containers == containers) {
			v = append(v, of(d))
		}
	}
	return measure.SpreadOf(v)
}

// imagesOf returns the images of deployments, in their order.
func imagesOf(list []cider.Deployment) (out []string) {
	for i := range list {
		if !slices.Contains(out, list[i].Image) {
			out = append(out, list[i].Image)
		}
	}
	return out
}

// countsOf returns the different numbers of deployments, in order.
func countsOf(list []cider.Deployment, number func(*cider.Deployment) int) (out []int) {
	for i := range list {
		if n := number(&list[i]); !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}
