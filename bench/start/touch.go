package start

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
)

// Touch is the outcome of the scenario: how long tasks take that read a portion of an image,
// from nothing to the end of the task. In its samples, the task is the portion.
type Touch struct {
	Run Run `json:"run"`
	// Files and Bytes are what the image has for the tasks to read. Compressed is the size
	// of its layers.
	Files      int       `json:"files"`
	Bytes      int64     `json:"bytes"`
	Compressed int64     `json:"compressed"`
	Portions   []Portion `json:"portions"`
	Samples    []Sample  `json:"samples"`
}

// Portion is what one task reads: whole files, in an order that has nothing to do with the
// order of the layers.
type Portion struct {
	Percent int   `json:"percent"`
	Files   int   `json:"files"`
	Bytes   int64 `json:"bytes"`
}

// name returns the name of the portion's task.
func (p Portion) name() string { return fmt.Sprintf("%d %%", p.Percent) }

const (
	// touchMB is the size of the image in MB, without compression.
	touchMB = 200
	// A known image has been started before: the registry knows a profile of it, and
	// stargz's optimizer has watched its task. The names of such systems end in knownSuffix.
	// Other systems know nothing of the image.
	knownSuffix = "+"
	// heldSuffix ends the names of systems of which one connection gets heldRate bytes a
	// second. mostOverFree bounds the time of such a start, as a multiple of the same start
	// without a held connection.
	heldSuffix   = ", held"
	heldRate     = 1 << 20
	mostOverFree = 1.10
	// mostOverBest and mostOverBytes bound the time and the bytes of a start with Slipway,
	// as multiples of those of the fastest other system that knows no more.
	mostOverBest, mostOverBytes = 1.05, 1.02
)

// portions returns the chosen percentages.
func (o *options) portions() ([]int, error) { return measure.Numbers(o.touch, 1, 100) }

// touched is a system with the image that it starts.
type touched struct {
	*system
	known bool
}

// touchSystems returns the systems of the scenario. Stargz and Slipway take part twice, with an
// image that nobody has started yet and with a known one.
func (b *bench) touchSystems() []touched {
	systems := b.systems
	if b.o.systems == "" {
		systems = slices.Insert(slices.Clone(systems), 1, parallel())
	}
	var out []touched
	for _, s := range systems {
		if s.name == newName {
			continue // there is only one version
		}
		if s.name != stargzName && s.name != slipwayName {
			out = append(out, touched{s, false})
			continue
		}
		unknown, known := *s, *s
		if known.name += knownSuffix; s.name == stargzName {
			unknown.suffix += "-as-is"
		}
		out = append(out, touched{&unknown, false}, touched{&known, true})
		if b.o.held && s.name == slipwayName && rttOf(b.links) > 0 {
			slow := known
			slow.name, slow.held = known.name+heldSuffix, true
			out = append(out, touched{&slow, true})
		}
	}
	return out
}

// touchImages are the images of a portion. The two are in different repositories.
type touchImages struct{ unknown, known *corpus.Image }

func (im touchImages) of(s touched) *corpus.Image {
	if s.known {
		return im.known
	}
	return im.unknown
}

// runTouch measures all portions over all links.
func runTouch(b *bench, ctx context.Context) error {
	began := time.Now()
	tree, err := newTouchTree(b.o.touchMB)
	if err != nil {
		return err
	}
	out := &Touch{Files: len(tree.files), Bytes: tree.bytes}
	percentages, err := b.o.portions()
	if err != nil {
		return err
	}
	systems := b.touchSystems()
	var images []touchImages
	for _, percent := range percentages {
		files, bytes := tree.portion(percent)
		out.Portions = append(out.Portions, Portion{percent, len(files), bytes})
		im, err := b.readyTouch(ctx, tree, percent, systems)
		if err != nil {
			return fmt.Errorf("the image of which %d %% are read: %w", percent, err)
		}
		images, out.Compressed = append(images, im), im.unknown.Bytes()
	}
	b.results.Touch = out
	defer func() { out.Run = b.since(began) }()
	var errs []error
	for round := range b.o.Rounds {
		for _, l := range b.links {
			for i, p := range out.Portions {
				errs = append(errs, b.touchCell(ctx, Cell{"touch", p.name(), l.mbit, l.rttMs}, images[i], systems, round, out))
				if ctx.Err() != nil {
					return errors.Join(append(errs, ctx.Err())...)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// readyTouch puts the two images of a portion into the registry, with what the systems need.
func (b *bench) readyTouch(ctx context.Context, tree *touchTree, percent int, systems []touched) (im touchImages, err error) {
	series := fmt.Sprintf("%s%d-of-%d", touchSeries, percent, b.o.touchMB)
	if im.unknown, err = b.pushTouch(ctx, tree.image(percent, ""), series); err != nil {
		return im, err
	}
	if im.known, err = b.pushTouch(ctx, tree.image(percent, "known"), series+"-known"); err != nil {
		return im, err
	}
	if err := b.registry.converted(ctx); err != nil {
		return im, err
	}
	if err := b.net.shape(ctx, 0); err != nil {
		return im, err
	}
	for _, s := range systems {
		switch {
		case s.name == stargzName:
			err = b.convert(ctx, im.unknown, s.system)
		case s.name == stargzName+knownSuffix:
			err = b.optimise(ctx, im.known)
		case s.known && !s.held:
			err = b.recordProfile(ctx, im.known)
		}
		if err != nil {
			return im, fmt.Errorf("prepare it for %s: %w", s.name, err)
		}
	}
	if b.hasProfile(ctx, im.unknown) {
		return im, errors.New("it has a profile of its own; use another -prepared")
	}
	return im, nil
}

// touchCell measures a portion over a link once with each system. The order changes from round to
// round.
func (b *bench) touchCell(ctx context.Context, c Cell, im touchImages, systems []touched, round int, out *Touch) error {
	var errs []error
	for i := range systems {
		s := systems[(i+round)%len(systems)]
		if s.held && c.RTTms == 0 {
			continue // there is no proxy that could hold a connection
		}
		sample := Sample{Cell: c, System: s.name, Round: round}
		if err := b.once(ctx, im.of(s), s.system, false, &sample); err != nil {
			sample.Failure = err.Error()
			errs = append(errs, fmt.Errorf("%s at %s with %s: %w", c.Task, link{c.Mbit, c.RTTms}, s.name, err))
		}
		out.Samples = append(out.Samples, sample)
		b.Logf("%s", sample)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// spread returns a figure of a system's starts in a cell.
func (t *Touch) spread(c Cell, system string, of func(Sample) float64) measure.Spread {
	sp, _ := (&Start{Samples: t.Samples}).spread(c, system, of)
	return sp
}

// names returns the systems that took part, in the order of their first samples in the first
// round.
func (t *Touch) names() (out []string) {
	for _, s := range t.Samples {
		if !slices.Contains(out, s.System) {
			out = append(out, s.System)
		}
	}
	return out
}

// cells returns the cells that have samples, by link and portion.
func (t *Touch) cells() (out []Cell) {
	for _, s := range t.Samples {
		if !slices.Contains(out, s.Cell) {
			out = append(out, s.Cell)
		}
	}
	return out
}

// best returns the fastest system that a start with Slipway is compared with, or "" if there
// is none: systems that know the image are compared only with an image that Slipway knows, too.
func (t *Touch) best(c Cell, own string) (name string) {
	least := math.Inf(1)
	for _, n := range t.names() {
		if strings.HasPrefix(n, slipwayName) || strings.HasSuffix(n, knownSuffix) && !strings.HasSuffix(own, knownSuffix) {
			continue
		}
		if sp := t.spread(c, n, Sample.TotalSec); sp.N > 0 && sp.Median < least {
			name, least = n, sp.Median
		}
	}
	return name
}

// wireBytes returns the bytes of a start.
func wireBytes(s Sample) float64 { return float64(s.RunBytes) }

// overBest returns the time and the bytes of a start with Slipway as multiples of those of the
// best other system. It returns false if there is nothing to compare.
func (t *Touch) overBest(c Cell, own string) (seconds, bytes float64, best string, ok bool) {
	best = t.best(c, own)
	is, was := t.spread(c, own, Sample.TotalSec), t.spread(c, best, Sample.TotalSec)
	if best == "" || is.N == 0 {
		return 0, 0, best, false
	}
	return is.Median / was.Median, t.spread(c, own, wireBytes).Median / t.spread(c, best, wireBytes).Median, best, true
}

func (t *Touch) write(w *strings.Builder) {
	fmt.Fprintf(w, "Tasks read a portion of an image with %d files of %s MB (%s MB in its layers): whole files in a random order. "+
		"Seconds from nothing to the end of the task; median of the rounds (least to greatest). %q marks images that were started before: "+
		"a profile is known, and stargz's optimizer has watched the task. The ratio is to the fastest of the others that know no more.\n\n",
		t.Files, measure.Megabytes(t.Bytes), measure.Megabytes(t.Compressed), knownSuffix)
	names := t.names()
	var owns []string
	for _, n := range names {
		if strings.HasPrefix(n, slipwayName) && !strings.HasSuffix(n, heldSuffix) {
			owns = append(owns, n)
		}
	}
	head := append([]string{"link", "read"}, names...)
	for _, n := range owns {
		head = append(head, n+", ratio")
	}
	var seconds, bytes [][]string
	for _, c := range t.cells() {
		rowSec := []string{link{c.Mbit, c.RTTms}.String(), c.Task}
		rowBytes := slices.Clone(rowSec)
		for _, n := range names {
			rowSec = append(rowSec, t.spread(c, n, Sample.TotalSec).String())
			rowBytes = append(rowBytes, measure.Megabytes(int64(t.spread(c, n, wireBytes).Median)))
		}
		for _, n := range owns {
			sec, moved, best, ok := t.overBest(c, n)
			if !ok {
				rowSec, rowBytes = append(rowSec, "-"), append(rowBytes, "-")
				continue
			}
			rowSec, rowBytes = append(rowSec, measure.Figure(sec)+" "+best), append(rowBytes, measure.Figure(moved)+" "+best)
		}
		seconds, bytes = append(seconds, rowSec), append(bytes, rowBytes)
	}
	measure.Table(w, 2, head, seconds)
	w.WriteString("\nMB received by the end of the task (medians), and the ratio to the same system.\n\n")
	measure.Table(w, 2, head, bytes)
	var held [][]string
	for _, c := range t.cells() {
		if ratio, ok := t.heldOverFree(c); ok {
			held = append(held, []string{link{c.Mbit, c.RTTms}.String(), c.Task, measure.Figure(ratio)})
		}
	}
	if len(held) > 0 {
		w.WriteString("\nStarts of which one connection gets 1 MiB/s, as multiples of those without one.\n\n")
		measure.Table(w, 2, []string{"link", "read", "times"}, held)
	}
}

// heldOverFree returns the time of starts with a held connection as a multiple of those without,
// or false if they were not measured.
func (t *Touch) heldOverFree(c Cell) (float64, bool) {
	free := t.spread(c, slipwayName+knownSuffix, Sample.TotalSec)
	held := t.spread(c, slipwayName+knownSuffix+heldSuffix, Sample.TotalSec)
	return held.Median / free.Median, held.N > 0 && free.N > 0
}

// touch checks that no start is slower than the best of the other systems.
func (v *verdict) touch(t *Touch) {
	if t == nil {
		return
	}
	for _, own := range []string{slipwayName, slipwayName + knownSuffix} {
		var slow, more []string
		compared := 0
		for _, c := range t.cells() {
			sec, bytes, best, ok := t.overBest(c, own)
			if !ok {
				continue
			}
			compared++
			at := fmt.Sprintf("%s at %s", c.Task, link{c.Mbit, c.RTTms})
			if sec > mostOverBest {
				slow = append(slow, fmt.Sprintf("%s: %.2f of %s", at, sec, best))
			}
			if bytes > mostOverBytes {
				more = append(more, fmt.Sprintf("%s: %.2f of %s", at, bytes, best))
			}
		}
		if compared == 0 {
			v.open("portions of an image with " + own)
			continue
		}
		v.none(fmt.Sprintf("%s, a portion of an image: over %.2f times the best", own, mostOverBest), slow)
		v.none(fmt.Sprintf("%s, a portion of an image: over %.2f times the bytes of the best", own, mostOverBytes), more)
	}
	v.held(t)
	var failed []string
	for _, s := range t.Samples {
		if s.Failure != "" {
			failed = append(failed, measure.FirstLine(s.String()))
		}
	}
	v.none("a start with a portion that failed", failed)
}

// held checks that a slow connection does not hold up a start.
func (v *verdict) held(t *Touch) {
	var over []string
	measured := false
	for _, c := range t.cells() {
		ratio, ok := t.heldOverFree(c)
		measured = measured || ok
		if ok && ratio > mostOverFree {
			over = append(over, fmt.Sprintf("%s at %s: %.2f", c.Task, link{c.Mbit, c.RTTms}, ratio))
		}
	}
	if measured {
		v.none(fmt.Sprintf("a start with a connection of 1 MiB/s: over %.2f times one without", mostOverFree), over)
	}
}

// estimateTouch prints how long the scenario will take.
func (b *bench) estimateTouch() error {
	const (
		compressed  = 0.45 // of the size
		readSec     = 1.5  // to start a container and to read what is local
		prepareSec  = 15   // once for a portion and a system that must know it
		convertSec  = 60   // once for a portion and an image of stargz
		generateSec = 20
	)
	percentages, err := b.o.portions()
	if err != nil {
		return err
	}
	systems, size := b.touchSystems(), compressed*1e6*float64(b.o.touchMB)
	sec, once := 0.0, 0.0
	for _, p := range percentages {
		for _, s := range systems {
			for _, l := range b.links {
				if s.held && l.rttMs == 0 {
					continue
				}
				sec += aroundSec + readSec
				if strings.HasPrefix(s.name, plainName) || strings.HasPrefix(s.name, parallelName) {
					sec += transferSec(int64(size), l.mbit) + size/unpackBytes
				} else {
					sec += 1.2 * transferSec(int64(size*float64(p)/100), l.mbit)
				}
			}
			switch {
			case strings.HasPrefix(s.name, stargzName):
				once += convertSec
			case s.known && !s.held:
				once += prepareSec
			}
		}
	}
	sec = sec*float64(b.o.Rounds) + generateSec
	fmt.Printf("touch: %d portions, %d links, %d systems, %d rounds: about %s, and once for all %s for preparing the images\n",
		len(percentages), len(b.links), len(systems), b.o.Rounds, time.Duration(sec)*time.Second, time.Duration(once)*time.Second)
	return nil
}
