package snapshotter_test

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/snapshotter"
	"example.org/slipway/node/view"
)

// directories returns the directories of the recorded snapshots that have one, with the kind of
// each.
func (b *bed) directories() map[string]snapshots.Kind {
	b.t.Helper()
	meta, err := storage.NewMetaStore(filepath.Join(b.root(), "metadata.db"))
	if err != nil {
		b.t.Fatal(err)
	}
	all := map[string]snapshots.Kind{}
	err = meta.WithTransaction(b.t.Context(), false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(ctx context.Context, info snapshots.Info) error {
			id, _, usage, err := storage.GetInfo(ctx, info.Name)
			if usage.Size >= 0 {
				all[filepath.Join(b.root(), "snapshots", id)] = info.Kind
			}
			return err
		})
	})
	if errdefs.IsNotFound(err) {
		err = nil
	}
	if err := errors.Join(err, meta.Close()); err != nil {
		b.t.Fatal(err)
	}
	return all
}

// lose removes what a power cut may remove while nothing is open: the directories of uncommitted
// snapshots, or parts of them.
func (b *bed) lose(random *rand.Rand) {
	b.t.Helper()
	for dir, kind := range b.directories() {
		if kind == snapshots.KindCommitted {
			continue
		}
		lost := []string{"", "fs", "work", "mnt", "container", "nothing", "nothing", "nothing"}[random.IntN(8)]
		if err := os.RemoveAll(filepath.Join(dir, lost)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// TestPowerCut removes directories whose records stayed.
func TestPowerCut(t *testing.T) {
	for _, lost := range []string{"", "fs", "work", "mnt", "container"} {
		t.Run("lost "+lost, func(t *testing.T) {
			b := newBed(t)
			chain := b.claim("one")
			tree := filepath.Join(b.trees.dir, "chains", chain, "tree")
			if err := os.Chown(tree, 7, 8); err != nil {
				t.Fatal(err)
			}
			b.prepare("plain-layer", "")
			if err := b.Commit(t.Context(), "plain", "plain-layer"); err != nil {
				t.Fatal(err)
			}
			b.prepare("over-plain", "plain")
			b.prepare("over-nothing", "")
			b.prepare("ns/1/c", chain)
			if _, err := b.View(t.Context(), "ns/1/v", chain); err != nil {
				t.Fatal(err)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			unmountBelow(t, b.dir)
			for dir, kind := range b.directories() {
				if kind != snapshots.KindCommitted {
					if err := os.RemoveAll(filepath.Join(dir, lost)); err != nil {
						t.Fatal(err)
					}
				}
			}
			b.open()
			b.cleanup()
			for _, key := range []string{"over-plain", "over-nothing", "ns/1/c", "ns/1/v"} {
				m, err := b.Mounts(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				b.in(m, func(dir string) {
					if key == "ns/1/c" || key == "ns/1/v" {
						b.read(filepath.Join(dir, "chain"), chain)
					}
					var st unix.Stat_t
					if err := unix.Stat(dir, &st); err != nil || key == "ns/1/c" && (st.Uid != 7 || st.Gid != 8) || st.Mode&0o7777 != 0o755 {
						t.Errorf("root of %s belongs to %d:%d with mode %o, error %v", key, st.Uid, st.Gid, st.Mode, err)
					}
					if key != "ns/1/v" {
						b.write(filepath.Join(dir, "new"), "x")
					}
				})
			}
			b.check(0)
			b.remove("ns/1/c", "ns/1/v", "over-plain", "over-nothing")
			b.cleanup()
			if _, containers := b.trees.known(t); len(containers) != 0 {
				t.Errorf("Lower still has %q", containers)
			}
			b.restart()
		})
	}
}

// TestLostLayer removes the files of a layer. The layer must not become an empty one.
func TestLostLayer(t *testing.T) {
	b := newBed(t)
	b.prepare("layer-key", "")
	if err := b.Commit(t.Context(), "layer", "layer-key"); err != nil {
		t.Fatal(err)
	}
	dirs := b.names()
	b.prepare("c", "layer")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(b.root(), "snapshots", dirs[0])
	if err := os.RemoveAll(gone); err != nil {
		t.Fatal(err)
	}
	b.open()
	if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the layer is there again, error %v", err)
	}
	if _, err := b.Prepare(t.Context(), "d", "layer"); err == nil {
		t.Error("a container starts on a layer that is gone")
	}
	b.remove("c", "layer")
	b.cleanup()
}

// looker is a Lower that checks whether the tree of a container is mounted when it learns of the
// container.
type looker struct {
	*trees
	mounted map[string]bool
}

func (l *looker) Started(ctx context.Context, c snapshotter.Container) error {
	_, mounted, err := view.RootAt(c.Mount)
	l.mounted[c.Key] = mounted && err == nil
	return l.trees.Started(ctx, c)
}

// TestStartedMounted checks that Lower learns of a container when its tree is visible.
func TestStartedMounted(t *testing.T) {
	b := newBed(t)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	l := &looker{trees: b.trees, mounted: map[string]bool{}}
	s, err := snapshotter.New(b.root(), l, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Snapshotter = s
	b.prepare("ns/1/c", b.claim("one"))
	if !l.mounted["ns/1/c"] {
		t.Error("Lower was told of a container whose tree is not mounted")
	}
}
