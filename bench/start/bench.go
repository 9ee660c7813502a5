package start

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
)

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	o        *options
	all      corpus.Set
	images   []*corpus.Image // the chosen ones
	systems  []*system
	links    []link
	net      *network
	registry *registry
	results  *Results
	tested   []Link // the self-test's results for the links
}

// These are the scenarios whose time can be estimated.
const (
	startScenario = "start"
	touchScenario = "touch"
)

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{{Name: "ready", Run: runReady}, {Name: startScenario, Run: runStart}, {Name: "bytes", Run: runBytes}, {Name: "local", Run: runLocal},
		{Name: "sequence", Run: runSequence}, {Name: "cycles", Run: runCycles}, {Name: touchScenario, Run: runTouch}}
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := measure.Choose(scenarios(), o.Scenarios)
	if err != nil {
		return nil, err
	}
	b := &bench{o: o, results: &Results{}}
	if b.links, err = o.links(); err != nil {
		return nil, err
	}
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return nil, err
	}
	if err := b.chooseImages(); err != nil {
		return nil, err
	}
	if err := b.chooseSystems(ctx, binary); err != nil {
		return nil, err
	}
	if o.estimate {
		return nil, b.estimate()
	}
	dir, err := os.MkdirTemp(o.Dir, "swb") // sockets are below it: a short path
	if err != nil {
		return nil, err
	}
	b.Bench = o.On(binary, dir)
	defer func() { err = errors.Join(err, b.removeDir()) }()
	if b.net, err = newNetwork(ctx, dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.net.close()) }()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	return b.results, measure.RunAll(ctx, b, list, nil)
}

// removeDir removes the bench's directory unless something is still mounted below it.
func (b *bench) removeDir() error {
	if err := errors.Join(endProcesses(b.Dir, ""), unmountBelow(b.Dir)); err != nil {
		return err
	}
	return b.Close()
}

// chooseImages reads the corpus and finds the requested images in it.
func (b *bench) chooseImages() (err error) {
	if b.all, err = corpus.Read(b.o.corpus); err != nil {
		return err
	}
	wanted := b.all.Series()
	if b.o.images != "" {
		wanted = strings.Split(b.o.images, ",")
	}
	b.images, err = b.all.Choose(wanted)
	return err
}

// chooseSystems finds out which systems are available.
func (b *bench) chooseSystems(ctx context.Context, binary string) error {
	names := strings.Split(b.o.systems, ",")
	if b.o.systems == "" {
		names = []string{plainName}
		if b.o.rivals != "" {
			names = append(names, stargzName)
		}
		if hasAgent(ctx, binary) {
			names = append(names, slipwayName)
		}
	}
	for _, name := range names {
		switch {
		case name == plainName:
			b.systems = append(b.systems, plain())
		case name == parallelName:
			b.systems = append(b.systems, parallel())
		case name == stargzName && b.o.rivals != "":
			b.systems = append(b.systems, stargz(b.o.rivals))
		case name == slipwayName:
			b.systems = append(b.systems, slipway(binary, agentSettings{background: true}))
			if b.o.profiles == bothProfiles {
				fresh := slipway(binary, agentSettings{background: true})
				fresh.name = newName
				b.systems = append(b.systems, fresh)
			}
		default:
			return fmt.Errorf("no system %q, or nothing is known of its programs; there are %s, %s, %s, %s",
				name, plainName, parallelName, stargzName, slipwayName)
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

// prepare starts what all scenarios share, and tests the links.
func (b *bench) prepare(ctx context.Context) error {
	dir, err := b.o.preparedDir()
	if err != nil {
		return err
	}
	if b.registry, err = startRegistry(ctx, b.net, b.Binary, filepath.Join(dir, "registry")); err != nil {
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
		if err == nil && !b.o.anyLink {
			err = tested.check()
		}
		if err != nil {
			return err
		}
		b.Logf("link of %s", tested)
		b.tested = append(b.tested, tested)
	}
	return b.net.shape(ctx, 0)
}

// push pushes images to the registry and waits for their indexes.
func (b *bench) push(ctx context.Context, images []*corpus.Image) error {
	for _, im := range images {
		if err := b.registry.push(ctx, im); err != nil {
			return fmt.Errorf("push %s: %w", im, err)
		}
	}
	return b.registry.converted(ctx)
}

// hosts returns the addresses of the registry.
func (b *bench) hosts() []string {
	out := []string{b.registry.host(0)}
	if rtt := rttOf(b.links); rtt > 0 {
		out = append(out, b.registry.host(rtt))
		if b.o.held {
			out = append(out, b.registry.heldHost())
		}
	}
	return out
}

// since completes the description of a run that began at the given time.
func (b *bench) since(began time.Time) Run { return Run{Run: b.Since(began), Links: b.tested} }
