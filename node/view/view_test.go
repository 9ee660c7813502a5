package view_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/view"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
}

// must fails the test with the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// member is an entry and its content.
type member struct {
	rootfs.Entry
	data string
}

func file(path, data string) member {
	return member{rootfs.Entry{Path: path, Type: rootfs.File, Mode: 0o644, Size: int64(len(data))}, data}
}

func dir(path string) member {
	return member{Entry: rootfs.Entry{Path: path, Type: rootfs.Dir, Mode: 0o755}}
}

func other(path string, t rootfs.Type) member {
	return member{Entry: rootfs.Entry{Path: path, Type: t, Mode: 0o644}}
}

func (m member) mode(mode uint32) member { m.Mode = mode; return m }

func (m member) link(to string) member { m.Link = to; return m }

// xattrs sets attributes from names and values that alternate, in the order of the names.
func (m member) xattrs(namesAndValues ...string) member {
	for i := 0; i < len(namesAndValues); i += 2 {
		m.Xattrs = append(m.Xattrs, rootfs.Xattr{Name: namesAndValues[i], Value: namesAndValues[i+1]})
	}
	return m
}

// contents holds the contents of an image.
type contents map[gear.Name]string

// index returns the flat index of an image of one layer.
func index(t testing.TB, members ...member) (*gear.Index, contents) {
	t.Helper()
	b, c := gear.NewBuilder(nil), contents{}
	for _, m := range members {
		f := fileOf(m.data)
		c[f.Name] = m.data
		must(t, b.Add(m.Entry, f))
	}
	x, err := b.Index()
	must(t, err)
	x, err = gear.Flatten(x)
	must(t, err)
	return x, c
}

func fileOf(data string) gear.File {
	f := gear.File{Name: sha256.Sum256([]byte(data)), Size: int64(len(data))}
	for rest := data; len(data) >= gear.LargeFile && rest != ""; {
		n := min(len(rest), gear.ChunkSize)
		f.Chunks = append(f.Chunks, sha256.Sum256([]byte(rest[:n])))
		rest = rest[n:]
	}
	return f
}

// rig is a place to mount an image, as an agent has it.
type rig struct {
	t   testing.TB
	dir string
}

func newRig(t testing.TB) *rig {
	t.Helper()
	needRoot(t)
	r := &rig{t, t.TempDir()}
	must(t, os.Chmod(filepath.Dir(r.dir), 0o755)) // for users other than root
	t.Cleanup(func() {
		if err := view.UnmountBelow(r.dir); err != nil {
			t.Error(err)
		}
	})
	return r
}

// in returns the path of something in the rig. It makes the directories above it.
func (r *rig) in(path string) string {
	r.t.Helper()
	path = filepath.Join(r.dir, path)
	must(r.t, os.MkdirAll(filepath.Dir(path), 0o755))
	return path
}

// mkdir makes a directory.
func (r *rig) mkdir(path string) string {
	r.t.Helper()
	must(r.t, os.MkdirAll(r.in(path), 0o755))
	return r.in(path)
}

// image mounts an index at a directory of the rig.
func (r *rig) image(x *gear.Index, at string, opts *view.ImageOptions) string {
	r.t.Helper()
	file, err := view.Compile(r.t.Context(), x, r.mkdir("images"))
	must(r.t, err)
	must(r.t, view.MountImage(file, r.mkdir(at), opts))
	return r.in(at)
}

// store puts contents into a data directory.
func (r *rig) store(c contents, at string) string {
	r.t.Helper()
	r.mkdir(at)
	for name, data := range c {
		r.write(at+"/"+view.ObjectPath(name), data)
	}
	return r.in(at)
}

func (r *rig) write(path, data string) {
	r.t.Helper()
	must(r.t, os.WriteFile(r.in(path), []byte(data), 0o644))
}

// standard returns the options for an image that is mounted at erofs with its contents in cache and
// pool.
func (r *rig) standard() view.OverlayOptions {
	return view.OverlayOptions{
		Lower: []string{r.mkdir("above"), r.mkdir("erofs")}, Data: []string{r.mkdir("cache"), r.mkdir("pool")},
		Upper: r.mkdir("upper"), Work: r.mkdir("work"),
	}
}

// overlay mounts an overlay and returns a function for paths in it.
func (r *rig) overlay(at string, o view.OverlayOptions) func(string) string {
	r.t.Helper()
	must(r.t, view.Overlay(r.mkdir(at), o))
	return func(path string) string { return filepath.Join(r.dir, at, path) }
}

// container mounts an image with all its contents in the cache and an overlay.
func (r *rig) container(members ...member) func(string) string {
	r.t.Helper()
	x, c := index(r.t, members...)
	r.image(x, "erofs", nil)
	r.store(c, "cache")
	return r.overlay("merged", r.standard())
}

func read(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	return string(b)
}

func stat(t testing.TB, file string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(file, &st); err != nil {
		t.Fatalf("lstat %s: %v", file, err)
	}
	return st
}

func xattr(t testing.TB, file, name string) string {
	t.Helper()
	b := make([]byte, 64<<10)
	n, err := unix.Lgetxattr(file, name, b)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(b[:n])
}

func xattrNames(t testing.TB, file string) []string {
	t.Helper()
	b := make([]byte, 64<<10)
	n, err := unix.Llistxattr(file, b)
	must(t, err)
	return strings.FieldsFunc(string(b[:n]), func(r rune) bool { return r == 0 })
}
