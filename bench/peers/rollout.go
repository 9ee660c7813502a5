package peers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"example.org/slipway/integration/bench/rival"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
)

// These are the systems that are compared.
const (
	namePlain   = "plain"
	nameSpegel  = "spegel"
	nameSlipway = "slipway"
)

var systems = []string{namePlain, nameSpegel, nameSlipway}

const (
	// rolloutTimeout bounds a roll-out.
	rolloutTimeout = 30 * time.Minute
	// meshTimeout is how long Spegel's nodes may take to find each other.
	meshTimeout = 2 * time.Minute
	// askEvery is how often an agent is asked whether it has everything.
	askEvery = 50 * time.Millisecond
	// These are ports of Spegel on each node.
	spegelPort, spegelRouter, spegelBootstrap, spegelMetrics = "5000", "5001", "5002", "9090"
)

// Rollout is one roll-out of the image.
type Rollout struct {
	System string `json:"system"`
	Nodes  int    `json:"nodes"`
	Round  int    `json:"round"`
	// Sent is what the registry sent, in bytes at its link.
	Sent int64 `json:"sent"`
	// Sec holds how long each node took from its own start, in seconds.
	Sec []float64 `json:"sec"`
}

// Slowest returns the time of the slowest node, in seconds.
func (r *Rollout) Slowest() float64 { return slices.Max(r.Sec) }

// machine is a node, and the processes beside its containerd.
type machine struct {
	*ctrnode.Node
	link    *lan.Node
	beside  *proc.Process
	slipway bool
}

// start starts the nodes of a roll-out, which have no image. The caller stops them, also after an error.
func (b *bench) start(ctx context.Context, system string, count int) (list []*machine, err error) {
	for i, link := range b.links[:count] {
		o := ctrnode.Options{Dir: b.NewDir(), Binary: b.Binary, Net: link, Registries: []string{b.registry.Addr}}
		switch system {
		case nameSlipway:
			o.Way, o.Agent = ctrnode.Gear, "fetch: {mode: eager, profile_timeout: 10m, open_timeout: 60s}\npeers: {listen: \":5003\"}\n"
		case nameSpegel:
			o.Mirror = "http://" + link.Addr + ":" + spegelPort
		}
		n, err := ctrnode.Start(ctx, o)
		if err != nil {
			return list, err
		}
		m := &machine{Node: n, link: link, slipway: system == nameSlipway}
		list = append(list, m)
		if system == nameSpegel {
			if err := m.startSpegel(b.links[0]); err != nil {
				return list, err
			}
		}
		if i == 0 && system == nameSpegel {
			// The others ask it for its identity.
			if err := m.beside.AwaitURL(ctx, "http://"+link.Addr+":"+spegelBootstrap+"/id", meshTimeout); err != nil {
				return list, err
			}
		}
	}
	if system != nameSpegel || count == 1 { // a node alone finds nobody
		return list, nil
	}
	for _, m := range list {
		if err := m.beside.AwaitURL(ctx, "http://"+m.link.Addr+":"+spegelPort+"/readyz", meshTimeout); err != nil {
			return list, fmt.Errorf("the nodes of Spegel do not find each other: %w; %s", err, m.beside.Log(4096))
		}
	}
	return list, nil
}

// startSpegel starts Spegel beside the node's containerd. It finds others through the first node. It
// mirrors all registries: containerd leaves the port out where it notes the registry of a layer, so a list
// with the port would exclude all layers.
func (m *machine) startSpegel(first *lan.Node) (err error) {
	m.beside, err = m.Launch("spegel", exec.Command(rival.Spegel(nameSpegel).Binary, "registry", "--containerd-sock", m.RuntimeSocket(), "--containerd-namespace", "default",
		"--containerd-content-path", m.ContentDir(), "--registry-addr", m.link.Addr+":"+spegelPort, "--router-addr", m.link.Addr+":"+spegelRouter,
		"--metrics-addr", m.link.Addr+":"+spegelMetrics, "--bootstrap-kind", "http",
		"--http-bootstrap-addr", m.link.Addr+":"+spegelBootstrap, "--http-bootstrap-peer", "http://"+first.Addr+":"+spegelBootstrap))
	return err
}

// stop ends the node.
func (m *machine) stop() error {
	if m.beside != nil {
		m.beside.Signal(syscall.SIGTERM)
		_ = m.beside.Stop(5 * time.Second) // how it ends does not matter
	}
	return m.Stop()
}

// pull pulls the image until the node has all of it.
func (m *machine) pull(ctx context.Context, ref string) error {
	if err := m.Pull(ctx, ref); err != nil || !m.slipway {
		return err
	}
	for {
		st, err := node.Ask(ctx, m.Root())
		if err != nil || st.Complete() {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(askEvery):
		}
	}
}

// rollout has nodes pull the image, in groups if group is above 0.
func (b *bench) rollout(ctx context.Context, system string, count, group, round int) (r *Rollout, err error) {
	ctx, cancel := context.WithTimeout(ctx, rolloutTimeout)
	defer cancel()
	list, err := b.start(ctx, system, count)
	defer func() {
		for _, m := range list {
			err = errors.Join(err, m.stop())
		}
	}()
	if err != nil {
		return nil, err
	}
	r = &Rollout{System: system, Nodes: count, Round: round, Sec: make([]float64, count)}
	before, err := b.net.Sent()
	if err != nil {
		return nil, err
	}
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i, m := range list {
		wg.Go(func() {
			if group > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(i/group) * b.o.every):
				}
			}
			began := time.Now()
			if errs[i] = m.pull(ctx, b.ref); errs[i] != nil {
				errs[i] = fmt.Errorf("node %d of %s: %w\n%s", i, system, errs[i], m.Logs())
			}
			r.Sec[i] = time.Since(began).Seconds()
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	after, err := b.net.Sent()
	if err != nil {
		return nil, err
	}
	r.Sent = after - before
	b.Logf("%s, round %d: %d nodes, the registry sent %.1f MB, the slowest node took %.1f s", system, round, count, float64(r.Sent)/1e6, r.Slowest())
	return r, nil
}

// all runs the roll-outs of a scenario: with each system one node alone, and all nodes.
func (b *bench) all(ctx context.Context, group int) (s Series, err error) {
	began := time.Now()
	names, about := b.chosen(ctx)
	s.Image = fmt.Sprintf("%d MiB of random bytes in one layer, in files of up to 1 MiB and, at every tenth place, of 10 MiB", b.o.mbytes)
	if b.o.one {
		s.Image = fmt.Sprintf("one file of %d MiB of random bytes", b.o.mbytes)
	}
	s.Mbit = b.o.mbit
	for round := range b.o.Rounds {
		for _, name := range names {
			for _, count := range []int{1, b.o.nodes} {
				r, err := b.rollout(ctx, name, count, group, round+1)
				if err != nil {
					return s, err
				}
				s.Rollouts = append(s.Rollouts, *r)
			}
		}
	}
	s.Run = Run{Run: b.Since(began), Systems: about}
	return s, nil
}

func runTogether(b *bench, ctx context.Context) error {
	s, err := b.all(ctx, 0)
	if err == nil {
		b.results.Together = &Together{s}
	}
	return err
}

func runStaggered(b *bench, ctx context.Context) error {
	s, err := b.all(ctx, b.o.group)
	if err == nil {
		b.results.Staggered = &Staggered{Series: s, Group: b.o.group, EverySec: b.o.every.Seconds()}
	}
	return err
}
