package start

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
)

// Sequence is the outcome of the scenario: how long the versions of a series take one after the
// other, on a node that keeps what earlier versions left.
type Sequence struct {
	Run      Run               `json:"run"`
	Versions []SequenceVersion `json:"versions"`
}

// SequenceVersion is one version over one link.
type SequenceVersion struct {
	Series  string `json:"series"`
	Version string `json:"version"`
	Mbit    int    `json:"mbit"`
	// Place counts the versions before it.
	Place int `json:"place"`
	// Plain and Slipway are the seconds of the pull and the first task. 0 means not measured.
	Plain   float64 `json:"plain_sec"`
	Slipway float64 `json:"slipway_sec"`
	// Computed says that Plain is only the time that the bytes of new layers take on the link.
	Computed bool `json:"computed,omitempty"`
}

// runSequence deploys all versions of the chosen series, oldest first, with a plain pull and with
// the agent.
func runSequence(b *bench, ctx context.Context) error {
	began := time.Now()
	plain, own := b.system(plainName), b.system(slipwayName)
	if plain == nil || own == nil {
		b.Logf("a sequence compares a plain pull with the agent; one of them is missing")
		return nil
	}
	out := &Sequence{}
	b.results.Sequence = out
	defer func() { out.Run = b.since(began) }()
	var errs []error
	for _, chosen := range b.images {
		versions := b.versionsOf(chosen.Series)
		if err := b.push(ctx, versions); err != nil {
			return err
		}
		for _, mbit := range b.rates() {
			errs = append(errs, b.sequence(ctx, plain, own, versions, mbit, out))
			if ctx.Err() != nil {
				return errors.Join(append(errs, ctx.Err())...)
			}
		}
	}
	return errors.Join(errs...)
}

// rates returns the rates of the links, each once. A sequence has no added round trip.
func (b *bench) rates() (out []int) {
	for _, l := range b.links {
		if !slices.Contains(out, l.mbit) {
			out = append(out, l.mbit)
		}
	}
	return out
}

// versionsOf returns the images of a series, oldest first.
func (b *bench) versionsOf(series string) (out []*corpus.Image) {
	for _, im := range b.all {
		if im.Series == series {
			out = append(out, im)
		}
	}
	return out
}

// sequence deploys versions over one link, all with one system and then all with the other.
func (b *bench) sequence(ctx context.Context, plain, own *system, versions []*corpus.Image, mbit int, out *Sequence) error {
	list := make([]SequenceVersion, len(versions))
	seen := map[string]bool{}
	slow := map[int]float64{}
	for i, im := range versions {
		list[i] = SequenceVersion{Series: im.Series, Version: im.Version, Mbit: mbit, Place: i}
		var fresh int64
		for _, l := range im.Layers {
			if !seen[l.Digest] {
				seen[l.Digest] = true
				fresh += l.Size
			}
		}
		if sec := transferSec(fresh, mbit); sec > b.o.wait.Seconds() {
			slow[i] = sec
		}
	}
	err := b.deployAll(ctx, plain, versions, mbit, func(i int, sec float64) { list[i].Plain = sec }, slow)
	for i, sec := range slow {
		list[i].Plain, list[i].Computed = sec, true
	}
	err = errors.Join(err, b.deployAll(ctx, own, versions, mbit, func(i int, sec float64) { list[i].Slipway = sec }, nil))
	for _, v := range list {
		b.Logf("%s/%s at %d Mbit/s: plain pull %.2f s, agent %.2f s", v.Series, v.Version, mbit, v.Plain, v.Slipway)
	}
	out.Versions = append(out.Versions, list...)
	return err
}

// deployAll deploys versions on one node, one after the other. A version to skip is brought there
// without a limit of the rate, because the next one needs its layers.
func (b *bench) deployAll(ctx context.Context, s *system, versions []*corpus.Image, mbit int, took func(int, float64), skip map[int]float64) (err error) {
	n, err := startNode(ctx, b.NewDir(), s, b.hosts())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	for i, im := range versions {
		rate := mbit
		if skip[i] > 0 {
			rate = 0
		}
		if err := b.net.shape(ctx, rate); err != nil {
			return err
		}
		sec, err := b.deployOnce(ctx, n, im, fmt.Sprint("v", i), mbit)
		if err != nil {
			return fmt.Errorf("%s with %s: %w\n%s", im, s.name, err, n.logs())
		}
		if skip[i] == 0 {
			took(i, sec)
		}
	}
	return nil
}

// deployOnce pulls an image, runs its first task, and returns how long that took.
func (b *bench) deployOnce(ctx context.Context, n *node, im *corpus.Image, id string, mbit int) (float64, error) {
	task, err := taskOf(im, firstTask)
	if err != nil {
		return 0, err
	}
	if mbit > 0 {
		task.Timeout += slower(mbit)
	}
	image := ref(b.registry.host(0), im, n.system)
	began := time.Now()
	if err := n.pull(ctx, image); err != nil {
		return 0, err
	}
	pulled := time.Since(began)
	result, err := n.tasks().Run(ctx, image, id, task)
	if err != nil {
		return 0, err
	}
	return (pulled + result.Took).Seconds(), nil
}

func (s *Sequence) write(w *strings.Builder) {
	w.WriteString("Seconds of the pull and the first task of each version, one after the other on one node. *: only the time that the bytes of new layers take on the link.\n\n")
	var rows [][]string
	for _, v := range s.Versions {
		plain := measure.Figure(v.Plain)
		if v.Computed {
			plain += "*"
		}
		rows = append(rows, []string{v.Series + "/" + v.Version, fmt.Sprint(v.Mbit), plain, measure.Figure(v.Slipway)})
	}
	measure.Table(w, 1, []string{"version", "Mbit/s", "plain pull s", "agent s"}, rows)
}

// Cycles is the outcome of the scenario: how long it takes to start a container of a service, to
// send it a request, and to remove it.
type Cycles struct {
	Run   Run    `json:"run"`
	Image string `json:"image"`
	// Plain and Slipway are the seconds of each cycle.
	Plain   []float64 `json:"plain_sec"`
	Slipway []float64 `json:"slipway_sec"`
}

const (
	// cycleSeries is the series whose containers come and go, if it is among the chosen ones.
	// cycles is how often they do, as in Figure 11b of the Gear paper.
	cycleSeries = "nginx"
	cycles      = 100
)

// runCycles measures cycles on both systems in turn.
func runCycles(b *bench, ctx context.Context) (err error) {
	began := time.Now()
	plain, own := b.system(plainName), b.system(slipwayName)
	if plain == nil || own == nil || len(b.images) == 0 {
		b.Logf("cycles compare a plain pull with the agent; one of them is missing")
		return nil
	}
	im := b.images[0]
	if i := slices.IndexFunc(b.images, func(im *corpus.Image) bool { return im.Series == cycleSeries }); i >= 0 {
		im = b.images[i]
	}
	if err := errors.Join(b.push(ctx, []*corpus.Image{im}), b.net.shape(ctx, 0)); err != nil {
		return err
	}
	out := &Cycles{Image: im.String()}
	times := []*[]float64{&out.Plain, &out.Slipway}
	var nodes []*node
	for i, s := range []*system{plain, own} {
		n, err := startNode(ctx, b.NewDir(), s, b.hosts())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, n.stop()) }()
		if _, err := b.deployOnce(ctx, n, im, fmt.Sprint("first", i), 0); err != nil { // brings everything there
			return err
		}
		nodes = append(nodes, n)
	}
	for i := range b.o.cycles {
		for k := range nodes {
			which := (i + k) % len(nodes)
			sec, err := b.cycle(ctx, nodes[which], im, fmt.Sprint("cycle", i))
			if err != nil {
				return err
			}
			*times[which] = append(*times[which], sec)
		}
	}
	b.Logf("a cycle of %s: plain pull %s s, agent %s s", im, measure.SpreadOf(out.Plain), measure.SpreadOf(out.Slipway))
	out.Run = b.since(began)
	b.results.Cycles = out
	return nil
}

// cycle starts a container, waits for its answer, removes it, and returns how long that took.
func (b *bench) cycle(ctx context.Context, n *node, im *corpus.Image, id string) (float64, error) {
	task, err := taskOf(im, firstTask)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	_, err = n.tasks().Run(ctx, ref(b.registry.host(0), im, n.system), id, task)
	return time.Since(began).Seconds(), err
}

func (c *Cycles) write(w *strings.Builder) {
	fmt.Fprintf(w, "Seconds from starting a container of %s until it has answered a request and is removed; the image is there, and both systems take turns.\n\n", c.Image)
	measure.Table(w, 1, []string{"system", "cycles", "s"}, [][]string{
		{"plain pull", fmt.Sprint(len(c.Plain)), measure.SpreadOf(c.Plain).String()},
		{"agent", fmt.Sprint(len(c.Slipway)), measure.SpreadOf(c.Slipway).String()},
	})
}
