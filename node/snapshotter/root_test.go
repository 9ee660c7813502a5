package snapshotter_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/snapshotter"
)

// roots is a Lower that gives each container its own directory: a tmpfs with a file for each chain.
// Its knowledge outlasts a restart of the snapshotter.
type roots struct {
	*trees
	at string

	mu    sync.Mutex
	on    bool
	chain map[string]string // of each existing root
	made  map[string]string // chains of CommitRoot, and the roots they were made of
	fail  error             // what DropRoot returns
}

var _ snapshotter.Rooter = (*roots)(nil)

func (r *roots) Roots(string) bool { return r.on }

func (r *roots) dir(key string) string { return filepath.Join(r.at, filepath.Base(key)) }

func (r *roots) Root(_ context.Context, key, chain string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if had := r.chain[key]; had != "" {
		return r.dir(key), nil
	}
	if err := errors.Join(os.MkdirAll(r.dir(key), 0o755), unix.Mount("root", r.dir(key), "tmpfs", 0, "size=1m")); err != nil {
		return "", err
	}
	r.chain[key] = chain
	return r.dir(key), os.WriteFile(filepath.Join(r.dir(key), "chain"), []byte(chain), 0o644)
}

func (r *roots) DropRoot(_ context.Context, key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	if r.chain[key] == "" {
		return nil
	}
	delete(r.chain, key)
	return errors.Join(unix.Unmount(r.dir(key), unix.MNT_DETACH), os.Remove(r.dir(key)))
}

func (r *roots) RootUsage(context.Context, string) (int64, int64, error) { return 4096, 7, nil }

func (r *roots) CommitRoot(ctx context.Context, key, parent, chain string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.chain[key] != parent {
		return errors.New("of another chain")
	}
	r.made[chain] = key
	_, err := r.trees.Claim(ctx, snapshotter.Layer{ChainID: chain})
	return err
}

func (r *roots) Drop(ctx context.Context, chain string) error {
	r.mu.Lock()
	delete(r.made, chain)
	r.mu.Unlock()
	return r.trees.Drop(ctx, chain)
}

func (r *roots) keys() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.chain))
}

// rootBed returns a bed whose Lower has roots.
func rootBed(t *testing.T) (*bed, *roots) {
	t.Helper()
	b := newBed(t)
	r := &roots{trees: b.trees, at: filepath.Join(b.dir, "roots"), on: true, chain: map[string]string{}, made: map[string]string{}}
	b.lower = r
	b.restart()
	return b, r
}

func TestRoot(t *testing.T) {
	b, r := rootBed(t)
	chain := b.claim("one", "two")
	m := b.prepare("container", chain)
	if len(m) != 1 || m[0].Type != "bind" || !slices.Contains(m[0].Options, "rw") {
		t.Errorf("got mounts %v", m)
	}
	b.in(m, func(dir string) {
		b.read(filepath.Join(dir, "chain"), chain)
		b.write(filepath.Join(dir, "mine"), "written")
		if err := b.Remove(t.Context(), "container"); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("removed while it is mounted: %v", err)
		}
	})
	if u, err := b.Usage(t.Context(), "container"); err != nil || u.Size != 4096 || u.Inodes != 7 {
		t.Errorf("usage %v, error %v", u, err)
	}
	// The decision for this container stays, whatever is decided for others now.
	r.on = false
	b.restart()
	m, err := b.Mounts(t.Context(), "container")
	if err != nil {
		t.Fatal(err)
	}
	b.in(m, func(dir string) { b.read(filepath.Join(dir, "mine"), "written") })
	b.in(b.prepare("other", chain), func(dir string) { b.write(filepath.Join(dir, "mine"), "in an overlay") })
	if keys := r.keys(); len(keys) != 1 {
		t.Errorf("roots %v", keys)
	}
	// Views have none. A layer that is unpacked over the chain has none either.
	r.on = true
	if m, err := b.View(t.Context(), "view", chain); err != nil || slices.Contains(m[0].Options, "rw") {
		t.Errorf("a view is %v, error %v", m, err)
	}
	b.trees.files = func(string) map[string]string { return nil }
	if _, err := b.pull(layerNamed(chain, "three"), chain); err != nil || len(r.keys()) != 1 {
		t.Errorf("unpacking has roots %v, error %v", r.keys(), err)
	}
	b.remove("container", "other", "view")
	if keys := r.keys(); len(keys) != 0 {
		t.Errorf("roots that stay: %v", keys)
	}
}

func TestRootGoesLater(t *testing.T) {
	b, r := rootBed(t)
	chain := b.claim("one")
	b.prepare("container", chain)
	r.fail = errors.New("storage is away")
	b.remove("container")
	b.cleanup()
	if len(r.keys()) != 1 {
		t.Fatal("it is gone")
	}
	// A container of the same name has nothing to do with it.
	b.in(b.prepare("container", chain), func(dir string) { b.write(filepath.Join(dir, "mine"), "second") })
	if len(r.keys()) != 2 {
		t.Errorf("roots %v", r.keys())
	}
	r.fail = nil
	b.cleanup()
	if len(r.keys()) != 1 {
		t.Errorf("roots %v", r.keys())
	}
	m, err := b.Mounts(t.Context(), "container")
	if err != nil {
		t.Fatal(err)
	}
	b.in(m, func(dir string) { b.read(filepath.Join(dir, "mine"), "second") })
}

func TestCommitRoot(t *testing.T) {
	for _, name := range []string{"default/7/any name", chainOf("", "sha256:0000000000000000000000000000000000000000000000000000000000000001")} {
		b, r := rootBed(t)
		chain := b.claim("one")
		b.prepare("container", chain)
		if err := b.Commit(t.Context(), name, "container"); err != nil {
			t.Fatal(err)
		}
		if len(r.made) != 1 || len(r.keys()) != 0 {
			t.Errorf("chains %v, roots %v", r.made, r.keys())
		}
		if info, err := b.Stat(t.Context(), name); err != nil || info.Kind != snapshots.KindCommitted || info.Parent != chain {
			t.Errorf("got %+v, error %v", info, err)
		}
		b.restart()
		var made string
		for made = range r.made {
		}
		b.in(b.prepare("next", name), func(dir string) { b.read(filepath.Join(dir, "chain"), made) })
		if m, err := b.View(t.Context(), "view", name); err != nil || len(m) != 1 {
			t.Errorf("a view is %v, error %v", m, err)
		}
		b.prepare("again", chain)
		if err := b.Commit(t.Context(), name, "again"); !errdefs.IsAlreadyExists(err) {
			t.Errorf("committed under a name that is taken: %v", err)
		}
		b.remove("again", "next", "view", name)
		b.cleanup()
		if len(r.made) != 0 || len(r.keys()) != 0 {
			t.Errorf("chains %v, roots %v stay", r.made, r.keys())
		}
		if names := b.names(); len(names) != 0 {
			t.Errorf("directories %v stay", names)
		}
	}
}
