//go:build ceph

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/internal/backendtest"
)

// TestVolumesInCeph runs containers on volumes of a real cluster, in both modes, with the
// credentials that the registry issues.
func TestVolumesInCeph(t *testing.T) {
	c := backendtest.StartRBD(t)
	for i, mode := range []string{"local", "network"} {
		t.Run(mode, func(t *testing.T) {
			space := fmt.Sprintf("n%d", i)
			b := newBedOn(t, mode, "ext4", "volume", func(string) (registry, agent string) {
				registry = fmt.Sprintf("driver: rbd, rbd: {conf: %s, pool: %s, namespace: %s, clones_namespace: %s-c}", c.Conf, backendtest.RBDPool, space, space)
				return registry, fmt.Sprintf("rbd: {conf: %s}", c.Conf)
			})
			img := b.push("team/app", 1, map[string]string{"a": "first", "big": big}, map[string]string{"b": "second"})
			ctx, sn := b.snapshots()
			chain := b.pull(ctx, sn, img)
			m, err := sn.Prepare(ctx, "one", chain)
			if err != nil {
				t.Fatal(err)
			}
			b.in(m, func(dir string) {
				b.read(filepath.Join(dir, "big"), big)
				if err := os.WriteFile(filepath.Join(dir, "mine"), []byte("written"), 0o644); err != nil {
					t.Error(err)
				}
			})
			b.kill("volume-worker")
			b.kill("worker")
			b.eventually("mounts", func() error { m, err = sn.Mounts(ctx, "one"); return err })
			b.in(m, func(dir string) {
				b.read(filepath.Join(dir, "mine"), "written")
				b.read(filepath.Join(dir, "b"), "second")
			})
			under := "one"
			if mode == "network" {
				if err := sn.Commit(ctx, "committed", "one"); err != nil {
					t.Fatal(err)
				}
				if m, err = sn.Prepare(ctx, "two", "committed"); err != nil {
					t.Fatal(err)
				}
				b.in(m, func(dir string) { b.read(filepath.Join(dir, "mine"), "written") })
				b.remove(ctx, sn, "two")
				under = "committed"
			}
			b.remove(ctx, sn, under, chain, chainID("", img.diffIDs[0]))
			b.noUse()
			if left := c.Tool(t, "rbd", "--conf", c.Conf, "--namespace", space+"-c", "ls"); left != "" {
				t.Errorf("clones are left in the pool: %s", left)
			}
		})
	}
}
