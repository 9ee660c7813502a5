package gear

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Determinism reports whether two servers with the same input do the same.
type Determinism struct {
	Run     Run      `json:"run"`
	Servers []string `json:"servers"`
	Images  int      `json:"images"`
	Layers  int      `json:"layers"`
	Packs   int      `json:"packs"`
	Settled int      `json:"settled_packs"`
	// Different lists the indexes and packs that differ.
	Different []string `json:"different,omitempty"`
}

// determinismImages and quickDeterminism are the numbers of images pushed to each server.
const (
	determinismImages = 8
	quickDeterminism  = 4
)

// outcome is what a server made of the images.
type outcome struct {
	indexes        map[string]string // names by layer
	fresh, settled map[string]int64  // sizes of packs by id
}

func runDeterminism(b *bench, ctx context.Context) error {
	began := time.Now()
	most := determinismImages
	if b.Run.Quick {
		most = quickDeterminism
	}
	images := fewer(b.images, most)
	out := &Determinism{Images: len(images)}
	var got []outcome
	for _, x := range []struct{ workers, procs int }{{1, 1}, {8, 2}} {
		out.Servers = append(out.Servers, fmt.Sprintf("gear.workers %d, GOMAXPROCS %d", x.workers, x.procs))
		o, err := b.convertAll(ctx, images, x.workers, x.procs)
		if err != nil {
			return err
		}
		b.Logf("%s: %d indexes, %d packs, %d after settling", out.Servers[len(got)], len(o.indexes), len(o.fresh), len(o.settled))
		got = append(got, *o)
	}
	out.Layers, out.Packs, out.Settled = len(got[0].indexes), len(got[0].fresh), len(got[0].settled)
	for layer, name := range got[0].indexes {
		if other := got[1].indexes[layer]; other != name {
			out.Different = append(out.Different, fmt.Sprintf("index of layer %s: %s and %s", layer, name, other))
		}
	}
	out.Different = append(out.Different, onlyIn("pack", got[0].fresh, got[1].fresh)...)
	out.Different = append(out.Different, onlyIn("settled pack", got[0].settled, got[1].settled)...)
	slices.Sort(out.Different)
	for _, d := range out.Different {
		b.Logf("%s", d)
	}
	out.Run = b.since(began)
	b.results.Determinism = out
	return nil
}

// onlyIn lists the packs that only one of two servers has.
func onlyIn(what string, a, b map[string]int64) (out []string) {
	for i, pair := range [][2]map[string]int64{{a, b}, {b, a}} {
		for id, size := range pair[0] {
			if _, ok := pair[1][id]; !ok {
				out = append(out, fmt.Sprintf("%s %s of %d bytes: at server %d only", what, id, size, i+1))
			}
		}
	}
	return out
}

// convertAll pushes images layer by layer, waits for each layer's conversion before it
// pushes the next layer, and then settles the packs.
func (b *bench) convertAll(ctx context.Context, images []*image, workers, procs int) (*outcome, error) {
	s, err := b.server(ctx, workers, fmt.Sprintf("GOMAXPROCS=%d", procs))
	if err != nil {
		return nil, err
	}
	defer b.drop(s)
	o := &outcome{indexes: map[string]string{}}
	for _, im := range images {
		for _, l := range im.Layers {
			if _, err := s.pushBlob(ctx, im.Repo(), l.Digest, im.Blob(l.Digest)); err != nil {
				return nil, err
			}
			if o.indexes[l.Digest], err = s.waitIndex(ctx, im.Repo(), l.Digest); err != nil {
				return nil, err
			}
			if err := s.waitStored(ctx); err != nil { // the order decides which pack has a file
				return nil, err
			}
		}
		if _, err := s.pushImage(ctx, im, im.Repo(), im.Version); err != nil {
			return nil, err
		}
	}
	if o.fresh, err = s.listPacks(); err != nil {
		return nil, err
	}
	var rep struct{ Packs int64 }
	if err := s.command(ctx, &rep, "settle", "--all"); err != nil {
		return nil, err
	}
	if o.settled, err = s.listPacks(); err != nil {
		return nil, err
	}
	maps.DeleteFunc(o.settled, func(id string, _ int64) bool { _, old := o.fresh[id]; return old })
	return o, nil
}

// Head implements [measure.Part].
func (d *Determinism) Head() string { return d.Run.Head() }

// Title implements [measure.Part].
func (d *Determinism) Title() string { return "Determinism" }

// About implements [measure.Part].
func (d *Determinism) About() string {
	return "The same images are pushed in the same order, each layer when the one before is converted, to two servers: " + strings.Join(d.Servers, "; ") +
		". Then both are settled. The names of all indexes and the ids of all packs, which are digests, must be the same."
}

// Targets implements [measure.Part].
func (d *Determinism) Targets() []measure.Target {
	return []measure.Target{{Scenario: "determinism", What: "indexes and packs that differ", Limit: 0, Figure: float64(len(d.Different))}}
}

// Write implements [measure.Part].
func (d *Determinism) Write(w *strings.Builder) {
	fmt.Fprintf(w, "%d images, %d indexes, %d packs, %d after settling; %d differ.\n", d.Images, d.Layers, d.Packs, d.Settled, len(d.Different))
	if len(d.Different) > 0 {
		fmt.Fprintf(w, "\n```text\n%s\n```\n", strings.Join(d.Different, "\n"))
	}
}

// Pictures implements [measure.Part].
func (d *Determinism) Pictures() []measure.Picture { return nil }
