package snapshotter_test

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/treecmp"
	"example.org/slipway/node/snapshotter"
)

// ways are the ways in which layers become available.
var ways = []struct {
	name    string
	claimed int // of an image of three layers
	lower   func(t testing.TB) snapshotter.Lower
}{
	{"unpacked", 0, func(testing.TB) snapshotter.Lower { return nil }},
	{"claimed", 3, func(t testing.TB) snapshotter.Lower { return newLower(t) }},
	{"claimed below and unpacked above", 1, func(t testing.TB) snapshotter.Lower {
		l := newLower(t)
		l.claim = func(layer snapshotter.Layer) bool { return layer.Parent == "" }
		return l
	}},
}

// picky returns an image whose layers change each other in every way that layers can.
func picky(t testing.TB) *imagetest.Image {
	var low, mid, top imagetest.Archive
	low.Add(tar.Header{Typeflag: tar.TypeReg, Name: "hello", Mode: 0o755}, imagetest.HelloProgram(t))
	low.Dir("data/").File("data/a", "1").File("data/gone", "x").Dir("dir/").File("dir/one", "1").Dir("dir/sub/").File("dir/sub/two", "2").
		Dir("opaque/").File("opaque/old", "old").Symlink("link", "data/a").Hardlink("data-hard", "data/a").
		Add(tar.Header{Typeflag: tar.TypeReg, Name: "setuid", Mode: 0o4755, Uid: 12, Gid: 34}, []byte("s")).
		Add(tar.Header{Typeflag: tar.TypeReg, Name: "xattr", PAXRecords: map[string]string{"SCHILY.xattr.user.note": "hello"}}, []byte("x")).
		Add(tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"}, nil).
		Add(tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666, Devmajor: 1, Devminor: 3}, nil)
	mid.Dir("data/").Add(tar.Header{Typeflag: tar.TypeReg, Name: "data/.wh.gone"}, nil).File("data/b", "2").
		Dir("dir/").Add(tar.Header{Typeflag: tar.TypeReg, Name: "dir/.wh.sub"}, nil).File("dir/one", "changed")
	top.Dir("opaque/").Add(tar.Header{Typeflag: tar.TypeReg, Name: "opaque/.wh..wh..opq"}, nil).File("opaque/new", "new").
		Dir("dir/").Dir("dir/sub/").File("dir/sub/three", "3").
		Add(tar.Header{Typeflag: tar.TypeReg, Name: ".wh.link"}, nil).File("link", "a file now")
	im := imagetest.NewImage(runtime.GOARCH, low.Layer(), mid.Layer(), top.Layer())
	im.Output = "slipway-ok a=1 b=2"
	return im
}

func TestContainerd(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			b := newBed(t, w.lower(t))
			im := picky(t)
			ref := b.push("team/picky", &im.Bundle)
			b.pull(name, ref)
			if got := b.claimed(); got != w.claimed {
				t.Errorf("%d layers were claimed, want %d", got, w.claimed)
			}
			b.pull("overlayfs", ref)
			t.Run("run", func(t *testing.T) {
				for i := range 3 {
					if got := b.ctr.Run(t, "run", "--rm", "--snapshotter", name, ref, fmt.Sprintf("run%d-%d", os.Getpid(), i)); got != im.Output {
						t.Errorf("the container prints %q, want %q", got, im.Output)
					}
				}
				if got := b.ctr.Run(t, "run", "--rm", "--read-only", "--snapshotter", name, ref, fmt.Sprint("readonly", os.Getpid())); got != im.Output {
					t.Errorf("the read-only container prints %q, want %q", got, im.Output)
				}
			})
			t.Run("same as overlayfs", func(t *testing.T) { testSame(t, b) })
			t.Run("diff", func(t *testing.T) { testDiff(t, b) })
			t.Run("restart", func(t *testing.T) {
				b.ctr.Run(t, "container", "create", "--snapshotter", name, ref, "kept")
				b.stop()
				b.start()
				if got := b.ctr.Run(t, "task", "start", "kept"); got != im.Output {
					t.Errorf("after a restart the container prints %q, want %q", got, im.Output)
				}
				b.ctr.Run(t, "container", "rm", "kept")
			})
			b.ctr.Run(t, "image", "rm", "--sync", ref)
			b.empty()
			if l, ok := b.lower.(*registryLower); ok {
				if n := l.containers(); n != 0 {
					t.Errorf("%d containers were not told to have stopped", n)
				}
				if left, err := filepath.Glob(filepath.Join(l.dir, "sha256:*")); err != nil || len(left) != 0 {
					t.Errorf("chains left: %q, error %v", left, err)
				}
			}
		})
	}
}

// top returns the chain ID of an image's top layer, under which it is recorded.
func (b *bed) top(snapshotter string) (key string) {
	b.t.Helper()
	var keys, parents []string
	for i, line := range strings.Split(b.ctr.Run(b.t, "snapshots", "--snapshotter", snapshotter, "ls"), "\n") {
		f := strings.Fields(line)
		if i == 0 || len(f) < 2 || f[len(f)-1] != "Committed" {
			continue
		}
		keys = append(keys, f[0])
		if len(f) == 3 {
			parents = append(parents, f[1])
		}
	}
	tops := slices.DeleteFunc(keys, func(k string) bool { return slices.Contains(parents, k) })
	if len(tops) != 1 {
		b.t.Fatalf("%s has top layers %q, want one", snapshotter, tops)
	}
	return tops[0]
}

// keep protects snapshots that nothing refers to.
var keep = snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "test"})

// both makes the same snapshot on the top layer of both snapshotters, passes both to f, and removes
// them.
func both(b *bed, kind snapshots.Kind, layers map[string]string, f func(dirs map[string]string)) {
	b.t.Helper()
	mounts := map[string][]mount.Mount{}
	for sn, top := range layers {
		c := b.client(sn)
		show := c.View
		if kind == snapshots.KindActive {
			show = c.Prepare
		}
		m, err := show(b.ctx(), "shown", top, keep)
		if err != nil {
			b.t.Fatal(err)
		}
		mounts[sn] = m
	}
	b.mounted(mounts[name], func(ours string) {
		b.mounted(mounts["overlayfs"], func(theirs string) { f(map[string]string{name: ours, "overlayfs": theirs}) })
	})
}

func testSame(t *testing.T, b *bed) {
	defer b.within(t)()
	layers := map[string]string{name: b.top(name), "overlayfs": b.top("overlayfs")}
	if layers[name] != layers["overlayfs"] {
		t.Errorf("top layers %q", layers)
	}
	rm := func(key string) {
		for sn := range layers {
			b.ctr.Run(t, "snapshots", "--snapshotter", sn, "rm", key)
		}
	}
	both(b, snapshots.KindView, layers, func(dirs map[string]string) { compare(t, dirs) })
	rm("shown")
	both(b, snapshots.KindActive, layers, func(dirs map[string]string) {
		compare(t, dirs)
		for _, dir := range dirs {
			change(t, dir)
		}
		compare(t, dirs)
	})
	usage := map[string]snapshots.Usage{}
	committed := map[string]string{}
	for sn := range layers {
		var err error
		c := b.client(sn)
		if usage[sn], err = c.Usage(b.ctx(), "shown"); err != nil {
			t.Error(err)
		}
		if err := c.Commit(b.ctx(), "committed", "shown", keep); err != nil {
			t.Error(err)
		}
		committed[sn] = "committed"
	}
	if usage[name] != usage["overlayfs"] || usage[name].Size == 0 {
		t.Errorf("usage of the same changes: %+v", usage)
	}
	both(b, snapshots.KindView, committed, func(dirs map[string]string) { compare(t, dirs) })
	rm("shown")
	rm("committed")
}

func compare(t *testing.T, dirs map[string]string) {
	t.Helper()
	// The root directory and what was just changed have the time of that change.
	diff, err := treecmp.Compare(dirs[name], dirs["overlayfs"], &treecmp.Options{Ignore: func(path, aspect string) bool {
		return aspect == "mtime" && (path == "." || path == "data" || path == "dir" || path == "dir/sub" || path == "dir/one" || strings.HasPrefix(path, "new") || path == "data/a")
	}})
	if err != nil || len(diff) != 0 {
		t.Errorf("different from overlayfs (error %v):\n%s", err, strings.Join(diff, "\n"))
	}
}

// change changes a tree as containers do.
func change(t *testing.T, dir string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(at("data/a"), []byte("changed"), 0o644), os.WriteFile(at("new"), []byte(strings.Repeat("new", 5000)), 0o600),
		os.MkdirAll(at("new-dir/in"), 0o750), os.Remove(at("setuid")), os.RemoveAll(at("opaque")), os.Chmod(at("xattr"), 0o400),
		os.Remove(at("dir/one")), os.Mkdir(at("dir/one"), 0o711), os.Lchown(at("dir/sub/three"), 56, 78),
		unix.Setxattr(at("link"), "user.added", []byte("y"), 0),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// testDiff changes a container, and makes containerd create a layer from the changes.
func testDiff(t *testing.T, b *bed) {
	defer b.within(t)()
	layers := map[string]string{name: b.top(name), "overlayfs": b.top("overlayfs")}
	both(b, snapshots.KindActive, layers, func(dirs map[string]string) {
		for _, dir := range dirs {
			change(t, dir)
		}
	})
	names := map[string][]string{}
	for sn := range layers {
		// The output lacks its trailing white space.
		out := b.ctr.Run(t, "snapshots", "--snapshotter", sn, "diff", "--media-type", imagetest.TypeLayerTar, "shown")
		r := tar.NewReader(strings.NewReader(out + strings.Repeat("\x00", 2048)))
		for {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			names[sn] = append(names[sn], fmt.Sprintf("%s %c %o %d", h.Name, h.Typeflag, h.Mode, h.Size))
		}
		b.ctr.Run(t, "snapshots", "--snapshotter", sn, "rm", "shown")
	}
	if len(names[name]) < 8 || !slices.Equal(names[name], names["overlayfs"]) {
		t.Errorf("the layer of a changed container:\n%q\nwith overlayfs:\n%q", names[name], names["overlayfs"])
	}
}

// TestDocker makes dockerd use the snapshotter as its storage driver.
func TestDocker(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			b := newBed(t, w.lower(t))
			d := daemon.StartMobyOn(t, b.ctr.Socket(), name)
			if got := d.Run(t, "info", "--format", "{{.Driver}}"); got != name {
				t.Fatalf("storage driver %q, want %q", got, name)
			}
			im := picky(t)
			ref := b.push("team/picky", &im.Bundle)
			d.Run(t, "pull", "-q", ref)
			if got := b.claimed(); got != w.claimed {
				t.Errorf("%d layers were claimed, want %d", got, w.claimed)
			}
			run := func(ref string) string {
				return d.Run(t, "run", "--rm", "--network", "none", "--pull", "never", ref)
			}
			if got := run(ref); got != im.Output {
				t.Errorf("the container prints %q, want %q", got, im.Output)
			}
			d.Run(t, "create", "--name", "container", "--network", "none", "--pull", "never", ref)
			file := filepath.Join(t.TempDir(), "c")
			if err := os.WriteFile(file, []byte("3"), 0o644); err != nil {
				t.Fatal(err)
			}
			d.Run(t, "cp", file, "container:/data/c")
			if got := d.Run(t, "diff", "container"); !strings.Contains(got, "A /data/c") || strings.Contains(got, "/hello") {
				t.Errorf("docker diff says %q, want the file that was copied there", got)
			}
			d.Run(t, "commit", "container", "committed")
			if got, want := run("committed"), im.Output+" c=3"; got != want {
				t.Errorf("the committed image prints %q, want %q", got, want)
			}
			d.Run(t, "rm", "container")
			d.Run(t, "rmi", "--force", "committed", ref)
			eventuallyEmpty(t, b)
			b.empty()
		})
	}
}
