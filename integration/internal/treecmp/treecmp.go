// Package treecmp compares two directory trees as the operating system shows them. It is the oracle
// for everything that unpacks, mounts or exports an image, and knows nothing of the product.
package treecmp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Options adjust a comparison.
type Options struct {
	// Max is the number of differences after which the comparison ends; default 100.
	Max int
	// Ignore, if set, reports whether to leave out an aspect of a path: "type", "mode", "owner",
	// "size", "mtime", "target", "device", "links", "content", or the name of an extended
	// attribute. The aspect "path" covers everything at a path, including its presence on only one
	// side.
	Ignore func(path, aspect string) bool
}

// Compare returns the differences between the trees at a and b, one on each line, in
// order of path. If there are none, the trees are equal in names, types, contents, modes,
// owners, sizes of files and symbolic links, times of last change to the nanosecond,
// extended attributes, targets of symbolic links, device numbers, and in which names are
// the same file. Paths are relative, and the root is ".". If a or b itself is a symbolic
// link, it is followed. Compare should run as root. Otherwise unreadable files are
// errors, and trusted attributes are not visible.
func Compare(a, b string, opts *Options) ([]string, error) {
	c := &comparer{links: [2]map[inode]string{{}, {}}, max: 100}
	if opts != nil {
		c.ignore = opts.Ignore
		if opts.Max > 0 {
			c.max = opts.Max
		}
	}
	for i, dir := range []string{a, b} {
		resolved, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return nil, err
		}
		c.roots[i] = resolved
	}
	err := c.compare(".")
	if errors.Is(err, errEnough) {
		return append(c.lines, "... and so on"), nil
	}
	return c.lines, err
}

// errEnough ends a comparison that has found enough differences.
var errEnough = errors.New("enough differences")

type inode struct{ dev, ino uint64 }

type comparer struct {
	roots  [2]string
	links  [2]map[inode]string // the first path of each file that has several
	ignore func(path, aspect string) bool
	max    int
	lines  []string
}

func (c *comparer) ignored(path, aspect string) bool {
	return c.ignore != nil && c.ignore(path, aspect)
}

// differ notes a difference unless the values are equal or the aspect is ignored.
func (c *comparer) differ(path, aspect string, a, b any) error {
	if a == b || c.ignored(path, aspect) {
		return nil
	}
	return c.note("%q: %s is %v, other %v", path, aspect, a, b)
}

func (c *comparer) note(format string, args ...any) error {
	if len(c.lines) == c.max {
		return errEnough
	}
	c.lines = append(c.lines, fmt.Sprintf(format, args...))
	return nil
}

// side is one of the two files at a path.
type side struct {
	path string // the path to open
	st   unix.Stat_t
	link string // the first path of the same file
}

func (c *comparer) side(i int, path string) (*side, error) {
	s := &side{path: filepath.Join(c.roots[i], path)}
	if err := unix.Lstat(s.path, &s.st); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: s.path, Err: err}
	}
	s.link = path
	if s.st.Nlink > 1 && s.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		key := inode{s.st.Dev, s.st.Ino}
		if first, ok := c.links[i][key]; ok {
			s.link = first
		} else {
			c.links[i][key] = path
		}
	}
	return s, nil
}

func (c *comparer) compare(path string) error {
	if c.ignored(path, "path") {
		return nil
	}
	a, err := c.side(0, path)
	if err != nil {
		return err
	}
	b, err := c.side(1, path)
	if err != nil {
		return err
	}
	at, bt := typeName(a.st.Mode), typeName(b.st.Mode)
	if at != bt {
		return c.differ(path, "type", at, bt)
	}
	if err := c.metadata(path, a, b); err != nil {
		return err
	}
	if err := c.xattrs(path, a, b); err != nil {
		return err
	}
	switch a.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.directory(path, a, b)
	case unix.S_IFREG:
		if a.st.Size != b.st.Size || a.link != path && a.link == b.link || c.ignored(path, "content") {
			return nil // different anyway, or compared under its first name
		}
		return c.content(path, a, b)
	case unix.S_IFLNK:
		return c.target(path, a, b)
	}
	return nil
}

func (c *comparer) metadata(path string, a, b *side) error {
	as, bs := &a.st, &b.st
	errs := []error{
		c.differ(path, "mode", octal(as.Mode&0o7777), octal(bs.Mode&0o7777)),
		c.differ(path, "owner", fmt.Sprintf("%d:%d", as.Uid, as.Gid), fmt.Sprintf("%d:%d", bs.Uid, bs.Gid)),
		c.differ(path, "mtime", clock(as.Mtim), clock(bs.Mtim)),
	}
	switch as.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK:
		errs = append(errs, c.differ(path, "size", as.Size, bs.Size))
	case unix.S_IFCHR, unix.S_IFBLK:
		errs = append(errs, c.differ(path, "device", device(as.Rdev), device(bs.Rdev)))
	}
	errs = append(errs, c.differ(path, "links", "one with "+a.link, "one with "+b.link))
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func octal(mode uint32) string     { return fmt.Sprintf("%#o", mode) }
func clock(t unix.Timespec) string { return fmt.Sprintf("%d.%09d", t.Sec, t.Nsec) }
func device(rdev uint64) string    { return fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev)) }

func typeName(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFREG:
		return "file"
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFCHR:
		return "character device"
	case unix.S_IFBLK:
		return "block device"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	}
	return fmt.Sprintf("type %#o", mode&unix.S_IFMT)
}

// directory compares the names in two directories, and the files that both have.
func (c *comparer) directory(path string, a, b *side) error {
	an, err := names(a.path)
	if err != nil {
		return err
	}
	bn, err := names(b.path)
	if err != nil {
		return err
	}
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(an, bn))))
	for _, name := range all {
		child := filepath.Join(path, name)
		_, inA := slices.BinarySearch(an, name)
		_, inB := slices.BinarySearch(bn, name)
		switch {
		case inA && inB:
			err = c.compare(child)
		case c.ignored(child, "path"):
		case inA:
			err = c.note("%q: missing in the other", child)
		default:
			err = c.note("%q: in the other only", child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func names(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out, err := f.Readdirnames(-1)
	slices.Sort(out)
	return out, err
}

func (c *comparer) target(path string, a, b *side) error {
	at, err := os.Readlink(a.path)
	if err != nil {
		return err
	}
	bt, err := os.Readlink(b.path)
	if err != nil {
		return err
	}
	return c.differ(path, "target", fmt.Sprintf("%q", at), fmt.Sprintf("%q", bt))
}

func (c *comparer) content(path string, a, b *side) error {
	af, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer af.Close()
	bf, err := os.Open(b.path)
	if err != nil {
		return err
	}
	defer bf.Close()
	ab, bb := make([]byte, 128<<10), make([]byte, 128<<10)
	for off := int64(0); ; {
		an, aerr := io.ReadFull(af, ab)
		bn, berr := io.ReadFull(bf, bb)
		if !bytes.Equal(ab[:an], bb[:bn]) {
			n := 0
			for n < min(an, bn) && ab[n] == bb[n] {
				n++
			}
			return c.note("%q: content differs from byte %d on", path, off+int64(n))
		}
		off += int64(an)
		if ended(aerr) && ended(berr) {
			return nil
		}
		if err := cause(aerr); err != nil {
			return err
		}
		if err := cause(berr); err != nil {
			return err
		}
	}
}

func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// cause returns the error of a read, or nil for the end of the file.
func cause(err error) error {
	if ended(err) {
		return nil
	}
	return err
}

func (c *comparer) xattrs(path string, a, b *side) error {
	am, err := xattrs(a.path)
	if err != nil {
		return err
	}
	bm, err := xattrs(b.path)
	if err != nil {
		return err
	}
	var all []string
	for _, m := range []map[string]string{am, bm} {
		for name := range m {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	for _, name := range slices.Compact(all) {
		if err := c.differ(path, name, value(am, name), value(bm, name)); err != nil {
			return err
		}
	}
	return nil
}

// value returns an attribute in full: two long values may differ only at the end.
func value(m map[string]string, name string) string {
	if v, ok := m[name]; ok {
		return fmt.Sprintf("%q", v)
	}
	return "not there"
}

func xattrs(path string) (map[string]string, error) {
	list, err := grow(func(b []byte) (int, error) { return unix.Llistxattr(path, b) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "llistxattr", Path: path, Err: err}
	}
	out := map[string]string{}
	for name := range strings.SplitSeq(string(list), "\x00") {
		if name == "" { // behind the last one
			continue
		}
		v, err := grow(func(b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
		if err != nil {
			return nil, &os.PathError{Op: "lgetxattr " + name, Path: path, Err: err}
		}
		out[name] = string(v)
	}
	return out, nil
}

// grow calls a function that fills a buffer, with larger and larger buffers until one is
// large enough. Linux needs 64 KiB at most.
func grow(call func([]byte) (int, error)) ([]byte, error) {
	for b := make([]byte, 1<<10); ; b = make([]byte, 8*len(b)) {
		n, err := call(b)
		if err == nil {
			return b[:n], nil
		}
		if !errors.Is(err, unix.ERANGE) || len(b) >= 64<<10 {
			return nil, err
		}
	}
}
