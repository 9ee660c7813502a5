package cider

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/tasks"
)

// Deployment is one start from nothing: containers of one image, the same number on each
// of several new nodes.
type Deployment struct {
	Image      string `json:"image"`
	Way        string `json:"way"`
	Nodes      int    `json:"nodes"`
	Containers int    `json:"containers"` // on each node
	Round      int    `json:"round"`
	// PullSec is the mean of the nodes' pulls; each node pulls once. RunSec is the mean of the
	// containers' runs until their tasks are done. WallSec is the time until the last task is done.
	PullSec float64 `json:"pull_sec"`
	RunSec  float64 `json:"run_sec"`
	WallSec float64 `json:"wall_sec"`
	// CPUSec is the processor time of a container: what the nodes' programs and containers used
	// together, divided by the number of containers.
	CPUSec float64 `json:"cpu_sec,omitempty"`
	// LinkBytes is how many bytes came over the nodes' links, and CephBytes how many came
	// from the OSD. CephWritten is how many bytes clients wrote to the OSD.
	LinkBytes   int64 `json:"link_bytes"`
	CephBytes   int64 `json:"ceph_bytes"`
	CephWritten int64 `json:"ceph_written"`
	// Steps are the agent's own times by step, summed over all nodes, in seconds.
	Steps   map[string]float64 `json:"steps,omitempty"`
	Failure string             `json:"failure,omitempty"`
}

// TotalSec returns the mean deployment time of a container.
func (d *Deployment) TotalSec() float64 { return d.PullSec + d.RunSec }

func (d *Deployment) String() string {
	at := fmt.Sprintf("%-22s %-8s %d x %2d", d.Image, d.Way, d.Nodes, d.Containers)
	if d.Failure != "" {
		return at + " FAILED: " + d.Failure
	}
	return fmt.Sprintf("%s %7.2f s = pull %.2f + run %.2f; CPU %.2f s; %.1f MB over the links, %.1f MB from Ceph, %.1f MB to it", at, d.TotalSec(), d.PullSec, d.RunSec, d.CPUSec,
		float64(d.LinkBytes)/1e6, float64(d.CephBytes)/1e6, float64(d.CephWritten)/1e6)
}

// deployments measures each way once, in an order that changes from round to round.
func (b *bench) deployments(ctx context.Context, im *corpus.Image, nodes, containers, round int, out *[]Deployment) error {
	var errs []error
	ways := b.ways()
	for i := range ways {
		d := Deployment{Image: im.String(), Way: ways[(i+round)%len(ways)], Nodes: nodes, Containers: containers, Round: round}
		if err := b.deploy(ctx, im, &d); err != nil {
			d.Failure = err.Error()
			errs = append(errs, fmt.Errorf("%s in the way %s: %w", im, d.Way, err))
		}
		*out = append(*out, d)
		b.Logf("%s", &d)
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
	}
	return errors.Join(errs...)
}

// deploy measures one deployment.
func (b *bench) deploy(ctx context.Context, im *corpus.Image, d *Deployment) (err error) {
	syscall.Sync() // pending writes must not slow the measurement
	if err := b.cluster.DropCache(); err != nil {
		return err
	}
	nodes := make([]*ctrnode.Node, 0, d.Nodes)
	defer func() {
		for _, n := range nodes {
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, n.Logs())
			}
			err = errors.Join(err, n.Stop())
		}
	}()
	for i := range d.Nodes {
		n, err := b.node(ctx, d.Way, i)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	link, err := b.received(d.Nodes)
	if err != nil {
		return err
	}
	before, err := b.cluster.Traffic()
	if err != nil {
		return err
	}
	idle, err := cpuOf(nodes)
	if err != nil {
		return err
	}
	if err := b.timed(ctx, im, nodes, d); err != nil {
		return err
	}
	busy, err := cpuOf(nodes)
	if err != nil {
		return err
	}
	d.CPUSec = (busy - idle).Seconds() / float64(d.Nodes*d.Containers)
	after, err := b.cluster.Traffic()
	if err != nil {
		return err
	}
	now, err := b.received(d.Nodes)
	d.LinkBytes, d.CephBytes, d.CephWritten = now-link, after.ReadBytes-before.ReadBytes, after.WrittenBytes-before.WrittenBytes
	return errors.Join(err, d.asWanted(ctx, b, im, nodes))
}

// asWanted returns an error unless the image was deployed in the mode that is measured.
func (d *Deployment) asWanted(ctx context.Context, b *bench, im *corpus.Image, nodes []*ctrnode.Node) error {
	if d.Way == ctrnode.Plain {
		return nil
	}
	d.Steps = map[string]float64{}
	for _, n := range nodes {
		way, why, err := n.Used(ctx, ref(b.registry, im))
		if err != nil {
			return err
		}
		if (d.Way == ctrnode.Gear) != (way == ctrnode.Gear) || way == ctrnode.Plain {
			return fmt.Errorf("the image came in another way, %s: %s", way, why)
		}
		for step, sec := range n.Steps(ctx) {
			d.Steps[step] += sec
		}
	}
	return nil
}

func (b *bench) received(nodes int) (sum int64, err error) {
	for _, l := range b.links[:nodes] {
		n, err := l.Received()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// cpuOf returns the processor time that nodes have used.
func cpuOf(nodes []*ctrnode.Node) (sum time.Duration, err error) {
	for _, n := range nodes {
		used, err := n.CPU()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// runTask runs a container of a pulled image within its node's limits.
func (b *bench) runTask(ctx context.Context, n *ctrnode.Node, im *corpus.Image) (tasks.Result, error) {
	id := containerID()
	return n.Tasks().Run(ctx, ref(b.registry, im), id, b.timedTask(im), n.RunArgs(id)...)
}

// timed is the measured part of deploy.
func (b *bench) timed(ctx context.Context, im *corpus.Image, nodes []*ctrnode.Node, d *Deployment) error {
	var mu sync.Mutex
	var wait sync.WaitGroup
	var errs []error
	var pulls, runs time.Duration
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	began := time.Now()
	for _, n := range nodes {
		wait.Go(func() {
			if err := n.Pull(ctx, ref(b.registry, im)); err != nil {
				fail(err)
				return
			}
			mu.Lock()
			pulls += time.Since(began)
			mu.Unlock()
			var here sync.WaitGroup
			for range d.Containers {
				here.Go(func() {
					r, err := b.runTask(ctx, n, im)
					if err != nil {
						fail(err)
						return
					}
					mu.Lock()
					runs += r.Took
					mu.Unlock()
				})
			}
			here.Wait()
		})
	}
	wait.Wait()
	d.WallSec = time.Since(began).Seconds()
	d.PullSec = pulls.Seconds() / float64(d.Nodes)
	d.RunSec = runs.Seconds() / float64(d.Nodes*d.Containers)
	return errors.Join(errs...)
}
