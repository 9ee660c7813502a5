package snapshotter_test

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/snapshotter"
)

// bed is a snapshotter over trees, in a directory of the test.
type bed struct {
	*snapshotter.Snapshotter
	t     testing.TB
	dir   string
	trees *trees
	lower snapshotter.Lower // nil: trees
}

func newBed(t testing.TB) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	dir := t.TempDir()
	t.Cleanup(func() { unmountBelow(t, dir) })
	b := &bed{t: t, dir: dir, trees: newTrees(t, filepath.Join(dir, "lower"))}
	b.open()
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bed) root() string { return filepath.Join(b.dir, "root") }

func (b *bed) open() {
	b.t.Helper()
	var lower snapshotter.Lower = b.trees
	if b.lower != nil {
		lower = b.lower
	}
	s, err := snapshotter.New(b.root(), lower, &snapshotter.Options{Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil))})
	if err != nil {
		b.t.Fatal(err)
	}
	b.Snapshotter = s
}

// restart ends the snapshotter and opens it again. It returns when the work that New starts is
// done.
func (b *bed) restart() {
	b.t.Helper()
	if err := b.Close(); err != nil {
		b.t.Fatal(err)
	}
	b.open()
	b.cleanup()
}

// reboot is a restart after which nothing is mounted.
func (b *bed) reboot() {
	b.t.Helper()
	if err := b.Close(); err != nil {
		b.t.Fatal(err)
	}
	unmountBelow(b.t, b.dir)
	b.open()
	b.cleanup()
}

func (b *bed) cleanup() {
	b.t.Helper()
	if err := b.Cleanup(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

func unmountBelow(t testing.TB, dir string) {
	t.Helper()
	for range 3 { // a mount may be on top of another
		for _, point := range slices.Backward(mountsBelow(t, dir)) {
			if err := unix.Unmount(point, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				t.Errorf("unmount %s: %v", point, err)
			}
		}
	}
}

func mountsBelow(t testing.TB, dir string) (points []string) {
	t.Helper()
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range infos {
		points = append(points, m.Mountpoint)
	}
	return points
}

// layer is a layer as containerd's pull prepares it for unpacking.
type layer struct{ parent, diffID string }

func (l layer) chain() string { return chainOf(l.parent, l.diffID) }

func (l layer) labels() map[string]string {
	return map[string]string{
		snapshots.LabelSnapshotRef:                     l.chain(),
		snapshots.LabelSnapshotDiffID:                  l.diffID,
		"containerd.io/snapshot/cri.image-ref":         "registry.test/image:v1",
		"containerd.io/snapshot/cri.manifest-digest":   string(digest.FromString("manifest")),
		"containerd.io/snapshot/cri.layer-digest":      string(digest.FromString("blob " + l.diffID)),
		"containerd.io/snapshot/cri.image-layers":      "sha256:a,sha256:b",
		"containerd.io/snapshot/example.org/something": "kept",
	}
}

func layerNamed(parent, name string) layer {
	return layer{parent: parent, diffID: digest.FromString(name).String()}
}

// pull prepares a layer for unpacking over its recorded parent.
func (b *bed) pull(l layer, parent string) ([]mount.Mount, error) {
	return b.Prepare(b.t.Context(), "ns/1/extract-1 "+l.chain(), parent, snapshots.WithLabels(maps.Clone(l.labels())))
}

// claim pulls layers by name and returns the top chain. All must be claimed.
func (b *bed) claim(names ...string) (chain string) {
	b.t.Helper()
	for _, name := range names {
		l := layerNamed(chain, name)
		if m, err := b.pull(l, chain); !errdefs.IsAlreadyExists(err) {
			b.t.Fatalf("pull of layer %s: mounts %v, error %v, want that it already exists", name, m, err)
		}
		chain = l.chain()
	}
	return chain
}

func (b *bed) prepare(key, parent string) []mount.Mount {
	b.t.Helper()
	m, err := b.Prepare(b.t.Context(), key, parent)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// in mounts a snapshot, calls f with the directory and unmounts it.
func (b *bed) in(mounts []mount.Mount, f func(dir string)) {
	b.t.Helper()
	dir := b.mount(mounts)
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			b.t.Error(err)
		}
	}()
	f(dir)
}

func (b *bed) mount(mounts []mount.Mount) (dir string) {
	b.t.Helper()
	dir, err := os.MkdirTemp(b.dir, "mnt")
	if err == nil {
		err = mount.All(mounts, dir)
	}
	if err != nil {
		b.t.Fatalf("mount %v: %v", mounts, err)
	}
	return dir
}

func (b *bed) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		b.t.Error(err)
	}
}

func (b *bed) read(name, want string) {
	b.t.Helper()
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		b.t.Errorf("%s holds %q (error %v), want %q", name, got, err, want)
	}
}

func (b *bed) remove(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		if err := b.Remove(b.t.Context(), key); err != nil {
			b.t.Fatal(err)
		}
	}
}

// names lists the directory of snapshots.
func (b *bed) names() (names []string) {
	b.t.Helper()
	entries, err := os.ReadDir(filepath.Join(b.root(), "snapshots"))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// eventually waits for something that happens in the background.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
