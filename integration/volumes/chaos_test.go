package volumes_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
)

// chaosFor returns the duration of TestChaos.
func chaosFor(t testing.TB) time.Duration {
	t.Helper()
	text := os.Getenv("SLIPWAY_VOLUMES_CHAOS_FOR")
	if text == "" {
		return 10 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SLIPWAY_VOLUMES_CHAOS_FOR: %v", err)
	}
	return d
}

// TestChaos starts and ends containers on four nodes, two of each mode, while the OSD is
// killed every minute or at least twice, and agents are killed at random. No container
// may read a wrong byte, and nothing may be left at the end. Cleaning up may take a
// while: a killed client stays a watcher of its clones until the cluster has noticed. The
// node then removes them at its next attempt.
//
// SLIPWAY_VOLUMES_CHAOS_FOR makes it run longer than ten seconds.
func TestChaos(t *testing.T) {
	d := chaosFor(t)
	b := newBed(t, "both")
	var images []pushed
	for v := range byte(3) {
		p := b.push(fmt.Sprintf("team/app:v%d", v), image(t, 16, v))
		b.built(p, "ext4", "erofs")
		images = append(images, p)
	}
	var nodes []*node
	var before []ctrnode.Leftovers
	for i := range 4 {
		way := []string{ctrnode.VolumeLocal, ctrnode.VolumeNetwork}[i%2]
		n := b.node(way, func(o *ctrnode.Options) { o.Outage = 30 * time.Second })
		nodes, before = append(nodes, n), append(before, n.leftovers())
	}
	ctx, stop := context.WithTimeout(t.Context(), d)
	defer stop()
	var wait sync.WaitGroup
	var good, broken, kills, outages atomic.Int64
	for _, n := range nodes {
		for range 2 {
			wait.Go(func() {
				for ctx.Err() == nil {
					err := n.life(images[rand.IntN(len(images))])
					if err == nil {
						good.Add(1)
						continue
					}
					// Some of containerd's calls fail when an agent is killed.
					if broken.Add(1) <= 3 {
						text := err.Error()
						t.Logf("one that broke off: %s", text[max(0, len(text)-300):])
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		wait.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(time.Duration(500+rand.IntN(4000)) * time.Millisecond)
				if n.Kill([]string{ctrnode.Worker, ctrnode.VolumeWorker}[rand.IntN(2)]) {
					kills.Add(1)
				}
			}
		})
	}
	wait.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(min(time.Minute, d/3)):
			}
			b.c.KillOSD()
			time.Sleep(time.Second)
			if err := b.c.StartOSD(context.WithoutCancel(ctx)); err != nil {
				t.Error(err)
				return
			}
			outages.Add(1)
		}
	})
	wait.Wait()
	t.Logf("%d containers were right, %d broke off; %d agents and %d OSDs were killed", good.Load(), broken.Load(), kills.Load(), outages.Load())
	if good.Load() < int64(d/(5*time.Second)) {
		t.Errorf("only %d containers were right", good.Load())
	}
	for i, n := range nodes {
		n.clean(images, before[i])
	}
	b.empty()
}

// life pulls an image and runs a container of it. It returns errors of containerd; a wrong byte
// fails the test.
func (n *node) life(p pushed) error {
	if err := n.Pull(n.t.Context(), p.ref); err != nil {
		return err
	}
	args := []string{"/bin/check"}
	if rand.IntN(2) == 0 {
		args = append(args, "write")
	}
	out, err := n.RunContainer(n.t.Context(), p.ref, unique(), args...)
	if strings.Contains(out, "wrong=") && !strings.Contains(out, "wrong=0") {
		n.t.Errorf("a container read wrong bytes: %q", out)
	}
	return err
}

// clean removes what interrupted containers and images have left to containerd, and waits until the
// node holds only what it held before.
func (n *node) clean(images []pushed, before ctrnode.Leftovers) {
	n.t.Helper()
	within(n.t, "containerd without containers", func() error {
		list, err := n.Ctr(n.t.Context(), "container", "ls", "-q")
		if err != nil {
			return err
		}
		for _, id := range strings.Fields(list) {
			_, _ = n.Ctr(n.t.Context(), "task", "rm", "-f", id) // there may be none
			if _, err := n.Ctr(n.t.Context(), "container", "rm", id); err != nil {
				return err
			}
		}
		// ctr removes a container first and then its snapshot. An interruption between the two
		// leaves a snapshot that nothing names. The next collection removes it, and also a
		// lease that was left.
		for _, p := range images {
			if _, err := n.Ctr(n.t.Context(), "image", "rm", "--sync", p.ref); err != nil && !strings.Contains(err.Error(), "not found") {
				return err
			}
		}
		return n.collect()
	})
	n.gone(before)
}

// collect makes containerd's collector remove what nothing names any more, and returns when it has
// tried. If the agent is killed during a collection, the rest is left to the first collection after
// the next removal of a snapshot, whenever that is. This makes it happen at once.
func (n *node) collect() error {
	ctx := n.t.Context()
	leases, err := n.Ctr(ctx, "leases", "ls", "-q")
	if err != nil {
		return err
	}
	for _, id := range strings.Fields(leases) {
		if _, err := n.Ctr(ctx, "leases", "rm", id); err != nil {
			return err
		}
	}
	last := unique()
	for _, args := range [][]string{
		{"snapshots", "--snapshotter", n.Snapshotter(), "prepare", last}, {"snapshots", "--snapshotter", n.Snapshotter(), "rm", last},
		{"leases", "create", "--id", last}, {"leases", "rm", "--sync", last},
	} {
		if _, err := n.Ctr(ctx, args...); err != nil && !strings.Contains(err.Error(), "not found") { // collected meanwhile
			return err
		}
	}
	return nil
}
