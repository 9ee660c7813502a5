package upper

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear/dirfd"
	"example.org/slipway/gear/rootfs"
)

// copyBuffer is the number of bytes of a file that are read at a time.
const copyBuffer = 256 << 10

// regular writes a regular file.
func (u *upperReader) regular(ctx context.Context, in *os.File, name, path string, raw bool) error {
	err := u.tryRegular(ctx, in, name, path, raw)
	var again *steadyError
	if errors.As(err, &again) {
		err = u.tryRegular(ctx, in, name, path, raw)
	}
	return err
}

// steadyError is a change that was noticed before anything was written.
type steadyError struct{ path string }

func (e *steadyError) Error() string { return fmt.Sprintf("%q: %v", e.path, ErrChanged) }

func (e *steadyError) Unwrap() error { return ErrChanged }

func (u *upperReader) tryRegular(ctx context.Context, in *os.File, name, path string, raw bool) error {
	fd, err := dirfd.Open(int(in.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return vanished("open", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var before unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &before); err != nil {
		return fmt.Errorf("stat %q: %w", path, err)
	}
	if before.Mode&unix.S_IFMT != unix.S_IFREG {
		return &steadyError{path}
	}
	attrs, err := u.xattrs(raw, f)
	if err != nil {
		return fmt.Errorf("attributes of %q: %w", path, err)
	}
	if before.Size > steadyFile {
		return u.stream(ctx, f, path, &before, attrs)
	}
	u.buf = slices.Grow(u.buf[:0], int(before.Size))[:before.Size]
	if _, err := io.ReadFull(f, u.buf); ended(err) {
		return &steadyError{path}
	} else if err != nil {
		return fmt.Errorf("read %q: %w", path, err)
	}
	if same, err := unchanged(f, &before); err != nil {
		return err
	} else if !same {
		return &steadyError{path}
	}
	if err := u.header(tar.TypeReg, path, &before, attrs, func(h *tar.Header) { h.Size = before.Size }); err != nil {
		return err
	}
	if _, err := u.tw.Write(u.buf); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return nil
}

// ended reports whether a read found less than it should.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// stream writes a file that is too large to be kept in memory.
func (u *upperReader) stream(ctx context.Context, f *os.File, path string, before *unix.Stat_t, attrs []rootfs.Xattr) error {
	if err := u.header(tar.TypeReg, path, before, attrs, func(h *tar.Header) { h.Size = before.Size }); err != nil {
		return err
	}
	u.buf = slices.Grow(u.buf[:0], copyBuffer)[:copyBuffer]
	for left := before.Size; left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := u.buf[:min(left, copyBuffer)]
		if _, err := io.ReadFull(f, b); ended(err) {
			return fmt.Errorf("%q: %w", path, ErrChanged)
		} else if err != nil {
			return fmt.Errorf("read %q: %w", path, err)
		}
		if _, err := u.tw.Write(b); err != nil {
			return fmt.Errorf("write %q: %w", path, err)
		}
		left -= int64(len(b))
	}
	if same, err := unchanged(f, before); err != nil {
		return err
	} else if !same {
		return fmt.Errorf("%q: %w", path, ErrChanged)
	}
	return nil
}

// unchanged reports whether a file has not changed. Changes of owner, mode and attributes
// change the ctime.
func unchanged(f *os.File, before *unix.Stat_t) (bool, error) {
	var after unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &after); err != nil {
		return false, fmt.Errorf("stat %q: %w", f.Name(), err)
	}
	return after.Size == before.Size && after.Mtim == before.Mtim && after.Ctim == before.Ctim, nil
}

// special writes a file that must not be opened because that would have effects.
func (u *upperReader) special(in *os.File, name, path string, st *unix.Stat_t, raw bool) error {
	attrs, err := nodeXattrs(in, name)
	if err != nil {
		return fmt.Errorf("attributes of %q: %w", path, err)
	}
	attrs = u.ours(raw, attrs)
	var kind byte
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := readlinkAt(in, name)
		if err != nil {
			return vanished("read symbolic link", path, err)
		}
		return u.header(tar.TypeSymlink, path, st, attrs, func(h *tar.Header) { h.Linkname = target })
	case unix.S_IFIFO:
		return u.header(tar.TypeFifo, path, st, attrs, nil)
	case unix.S_IFCHR:
		kind = tar.TypeChar
	case unix.S_IFBLK:
		kind = tar.TypeBlock
	default:
		return fmt.Errorf("%q has the unknown type %#o", path, st.Mode&unix.S_IFMT)
	}
	return u.header(kind, path, st, attrs, func(h *tar.Header) {
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	})
}

func readlinkAt(dir *os.File, name string) (string, error) {
	for size := 256; ; size *= 2 {
		b := make([]byte, size)
		n, err := unix.Readlinkat(int(dir.Fd()), name, b)
		if err != nil || n < size {
			return string(b[:max(n, 0)]), err
		}
	}
}

// upperMarks are overlayfs's notes about a file in its attributes.
type upperMarks struct {
	opaque     bool // nothing of the layers below shows through the directory
	whiteout   bool // the file is a whiteout if it is empty
	metacopy   bool // the content is in a layer below
	redirected bool // the directory's contents are below, under another name
}

// hostXattrs are the attributes that describe the host instead of the file: the labels of
// its policy, and signatures under its key.
var hostXattrs = map[string]bool{
	"security.selinux": true,
	"security.SMACK64": true,
	"security.evm":     true,
	"system.nfs4_acl":  true,
}

// splitXattrs separates overlayfs's marks, whose names begin with prefix, from the
// attributes that belong to the file. If the name of an attribute of the file also begins
// with prefix, the overlay has escaped it with one more "overlay.".
func splitXattrs(prefix string, all []rootfs.Xattr) (m upperMarks, own []rootfs.Xattr) {
	for _, x := range all {
		mark, ok := strings.CutPrefix(x.Name, prefix)
		if !ok {
			if !hostXattrs[x.Name] {
				own = append(own, x)
			}
			continue
		}
		if name, ok := strings.CutPrefix(mark, "overlay."); ok {
			own = append(own, rootfs.Xattr{Name: prefix + name, Value: x.Value})
			continue
		}
		switch mark {
		case "opaque":
			m.opaque = x.Value == "y" // "x": some whiteouts may be attributes
		case "whiteout":
			m.whiteout = true
		case "metacopy":
			m.metacopy = true
		case "redirect":
			m.redirected = true
		}
	}
	return m, own
}

// ours returns the attributes that a layer gets. If raw is true, they were read from the upper
// directory itself; otherwise the overlay has already processed them.
func (u *upperReader) ours(raw bool, all []rootfs.Xattr) []rootfs.Xattr {
	if raw {
		_, own := splitXattrs(u.marks, all)
		return own
	}
	return slices.DeleteFunc(all, func(x rootfs.Xattr) bool { return hostXattrs[x.Name] })
}

func (u *upperReader) xattrs(raw bool, f *os.File) ([]rootfs.Xattr, error) {
	all, err := fileXattrs(f)
	return u.ours(raw, all), err
}

// fileXattrs reads the attributes of an open file.
func fileXattrs(f *os.File) ([]rootfs.Xattr, error) {
	fd := int(f.Fd())
	return readXattrs(
		func(b []byte) (int, error) { return unix.Flistxattr(fd, b) },
		func(name string, b []byte) (int, error) { return unix.Fgetxattr(fd, name, b) })
}

// nodeXattrs reads the attributes of a file that must not be opened.
func nodeXattrs(dir *os.File, name string) ([]rootfs.Xattr, error) {
	path := dirfd.Path(int(dir.Fd()), name)
	return readXattrs(
		func(b []byte) (int, error) { return unix.Llistxattr(path, b) },
		func(name string, b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
}

// readXattrs reads all attributes, in the order in which the file system lists them. It leaves out
// an attribute that vanishes meanwhile.
func readXattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) ([]rootfs.Xattr, error) {
	names, err := sized(list)
	if errors.Is(err, unix.ENOTSUP) || len(names) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []rootfs.Xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		value, err := sized(func(b []byte) (int, error) { return get(name, b) })
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		out = append(out, rootfs.Xattr{Name: name, Value: string(value)})
	}
	return out, nil
}

// sized calls a function that fills a buffer, with a buffer that is large enough.
func sized(call func([]byte) (int, error)) ([]byte, error) {
	b := make([]byte, 256)
	for {
		n, err := call(b)
		if err == nil {
			return b[:n], nil
		}
		if !errors.Is(err, unix.ERANGE) || len(b) >= 64<<10 { // Linux has no larger attributes
			return nil, err
		}
		b = make([]byte, 4*len(b))
	}
}
