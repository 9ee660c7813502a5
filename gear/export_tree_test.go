package gear_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// needRoot skips a test that needs root to make devices, owners or mounts.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// describe returns a tree as the operating system shows it, one line per path.
func describe(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	groups := map[uint64]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%o %d:%d %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %x", st.Size, sha256.Sum256(b))
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " -> " + target
		case unix.S_IFCHR, unix.S_IFBLK:
			line += fmt.Sprintf(" dev %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		if !d.IsDir() && st.Nlink > 1 {
			if groups[st.Ino] == "" {
				groups[st.Ino] = name // it may be the only name: others may be hidden
			} else {
				line += " = " + groups[st.Ino]
			}
		}
		for _, x := range listXattrs(t, p) {
			line += fmt.Sprintf(" %s=%q", x.Name, x.Value)
		}
		out[name] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func listXattrs(t testing.TB, p string) []rootfs.Xattr {
	t.Helper()
	b := make([]byte, 64<<10)
	n, err := unix.Llistxattr(p, b)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Split(strings.TrimSuffix(string(b[:n]), "\x00"), "\x00")
	slices.Sort(names)
	var out []rootfs.Xattr
	for _, name := range names {
		n, err := unix.Lgetxattr(p, name, b)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, rootfs.Xattr{Name: name, Value: string(b[:n])})
	}
	return out
}

// flat is a flattened tree under construction, with the contents of its files.
type flat struct {
	entries map[string]gear.Entry
	data    map[gear.Name][]byte
	names   map[string]gear.Name // by path, of the files in entries
	inodes  map[string]int       // by path, of all entries; the names of one file have the same number
	made    int                  // number of inodes so far
}

func newFlat() *flat {
	return &flat{entries: map[string]gear.Entry{}, data: map[gear.Name][]byte{}, names: map[string]gear.Name{}, inodes: map[string]int{}}
}

// apply puts a layer on top of the tree, as the image specification says.
func (f *flat) apply(t testing.TB, layer []byte) {
	t.Helper()
	tr := tar.NewReader(bytes.NewReader(layer))
	here := map[string]bool{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		p := path.Clean(h.Name)
		dir, base := path.Split(p)
		if base == ".wh..wh..opq" {
			for name := range f.entries {
				if strings.HasPrefix(name, dir) && !here[name] {
					delete(f.entries, name)
				}
			}
			continue
		}
		if rest, ok := strings.CutPrefix(base, ".wh."); ok {
			f.remove(dir + rest)
			continue
		}
		here[p] = true
		f.put(t, p, h, tr)
	}
}

func (f *flat) remove(p string) {
	for name := range f.entries {
		if name == p || strings.HasPrefix(name, p+"/") {
			delete(f.entries, name)
		}
	}
}

func (f *flat) put(t testing.TB, p string, h *tar.Header, r io.Reader) {
	t.Helper()
	types := map[byte]rootfs.Type{tar.TypeDir: rootfs.Dir, tar.TypeReg: rootfs.File, tar.TypeSymlink: rootfs.Symlink,
		tar.TypeLink: rootfs.HardLink, tar.TypeChar: rootfs.CharDevice, tar.TypeBlock: rootfs.BlockDevice, tar.TypeFifo: rootfs.Fifo}
	e := gear.Entry{Entry: rootfs.Entry{
		Path: p, Type: types[h.Typeflag], Mode: uint32(h.Mode), UID: uint32(h.Uid), GID: uint32(h.Gid),
		Sec: h.ModTime.Unix(), Nsec: uint32(h.ModTime.Nanosecond()), Size: h.Size, Link: h.Linkname,
		Major: uint32(h.Devmajor), Minor: uint32(h.Devminor)}, File: -1}
	for _, k := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		if name, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok {
			e.Xattrs = append(e.Xattrs, rootfs.Xattr{Name: name, Value: h.PAXRecords[k]})
		}
	}
	if e.Type == rootfs.HardLink {
		target := f.entries[h.Linkname]
		f.remove(p)
		target.Path = p
		f.entries[p], f.names[p], f.inodes[p] = target, f.names[h.Linkname], f.inodes[h.Linkname]
		return
	}
	if e.Type != rootfs.Dir {
		f.remove(p)
	}
	f.made++
	f.inodes[p] = f.made
	if e.Type == rootfs.File {
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		f.names[p] = sha256.Sum256(b)
		f.data[f.names[p]] = b
	}
	f.entries[p] = e
}

// index returns the tree so far and a source of its contents.
func (f *flat) index() (*gear.Index, *memSource) {
	x := &gear.Index{}
	at := map[gear.Name]int32{}
	first := map[int]string{}
	for _, p := range slices.Sorted(maps.Keys(f.entries)) {
		e, inode := f.entries[p], f.inodes[p]
		if first[inode] == "" {
			first[inode] = p
		} else {
			e = gear.Entry{Entry: rootfs.Entry{Path: p, Type: rootfs.HardLink, Link: first[inode]}, File: -1}
		}
		if e.Type == rootfs.File {
			name := f.names[p]
			if _, ok := at[name]; !ok {
				at[name] = int32(len(x.Files))
				x.Files = append(x.Files, fileOf(f.data[name]))
			}
			e.File = at[name]
		}
		x.Entries = append(x.Entries, e)
	}
	return x, &memSource{data: f.data}
}

func fileOf(b []byte) gear.File {
	f := gear.File{Name: sha256.Sum256(b), Size: int64(len(b))}
	if len(b) >= gear.LargeFile {
		for c := range slices.Chunk(b, gear.ChunkSize) {
			f.Chunks = append(f.Chunks, sha256.Sum256(c))
		}
	}
	return f
}

// memSource delivers contents from memory, last first.
type memSource struct {
	data map[gear.Name][]byte
	got  chan gear.Name // if not nil, receives the name of each content delivered
}

func (s *memSource) Fetch(ctx context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	for i, f := range slices.Backward(files) {
		b, ok := s.data[f.Name]
		if !ok {
			return fmt.Errorf("no content %x", f.Name)
		}
		if s.got != nil {
			s.got <- f.Name
		}
		// Hide the reader's other methods, so that it delivers a little at a time, as a
		// network does.
		if err := deliver(i, struct{ io.Reader }{bytes.NewReader(b)}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// export writes an index into a new directory.
func export(t testing.TB, x *gear.Index, src gear.FileSource, opts *gear.ExportOptions) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	if err := gear.Export(t.Context(), x, src, dir, opts); err != nil {
		t.Fatal(err)
	}
	return dir
}

// must fails the test at the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// write makes a file and its parent directories.
func write(name, content string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644))
}

// stamp sets the modification time of name itself, not of what a link points to.
func stamp(name string, sec, nsec int64) error {
	ts := []unix.Timespec{{Sec: 7}, {Sec: sec, Nsec: nsec}}
	return unix.UtimesNanoAt(unix.AT_FDCWD, name, ts, unix.AT_SYMLINK_NOFOLLOW)
}

// asNobody runs the test again in an unprivileged process, whose environment has
// SLIPWAY_TEST_DIR=dir. It reports whether this is that process.
func asNobody(t *testing.T, dir string) bool {
	t.Helper()
	if os.Getenv("SLIPWAY_TEST_DIR") != "" {
		return true
	}
	needRoot(t)
	out, w, err := os.Pipe()
	must(t, err)
	defer out.Close()
	// The executable may lie where only root may look. This path works without looking it
	// up.
	p, err := os.StartProcess("/proc/self/exe", []string{"gear.test", "-test.run=^" + t.Name() + "$", "-test.v"}, &os.ProcAttr{
		Dir:   "/",
		Env:   append(os.Environ(), "SLIPWAY_TEST_DIR="+dir, "TMPDIR="+dir),
		Files: []*os.File{nil, w, w},
		Sys:   &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}},
	})
	w.Close()
	must(t, err)
	text, err := io.ReadAll(out)
	must(t, err)
	state, err := p.Wait()
	must(t, err)
	if !state.Success() || !strings.Contains(string(text), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", state, text)
	}
	return false
}
