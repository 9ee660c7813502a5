package snapshotter_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/snapshotter"
)

func TestClaim(t *testing.T) {
	b := newBed(t)
	first := layerNamed("", "one")
	if _, err := b.pull(first, ""); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("pull: %v, want already exists", err)
	}
	want := snapshotter.Layer{
		ChainID: first.diffID, DiffID: first.diffID,
		Digest:   first.labels()["containerd.io/snapshot/cri.layer-digest"],
		Manifest: first.labels()["containerd.io/snapshot/cri.manifest-digest"],
		ImageRef: "registry.test/image:v1", Layers: []string{"sha256:a", "sha256:b"}, Labels: first.labels(),
	}
	if diff := cmp.Diff([]snapshotter.Layer{want}, b.trees.claimed); diff != "" {
		t.Errorf("the layer that Claim was asked for (-want +got):\n%s", diff)
	}
	info, err := b.Stat(t.Context(), first.chain())
	if err != nil {
		t.Fatal(err)
	}
	if info.Kind != snapshots.KindCommitted || info.Parent != "" || !maps.Equal(info.Labels, first.labels()) {
		t.Errorf("record of the claimed layer: %+v, want a committed one with the labels given", info)
	}
	second := layerNamed(first.chain(), "two")
	if _, err := b.pull(second, first.chain()); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("pull of the second layer: %v, want already exists", err)
	}
	// This is how containerd finds it.
	var found []string
	filter := `labels."containerd.io/snapshot.ref"==` + second.chain() + `,parent==` + first.chain()
	if err := b.Walk(t.Context(), func(_ context.Context, i snapshots.Info) error { found = append(found, i.Name); return nil }, filter); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(found, []string{second.chain()}) {
		t.Errorf("containerd's search finds %q, want %q", found, second.chain())
	}
	if len(b.names()) != 0 || len(mountsBelow(t, b.dir)) != 0 {
		t.Errorf("claimed layers have directories %q and mounts %q, want none", b.names(), mountsBelow(t, b.dir))
	}
	// Another image, or namespace, with the same layer.
	if _, err := b.Prepare(t.Context(), "other/7/extract-2 x", "", snapshots.WithLabels(first.labels())); !errdefs.IsAlreadyExists(err) {
		t.Errorf("second pull of a claimed layer: %v, want already exists", err)
	}
	if got := b.trees.asked(); len(got) != 3 {
		t.Errorf("Claim was asked for %q, want every layer of every pull", got)
	}
}

func TestClaimStopsAtFirstOrdinaryLayer(t *testing.T) {
	b := newBed(t)
	bottom, middle := layerNamed("", "bottom"), layerNamed("", "middle")
	middle.parent = bottom.chain()
	top := layerNamed(middle.chain(), "top")
	files := b.trees.files
	b.trees.files = func(chain string) map[string]string {
		if chain == middle.chain() {
			return nil
		}
		return files(chain)
	}
	b.claim("bottom")
	m, err := b.pull(middle, bottom.chain())
	if err != nil {
		t.Fatal(err)
	}
	b.in(m, func(dir string) {
		b.read(filepath.Join(dir, "chain"), bottom.chain())
		b.write(filepath.Join(dir, "chain"), "middle")
		b.write(filepath.Join(dir, "new"), "middle")
	})
	if err := b.Commit(t.Context(), "ns/2/middle", "ns/1/extract-1 "+middle.chain(), snapshots.WithLabels(middle.labels())); err != nil {
		t.Fatal(err)
	}
	if m, err = b.pull(top, "ns/2/middle"); err != nil {
		t.Fatal(err)
	}
	if got, want := b.trees.asked(), []string{bottom.chain(), middle.chain()}; !slices.Equal(got, want) {
		t.Errorf("Claim was asked for %q, want %q: nothing over an unpacked layer", got, want)
	}
	b.in(m, func(dir string) {
		b.read(filepath.Join(dir, "chain"), "middle")
		if err := os.Remove(filepath.Join(dir, "etc/passwd")); err != nil {
			t.Error(err)
		}
	})
	if err := b.Commit(t.Context(), "ns/3/top", "ns/1/extract-1 "+top.chain()); err != nil {
		t.Fatal(err)
	}
	b.in(b.prepare("ns/4/container", "ns/3/top"), func(dir string) {
		b.read(filepath.Join(dir, "new"), "middle")
		if _, err := os.Stat(filepath.Join(dir, "etc/passwd")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file that the top layer removed: %v", err)
		}
	})
	chains, containers := b.trees.known(t)
	if want := []string{"ns/4/container"}; !slices.Equal(containers, want) {
		t.Errorf("Lower was told of containers %q, want %q: unpacking is none", containers, want)
	}
	if want := []string{bottom.chain()}; !slices.Equal(chains, want) {
		t.Errorf("Lower has chains %q, want %q", chains, want)
	}
}

func TestClaimRefusesWrongChain(t *testing.T) {
	good := layerNamed("", "one")
	for name, change := range map[string]func(map[string]string){
		"no digest":            func(l map[string]string) { l[snapshots.LabelSnapshotRef] = "../../etc" },
		"of another layer":     func(l map[string]string) { l[snapshots.LabelSnapshotDiffID] = layerNamed("", "other").diffID },
		"with a parent unsaid": func(l map[string]string) { l[snapshots.LabelSnapshotRef] = chainOf(good.chain(), good.diffID) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			labels := good.labels()
			change(labels)
			if _, err := b.Prepare(t.Context(), "ns/1/x", "", snapshots.WithLabels(labels)); err != nil {
				t.Errorf("prepare: %v, want an ordinary snapshot", err)
			}
			if got := b.trees.asked(); len(got) != 0 {
				t.Errorf("Claim was asked for %q, want for nothing", got)
			}
		})
	}
}

// TestClaimFails pulls while Lower fails.
func TestClaimFails(t *testing.T) {
	b := newBed(t)
	l := layerNamed("", "one")
	b.trees.files = func(string) map[string]string { return map[string]string{strings.Repeat("x", 300): "too long a name"} }
	m, err := b.pull(l, "")
	if err != nil || len(m) != 1 {
		t.Fatalf("pull: mounts %v, error %v, want an ordinary snapshot", m, err)
	}
	if chains, _ := b.trees.known(t); len(chains) != 0 {
		t.Errorf("Lower still has %q, want that it was told to drop it", chains)
	}
}

func TestContainer(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one", "two")
	m := b.prepare("ns/1/c", chain)
	if len(m) != 1 || m[0].Type != "bind" || !slices.Equal(m[0].Options, []string{"rw", "rbind"}) {
		t.Errorf("mounts %v, want one bind", m)
	}
	if _, containers := b.trees.known(t); !slices.Equal(containers, []string{"ns/1/c"}) {
		t.Errorf("Lower was told of %q", containers)
	}
	b.in(m, func(dir string) {
		b.read(filepath.Join(dir, "chain"), chain)
		b.read(filepath.Join(dir, "empty"), "")
		b.write(filepath.Join(dir, "etc/passwd"), "changed")
		b.write(filepath.Join(dir, "new"), strings.Repeat("x", 10000))
	})
	usage, err := b.Usage(t.Context(), "ns/1/c")
	if err != nil || usage.Size < 10000 || usage.Inodes < 4 {
		t.Errorf("usage of the container %+v (error %v), want that of its own files", usage, err)
	}
	if usage, err = b.Usage(t.Context(), chain); err != nil || usage != (snapshots.Usage{Size: 3 * 4096, Inodes: 3}) {
		t.Errorf("usage of the claimed layer %+v (error %v), want what Lower says", usage, err)
	}
	b.in(b.prepare("ns/2/d", chain), func(dir string) {
		b.read(filepath.Join(dir, "etc/passwd"), "root:x:0:0::/:/bin/sh\n")
	})
	v, err := b.View(t.Context(), "ns/3/v", chain)
	if err != nil {
		t.Fatal(err)
	}
	b.in(v, func(dir string) {
		b.read(filepath.Join(dir, "chain"), chain)
		if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to a view: %v, want a read-only file system", err)
		}
	})
	if err := b.Remove(t.Context(), chain); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), chain) {
		t.Errorf("removing a layer that is in use: %v", err)
	}
	b.remove("ns/1/c", "ns/2/d", "ns/3/v", chain)
	b.cleanup()
	chains, containers := b.trees.known(t)
	if len(containers) != 0 || !slices.Equal(chains, []string{layerNamed("", "one").chain()}) {
		t.Errorf("Lower has chains %q and containers %q left, want the first layer", chains, containers)
	}
	b.remove(layerNamed("", "one").chain())
	if left := append(b.names(), mountsBelow(t, b.dir)...); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestDockerInit makes a container as Docker does: with a separate layer between image and
// container.
func TestDockerInit(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one")
	b.in(b.prepare("moby/1/c-init-key", chain), func(dir string) {
		b.write(filepath.Join(dir, "etc/hosts"), "init")
	})
	if err := b.Commit(t.Context(), "moby/2/c-init", "moby/1/c-init-key"); err != nil {
		t.Fatal(err)
	}
	if left := mountsBelow(t, b.root()); len(left) != 0 {
		t.Errorf("the committed layer is still mounted: %q", left)
	}
	m := b.prepare("moby/3/c", "moby/2/c-init")
	b.in(m, func(dir string) {
		b.read(filepath.Join(dir, "etc/hosts"), "init")
		b.read(filepath.Join(dir, "chain"), chain)
		b.write(filepath.Join(dir, "data"), "container")
	})
	if _, containers := b.trees.known(t); !slices.Equal(containers, []string{"moby/3/c"}) {
		t.Errorf("Lower has containers %q, want the one that is left", containers)
	}
	// docker commit compares a view of the parent with the container.
	v, err := b.View(t.Context(), "moby/4/c-init-parent-view-xyz", "moby/2/c-init")
	if err != nil {
		t.Fatal(err)
	}
	b.in(v, func(dir string) { b.read(filepath.Join(dir, "etc/hosts"), "init") })
	if _, containers := b.trees.known(t); len(containers) != 1 {
		t.Errorf("Lower has containers %q, want none for a view of a moment", containers)
	}
}

// TestOrdinaryMounts compares with the answers of containerd's overlayfs snapshotter. Its differ
// relies on these forms.
func TestOrdinaryMounts(t *testing.T) {
	b := newBed(t)
	dir := func(id, sub string) string { return filepath.Join(b.root(), "snapshots", id, sub) }
	var options []string
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err == nil {
		options = []string{"index=off"}
	}
	check := func(what string, got []mount.Mount, want mount.Mount) {
		t.Helper()
		if diff := cmp.Diff([]mount.Mount{want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	m := b.prepare("a", "")
	check("first layer", m, mount.Mount{Type: "bind", Source: dir("1", "fs"), Options: []string{"rw", "rbind"}})
	if err := os.Chown(dir("1", "fs"), 1234, 4321); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(t.Context(), "A", "a"); err != nil {
		t.Fatal(err)
	}
	m = b.prepare("b", "A")
	check("second layer", m, mount.Mount{Type: "overlay", Source: "overlay", Options: append([]string{
		"workdir=" + dir("2", "work"), "upperdir=" + dir("2", "fs"), "lowerdir=" + dir("1", "fs")}, options...)})
	info, err := os.Stat(dir("2", "fs"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 4321 || info.Mode().Perm() != 0o755 {
		t.Errorf("root directory of the second layer: owner %d:%d, mode %v, want the parent's owner and 0755", st.Uid, st.Gid, info.Mode())
	}
	v, err := b.View(t.Context(), "v1", "A")
	if err != nil {
		t.Fatal(err)
	}
	check("view of one layer", v, mount.Mount{Type: "bind", Source: dir("1", "fs"), Options: []string{"ro", "rbind"}})
	if err := b.Commit(t.Context(), "B", "b"); err != nil {
		t.Fatal(err)
	}
	if v, err = b.View(t.Context(), "v2", "B"); err != nil {
		t.Fatal(err)
	}
	check("view of two layers", v, mount.Mount{Type: "overlay", Source: "overlay",
		Options: append([]string{"lowerdir=" + dir("2", "fs") + ":" + dir("1", "fs")}, options...)})
	mapped := snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotUIDMapping: "0:1000:65536", snapshots.LabelSnapshotGIDMapping: "0:2000:65536"})
	if m, err = b.Prepare(t.Context(), "c", "B", mapped); err != nil {
		t.Fatal(err)
	}
	if got := m[0].Options[:2]; !slices.Equal(got, []string{"uidmap=0:1000:65536", "gidmap=0:2000:65536"}) {
		t.Errorf("options with mapped ids begin %q", got)
	}
	if info, err = os.Stat(dir("5", "fs")); err != nil || info.Sys().(*syscall.Stat_t).Uid != 1000 || info.Sys().(*syscall.Stat_t).Gid != 2000 {
		t.Errorf("root directory with mapped ids: %+v, error %v", info, err)
	}
}

func TestMappedIDs(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one")
	mapped := map[string]string{snapshots.LabelSnapshotUIDMapping: "0:1000:65536", snapshots.LabelSnapshotGIDMapping: "0:1000:65536"}
	m, err := b.Prepare(t.Context(), "ns/1/c", chain, snapshots.WithLabels(mapped))
	if err != nil {
		t.Fatal(err)
	}
	owner := func(file string) uint32 {
		t.Helper()
		info, err := os.Lstat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Uid
	}
	b.in(m, func(dir string) {
		b.read(filepath.Join(dir, "chain"), chain)
		for _, file := range []string{dir, filepath.Join(dir, "chain")} {
			if got := owner(file); got != 1000 {
				t.Errorf("%s belongs to %d, want 1000", file, got)
			}
		}
		// Changing a file copies it with its owner.
		b.write(filepath.Join(dir, "chain"), "changed")
		if got := owner(filepath.Join(dir, "chain")); got != 1000 {
			t.Errorf("the changed file belongs to %d, want 1000", got)
		}
	})
	if left, err := filepath.Glob(filepath.Join(b.dir, "snapshots", "*", "ids*")); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, error %v", left, err)
	}
	for _, bad := range []string{"x", "0:1000", "1:1000:5", "0:4294967295:1", "0:1:0", "0:-1:3", "0:1:2:3", ","} {
		mapped[snapshots.LabelSnapshotUIDMapping] = bad
		if _, err := b.Prepare(t.Context(), "ns/1/d", "", snapshots.WithLabels(mapped)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("mapping %q: %v, want an invalid argument", bad, err)
		}
	}
}

func TestUpdateAndLabels(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one")
	info, err := b.Update(t.Context(), snapshots.Info{Name: chain, Labels: map[string]string{"new": "label"}})
	if err != nil || !maps.Equal(info.Labels, map[string]string{"new": "label"}) {
		t.Errorf("update: %+v, error %v", info, err)
	}
	// Whether it is claimed does not depend on its labels.
	b.in(b.prepare("ns/1/c", chain), func(dir string) { b.read(filepath.Join(dir, "chain"), chain) })
}

func TestOneProcess(t *testing.T) {
	b := newBed(t)
	_, err := snapshotter.New(b.root(), nil, nil)
	if err == nil || !strings.Contains(err.Error(), b.root()) || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("second New: %v, want that the directory is in use", err)
	}
	if _, err := snapshotter.New(filepath.Join(b.dir, "a,b"), nil, nil); err == nil || !strings.Contains(err.Error(), "choose another") {
		t.Errorf("a directory with a comma: %v, want an error", err)
	}
}

func TestWithoutLower(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one")
	b.prepare("ns/1/c", chain)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	unmountBelow(t, b.dir)
	s, err := snapshotter.New(b.root(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Snapshotter = s
	if _, err := s.Mounts(t.Context(), "ns/1/c"); err == nil || !strings.Contains(err.Error(), "ns/1/c") || !strings.Contains(err.Error(), "pull it again") {
		t.Errorf("a lazy container without the file service: %v, want its name and the way out", err)
	}
	l := layerNamed("", "two")
	if _, err := b.pull(l, ""); err != nil {
		t.Errorf("pull without the file service: %v", err)
	}
	b.remove("ns/1/c", chain)
	b.restart() // with the file service again
	if chains, containers := b.trees.known(t); len(chains)+len(containers) != 0 {
		t.Errorf("Lower has chains %q and containers %q, want that it heard of the removal later", chains, containers)
	}
}
