package view_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/view"
)

const (
	capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	acl        = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xe8\x03\x00\x00" +
		"\x04\x00\x00\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"
)

// TestMetadataNeedsNoData walks a tree without any of its contents.
func TestMetadataNeedsNoData(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("n", 255)
	f := file("d/f", "content").mode(0o4751).xattrs("security.capability", capability, "system.posix_acl_access", acl, "user.u", "v")
	f.UID, f.GID, f.Sec, f.Nsec = 70000, 4294967294, -5, 999999999
	hardLink := f // the attributes of the link count, and archives repeat those of the file
	hardLink.Path, hardLink.Type, hardLink.Link, hardLink.Size = "d/hard", rootfs.HardLink, "d/f", 0
	x, _ := index(t,
		dir("d").mode(0o1777).xattrs("system.posix_acl_default", acl, "trusted.t", ""), f,
		hardLink, file("d/empty", ""), other("d/"+long, rootfs.Symlink).link("/d/f"),
		other("fifo", rootfs.Fifo), other("sock", rootfs.Socket),
		member{Entry: rootfs.Entry{Path: "null", Type: rootfs.CharDevice, Mode: 0o666, Major: 1, Minor: 3}},
	)
	r.image(x, "erofs", nil)
	in := r.overlay("merged", r.standard())
	var seen []string
	must(t, filepath.WalkDir(in(""), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		seen = append(seen, strings.TrimPrefix(path, in("")))
		for _, name := range xattrNames(t, path) {
			if strings.Contains(name, "overlay") {
				t.Errorf("%s shows %s", path, name)
			}
			xattr(t, path, name)
		}
		return nil
	}))
	if want := []string{"", "/d", "/d/empty", "/d/f", "/d/hard", "/d/" + long, "/fifo", "/null", "/sock"}; !slices.Equal(seen, want) {
		t.Errorf("the tree has %q", seen)
	}
	st, hard := stat(t, in("d/f")), stat(t, in("d/hard"))
	if st.Mode != 0o104751 || st.Uid != 70000 || st.Gid != 4294967294 || st.Size != 7 || st.Nlink != 2 || st.Ino != hard.Ino ||
		st.Mtim.Sec != -5 || st.Mtim.Nsec != 999999999 {
		t.Errorf("d/f is %+v", st)
	}
	for name, want := range map[string]string{"security.capability": capability, "system.posix_acl_access": acl, "user.u": "v"} {
		if got := xattr(t, in("d/f"), name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if got := xattr(t, in("d"), "system.posix_acl_default"); got != acl {
		t.Errorf("the default access control list is %q", got)
	}
	if target, err := os.Readlink(in("d/" + long)); target != "/d/f" || err != nil {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if st := stat(t, in("null")); st.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("the device is %#x", st.Rdev)
	}
	if got := read(t, in("d/empty")); got != "" {
		t.Errorf("the empty file holds %q", got)
	}
	must(t, os.WriteFile(in("null"), []byte("x"), 0)) // devices can be opened: the image's nodev does not apply to the overlay
}

// TestDataComesAndGoes checks that a content is missing only while it is absent, that the first
// directory that has it provides it, and that whoever has it open keeps it.
func TestDataComesAndGoes(t *testing.T) {
	r := newRig(t)
	x, c := index(t, file("a", "first"), file("b", "second"), file("copy", "first"))
	r.image(x, "erofs", nil)
	in := r.overlay("merged", r.standard())
	if _, err := os.ReadFile(in("a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without data: %v", err)
	}
	for name, data := range c {
		where := map[string]string{"first": "cache/", "second": "pool/"}[data]
		r.write(where+view.ObjectPath(name), data)
	}
	for name, want := range map[string]string{"a": "first", "b": "second", "copy": "first"} {
		if got := read(t, in(name)); got != want {
			t.Errorf("%s holds %q", name, got)
		}
	}
	f, err := os.Open(in("a"))
	must(t, err)
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, 5, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(mapped)) }()
	must(t, os.RemoveAll(r.in("cache")))
	got := make([]byte, 5)
	if _, err := f.ReadAt(got, 0); err != nil || string(got) != "first" || string(mapped) != "first" {
		t.Errorf("after its eviction: %q, %q, %v", got, mapped, err)
	}
}

// TestChanges makes all kinds of changes to a tree and checks the upper directory.
func TestChanges(t *testing.T) {
	r := newRig(t)
	large := strings.Repeat("0123456789abcdef", 1<<16)
	in := r.container(dir("d"), file("d/append", "one"), file("d/rename", "two"), file("d/chmod", large), file("d/remove", "four"),
		file("d/truncate", "five"), file("d/write", large), file("d/stay", "six"), other("d/hard", rootfs.HardLink).link("d/append"))
	appendTo := func(path, text string) {
		f, err := os.OpenFile(in(path), os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		_, err = f.WriteString(text)
		must(t, err, f.Close())
	}
	appendTo("d/append", "+")
	f, err := os.OpenFile(in("d/write"), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("X"), 5)
	must(t, err, f.Close())
	must(t,
		os.Rename(in("d/rename"), in("d/renamed")),
		os.Chmod(in("d/chmod"), 0o600),
		os.Remove(in("d/remove")),
		os.WriteFile(in("d/truncate"), []byte("5"), 0),
		os.Link(in("d/stay"), in("d/link")),
		os.WriteFile(in("d/new"), []byte("new"), 0o644),
	)
	if err := os.Rename(in("d"), in("e")); !errors.Is(err, unix.EXDEV) {
		t.Errorf("renaming a directory: %v; it is EXDEV over any lower directory", err)
	}
	want := map[string]string{
		"append": "one+", "renamed": "two", "chmod": large, "truncate": "5", "write": large[:5] + "X" + large[6:],
		"stay": "six", "link": "six", "new": "new",
		"hard": "one", // overlayfs without an index breaks hard links at the first change
	}
	got, inUpper := map[string]string{}, map[string]string{}
	entries, err := os.ReadDir(in("d"))
	must(t, err)
	for _, e := range entries {
		got[e.Name()] = read(t, in("d/"+e.Name()))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changed tree (-want +got):\n%s", diff)
	}
	// The upper directory is an ordinary one: it has whole files and no marks but whiteouts.
	entries, err = os.ReadDir(r.in("upper/d"))
	must(t, err)
	for _, e := range entries {
		path := r.in("upper/d/" + e.Name())
		for _, name := range xattrNames(t, path) {
			if name == "trusted.overlay.metacopy" || name == "trusted.overlay.redirect" {
				t.Errorf("%s in the upper directory has %s", e.Name(), name)
			}
		}
		if e.Type().IsRegular() {
			inUpper[e.Name()] = read(t, path)
		}
	}
	delete(want, "hard")
	if diff := cmp.Diff(want, inUpper); diff != "" {
		t.Errorf("upper directory (-want +got):\n%s", diff)
	}
}

// TestExecute runs programs of an image, one of them with setuid.
func TestExecute(t *testing.T) {
	r := newRig(t)
	program, err := exec.LookPath("id")
	must(t, err)
	text := read(t, program)
	in := r.container(file("bin/id", text).mode(0o755), file("bin/suid", text).mode(0o4755))
	for name, want := range map[string]string{"bin/id": "65534", "bin/suid": "0"} {
		cmd := exec.Command(in(name), "-u")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s run by nobody has the effective owner %q, want %s: %v", name, out, want, err)
		}
	}
}

// TestOwnMarks checks that overlayfs attributes in an image are content and have no effect.
func TestOwnMarks(t *testing.T) {
	r := newRig(t)
	x, c := index(t,
		file("secret", "secret"),
		file("f", "mine").xattrs("trusted.overlay.metacopy", "", "trusted.overlay.overlay.x", "deep", "trusted.overlay.redirect", "/secret"),
		file("empty", "").xattrs("trusted.overlay.metacopy", "", "trusted.overlay.redirect", "/secret"),
		dir("d").xattrs("trusted.overlay.opaque", "y", "trusted.overlay.redirect", "/e", "user.overlay.opaque", "y"),
		dir("e"), file("e/in-e", "e"), file("d/in-d", "d"),
	)
	r.image(x, "erofs", nil)
	r.store(c, "cache")
	r.write("plain/d/below", "below")
	o := r.standard()
	o.Metacopy = true // lets a tree lie below, where an opaque directory would hide it
	o.Lower = append(o.Lower, r.in("plain"))
	in := r.overlay("merged", o)
	if got := read(t, in("f")) + read(t, in("empty")) + read(t, in("d/below")) + read(t, in("d/in-d")); got != "minebelowd" {
		t.Errorf("the files hold %q", got)
	}
	if _, err := os.Stat(in("d/in-e")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the redirect of a directory is followed: %v", err)
	}
	for _, want := range [][3]string{
		{"f", "trusted.overlay.redirect", "/secret"}, {"f", "trusted.overlay.metacopy", ""}, {"f", "trusted.overlay.overlay.x", "deep"},
		{"empty", "trusted.overlay.redirect", "/secret"}, {"d", "trusted.overlay.opaque", "y"}, {"d", "user.overlay.opaque", "y"},
	} {
		if got := xattr(t, in(want[0]), want[1]); got != want[2] {
			t.Errorf("%s of %s is %q", want[1], want[0], got)
		}
	}
}

// TestNestedOverlay mounts an overlay of a container's own directories. Marks and whiteouts of the
// image have their usual meaning there. The image is on a loop device, because otherwise the kernel
// does not stack deep enough.
func TestNestedOverlay(t *testing.T) {
	r := newRig(t)
	x, c := index(t,
		dir("top").xattrs("user.x", "1"), other("top/gone", rootfs.CharDevice).mode(0o600), file("top/new", "new"),
		dir("top/opaque").xattrs("trusted.overlay.opaque", "y"), file("top/opaque/only", "only"),
		dir("bottom"), file("bottom/gone", "x"), file("bottom/stays", "stays"), dir("bottom/opaque"), file("bottom/opaque/hidden", "x"),
	)
	r.image(x, "erofs", &view.ImageOptions{Loop: true})
	r.store(c, "cache")
	in := r.overlay("merged", r.standard())
	st := stat(t, in("top/gone"))
	if st.Mode != 0o100600 || st.Size != 0 || st.Rdev != 0 {
		t.Errorf("a device 0:0 is mode %o with %d bytes", st.Mode, st.Size)
	}
	for name, want := range map[string]string{"trusted.overlay.whiteout": "", "user.overlay.whiteout": ""} {
		if got := xattr(t, in("top/gone"), name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if got := xattr(t, in("top"), "trusted.overlay.opaque"); got != "x" {
		t.Errorf("the directory of a whiteout is marked %q", got)
	}
	// A program that copies the tree can read it, and it is empty.
	if got := read(t, in("top/gone")); got != "" {
		t.Errorf("a device 0:0 holds %q", got)
	}
	nested := r.overlay("nested", view.OverlayOptions{Lower: []string{in("top"), in("bottom")}})
	var seen []string
	must(t, filepath.WalkDir(nested(""), func(path string, d fs.DirEntry, err error) error {
		seen = append(seen, strings.TrimPrefix(path, nested("")))
		return err
	}))
	if want := []string{"", "/new", "/opaque", "/opaque/only", "/stays"}; !slices.Equal(seen, want) {
		t.Errorf("the nested overlay has %q, want %q", seen, want)
	}
}
