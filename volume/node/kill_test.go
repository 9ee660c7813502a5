package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/node"
)

// TestKilled kills a Manager after each step. The next Manager leaves nothing behind and does what
// was requested.
func TestKilled(t *testing.T) {
	t.Parallel()
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		for fsType, steps := range map[string][]string{
			volref.Ext4:  {"record", "map", "attach", "mount", "mounted"},
			volref.EROFS: {"record", "map", "mount", "mounted"},
		} {
			b, ctx := newBed(t), context.Background()
			img := b.image("a", fsType, tree)
			for i, step := range steps {
				if !b.killedAt("local", step, "", "", img) {
					t.Fatalf("there is no step %q", step)
				}
				m := b.open()
				if step != "mounted" {
					b.nothing()
				}
				dir, err := m.Local(ctx, img)
				ok(t, err)
				b.want(dir, "bin/tool", tree["bin/tool"])
				for _, step := range []string{"leaving", "unmount", "unmap"} {
					if i > 0 {
						break // once for each file system
					}
					ok(t, m.Close())
					if !b.killedAt("drop local", step, "", "", img) {
						t.Fatalf("there is no step %q", step)
					}
					m = b.open()
					b.nothing()
					_, err := m.Local(ctx, img)
					ok(t, err)
				}
				ok(t, m.DropLocal(ctx, "v-a"))
				b.nothing()
				ok(t, m.Close())
			}
		}
	})
	t.Run("network", func(t *testing.T) {
		t.Parallel()
		b, ctx := newBed(t), context.Background()
		img := b.image("a", volref.Ext4, tree)
		for _, step := range []string{"record", "clone", "map", "attach", "mount", "mounted"} {
			if !b.killedAt("network", step, "c", "", img) {
				t.Fatalf("there is no step %q", step)
			}
			m := b.open()
			if step != "mounted" {
				b.nothing()
			}
			dir, err := m.Network(ctx, "c", img)
			ok(t, err)
			b.want(dir, "bin/tool", tree["bin/tool"])
			ok(t, m.DropNetwork(ctx, "c"))
			ok(t, m.Close())
		}
		m := b.open()
		_, err := m.Network(ctx, "c", img)
		ok(t, err)
		ok(t, m.Close())
		for _, step := range []string{"leaving", "unmount", "unmap", "remove"} {
			if !b.killedAt("drop network", step, "c", "", img) {
				t.Fatalf("there is no step %q", step)
			}
			m := b.open()
			b.nothing()
			_, err := m.Network(ctx, "c", img)
			ok(t, err)
			ok(t, m.Close())
		}
		m = b.open()
		ok(t, m.DropNetwork(ctx, "c"))
		b.nothing()
	})
	t.Run("commit", func(t *testing.T) {
		t.Parallel()
		b, ctx := newBed(t), context.Background()
		img := b.image("a", volref.Ext4, tree)
		m := b.open()
		dir, err := m.Network(ctx, "c", img)
		ok(t, err)
		count := b.counts()
		for i, step := range []string{"committing", "remove", "clone", "map", "freeze", "copied", "copy", "unmap"} {
			text := fmt.Sprint(i)
			ok(t, os.WriteFile(filepath.Join(dir, "mine"), []byte(text), 0o644))
			ok(t, m.Close())
			if !b.killedAt("commit", step, "c", "c-made", img) {
				t.Fatalf("there is no step %q", step)
			}
			m = b.open()
			if got := b.counts(); got != count {
				t.Fatalf("killed at %s: were %+v, are %+v", step, count, got)
			}
			ok(t, os.WriteFile(filepath.Join(dir, "other"), []byte(text), 0o644)) // not frozen
			b.want(dir, "mine", text)
			ok(t, m.Commit(ctx, "c", "c-made"))
			ok(t, b.store.Remove(ctx, "c-made"))
		}
		ok(t, m.Close())
		if !b.killedAt("commit", "commit", "c", "c-made", img) {
			t.Fatal("there is no last step")
		}
		m = b.open()
		ok(t, m.Commit(ctx, "c", "c-made"))
		b.check("c-made")
		ok(t, errors.Join(m.DropNetwork(ctx, "c"), b.store.Remove(ctx, "c-made")))
		b.nothing()
	})
}

// TestKilledAnywhere kills at random moments: NODE_TEST_ROUNDS times, by default a few.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	if n, err := strconv.Atoi(os.Getenv("NODE_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	b, ctx := newBed(t), context.Background()
	img, flat := b.image("a", volref.Ext4, tree), b.image("b", volref.EROFS, tree)
	for i := range rounds {
		do := []string{"network", "local", "commit", "drop network", "drop local"}[rand.N(5)]
		use := img
		if do == "local" && rand.N(2) == 0 {
			use = flat
		}
		after := rand.N(60 * time.Millisecond)
		arg, err := json.Marshal(map[string]any{"Records": b.records, "Run": b.run, "Sock": b.sock, "Do": do, "Key": "c", "ID": "c-made", "Image": use.Record})
		ok(t, err)
		victim := role("manager", string(arg))
		victim.Stderr = nil // the commit of a container that does not exist
		ok(t, victim.Start())
		time.Sleep(after)
		victim.Process.Kill()
		victim.Wait()
		m := b.open()
		for _, img := range []node.Image{img, flat} {
			dir, err := m.Local(ctx, img)
			ok(t, err)
			b.want(dir, "bin/tool", tree["bin/tool"])
		}
		dir, err := m.Network(ctx, "c", img)
		ok(t, err)
		ok(t, os.WriteFile(filepath.Join(dir, "mine"), []byte(do), 0o644))
		if i%2 == 1 {
			ok(t, errors.Join(m.DropLocal(ctx, "v-a"), m.DropLocal(ctx, "v-b"), m.DropNetwork(ctx, "c")))
			ok(t, b.store.Remove(ctx, "c-made"))
			b.nothing()
		}
		ok(t, m.Close())
	}
	m := b.open()
	ok(t, errors.Join(m.DropLocal(ctx, "v-a"), m.DropLocal(ctx, "v-b"), m.DropNetwork(ctx, "c")))
	ok(t, b.store.Remove(ctx, "c-made"))
	b.nothing()
}
