package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/measure"
)

// bench is a run of some scenarios.
type bench struct {
	o                   *options
	binary, rivals, dir string
	log                 io.Writer
	all, images         []*corpus.Image // of the corpus, and the chosen ones
	systems             []*system
	links               []link
	net                 *network
	registry            *registry
	results             *Results
	run                 Run // what is known of the run before it begins
	begin               time.Time
	serial              int
}

// scenario is one thing that is measured.
type scenario struct {
	name string
	run  func(*bench, context.Context) error
}

// scenarios returns all there are, in the order they run.
func scenarios() []scenario {
	return []scenario{{"ready", runReady}, {"start", runStart}, {"bytes", runBytes}, {"local", runLocal}}
}

func scenarioNames() string {
	var names []string
	for _, sc := range scenarios() {
		names = append(names, sc.name)
	}
	return strings.Join(names, ",")
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	b := &bench{o: o, log: os.Stderr, results: &Results{}, begin: time.Now(), rivals: o.rivals}
	if b.links, err = o.links(); err != nil {
		return nil, err
	}
	if b.binary, err = filepath.Abs(o.binary); err != nil {
		return nil, err
	}
	if err := b.chooseImages(); err != nil {
		return nil, err
	}
	if err := b.chooseSystems(ctx); err != nil {
		return nil, err
	}
	if o.estimate {
		return nil, b.estimate()
	}
	if b.dir, err = os.MkdirTemp(o.dir, "swb"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.removeDir()) }()
	b.run = Run{Run: measure.Run{Commit: o.commit, Command: o.command, Machine: measure.ThisMachine(b.dir), Rounds: o.rounds, Quick: o.quick}}
	if b.net, err = newNetwork(ctx, b.dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.net.close()) }()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	return b.results, b.runAll(ctx)
}

// removeDir removes the bench's directory unless something is still mounted
// below it.
func (b *bench) removeDir() error {
	if err := errors.Join(endProcesses(b.dir, ""), unmountBelow(b.dir)); err != nil {
		return err
	}
	return os.RemoveAll(b.dir)
}

func (b *bench) runAll(ctx context.Context) error {
	var errs []error
	for _, sc := range scenarios() {
		if !slices.Contains(strings.Split(b.o.scenarios, ","), sc.name) {
			continue
		}
		b.logf("== %s", sc.name)
		if err := sc.run(b, ctx); err != nil {
			errs = append(errs, fmt.Errorf("scenario %s: %w", sc.name, err))
			b.logf("scenario %s failed: %v", sc.name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// chooseImages reads the corpus and finds what was asked for in it.
func (b *bench) chooseImages() error {
	var err error
	if b.all, err = corpus.Read(b.o.corpus); err != nil {
		return err
	}
	last := map[string]*corpus.Image{}
	var order []string
	for _, im := range b.all {
		if last[im.Series] == nil {
			order = append(order, im.Series)
		}
		last[im.Series] = im
	}
	wanted := order
	if b.o.images != "" {
		wanted = strings.Split(b.o.images, ",")
	}
	for _, name := range wanted {
		im := last[name]
		if i := slices.IndexFunc(b.all, func(im *corpus.Image) bool { return im.String() == name }); i >= 0 {
			im = b.all[i]
		}
		if im == nil {
			return fmt.Errorf("no image or series %q in %s", name, b.o.corpus)
		}
		b.images = append(b.images, im)
	}
	return nil
}

// chooseSystems finds out which systems there are.
func (b *bench) chooseSystems(ctx context.Context) error {
	names := strings.Split(b.o.systems, ",")
	if b.o.systems == "" {
		names = []string{plainName}
		if b.rivals != "" {
			names = append(names, stargzName)
		}
		if hasAgent(ctx, b.binary) {
			names = append(names, slipwayName)
		}
	}
	for _, name := range names {
		switch {
		case name == plainName:
			b.systems = append(b.systems, plain())
		case name == stargzName && b.rivals != "":
			b.systems = append(b.systems, stargz(b.rivals))
		case name == slipwayName:
			b.systems = append(b.systems, slipway(b.binary, agentSettings{background: true}))
		default:
			return fmt.Errorf("no system %q, or nothing is known of its programs; there are %s, %s, %s", name, plainName, stargzName, slipwayName)
		}
	}
	return nil
}

// system returns a system that takes part, or nil.
func (b *bench) system(name string) *system {
	for _, s := range b.systems {
		if s.name == name {
			return s
		}
	}
	return nil
}

// prepare starts what is common to all scenarios and tests the links.
func (b *bench) prepare(ctx context.Context) error {
	dir, err := b.o.preparedDir()
	if err != nil {
		return err
	}
	if b.registry, err = startRegistry(ctx, b.net, b.binary, filepath.Join(dir, "registry")); err != nil {
		return err
	}
	if err := b.net.launch(ctx, peerPort, "peer", "-listen", b.net.address(peerPort)); err != nil {
		return err
	}
	if err := b.net.delay(ctx, rttOf(b.links)); err != nil {
		return err
	}
	for _, l := range b.links {
		if err := b.net.shape(ctx, l.mbit); err != nil {
			return err
		}
		tested, err := b.net.test(ctx, l.mbit, l.rttMs)
		if err != nil {
			return err
		}
		b.logf("link of %s", tested)
		b.run.Links = append(b.run.Links, tested)
	}
	return b.net.shape(ctx, 0)
}

// push brings images into the registry and waits for their indexes.
func (b *bench) push(ctx context.Context, images []*corpus.Image) error {
	for _, im := range images {
		if err := b.registry.push(ctx, im); err != nil {
			return fmt.Errorf("push %s: %w", im, err)
		}
	}
	return b.registry.converted(ctx)
}

// logf prints progress with the time since the start.
func (b *bench) logf(format string, args ...any) {
	fmt.Fprintf(b.log, "%5ds  %s\n", int(time.Since(b.begin).Seconds()), fmt.Sprintf(format, args...))
}

// newDir returns the path of a directory that is not there yet.
func (b *bench) newDir() string {
	b.serial++
	return filepath.Join(b.dir, fmt.Sprintf("n%d", b.serial))
}

// hosts are the addresses of the registry.
func (b *bench) hosts() []string {
	out := []string{b.registry.host(0)}
	if rtt := rttOf(b.links); rtt > 0 {
		out = append(out, b.registry.host(rtt))
	}
	return out
}

// since completes what is known of a run, which began then.
func (b *bench) since(began time.Time) Run {
	r := b.run
	r.Date, r.TookSec = began.UTC().Truncate(time.Second), time.Since(began).Seconds()
	return r
}
