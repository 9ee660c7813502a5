package view_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/view"
)

// TestLikePlainOverlay makes the same random changes to an image and to a plain overlay over
// directories: links, renames, copies, changes. Every step has the same error. Every name has the
// same content, the same number of links and the same other names of its file, also after both were
// mounted again.
func TestLikePlainOverlay(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			r := newRig(t)
			members := []member{dir(""), dir("d").mode(0o755), dir("e").mode(0o755)}
			members[0].Path = "."
			members[0].Mode = 0o755
			for i := range 4 {
				members = append(members, file(fmt.Sprintf("d/%d", i), strings.Repeat(fmt.Sprint(i), 10*i*i*i*i)))
			}
			x, c := index(t, members...)
			file, err := view.Compile(t.Context(), x, r.mkdir("images"))
			must(t, err, view.MountImage(file, r.mkdir("erofs"), nil))
			r.store(c, "cache")
			for _, m := range members[1:] {
				if m.Size > 0 || strings.HasPrefix(m.Path, "d/") {
					r.write("plain-lower/"+m.Path, m.data)
				} else {
					r.mkdir("plain-lower/" + m.Path)
				}
			}
			must(t, os.Chmod(r.in("plain-lower"), 0o755))
			lazy := r.standard()
			lazy.Lower = lazy.Lower[1:] // only the image, as a container has it
			plain := view.OverlayOptions{Lower: []string{r.in("plain-lower")}, Upper: r.mkdir("plain-upper"), Work: r.mkdir("plain-work")}
			tree := [2]string{r.mkdir("lazy"), r.mkdir("plain")}
			mount := func() { must(t, view.Overlay(tree[0], lazy), view.Overlay(tree[1], plain)) }
			mount()
			var done []string
			for n := range 40 {
				what, do := randomStep(rnd)
				done = append(done, what)
				got, want := do(tree[0]), do(tree[1])
				if got != want {
					t.Fatalf("%s: %s, and on a plain overlay %s", strings.Join(done, "; "), got, want)
				}
				if n%10 == 9 { // the result must not depend on what the kernel remembers
					for _, at := range tree {
						_, err := view.Unmount(at)
						must(t, err)
					}
					mount()
				}
				if diff := cmp.Diff(shape(t, tree[1]), shape(t, tree[0])); diff != "" {
					t.Fatalf("after %s (-plain +got):\n%s", strings.Join(done, "; "), diff)
				}
			}
		})
	}
}

// randomStep returns something that can be done to a tree, with its description.
func randomStep(rnd *rand.Rand) (what string, do func(root string) string) {
	name := func() string { return fmt.Sprintf("%c/%d", 'd'+rune(rnd.IntN(2)), rnd.IntN(6)) }
	a, b, data := name(), name(), fmt.Sprint(rnd.IntN(1000))
	step := func(kind string, f func(a, b string) error) (string, func(string) string) {
		return kind + " " + a + " " + b, func(root string) string {
			var no unix.Errno
			if err := f(filepath.Join(root, a), filepath.Join(root, b)); errors.As(err, &no) {
				return unix.ErrnoName(no)
			} else if err != nil {
				return err.Error()[strings.LastIndexByte(err.Error(), ':')+1:]
			}
			return "done"
		}
	}
	switch rnd.IntN(9) {
	case 0, 1:
		return step("link", os.Link)
	case 2:
		return step("rename", os.Rename)
	case 3:
		return step("exchange", func(a, b string) error {
			return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
		})
	case 4:
		return step("cp", cp)
	case 5:
		return step("append "+data, func(a, _ string) error {
			f, err := os.OpenFile(a, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString(data)
			return errors.Join(err, f.Close())
		})
	case 6:
		return step("remove", func(a, _ string) error { return os.Remove(a) })
	case 7:
		return step("truncate", func(a, _ string) error { return os.Truncate(a, 3) })
	}
	return step("chmod", func(a, _ string) error { return os.Chmod(a, 0o600) })
}

// cp copies like cp(1), which refuses to copy a file onto itself.
func cp(a, b string) error {
	from, err := os.Open(a)
	if err != nil {
		return err
	}
	defer from.Close()
	st, err := from.Stat()
	if err != nil {
		return err
	}
	if other, err := os.Stat(b); err == nil && os.SameFile(st, other) {
		return errors.New("cp: same file")
	}
	to, err := os.Create(b)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// shape describes each name of a tree: content, mode, links, and the other names of the same file.
func shape(t *testing.T, root string) map[string]string {
	t.Helper()
	out, names := map[string]string{}, map[[2]uint64][]string{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st := stat(t, path)
		id := [2]uint64{st.Dev, st.Ino}
		names[id] = append(names[id], path[len(root):])
		out[path[len(root):]] = fmt.Sprintf("%o, %d links, %s", st.Mode, st.Nlink, read(t, path))
		return nil
	}))
	for _, same := range names {
		slices.Sort(same)
		for _, name := range same {
			out[name] += " = " + strings.Join(same, " ")
		}
	}
	return out
}

// TestOddTrees mounts trees that other systems' archivers write, and deep trees.
func TestOddTrees(t *testing.T) {
	r := newRig(t)
	deep := strings.Repeat("d/", 1500) + "f"
	odd := []string{"LIBARCHIVE.xattr.user.x", "!!", "com.apple.provenance", "\x01", "system.nfs4_acl", "acl", "system.posix_acl_default", acl,
		"trusted.overlay." + strings.Repeat("n", 239), "long", "trusted.overlay.whiteout", "mine", "user.", "", "user.ok", "yes"}
	device := other("whiteout", rootfs.CharDevice).xattrs(odd...)
	large := other("device", rootfs.BlockDevice)
	large.Major, large.Minor = 1<<20|8, 1<<31|5
	in := r.container(dir("dir").xattrs(odd...), file("file", "text").xattrs(odd...), other("link", rootfs.Symlink).link("file").xattrs(odd...),
		device, large, file(deep, "deep"))
	if got := read(t, in("file")); got != "text" {
		t.Errorf("the file holds %q", got)
	}
	for _, name := range []string{"file", "dir"} {
		if got := xattr(t, in(name), "user.ok"); got != "yes" {
			t.Errorf("user.ok of the %s is %q", name, got)
		}
	}
	if st := stat(t, in("device")); st.Rdev != unix.Mkdev(8, 5) {
		t.Errorf("the device is %#x", st.Rdev)
	}
	at, err := os.OpenRoot(in(""))
	must(t, err)
	defer at.Close()
	got, err := fs.ReadFile(at.FS(), deep)
	if err != nil || string(got) != "deep" {
		t.Errorf("the file %d directories down: %q, %v", strings.Count(deep, "/"), got, err)
	}
}
