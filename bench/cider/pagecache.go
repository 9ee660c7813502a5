package cider

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
)

// PageCache says how much of this machine's page cache is used by containers of one image
// on one node, while they run.
type PageCache struct {
	Run     measure.Run       `json:"run"`
	Image   string            `json:"image"`
	Samples []PageCacheSample `json:"samples"`
}

// PageCacheSample is one measurement.
type PageCacheSample struct {
	Way        string `json:"way"`
	Containers int    `json:"containers"`
	Round      int    `json:"round"`
	Bytes      int64  `json:"bytes"`
}

// manyContainers is the paper's number of containers.
const (
	manyContainers      = 20
	manyContainersQuick = 4
)

func runPageCache(b *bench, ctx context.Context) error {
	began := time.Now()
	images, err := b.chosen([]string{"python"})
	if err != nil {
		return err
	}
	im := images[0]
	if err := b.ready(ctx, images[:1]); err != nil {
		return err
	}
	out := &PageCache{Image: im.String()}
	b.results.PageCache = out
	defer func() { out.Run = b.Since(began) }()
	many := manyContainers
	if b.o.Quick {
		many = manyContainersQuick
	}
	var errs []error
	for round := range b.o.Rounds {
		for _, way := range b.ways() {
			for _, n := range []int{1, many} {
				s := PageCacheSample{Way: way, Containers: n, Round: round}
				if s.Bytes, err = b.pageCache(ctx, im, way, n); err != nil {
					errs = append(errs, fmt.Errorf("%s, %d containers: %w", way, n, err))
					continue
				}
				out.Samples = append(out.Samples, s)
				b.Logf("%-8s %2d containers: %s MB of page cache", way, n, measure.Megabytes(s.Bytes))
			}
		}
	}
	return errors.Join(errs...)
}

// pageCache runs containers that stay after their task, and measures the page cache while
// they run.
func (b *bench) pageCache(ctx context.Context, im *corpus.Image, way string, containers int) (grown int64, err error) {
	n, err := b.node(ctx, way, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, n.Stop()) }()
	if err := n.Pull(ctx, ref(b.registry, im)); err != nil {
		return 0, err
	}
	syscall.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return 0, err
	}
	// The programs that every container needs, such as runc and its shim, do not count for the
	// image.
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc", "ctr"} {
		if _, err := os.ReadFile(filepath.Join(tool.Dir(), name)); err != nil {
			return 0, err
		}
	}
	if _, err := os.ReadFile(b.Binary); err != nil {
		return 0, err
	}
	before, err := cached()
	if err != nil {
		return 0, err
	}
	var after int64
	err = b.holding(ctx, n, im, containers, func() (err error) {
		after, err = cached()
		return err
	})
	return after - before, err
}

// holding runs containers. It calls do when all have done their task and are still
// running.
func (b *bench) holding(ctx context.Context, n *ctrnode.Node, im *corpus.Image, containers int, do func() error) error {
	var arrived, wait sync.WaitGroup
	arrived.Add(containers)
	release := make(chan struct{})
	errs := make(chan error, containers)
	for range containers {
		wait.Go(func() {
			held := false
			run := n.Tasks()
			hold := func() {
				held = true
				arrived.Done()
				<-release
			}
			t, done := lasting(task(im))
			run.Running = func(pid int) error {
				if err := done(ctx, pid); err != nil {
					return err
				}
				hold()
				return nil
			}
			_, err := run.Run(ctx, ref(b.registry, im), containerID(), t)
			errs <- err
			if !held {
				arrived.Done()
			}
		})
	}
	arrived.Wait()
	err := do()
	close(release)
	wait.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}

// doneFile is the file in a container that marks its task as done.
const doneFile = "/tmp/.cider-done"

// lasting turns a task that is a script into a service, so that its container stays. It also
// returns a function that waits until the task is done, for a container with the given first
// process. A real service is done when it has answered.
func lasting(t tasks.Task) (tasks.Task, func(ctx context.Context, pid int) error) {
	if t.Probe != nil {
		return t, func(context.Context, int) error { return nil }
	}
	if len(t.Args) != 3 || t.Args[0] != "/bin/sh" {
		return t, func(context.Context, int) error { return errors.New("its containers do not stay") }
	}
	t.Args = []string{t.Args[0], t.Args[1], t.Args[2] + "\nmkdir -p /tmp; : >" + doneFile + "\nexec sleep 3600"}
	t.Want, t.Probe = nil, func(context.Context, tasks.Dialer) (string, error) { return "", nil }
	timeout := t.Timeout
	return t, func(ctx context.Context, pid int) error {
		for end := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", pid, doneFile)); err == nil {
				return nil
			}
			if ctx.Err() != nil || time.Now().After(end) {
				return errors.New("the task is not done in time")
			}
		}
	}
}

// cached returns the size of this machine's page cache in bytes, including the page cache
// of block devices.
func cached() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var sum int64
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var name string
		var kib int64
		if _, err := fmt.Sscan(lines.Text(), &name, &kib); err != nil {
			continue
		}
		switch name {
		case "Cached:", "Buffers:":
			sum += kib << 10
		case "Shmem:": // counts as cached, but belongs to no file
			sum -= kib << 10
		}
	}
	return sum, nil
}

// Title returns the heading.
func (p *PageCache) Title() string { return "Page cache" }

// Head says how the part was measured.
func (p *PageCache) Head() string { return p.Run.Head() }

// About says what was done.
func (p *PageCache) About() string {
	return "A new node pulls " + p.Image + ", this machine's caches are dropped, the node's own programs are read again, and containers run the image's task and stay. Then the page cache, of files and block devices, is compared with its size before. The OSD reads its disk past the page cache. Cider's own figures (Figure 10, 20 containers of python): network grows in proportion, local equals overlay."
}

func (p *PageCache) spread(way string, containers int) measure.Spread {
	var v []float64
	for _, s := range p.Samples {
		if s.Way == way && s.Containers == containers {
			v = append(v, float64(s.Bytes)/1e6)
		}
	}
	return measure.SpreadOf(v)
}

// most returns the larger number of containers.
func (p *PageCache) most() (n int) {
	for _, s := range p.Samples {
		n = max(n, s.Containers)
	}
	return n
}

// Targets returns the targets of this scenario.
func (p *PageCache) Targets() []measure.Target {
	one, many := p.spread(ctrnode.VolumeLocal, 1), p.spread(ctrnode.VolumeLocal, p.most())
	t := measure.Target{Scenario: "pagecache", What: fmt.Sprintf("page cache of %d local containers / of one", p.most()), Limit: 1.2, Missing: one.Median <= 0 || many.N == 0}
	if !t.Missing {
		t.Figure = many.Median / one.Median
	}
	return []measure.Target{t}
}

// Write writes the table.
func (p *PageCache) Write(w *strings.Builder) {
	var rows [][]string
	for _, way := range []string{ctrnode.Plain, ctrnode.Gear, ctrnode.VolumeLocal, ctrnode.VolumeNetwork} {
		one, many := p.spread(way, 1), p.spread(way, p.most())
		if one.N+many.N == 0 {
			continue
		}
		ratio := "-"
		if one.Median > 0 {
			ratio = measure.Figure(many.Median / one.Median)
		}
		rows = append(rows, []string{wayTitle(way), one.String(), many.String(), ratio})
	}
	measure.Table(w, 1, []string{"way", "1 container, MB", fmt.Sprintf("%d containers, MB", p.most()), "ratio"}, rows)
}

// Pictures returns no pictures.
func (p *PageCache) Pictures() []measure.Picture { return nil }
