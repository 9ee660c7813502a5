package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/erofslayout"
	"example.org/slipway/volume/ext4"
	"example.org/slipway/volume/layouttest"
)

// TestTorn checks that a container's copy which lost its storage is repaired and mounted again,
// with everything that was durable.
func TestTorn(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img := b.image("a", volref.Ext4, tree)
	m := b.open()
	dir, err := m.Network(ctx, "c", img)
	ok(t, err)
	f, err := os.Create(filepath.Join(dir, "mine"))
	ok(t, err)
	_, err = f.WriteString("durable")
	ok(t, errors.Join(err, unix.Syncfs(int(f.Fd())), f.Close()))
	ok(t, os.WriteFile(filepath.Join(dir, "lost"), []byte("lost"), 0o644))
	ok(t, fuse.Teardown(b.mnt))
	b.dev.Close()
	b.kill()
	ok(t, os.Remove(b.state))
	b.connect()
	dir, err = m.Network(ctx, "c", img)
	ok(t, err)
	b.want(dir, "mine", "durable")
	b.want(dir, "bin/tool", tree["bin/tool"])
	ok(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("again"), 0o644))
	ok(t, m.DropNetwork(ctx, "c"))
	b.nothing()
}

// TestReadOnly checks that a container's copy which became read-only is mounted again when nobody
// uses it.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img := b.image("a", volref.Ext4, tree)
	m := b.open()
	dir, err := m.Network(ctx, "c", img)
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("kept"), 0o644))
	ok(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")) // as the kernel does after errors
	used, err := os.Open(dir)
	ok(t, err)
	if _, err := m.Network(ctx, "c", img); !errors.Is(err, block.ErrInUse) {
		t.Errorf("while it is used: %v, want %v", err, block.ErrInUse)
	}
	used.Close()
	// It is not mounted again while a container has it mounted elsewhere, whether it is requested
	// once or twice.
	bound := filepath.Join(b.base, "bound")
	ok(t, os.Mkdir(bound, 0o755))
	ok(t, unix.Mount(dir, bound, "", unix.MS_BIND, ""))
	for range 2 {
		if _, err := m.Network(ctx, "c", img); !errors.Is(err, block.ErrInUse) {
			t.Errorf("while it is mounted elsewhere: %v, want %v", err, block.ErrInUse)
		}
	}
	ok(t, unix.Unmount(bound, 0))
	dir, err = m.Network(ctx, "c", img)
	ok(t, err)
	b.want(dir, "mine", "kept")
	ok(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("again"), 0o644))
	ok(t, m.DropNetwork(ctx, "c"))
	b.nothing()
}

// TestDiscard checks that what a container deletes is freed in the storage.
func TestDiscard(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img := b.image("a", volref.Ext4, tree)
	m := b.open()
	dir, err := m.Network(ctx, "c", img)
	ok(t, err)
	used := func() int64 {
		t.Helper()
		d, err := os.Open(dir)
		ok(t, err)
		defer d.Close()
		ok(t, unix.Syncfs(int(d.Fd())))
		clones, err := b.store.List(ctx, "c-")
		if err != nil || len(clones) != 1 {
			t.Fatalf("%v, %v", clones, err)
		}
		// The size of the file driver's file shows this.
		var st unix.Stat_t
		ok(t, unix.Stat(filepath.Join(b.dir, "volumes", clones[0].ID, "data"), &st))
		return st.Blocks * 512
	}
	before := used()
	ok(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, 8<<20), 0o644))
	full := used()
	ok(t, os.Remove(filepath.Join(dir, "big")))
	after := used()
	if full < before+8<<20 || after > before+1<<20 {
		t.Errorf("stored %d bytes, then %d, and after deleting %d", before, full, after)
	}
	ok(t, m.DropNetwork(ctx, "c"))
	b.nothing()
}

func TestCommit(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img := b.image("a", volref.Ext4, tree)
	m := b.open()
	dir, err := m.Network(ctx, "c", img)
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("first"), 0o644))
	ok(t, os.Remove(filepath.Join(dir, "etc/motd")))
	if err := m.Commit(ctx, "nobody", "c-none"); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("commit of no container: %v", err)
	}
	ok(t, m.Commit(ctx, "c", "c-made"))
	ok(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("second"), 0o644))
	ok(t, m.Commit(ctx, "c", "c-made")) // it exists
	b.want(dir, "mine", "second")
	made := b.imageOf("c-made", volref.Ext4)
	b.check("c-made")
	at, err := m.Local(ctx, made)
	ok(t, err)
	b.want(at, "mine", "first")
	b.want(at, "bin/tool", tree["bin/tool"])
	if _, err := os.Stat(filepath.Join(at, "etc/motd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removed file: %v", err)
	}
	info, err := b.store.Stat(ctx, "c-made")
	ok(t, err)
	if info.Parent != "v-a" || info.Used > 512<<10 {
		t.Errorf("committed: %+v; little was changed", info)
	}
	// It can be used like any image.
	second, err := m.Network(ctx, "d", made)
	ok(t, err)
	b.want(second, "mine", "first")
	ok(t, errors.Join(m.DropNetwork(ctx, "c"), m.DropNetwork(ctx, "d"), m.DropLocal(ctx, "c-made"), b.store.Remove(ctx, "c-made")))
	b.nothing()
}

// check runs e2fsck on a volume.
func (b *bed) check(id string) {
	b.t.Helper()
	ctx, s := context.Background(), &remote{b.sock}
	file, err := s.Map(ctx, block.Mapping{Name: "check", ID: id, Place: b.store.Place()})
	ok(b.t, err)
	if out, err := exec.Command("e2fsck", "-fn", file).CombinedOutput(); err != nil {
		b.t.Errorf("e2fsck: %v: %s", err, out)
	}
	ok(b.t, s.Unmap(ctx, "check"))
}

// TestBuilt checks that a mounted volume of our own layouts is the tree, in both modes, and can be
// written and committed.
func TestBuilt(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	model, rnd := layouttest.New(), rand.New(rand.NewPCG(1, 2))
	m := b.open()
	layout := ext4.New([16]byte{1})
	img := filepath.Join(b.base, "chain.img")
	for i := range 2 {
		model.Change(rnd, 60)
		want := layouttest.Expected(model.Tree())
		plan, err := layout.Next(model.Tree())
		ok(t, err)
		layouttest.Apply(t, img, plan)
		volume := fmt.Sprint("v-", i)
		b.commit(volume, img)
		use := b.imageOf(volume, volref.Ext4)
		local, err := m.Local(ctx, use)
		ok(t, err)
		own, err := m.Network(ctx, volume, use)
		ok(t, err)
		for _, dir := range []string{local, own} {
			if diff := cmp.Diff(want, layouttest.Described(t, dir)); diff != "" {
				t.Errorf("%s: %s", dir, diff)
			}
		}
		ok(t, os.WriteFile(filepath.Join(own, "mine"), make([]byte, 3<<20), 0o644))
		ok(t, m.Commit(ctx, volume, "c-"+volume))
		b.check("c-" + volume)
		ok(t, errors.Join(m.DropLocal(ctx, volume), m.DropNetwork(ctx, volume), b.store.Remove(ctx, "c-"+volume)))
		b.nothing()

		plan, err = erofslayout.Plan(model.Tree(), [16]byte{2})
		ok(t, err)
		flat := filepath.Join(b.base, volume+".erofs")
		layouttest.Apply(t, flat, plan)
		b.commit("e-"+volume, flat)
		local, err = m.Local(ctx, b.imageOf("e-"+volume, volref.EROFS))
		ok(t, err)
		if diff := cmp.Diff(want, layouttest.Described(t, local)); diff != "" {
			t.Errorf("EROFS: %s", diff)
		}
		ok(t, m.DropLocal(ctx, "e-"+volume))
		b.nothing()
	}
}
