package start

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
)

// Local is the outcome of the scenario: the speed of containers' file systems, and of programs on
// them, when everything is local.
type Local struct {
	Run Run `json:"run"`
	// System is the system that is compared with plain overlayfs.
	System string `json:"system"`
	// Tests holds the tests by name. Their unit is seconds, or requests per second if the test says
	// so.
	Tests []LocalTest `json:"tests"`
	// SharedBytes is the page cache that the containers after the first took when they read the
	// same large file of LargeBytes. Containers is their number.
	SharedBytes, LargeBytes int64
	Containers              int
}

// LocalTest is an operation that is timed on both file systems in turn.
type LocalTest struct {
	Name   string    `json:"name"`
	PerSec bool      `json:"per_sec,omitempty"` // more is better
	Plain  []float64 `json:"plain"`
	Other  []float64 `json:"other"`
	Why    string    `json:"why,omitempty"` // it was not measured
}

// localRounds is the minimum number of turns of each file system.
const localRounds = 8

// pair holds the two nodes whose file systems are compared, plain overlayfs first.
type pair struct {
	nodes [2]*node
	trees [2]*snapshots
}

// runLocal compares a system's file systems with plain overlayfs.
func runLocal(b *bench, ctx context.Context) (err error) {
	began := time.Now()
	i := slices.IndexFunc([]string{slipwayName, stargzName}, func(n string) bool { return b.system(n) != nil })
	if i < 0 {
		b.Logf("nothing to compare with overlayfs")
		return nil
	}
	s := b.system([]string{slipwayName, stargzName}[i])
	if err := b.net.shape(ctx, 0); err != nil {
		return err
	}
	images, err := b.localImages(ctx)
	if err != nil {
		return err
	}
	p, err := b.startPair(ctx, s, images)
	defer func() { err = errors.Join(err, p.stop()) }()
	if err != nil {
		return err
	}
	out := &Local{System: s.name}
	b.results.Local = out
	defer func() { out.Run = b.since(began) }()
	var errs []error
	if err := b.fileTests(ctx, p, images, out); err != nil {
		errs = append(errs, err)
	}
	if err := b.sharedPages(ctx, p, images[0], out); err != nil {
		errs = append(errs, err)
	}
	if err := b.throughput(ctx, p, images, out); err != nil {
		errs = append(errs, err)
	}
	for _, t := range out.Tests {
		b.Logf("%s: %s", t.Name, t)
	}
	return errors.Join(errs...)
}

// localImages pushes the images of the tests. These are an image with generated files on
// top of the newest python, the newest image of some series if there are any, and
// memcached.
func (b *bench) localImages(ctx context.Context) (out []*corpus.Image, err error) {
	newest := map[string]*corpus.Image{}
	for _, im := range b.all {
		newest[im.Series] = im
	}
	if newest["python"] == nil {
		return nil, errors.New("the generated image stands on one of the series python")
	}
	var wanted []*corpus.Image
	for _, series := range []string{"python", "tomcat", "redis", "nginx", "postgres"} {
		if im := newest[series]; im != nil {
			wanted = append(wanted, im)
		}
	}
	if err := b.push(ctx, wanted); err != nil {
		return nil, err
	}
	files, err := b.filesImage(ctx, wanted[0])
	if err != nil {
		return nil, fmt.Errorf("the generated image: %w", err)
	}
	out = append([]*corpus.Image{files}, wanted[1:]...)
	memcached, err := b.pushMemcached(ctx)
	if err != nil {
		return nil, fmt.Errorf("the image of memcached: %w", err)
	}
	if memcached != nil {
		out = append(out, memcached)
	}
	return out, b.registry.converted(ctx)
}

// startPair starts both nodes and pulls the images on them.
func (b *bench) startPair(ctx context.Context, s *system, images []*corpus.Image) (*pair, error) {
	p := &pair{}
	for i, s := range []*system{plain(), s} {
		n, err := startNode(ctx, b.NewDir(), s, b.hosts())
		if err != nil {
			return p, err
		}
		p.nodes[i] = n
		for _, im := range images {
			if err := n.pull(ctx, ref(b.registry.host(0), im, plain())); err != nil {
				return p, err
			}
		}
		if p.trees[i], err = newSnapshots(n.path("c.sock"), s.snapshotter, n.path("trees")); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *pair) stop() error {
	var errs []error
	for i := range p.nodes {
		if p.trees[i] != nil {
			errs = append(errs, p.trees[i].close())
		}
		if p.nodes[i] != nil {
			errs = append(errs, p.nodes[i].stop())
		}
	}
	return errors.Join(errs...)
}

// both runs a test on both file systems, one after the other. Which one is first changes from round
// to round.
func (t *LocalTest) both(round int, do func(i int) (float64, error)) error {
	for _, i := range [2][2]int{{0, 1}, {1, 0}}[round%2] {
		v, err := do(i)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		if i == 0 {
			t.Plain = append(t.Plain, v)
		} else {
			t.Other = append(t.Other, v)
		}
	}
	return nil
}

// test returns the test with a name.
func (l *Local) test(name string) *LocalTest {
	i := slices.IndexFunc(l.Tests, func(t LocalTest) bool { return t.Name == name })
	if i < 0 {
		i = len(l.Tests)
		l.Tests = append(l.Tests, LocalTest{Name: name})
	}
	return &l.Tests[i]
}

func timed(do func() error) (float64, error) {
	begin := time.Now()
	err := do()
	return time.Since(begin).Seconds(), err
}

// fileTests times operations on files in fresh mounts of the first image, and starts of programs.
func (b *bench) fileTests(ctx context.Context, p *pair, images []*corpus.Image, out *Local) error {
	chains := make([]string, len(images))
	for i, im := range images {
		var err error
		if chains[i], err = im.ChainID(); err != nil {
			return err
		}
	}
	java := slices.IndexFunc(images, func(im *corpus.Image) bool { return im.Series == "tomcat" })
	if err := p.readAll(ctx, chains); err != nil { // from here on, nothing comes over the link
		return err
	}
	for round := range max(localRounds, b.o.Rounds) {
		if err := p.filesRound(ctx, round, chains[0], out); err != nil {
			return err
		}
		if java >= 0 {
			if err := p.javaRound(ctx, round, chains[java], out); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// readAll mounts each image on both sides and reads every file.
func (p *pair) readAll(ctx context.Context, chains []string) error {
	for i := range p.trees {
		for k, chain := range chains {
			m, err := p.trees[i].mount(ctx, fmt.Sprintf("read%d", k), chain)
			if err != nil {
				return err
			}
			if err := errors.Join(readTree(m), p.trees[i].unmount(ctx, fmt.Sprintf("read%d", k))); err != nil {
				return err
			}
		}
	}
	return nil
}

// filesRound runs one round of all tests on the image with the generated files.
func (p *pair) filesRound(ctx context.Context, round int, chain string, out *Local) error {
	var at [2]string
	for k := range mountsARound {
		key := fmt.Sprintf("mount%d-%d", round, k)
		if err := out.test("mount").both(round+k, func(i int) (float64, error) {
			return timed(func() error { _, err := p.trees[i].mount(ctx, key, chain); return err })
		}); err != nil {
			return err
		}
		if err := errors.Join(p.trees[0].unmount(ctx, key), p.trees[1].unmount(ctx, key)); err != nil {
			return err
		}
	}
	key := fmt.Sprintf("files%d", round)
	for i := range p.trees {
		var err error
		if at[i], err = p.trees[i].mount(ctx, key, chain); err != nil {
			return err
		}
	}
	for _, t := range []struct {
		name string
		do   func(root string) error
	}{
		{"find, first", walk}, {"find, again", walk},
		{"1,000 small files, first", readSmall}, {"1,000 small files, again", readSmall},
		{"500 MB read, first", readLarge}, {"500 MB read, again", readLarge},
		{"500 MB mapped, first", mapLarge}, {"500 MB mapped, again", mapLarge},
		{"python start, first", startPython}, {"python start, again", startPython},
	} {
		if err := out.test(t.name).both(round, func(i int) (float64, error) { return timed(func() error { return t.do(at[i]) }) }); err != nil {
			return err
		}
	}
	return errors.Join(p.trees[0].unmount(ctx, key), p.trees[1].unmount(ctx, key))
}

func (p *pair) javaRound(ctx context.Context, round int, chain string, out *Local) error {
	key := fmt.Sprintf("java%d", round)
	var at [2]string
	for i := range p.trees {
		var err error
		if at[i], err = p.trees[i].mount(ctx, key, chain); err != nil {
			return err
		}
	}
	for _, name := range []string{"java start, first", "java start, again"} {
		if err := out.test(name).both(round, func(i int) (float64, error) { return timed(func() error { return startJava(at[i]) }) }); err != nil {
			return err
		}
	}
	return errors.Join(p.trees[0].unmount(ctx, key), p.trees[1].unmount(ctx, key))
}

// String returns both medians and their ratio.
func (t LocalTest) String() string {
	if t.Why != "" {
		return "not measured: " + t.Why
	}
	return fmt.Sprintf("plain %s, other %s, ratio %.2f", measure.SpreadOf(t.Plain), measure.SpreadOf(t.Other), t.ratio())
}

// ratio returns the ratio of the medians, other to plain.
func (t LocalTest) ratio() float64 {
	return measure.SpreadOf(t.Other).Median / measure.SpreadOf(t.Plain).Median
}

// mountsARound is the number of mounts in a round on each side. One mount takes two milliseconds,
// and mostly waits for the disk.
const mountsARound = 20

// These constants describe the generated files.
const (
	smallFiles = 1000
	smallBytes = 4000
	largeBytes = 500_000_000
)

// filesImage pushes a layer of generated files on top of an image, unless it is already there.
func (b *bench) filesImage(ctx context.Context, base *corpus.Image) (*corpus.Image, error) {
	dir := filepath.Join(b.Dir, "generated")
	im, err := generate(dir, base, rand.NewChaCha8([32]byte{1}))
	if err != nil {
		return nil, err
	}
	return im, b.registry.push(ctx, im)
}

func (l *Local) write(w *strings.Builder) {
	fmt.Fprintf(w, "Plain overlayfs and %s in turns, everything local; median of the rounds (least to greatest), milliseconds or requests per second; ratio of the medians.\n\n", l.System)
	var rows [][]string
	for _, t := range l.Tests {
		if t.Why != "" {
			rows = append(rows, []string{t.Name, "-", "-", "not measured: " + t.Why})
			continue
		}
		scale := 1e3
		if t.PerSec {
			scale = 1
		}
		of := func(v []float64) string {
			v = slices.Clone(v)
			for i := range v {
				v[i] *= scale
			}
			return measure.SpreadOf(v).String()
		}
		rows = append(rows, []string{t.Name, of(t.Plain), of(t.Other), measure.Figure(t.ratio())})
	}
	measure.Table(w, 1, []string{"test", plainName, l.System, "ratio"}, rows)
	if l.Containers > 0 {
		fmt.Fprintf(w, "\n%d more containers that read a file of %s MB took %s MB of page cache.\n", l.Containers, measure.Megabytes(l.LargeBytes), measure.Megabytes(l.SharedBytes))
	}
}

// local adds the local targets: upper limits for ratios of times, and lower limits for
// ratios of rates.
func (v *verdict) local(l *Local) {
	if l == nil || l.System != slipwayName {
		v.open("local speed")
		return
	}
	most := map[string]float64{"mount": 1.5, "find, first": 1.5, "find, again": 1.1,
		"1,000 small files, first": 1.15, "1,000 small files, again": 1.15, "500 MB read, first": 1.05, "500 MB read, again": 1.05,
		"500 MB mapped, first": 1.05, "500 MB mapped, again": 1.05, "python start, first": 1.1, "python start, again": 1.1,
		"java start, first": 1.1, "java start, again": 1.1}
	for _, t := range l.Tests {
		switch {
		case t.Why != "":
			v.open(t.Name + " (" + t.Why + ")")
		case t.PerSec:
			v.target(t.Name+", share of overlayfs", t.ratio(), 0.97, true)
		default:
			v.target(t.Name+", times overlayfs", t.ratio(), most[t.Name], false)
		}
	}
	if l.Containers > 0 {
		v.target(fmt.Sprintf("page cache of %d more containers, share of the file they read", l.Containers), float64(l.SharedBytes)/float64(l.LargeBytes), 0.05, false)
	}
}
