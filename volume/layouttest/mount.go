package layouttest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
	"example.org/slipway/volume/block"
)

// Apply writes a plan to a sparse file, which becomes as long as the device, and checks what a plan
// promises. It returns how many blocks the file system wrote itself.
func Apply(t testing.TB, file string, p *block.Plan) (meta int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || p.Size%4096 != 0 || st.Size() > p.Size {
		t.Fatalf("a plan for a device of %d bytes, over one of %d: %v", p.Size, st.Size(), err)
	}
	if err := f.Truncate(p.Size); err != nil {
		t.Fatal(err)
	}
	var all []block.Extent
	for _, z := range p.Zeros {
		all = append(all, z)
		if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, z.Off, z.Len); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range p.Meta {
		all = append(all, block.Extent{Off: m.Off, Len: int64(len(m.Data))})
		meta += int64(len(m.Data)) / 4096
		write(t, f, m.Off, m.Data)
	}
	for _, pl := range p.Files {
		all = append(all, pl.Extents...)
		place(t, f, pl)
	}
	slices.SortFunc(all, func(a, b block.Extent) int { return int(min(max(a.Off-b.Off, -1), 1)) })
	end := int64(0)
	for _, e := range all {
		if e.Off < end || e.Len <= 0 || e.Off%4096 != 0 || e.Len%4096 != 0 || e.Off+e.Len > p.Size {
			t.Fatalf("extent %+v of a plan overlaps, is empty, uneven, or behind the end", e)
		}
		end = e.Off + e.Len
	}
	return meta
}

func write(t testing.TB, f *os.File, off int64, b []byte) {
	t.Helper()
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// place writes a content to its extents.
func place(t testing.TB, f *os.File, pl block.Placed) {
	t.Helper()
	room := int64(0)
	for _, e := range pl.Extents {
		room += e.Len
	}
	if room != (pl.File.Size+4095)/4096*4096 {
		t.Fatalf("a content of %d bytes has %d bytes of room", pl.File.Size, room)
	}
	stretchesOf(pl.File, func(off int64, b []byte) {
		for _, e := range pl.Extents {
			if off < e.Len && len(b) > 0 {
				n := min(int64(len(b)), e.Len-off)
				write(t, f, e.Off+off, b[:n])
				off, b = off+n, b[n:]
			}
			off -= min(off, e.Len)
			if len(b) == 0 {
				return
			}
		}
	})
}

// Check runs a checker on an image file. It must find nothing.
func Check(t testing.TB, tool string, args ...string) {
	t.Helper()
	found, err := exec.LookPath(tool)
	if err != nil {
		t.Skipf("%s is not installed", tool)
	}
	// e2fsck does not count everything that it would ask about as an error.
	if out, err := exec.Command(found, args...).CombinedOutput(); err != nil || strings.Contains(string(out), "? no") {
		t.Fatalf("%s: %v\n%s", tool, err, out)
	}
}

// Mount mounts an image file on a loop device. It returns the directory and a function that
// unmounts it. The end of the test also unmounts it.
func Mount(t testing.TB, file, fs, options string) (dir string, unmount func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir = t.TempDir()
	if out, err := exec.Command("mount", "-t", fs, "-o", "loop,"+options, file, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	mounted := true
	unmount = func() {
		if !mounted {
			return
		}
		mounted = false
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
	t.Cleanup(unmount)
	return dir, unmount
}

// Expected describes by path what a mounted tree must look like.
func Expected(tree *geartree.Tree) map[string]string {
	nodes := tree.Nodes
	paths, names, dirs := make([]string, len(nodes)), make([][]string, len(nodes)), make([]int, len(nodes))
	for i, n := range nodes {
		if i > 0 {
			paths[i] = paths[n.Parent] + "/" + n.Name
		}
		if n.Link != 0 {
			names[n.Link] = append(names[n.Link], paths[i])
			continue
		}
		names[i] = append(names[i], paths[i])
		if i > 0 && n.Mode&erofs.TypeMask == erofs.Dir {
			dirs[n.Parent]++
		}
	}
	out := map[string]string{}
	for i, n := range nodes {
		d := seen{node: n, links: len(names[i])}
		switch n.Mode & erofs.TypeMask {
		case erofs.Dir:
			d.links, d.node.Size = 2+dirs[i], -1
		case erofs.File:
			d.content = sumOf(tree.Files, tree.FileOf[i])
		case erofs.Symlink:
			d.node.Size = int64(len(n.Target))
		}
		slices.Sort(names[i])
		for _, p := range names[i] {
			d.first = names[i][0]
			out[p] = d.String()
		}
	}
	return out
}

func sumOf(files []gear.File, i int32) string {
	if i < 0 {
		return ""
	}
	var b bytes.Buffer
	stretchesOf(files[i], func(off int64, data []byte) { fmt.Fprintf(&b, "%d:%x ", off, sum(data)) })
	return b.String()
}

// seen describes a mounted node.
type seen struct {
	node           erofs.Node
	links          int
	ino            uint64
	content, first string
}

func (s seen) String() string {
	n := s.node
	slices.SortFunc(n.Xattrs, func(a, b erofs.Xattr) int { return strings.Compare(a.Name, b.Name) })
	first := s.first
	if n.Mode&erofs.TypeMask == erofs.Dir {
		first = ""
	}
	return fmt.Sprintf("%o %d:%d %d bytes %d.%09d %d links dev %d:%d -> %q %q %s same as %q",
		n.Mode, n.UID, n.GID, n.Size, n.Sec, n.Nsec, s.links, n.Major, n.Minor, n.Target, n.Xattrs, s.content, first)
}

// Described describes by path what is mounted at dir. It compares the contents of files where
// Content is set.
func Described(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]seen{}
	first := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name := strings.TrimPrefix(path, dir)
		if old, ok := first[st.Ino]; !ok || name < old {
			first[st.Ino] = name
		}
		s, err := look(path, &st)
		s.ino = st.Ino
		all[name] = s
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for name, s := range all {
		s.first = first[s.ino]
		out[name] = s.String()
	}
	return out
}

func look(path string, st *unix.Stat_t) (s seen, err error) {
	s.links = int(st.Nlink)
	s.node = erofs.Node{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec), Size: st.Size,
		Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		s.node.Size = -1
	case unix.S_IFLNK:
		s.node.Target, err = os.Readlink(path)
	case unix.S_IFREG:
		s.content, err = contentOf(path, st.Size)
	}
	if err == nil {
		s.node.Xattrs, err = xattrs(path)
	}
	return s, err
}

// contentOf returns sumOf for the content of a file.
func contentOf(path string, size int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b bytes.Buffer
	stretchesOf(gear.File{Size: size}, func(off int64, data []byte) {
		if _, rerr := f.ReadAt(data, off); rerr != nil {
			err = rerr
		}
		fmt.Fprintf(&b, "%d:%x ", off, sum(data))
	})
	if err == nil {
		if _, err := f.ReadAt(make([]byte, 1), size); !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("%s goes on behind its end: %w", path, err)
		}
	}
	return b.String(), err
}

func xattrs(path string) ([]erofs.Xattr, error) {
	n, err := unix.Llistxattr(path, nil)
	if err != nil || n == 0 {
		return nil, err
	}
	list, value := make([]byte, 64<<10), make([]byte, 64<<10)
	if n, err = unix.Llistxattr(path, list); err != nil {
		return nil, fmt.Errorf("list attributes of %s: %w", path, err)
	}
	var out []erofs.Xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, fmt.Errorf("attribute %q of %s: %w", name, path, err)
		}
		out = append(out, erofs.Xattr{Name: name, Value: string(value[:n])})
	}
	return out, nil
}

func sum(b []byte) []byte {
	s := sha256.Sum256(b)
	return s[:6]
}
