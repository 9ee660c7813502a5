// Package treetest makes and describes trees for tests of code that writes and reads
// them.
package treetest

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

// NeedRoot skips a test that makes devices, owners or mounts.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// Describe reads a tree as the operating system shows it. It returns one line for each
// path.
func Describe(t testing.TB, dir string) map[string]string {
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
				groups[st.Ino] = name // it may be the only visible name
			} else {
				line += " = " + groups[st.Ino]
			}
		}
		for _, x := range ListXattrs(t, p) {
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

// ListXattrs returns the extended attributes of a path itself.
func ListXattrs(t testing.TB, p string) []rootfs.Xattr {
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

// Flat is a flattened tree under construction, with the contents of its files.
type Flat struct {
	Entries map[string]gear.Entry
	data    map[gear.Name][]byte
	names   map[string]gear.Name // of the files in Entries
	inodes  map[string]int       // of all entries; entries with the same inode are names of one file
	made    int                  // number of inodes so far
}

// NewFlat returns a tree without anything in it.
func NewFlat() *Flat {
	return &Flat{Entries: map[string]gear.Entry{}, data: map[gear.Name][]byte{}, names: map[string]gear.Name{}, inodes: map[string]int{}}
}

// Apply applies a layer on top of the tree, as the image specification says.
func (f *Flat) Apply(t testing.TB, layer []byte) {
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
			for name := range f.Entries {
				if strings.HasPrefix(name, dir) && !here[name] {
					delete(f.Entries, name)
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

func (f *Flat) remove(p string) {
	for name := range f.Entries {
		if name == p || strings.HasPrefix(name, p+"/") {
			delete(f.Entries, name)
		}
	}
}

func (f *Flat) put(t testing.TB, p string, h *tar.Header, r io.Reader) {
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
		target := f.Entries[h.Linkname]
		f.remove(p)
		target.Path = p
		f.Entries[p], f.names[p], f.inodes[p] = target, f.names[h.Linkname], f.inodes[h.Linkname]
		return
	}
	if e.Type != rootfs.Dir {
		f.remove(p)
	}
	var content []byte
	if e.Type == rootfs.File {
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		content = b
	}
	f.Put(e, content)
}

// Put puts an entry with a new inode at its path. content is the content of a file.
func (f *Flat) Put(e gear.Entry, content []byte) {
	f.made++
	f.inodes[e.Path] = f.made
	if e.Type == rootfs.File {
		f.names[e.Path] = sha256.Sum256(content)
		f.data[f.names[e.Path]] = content
	}
	f.Entries[e.Path] = e
}

// Index returns the tree so far, and a source of its contents.
func (f *Flat) Index() (*gear.Index, *Source) {
	x := &gear.Index{}
	at := map[gear.Name]int32{}
	first := map[int]string{}
	for _, p := range slices.Sorted(maps.Keys(f.Entries)) {
		e, inode := f.Entries[p], f.inodes[p]
		if first[inode] == "" {
			first[inode] = p
		} else {
			e = gear.Entry{Entry: rootfs.Entry{Path: p, Type: rootfs.HardLink, Link: first[inode]}, File: -1}
		}
		if e.Type == rootfs.File {
			name := f.names[p]
			if _, ok := at[name]; !ok {
				at[name] = int32(len(x.Files))
				x.Files = append(x.Files, FileOf(f.data[name]))
			}
			e.File = at[name]
		}
		x.Entries = append(x.Entries, e)
	}
	return x, &Source{Data: f.data}
}

// FileOf returns the file with a content.
func FileOf(b []byte) gear.File {
	f := gear.File{Name: sha256.Sum256(b), Size: int64(len(b))}
	if len(b) >= gear.LargeFile {
		for c := range slices.Chunk(b, gear.ChunkSize) {
			f.Chunks = append(f.Chunks, sha256.Sum256(c))
		}
	}
	return f
}

// Source delivers contents from memory, the last one first.
type Source struct {
	Data map[gear.Name][]byte
	Got  chan gear.Name // receives the name of each delivered content, if not nil
}

// Fetch implements [gear.FileSource].
func (s *Source) Fetch(ctx context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	for i, f := range slices.Backward(files) {
		b, ok := s.Data[f.Name]
		if !ok {
			return fmt.Errorf("no content %x", f.Name)
		}
		if s.Got != nil {
			s.Got <- f.Name
		}
		// The struct hides the reader's other methods, so that it delivers a little at a
		// time, as a network does.
		if err := deliver(i, struct{ io.Reader }{bytes.NewReader(b)}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Must fails the test for the first error.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// Write makes a file, with its directories.
func Write(name, content string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644))
}

// Stamp sets the time of the last change of a path itself, to the nanosecond.
func Stamp(name string, sec, nsec int64) error {
	ts := []unix.Timespec{{Sec: 7}, {Sec: sec, Nsec: nsec}}
	return unix.UtimesNanoAt(unix.AT_FDCWD, name, ts, unix.AT_SYMLINK_NOFOLLOW)
}

// AsNobody runs the named test again in an unprivileged process, with SLIPWAY_TEST_DIR=dir in its
// environment, and reports whether this is that process.
func AsNobody(t *testing.T, dir string) bool {
	t.Helper()
	if os.Getenv("SLIPWAY_TEST_DIR") != "" {
		return true
	}
	NeedRoot(t)
	out, w, err := os.Pipe()
	Must(t, err)
	defer out.Close()
	// The executable may be in a directory that only root may read. This path works
	// without a look-up.
	p, err := os.StartProcess("/proc/self/exe", []string{"gear.test", "-test.run=^" + t.Name() + "$", "-test.v"}, &os.ProcAttr{
		Dir:   "/",
		Env:   append(os.Environ(), "SLIPWAY_TEST_DIR="+dir, "TMPDIR="+dir),
		Files: []*os.File{nil, w, w},
		Sys:   &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}},
	})
	w.Close()
	Must(t, err)
	text, err := io.ReadAll(out)
	Must(t, err)
	state, err := p.Wait()
	Must(t, err)
	if !state.Success() || !strings.Contains(string(text), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", state, text)
	}
	return false
}

// Capability is a version 2 file capability: cap_net_raw+ep.
const Capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// ACL is an access control list: rw for the owner, user 1000 reads, mask r.
const ACL = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xe8\x03\x00\x00" +
	"\x04\x00\x00\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"

// Build makes a tree with one entry of every kind.
func Build(t testing.TB, dir string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	large := bytes.Repeat([]byte("0123456789abcdef"), (gear.LargeFile+5*gear.ChunkSize/2)/16)
	clear(large[gear.ChunkSize/2 : 3*gear.ChunkSize])
	Must(t,
		Write(in("etc/passwd"), "root:x:0:0\n"),
		Write(in("a/b/c/d/deep"), "deep"),
		Write(in("a-b"), "between a and a/b"),
		Write(in("-"), "sorts before the root"),
		Write(in("copy/1"), "twice"),
		Write(in("copy/2"), "twice"),
		Write(in("empty"), ""),
		Write(in("zeros"), string(make([]byte, 1<<20))),
		Write(in("large"), string(large)),
		Write(in("large-copy"), string(large)),
		Write(in("chunks"), string(large[:gear.LargeFile])),
		Write(in("latin-\xe9\xff\n\" name"), "bytes"),
		Write(in("bin/su"), "setuid"),
		Write(in("bin/ping"), "capable"),
		Write(in("bin/acl"), "listed"),
		Write(in("locked/inside"), "x"),
		os.Symlink("/etc", in("outside")),
		os.Symlink("../\xe9", in("bin/link")),
		os.Link(in("bin/su"), in("a/su")),
		os.Link(in("bin/su"), in("bin/su2")),
		unix.Linkat(unix.AT_FDCWD, in("bin/link"), unix.AT_FDCWD, in("a/link"), 0),
		unix.Mkfifo(in("fifo"), 0o640),
		unix.Mknod(in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mknod(in("disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 70000))),
		os.Mkdir(in("tmp"), 0o755),
	)
	Must(t,
		os.Lchown(in("bin/su"), 12, 34),
		unix.Chmod(in("bin/su"), 0o6751),
		unix.Chmod(in("tmp"), 0o1777),
		unix.Chmod(in("locked"), 0o500),
		unix.Chmod(in("empty"), 0),
		os.Lchown(in("outside"), 4294967294, 70000),
		os.Lchown(in("bin/ping"), 5, 6),
		os.Lchown(in("null"), 7, 8),
		unix.Setxattr(in("bin/ping"), "security.capability", []byte(Capability), 0),
		unix.Setxattr(in("bin/acl"), "system.posix_acl_access", []byte(ACL), 0),
		unix.Setxattr(in("a"), "system.posix_acl_default", []byte(ACL), 0),
		unix.Setxattr(in("a"), "user.dir", []byte{0, 255}, 0),
		unix.Setxattr(in("etc/passwd"), "user.empty", nil, 0),
		unix.Setxattr(in("etc/passwd"), "trusted.t", []byte("v"), 0),
		unix.Lsetxattr(in("outside"), "trusted.link", []byte("l"), 0),
		unix.Lsetxattr(in("fifo"), "trusted.fifo", []byte("f"), 0),
		Stamp(in("etc/passwd"), -5, 999999999),
		Stamp(in("outside"), 1e9, 1),
		Stamp(in("fifo"), 1e9+1, 2),
		Stamp(in("bin/ping"), 1<<33, 123456789),
		Stamp(in("a/b/c/d"), 1e9+2, 3),
		Stamp(in("a/b/c"), 1e9+3, 4),
		Stamp(in("locked"), 1e9+4, 5),
		unix.Chmod(dir, 0o751),
		Stamp(dir, 1e9+5, 6),
	)
}
