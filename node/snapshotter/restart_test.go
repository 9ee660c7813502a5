package snapshotter_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestRestartAndReboot(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one", "two")
	b.in(b.prepare("ns/1/init-key", chain), func(dir string) { b.write(filepath.Join(dir, "init"), "init") })
	if err := b.Commit(t.Context(), "ns/2/init", "ns/1/init-key"); err != nil {
		t.Fatal(err)
	}
	b.in(b.prepare("ns/3/c", "ns/2/init"), func(dir string) { b.write(filepath.Join(dir, "data"), "mine") })
	if _, err := b.View(t.Context(), "ns/4/v", chain); err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T) {
		for key, files := range map[string]map[string]string{
			"ns/3/c": {"chain": chain, "init": "init", "data": "mine", "empty": ""},
			"ns/4/v": {"chain": chain, "empty": ""},
		} {
			m, err := b.Mounts(t.Context(), key)
			if err != nil {
				t.Error(err)
				continue
			}
			b.in(m, func(dir string) {
				for name, text := range files {
					b.read(filepath.Join(dir, name), text)
				}
			})
		}
		if _, containers := b.trees.known(t); !slices.Equal(containers, []string{"ns/3/c", "ns/4/v"}) {
			t.Errorf("Lower has containers %q", containers)
		}
	}
	t.Run("restart", func(t *testing.T) {
		before := mountsBelow(t, b.root())
		// Lower forgot the containers. Those that are mounted may be running.
		removeAll(t, filepath.Join(b.trees.dir, "started"))
		b.restart()
		eventually(t, "Lower to hear of the containers", func() bool { _, c := b.trees.known(t); return len(c) == 2 })
		check(t)
		if after := mountsBelow(t, b.root()); !slices.Equal(before, after) {
			t.Errorf("mounts before and after the restart: %q, %q", before, after)
		}
	})
	t.Run("reboot", func(t *testing.T) {
		b.reboot()
		check(t)
	})
}

func removeAll(t testing.TB, dir string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
}

// TestStaleMount mounts the tree of a chain anew under containers, as after a crash of its
// provider.
func TestStaleMount(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one")
	mnt := filepath.Join(b.trees.chain(chain), "mnt")
	idle, used := b.prepare("ns/1/idle", chain), b.prepare("ns/2/used", chain)
	rootfs := b.mount(used)
	unmountHere := func(dir string) {
		t.Helper()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	unmountHere(mnt)
	if err := unix.Mount("none", mnt, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := b.trees.stub(filepath.Join(mnt, "chain"), "the tree of now"); err != nil {
		t.Fatal(err)
	}
	now, err := b.Mounts(t.Context(), "ns/1/idle")
	if err != nil {
		t.Fatal(err)
	}
	b.in(now, func(dir string) { b.read(filepath.Join(dir, "chain"), "the tree of now") })
	if len(idle) != 1 || len(now) != 1 || idle[0].Source != now[0].Source {
		t.Errorf("mounts moved from %v to %v", idle, now)
	}
	// Two overlays must never write to one upper directory.
	if now, err = b.Mounts(t.Context(), "ns/2/used"); err != nil {
		t.Fatal(err)
	}
	b.in(now, func(dir string) { b.read(filepath.Join(dir, "chain"), chain) })
	unmountHere(rootfs)
	if now, err = b.Mounts(t.Context(), "ns/2/used"); err != nil {
		t.Fatal(err)
	}
	b.in(now, func(dir string) { b.read(filepath.Join(dir, "chain"), "the tree of now") })
}

func TestRemoveBusy(t *testing.T) {
	for name, hold := range map[string]func(t *testing.T, b *bed, key string) (release func() error){
		"rootfs mounted": func(t *testing.T, b *bed, key string) func() error {
			m, err := b.Mounts(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			dir := b.mount(m)
			return func() error { return unix.Unmount(dir, 0) }
		},
		"file open": func(t *testing.T, b *bed, key string) func() error {
			m, err := b.Mounts(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(filepath.Join(m[0].Source, "chain"))
			if err != nil {
				t.Fatal(err)
			}
			return f.Close
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			chain := b.claim("one")
			b.prepare("ns/1/c", chain)
			release := hold(t, b, "ns/1/c")
			for range 2 {
				err := b.Remove(t.Context(), "ns/1/c")
				if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "ns/1/c") {
					t.Fatalf("removing a snapshot in use: %v, want a failed precondition that names it", err)
				}
				b.cleanup()
			}
			if _, err := b.Mounts(t.Context(), "ns/1/c"); err != nil {
				t.Errorf("the snapshot that is in use: %v", err)
			}
			if err := release(); err != nil {
				t.Fatal(err)
			}
			b.cleanup()
			if _, err := b.Stat(t.Context(), "ns/1/c"); !errdefs.IsNotFound(err) {
				t.Errorf("after its release: %v, want that Cleanup removed it", err)
			}
			if left := append(b.names(), mountsBelow(t, b.root())...); len(left) != 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestRemoveThroughMount mounts a foreign directory inside a snapshot. Deleting the snapshot must
// not delete that directory.
func TestRemoveThroughMount(t *testing.T) {
	b := newBed(t)
	precious := filepath.Join(b.dir, "precious")
	if err := os.Mkdir(precious, 0o755); err != nil {
		t.Fatal(err)
	}
	b.write(filepath.Join(precious, "file"), "kept")
	for _, key := range []string{"ordinary", "open"} {
		b.prepare(key, "")
	}
	for _, id := range []string{"1", "2"} {
		at := filepath.Join(b.root(), "snapshots", id, "fs", "at")
		if err := errors.Join(os.Mkdir(at, 0o755), unix.Mount(precious, at, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(filepath.Join(b.root(), "snapshots/2/fs/at/file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b.remove("ordinary")
	if err := b.Remove(t.Context(), "open"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("removing a snapshot with a mount in use: %v", err)
	}
	b.cleanup()
	b.read(filepath.Join(precious, "file"), "kept")
	if got := b.names(); !slices.Equal(got, []string{"2"}) {
		t.Errorf("snapshots left %q, want the one in use", got)
	}
}

// TestLowerTrouble checks that a call to Lower that failed is repeated.
func TestLowerTrouble(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one")
	b.prepare("ns/1/c", chain)
	b.trees.setDrop(errors.New("not now"))
	b.remove("ns/1/c", chain)
	b.cleanup()
	if chains, containers := b.trees.known(t); len(chains) != 1 || len(containers) != 1 {
		t.Fatalf("Lower has chains %q and containers %q, want both still", chains, containers)
	}
	b.trees.setDrop(nil)
	b.restart()
	if chains, containers := b.trees.known(t); len(chains)+len(containers) != 0 {
		t.Errorf("Lower has chains %q and containers %q left", chains, containers)
	}
	// A key that is used again is not stopped for its predecessor.
	b.claim("one")
	b.prepare("ns/1/c", chain)
	b.trees.setDrop(errors.New("not now"))
	b.remove("ns/1/c")
	b.prepare("ns/1/c", chain)
	b.trees.setDrop(nil)
	b.cleanup()
	if _, containers := b.trees.known(t); !slices.Equal(containers, []string{"ns/1/c"}) {
		t.Errorf("Lower has containers %q, want the second of that name", containers)
	}
	b.remove("ns/1/c")
	if _, containers := b.trees.known(t); len(containers) != 0 {
		t.Errorf("Lower has containers %q left", containers)
	}
}
