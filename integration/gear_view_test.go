package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goerofs "github.com/erofs/go-erofs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	gearconvert "example.org/slipway/gear/convert"
	"example.org/slipway/gear/export"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/treecmp"
	"example.org/slipway/node/view"
	"example.org/slipway/oci"
)

// memory is a file store: sink of conversions and source of exports.
type memory map[gear.Name][]byte

func (m memory) Missing(_ context.Context, names []gear.Name) ([]bool, error) {
	missing := make([]bool, len(names))
	for i, n := range names {
		_, ok := m[n]
		missing[i] = !ok
	}
	return missing, nil
}

func (m memory) Put(_ context.Context, f gear.File, content gearconvert.Content) error {
	defer content.Release()
	b := make([]byte, f.Size)
	if _, err := content.ReadAt(b, 0); err != nil && err != io.EOF {
		return err
	}
	m[f.Name] = b
	return nil
}

func (m memory) Fetch(_ context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	for i, f := range files {
		if err := deliver(i, bytes.NewReader(m[f.Name])); err != nil {
			return err
		}
	}
	return nil
}

// flatten converts layers and returns the index of the tree that they form together.
func (m memory) flatten(t *testing.T, layers []imagetest.Layer) *gear.Index {
	t.Helper()
	var indexes []*gear.Index
	for _, l := range layers {
		c, err := gearconvert.Layer(t.Context(), bytes.NewReader(l.Gzip), gearconvert.Want{DiffID: oci.Digest(l.DiffID())}, m, nil)
		if err != nil {
			t.Fatal(err)
		}
		indexes = append(indexes, c.Index)
	}
	flat, err := gear.Flatten(indexes...)
	if err != nil {
		t.Fatal(err)
	}
	return flat
}

// mountView mounts an index as a container would get it, and returns the tree and the image file.
func mountView(t *testing.T, x *gear.Index, store memory, opts *view.ImageOptions) (tree, image string) {
	t.Helper()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"images", "erofs", "cache", "pool", "merged"} {
		if err := os.Mkdir(in(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i, f := range x.Files {
		path := filepath.Join(in([]string{"cache", "pool"}[i%2]), view.ObjectPath(f.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, store[f.Name], 0o444); err != nil {
			t.Fatal(err)
		}
	}
	image, err := view.Compile(t.Context(), x, in("images"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := view.UnmountBelow(dir); err != nil {
			t.Error(err)
		}
	})
	if err := view.MountImage(image, in("erofs"), opts); err != nil {
		t.Fatal(err)
	}
	err = view.Overlay(in("merged"), view.OverlayOptions{Lower: []string{in("erofs")}, Data: []string{in("cache"), in("pool")}})
	if err != nil {
		t.Fatal(err)
	}
	return in("merged"), image
}

// TestGearView compares the tree of a mounted view with an export of the same image, and lets two
// other readers read the image file. It does so for layers with every trap and for a distribution's
// packages.
func TestGearView(t *testing.T) {
	tool.NeedRoot(t)
	fsck := tool.System(t, "fsck.erofs")
	cases := nastyLayers(t)
	cases["debian"] = debianLayers(t)
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			store := memory{sha256.Sum256(nil): nil}
			x := store.flatten(t, cases[name])
			exported := filepath.Join(t.TempDir(), "tree")
			if err := export.Tree(t.Context(), x, store, exported, nil); err != nil {
				t.Fatal(err)
			}
			mounted, image := mountView(t, x, store, &view.ImageOptions{Loop: i%2 == 1})
			_, rootDescribed := x.Lookup(".")
			lines, err := treecmp.Compare(exported, mounted, &treecmp.Options{Ignore: func(path, aspect string) bool {
				// If no layer describes the root, an export leaves it as the directory is.
				return path == "." && !rootDescribed
			}})
			if err != nil {
				t.Fatal(err)
			}
			if len(lines) > 0 {
				t.Errorf("the mounted tree is not that of the export:\n%s", strings.Join(lines, "\n"))
			}
			if out := tool.NewEnv(t.TempDir()).Run(t, fsck, image); out != "" {
				t.Errorf("fsck.erofs says %s", out)
			}
			secondReader(t, x, image)
		})
	}
}

// secondReader compares what go-erofs finds in an image with the index. go-erofs does not support
// names that are not UTF-8, and neither do the paths of io/fs.
func secondReader(t *testing.T, x *gear.Index, image string) {
	t.Helper()
	f, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := goerofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for i := range x.Entries {
		e := &x.Entries[i]
		if !fs.ValidPath(e.Path) {
			continue
		}
		path := e.Path
		if e.Type == rootfs.HardLink {
			at, _ := x.Lookup(e.Link)
			e = &x.Entries[at]
		}
		want[path] = describeEntry(e, x)
	}
	err = fs.WalkDir(img, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !fs.ValidPath(path) {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*goerofs.Stat)
		if !ok {
			return fmt.Errorf("%q is a %T", path, info.Sys())
		}
		target := ""
		if d.Type() == fs.ModeSymlink {
			if target, err = fs.ReadLink(img, path); err != nil {
				return err
			}
		}
		got[path] = describeStat(st, target)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := x.Lookup("."); !ok {
		delete(got, ".")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("go-erofs reads (-want +got):\n%.4000s", diff)
	}
}

// fileMode returns the entry's mode in the form that io/fs uses.
func fileMode(e *gear.Entry) fs.FileMode {
	mode := fs.FileMode(e.Mode & 0o777)
	for bit, m := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if e.Mode&bit != 0 {
			mode |= m
		}
	}
	switch e.Type {
	case rootfs.Dir:
		mode |= fs.ModeDir
	case rootfs.Symlink:
		mode = fs.ModeSymlink | 0o777
	case rootfs.CharDevice:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case rootfs.BlockDevice:
		mode |= fs.ModeDevice
	case rootfs.Fifo:
		mode |= fs.ModeNamedPipe
	}
	return mode
}

func describeEntry(e *gear.Entry, x *gear.Index) string {
	xs := map[string]string{}
	for _, a := range e.Xattrs {
		xs[a.Name] = a.Value
	}
	size := e.Size
	switch e.Type {
	case rootfs.File:
		if e.Size > 0 {
			xs["trusted.overlay.metacopy"] = ""
			xs["trusted.overlay.redirect"] = "/" + view.ObjectPath(x.Files[e.File].Name)
		}
	case rootfs.Symlink:
		size = int64(len(e.Link))
	}
	return fmt.Sprintf("%v %d bytes %d:%d %d.%09d -> %q %q", fileMode(e), size, e.UID, e.GID, e.Sec, e.Nsec, e.Link, xs)
}

func describeStat(st *goerofs.Stat, target string) string {
	size := st.Size
	if st.Mode.IsDir() {
		size = 0
	}
	xs := map[string]string{}
	for name, value := range st.Xattrs {
		xs[strings.TrimSuffix(name, ".")] = value // go-erofs puts a dot behind the names of lists
	}
	return fmt.Sprintf("%v %d bytes %d:%d %d.%09d -> %q %q", st.Mode, size, st.UID, st.GID, int64(st.Mtime), st.MtimeNs, target, xs)
}

// TestGearViewHidesContents checks that a reader of the image itself, instead of the overlay, finds
// zeros of the right length.
func TestGearViewHidesContents(t *testing.T) {
	tool.NeedRoot(t)
	store := memory{}
	x := store.flatten(t, []imagetest.Layer{base().File("f", "secret").Layer()})
	_, image := mountView(t, x, store, nil)
	got, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(image)), "erofs", "f"))
	if err != nil || !bytes.Equal(got, make([]byte, 6)) {
		t.Errorf("the image itself has %q, %v", got, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil || st.Mode&0o222 != 0 {
		t.Errorf("the image has mode %o, %v", st.Mode, err)
	}
}
