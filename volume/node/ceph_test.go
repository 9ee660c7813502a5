//go:build ceph

package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/node"
	"example.org/slipway/volume/rbd"
)

// TestCeph does the same with images of a real Ceph cluster whose disk goes away and comes back.
func TestCeph(t *testing.T) {
	c := backendtest.StartRBD(t)
	where, err := json.Marshal(rbd.Options{Conf: c.Conf, Pool: backendtest.RBDPool, Namespace: "images", Clones: "clones", Timeout: 5 * time.Second, LeaseTime: 10 * time.Second})
	ok(t, err)
	b, ctx := newBedAt(t, string(where)), context.Background()
	img, flat := b.image("a", volref.Ext4, tree), b.image("b", volref.EROFS, tree)
	free := func(o *node.Options) { o.Credential = noCredential }
	m := b.open(free)
	local, err := m.Local(ctx, img)
	ok(t, err)
	compact, err := m.Local(ctx, flat)
	ok(t, err)
	own, err := m.Network(ctx, "c", img)
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(own, "mine"), []byte("first"), 0o644))
	c.KillOSD()
	done := make(chan error, 1)
	go func() {
		f, err := os.Create(filepath.Join(own, "later"))
		if err == nil {
			_, err = f.WriteString("written in an outage")
			err = errors.Join(err, f.Sync(), f.Close())
		}
		done <- err
	}()
	c.StartOSD(t)
	ok(t, <-done)
	for _, dir := range []string{local, compact, own} {
		b.want(dir, "bin/tool", tree["bin/tool"])
	}
	// The server is killed. The writer's machine is the same.
	b.kill()
	b.serve()
	b.want(own, "later", "written in an outage")
	ok(t, m.Commit(ctx, "c", "c-made"))
	b.check("c-made")
	made, err := m.Local(ctx, b.imageOf("c-made", volref.Ext4))
	ok(t, err)
	b.want(made, "mine", "first")
	ok(t, m.Close())
	for _, step := range []string{"clone", "map", "mount"} {
		if !b.killedAt("network", step, "d", "", img) {
			t.Fatalf("there is no step %q", step)
		}
		m = b.open(free)
		d, err := m.Network(ctx, "d", img)
		ok(t, err)
		b.want(d, "bin/tool", tree["bin/tool"])
		ok(t, errors.Join(m.DropNetwork(ctx, "d"), m.Close()))
	}
	m = b.open(free)
	ok(t, errors.Join(m.DropLocal(ctx, "v-a"), m.DropLocal(ctx, "v-b"), m.DropLocal(ctx, "c-made"), m.DropNetwork(ctx, "c")))
	ok(t, b.store.Remove(ctx, "c-made"))
	b.nothing()
}
