package erofs_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/erofs"
)

func image(t testing.TB, nodes []erofs.Node) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := erofs.Write(&b, nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	if int(n) != b.Len() || n%4096 != 0 {
		t.Fatalf("Write says %d bytes and wrote %d", n, b.Len())
	}
	return b.Bytes()
}

// save writes the image of nodes to a file.
func save(t testing.TB, nodes []erofs.Node) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(file, image(t, nodes), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// fsck checks an image file with the checker of erofs-utils.
func fsck(t testing.TB, file string) error {
	t.Helper()
	tool, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Skip("fsck.erofs is not installed")
	}
	out, err := exec.Command(tool, file).CombinedOutput()
	if err != nil || len(out) > 0 {
		return errors.Join(fmt.Errorf("fsck.erofs says %s", out), err)
	}
	return nil
}

// mount mounts an image file with the kernel.
func mount(t testing.TB, file string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	err := unix.Mount(file, dir, "erofs", unix.MS_RDONLY, "")
	if errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.ENODEV) {
		t.Skip("the kernel does not mount EROFS image files")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// expected describes nodes in the same form as described does for a mount.
func expected(nodes []erofs.Node) map[string]string {
	paths, names := make([]string, len(nodes)), make([][]string, len(nodes))
	dirs := make([]int, len(nodes)) // directories in it
	for i, n := range nodes {
		if i > 0 {
			paths[i] = paths[n.Parent] + "/" + n.Name
		}
		if n.Link == 0 {
			names[i] = append(names[i], paths[i])
			if i > 0 && n.Mode&erofs.TypeMask == erofs.Dir {
				dirs[n.Parent]++
			}
		} else {
			names[n.Link] = append(names[n.Link], paths[i])
		}
	}
	out := map[string]string{}
	for i, n := range nodes {
		links, size, dev := len(names[i]), n.Size, uint64(0)
		switch n.Mode & erofs.TypeMask {
		case erofs.Dir:
			links = 2 + dirs[i]
			size = -1
		case erofs.Symlink:
			size = int64(len(n.Target))
		case erofs.Char, erofs.Block:
			dev = unix.Mkdev(n.Major, n.Minor)
			size = 0
		case erofs.Fifo, erofs.Socket:
			size = 0
		}
		xs := slices.Clone(n.Xattrs)
		slices.SortFunc(xs, func(a, b erofs.Xattr) int { return strings.Compare(a.Name, b.Name) })
		slices.Sort(names[i])
		for _, p := range names[i] {
			out[p] = describe(n.Mode, n.UID, n.GID, size, n.Sec, int64(n.Nsec), links, dev, n.Target, xs, names[i][0])
		}
	}
	return out
}

func describe(mode, uid, gid uint32, size, sec, nsec int64, links int, dev uint64, target string, xs []erofs.Xattr, first string) string {
	if mode&erofs.TypeMask == erofs.Dir {
		first = ""
	}
	if mode&erofs.TypeMask != erofs.Symlink {
		target = ""
	}
	return fmt.Sprintf("%o %d:%d %d bytes %d.%09d %d links dev %#x -> %q %q same as %q", mode, uid, gid, size, sec, nsec, links, dev, target, xs, first)
}

// described describes what is mounted at dir. It reads directories with getdents and also looks up
// each name.
func described(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	byInode := map[uint64][]string{}
	stats := map[string]unix.Stat_t{}
	var walk func(p string)
	walk = func(p string) {
		var st unix.Stat_t
		if err := unix.Lstat(dir+p, &st); err != nil {
			t.Fatalf("lstat %q: %v", p, err)
		}
		stats[p] = st
		byInode[st.Ino] = append(byInode[st.Ino], p)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return
		}
		entries, err := os.ReadDir(dir + p)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			walk(p + "/" + e.Name())
			info, err := e.Info()
			if err != nil || info.Mode().Type() != e.Type() {
				t.Fatalf("%q has type %v in its directory: %v, %v", e.Name(), e.Type(), info, err)
			}
		}
	}
	walk("")
	list, value := make([]byte, 64<<10), make([]byte, 64<<10)
	for p, st := range stats {
		slices.Sort(byInode[st.Ino])
		target, size := "", st.Size
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			var err error
			if target, err = os.Readlink(dir + p); err != nil {
				t.Fatal(err)
			}
		case unix.S_IFDIR:
			size = -1
		}
		out[p] = describe(st.Mode, st.Uid, st.Gid, size, st.Mtim.Sec, st.Mtim.Nsec, int(st.Nlink), st.Rdev, target, xattrs(t, dir+p, list, value), byInode[st.Ino][0])
	}
	return out
}

func xattrs(t testing.TB, file string, list, value []byte) []erofs.Xattr {
	t.Helper()
	n, err := unix.Llistxattr(file, list)
	if err != nil {
		t.Fatalf("listxattr %q: %v", file, err)
	}
	var out []erofs.Xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		n, err := unix.Lgetxattr(file, name, value)
		if err != nil {
			t.Fatalf("getxattr %q %q: %v", file, name, err)
		}
		out = append(out, erofs.Xattr{Name: name, Value: string(value[:n])})
	}
	slices.SortFunc(out, func(a, b erofs.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// compare checks the image of nodes with fsck.erofs and by mounting it.
func compare(t testing.TB, nodes []erofs.Node) {
	t.Helper()
	file := save(t, nodes)
	if err := fsck(t, file); err != nil {
		t.Fatal(err)
	}
	want, got := expected(nodes), described(t, mount(t, file))
	if !maps.Equal(want, got) {
		t.Fatalf("mounted (-want +got):\n%.8000s", cmp.Diff(want, got))
	}
}

const (
	capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	// acl: rw for the owner, user 1000 reads, mask r.
	acl = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xe8\x03\x00\x00" +
		"\x04\x00\x00\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"
)

// everything returns a tree with one node of each kind.
func everything() []erofs.Node {
	long := strings.Repeat("n", 255)
	nodes := []erofs.Node{
		{Mode: erofs.Dir | 0o1751, UID: 3, Sec: 77, Nsec: 5, Xattrs: []erofs.Xattr{{Name: "user.root", Value: "r"}}},
		{Name: "usr", Mode: erofs.Dir | 0o755, Xattrs: []erofs.Xattr{
			{Name: "system.posix_acl_default", Value: acl}, {Name: "system.posix_acl_access", Value: acl}}},
		{Name: "ping", Parent: 1, Mode: erofs.File | 0o6755, Size: 1 << 40, UID: 1<<32 - 2, GID: 70000, Sec: -5, Nsec: 999999999,
			Xattrs: []erofs.Xattr{{Name: "user.b", Value: ""}, {Name: "security.capability", Value: capability}, {Name: "user.a", Value: "\x00\xff"}}},
		{Name: "empty", Parent: 1, Mode: erofs.File},
		{Name: "max", Parent: 1, Mode: erofs.File | 0o400, Size: erofs.MaxSize, Sec: 1 << 33},
		{Name: "-", Mode: erofs.Dir | 0o700},
		{Name: "\xe9\xff\n\" name", Mode: erofs.File | 0o644, Size: 1, Sec: -1 << 40},
		{Name: long, Mode: erofs.Dir},
		{Name: long, Parent: 7, Mode: erofs.Symlink | 0o777, Target: "x"},
		{Name: "longest", Mode: erofs.Symlink | 0o777, Target: strings.Repeat("t", 4095)},
		{Name: "long", Mode: erofs.Symlink | 0o777, Target: strings.Repeat("u", 4096-64-12-16-1), Xattrs: []erofs.Xattr{{Name: "trusted.l", Value: "12345678"}}},
		{Name: "null", Mode: erofs.Char | 0o666, Major: 1, Minor: 3, Xattrs: []erofs.Xattr{{Name: "trusted.dev", Value: "d"}}},
		{Name: "disk", Mode: erofs.Block | 0o660, Major: 4095, Minor: 1<<20 - 1},
		{Name: "whiteout", Mode: erofs.Char},
		{Name: "fifo", Mode: erofs.Fifo | 0o640, Size: 9},
		{Name: "sock", Mode: erofs.Socket | 0o600},
		{Name: "ping", Link: 2},
		{Name: "again", Parent: 5, Link: 2},
		{Name: "!link", Parent: 5, Link: 8},
		{Name: "!null", Parent: 5, Link: 11},
		{Name: "!fifo", Parent: 5, Link: 14},
		{Name: "big", Mode: erofs.File | 0o600, Size: 5, Xattrs: []erofs.Xattr{
			{Name: "user." + strings.Repeat("x", 250), Value: strings.Repeat("v", 65535)},
			{Name: "security.selinux", Value: strings.Repeat("s", 5000)}, {Name: "trusted.overlay.redirect", Value: "/ab"}}},
		{Name: "bigdir", Mode: erofs.Dir | 0o755, Xattrs: []erofs.Xattr{{Name: "user.x", Value: strings.Repeat("v", 4000)}}},
		{Name: "biglink", Mode: erofs.Symlink | 0o777, Target: strings.Repeat("w", 200), Xattrs: []erofs.Xattr{{Name: "trusted.x", Value: strings.Repeat("v", 4000)}}},
	}
	return nodes
}

func TestEverything(t *testing.T) {
	nodes := everything()
	compare(t, nodes)
	// The order of nodes and attributes does not matter.
	other := slices.Clone(nodes)
	other[3], other[4] = other[4], other[3]
	other[2].Xattrs = slices.Clone(other[2].Xattrs)
	slices.Reverse(other[2].Xattrs)
	if !bytes.Equal(image(t, nodes), image(t, other)) {
		t.Error("the order of the nodes changes the image")
	}
}

func TestRootAlone(t *testing.T) {
	compare(t, []erofs.Node{{Mode: erofs.Dir | 0o755}})
}

// TestUUID checks that each tree has its own UUID, the same each time.
func TestUUID(t *testing.T) {
	of := func(nodes []erofs.Node) [16]byte {
		id, err := erofs.ReadUUID(bytes.NewReader(image(t, nodes)))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	nodes := everything()
	id := of(nodes)
	if id[6]>>4 != 8 || id[8]>>6 != 2 {
		t.Errorf("%x is no UUID of version 8", id)
	}
	if again := of(nodes); again != id {
		t.Errorf("the same tree has %x and %x", id, again)
	}
	seen := map[[16]byte]int{id: -1}
	for i := range nodes {
		if nodes[i].Link != 0 {
			continue
		}
		other := slices.Clone(nodes)
		other[i].UID++
		if at, ok := seen[of(other)]; ok {
			t.Errorf("a change of node %d gives the UUID that one of node %d gives", i, at)
		}
		seen[of(other)] = i
	}
	if _, err := erofs.ReadUUID(bytes.NewReader(make([]byte, 4096))); err == nil {
		t.Error("zeros are an image")
	}
}
