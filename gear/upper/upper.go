// Package upper packs the upper directory of an overlay as a layer.
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
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/dirfd"
	"example.org/slipway/gear/rootfs"
)

// ErrChanged is in the error chain of [Tar] if the directory was written to meanwhile. Once its
// writers are stopped, it can be read.
var ErrChanged = errors.New("changed while it was read")

// Options adjust the reading of an upper directory.
type Options struct {
	// Merged is the mount point of the overlay whose upper directory it is, with nothing mounted
	// below it. Files are then read there; the directory only says which ones. It is needed only if
	// the upper directory does not hold everything that changed, as with overlays that were mounted
	// with redirect_dir or metacopy. Without Merged, such a directory is an error.
	Merged string
	// UserXattr says that the overlay was mounted with the option userxattr, so that its marks are
	// called user.overlay.* instead of trusted.overlay.*.
	UserXattr bool
	// Skipped, if set, is called for everything that has no place in a layer.
	Skipped func(path, why string)
}

const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"

	// steadyFile is the size in bytes up to which a file is read before its header is
	// written, and read again if it changes meanwhile. It bounds the memory that one
	// layer may take. A larger file is streamed, and there is only one attempt.
	steadyFile = 16 << 20
)

// Tar writes the changes in an overlay's upper directory as an OCI layer: an uncompressed
// PAX tar with whiteouts, sorted by path. The tar is always the same for the same
// directory. Converting it gives the index of the same layer.
//
// Overlayfs's marks become whiteouts or are left out. Attributes that the overlay had to
// escape get their names back. Labels that belong to the host are left out, and so are
// sockets. Files with several names in the directory become hard links. No symbolic link
// is followed. The upper directory of a mounted overlay may be read. If a file changes
// meanwhile, Tar tries a second time if possible, and then returns ErrChanged. As with
// any error, w has then received part of a tar.
//
// Reading the marks of an overlay mounted without userxattr needs root.
func Tar(ctx context.Context, dir string, w io.Writer, opts *Options) error {
	if opts == nil {
		opts = &Options{}
	}
	u := &upperReader{
		opts:  opts,
		marks: "trusted.overlay.",
		tw:    tar.NewWriter(w),
		names: map[inode]string{},
	}
	if opts.UserXattr {
		u.marks = "user.overlay."
	}
	if err := u.read(ctx, dir); err != nil {
		return fmt.Errorf("read upper directory %s: %w", dir, err)
	}
	return nil
}

// upperReader is one reading of an upper directory.
type upperReader struct {
	opts  *Options
	marks string // prefix of the names of overlayfs's own attributes
	tw    *tar.Writer
	names map[inode]string // the first path of each file that has several paths
	buf   []byte
}

// inode identifies a file.
type inode struct{ dev, ino uint64 }

func (u *upperReader) read(ctx context.Context, path string) error {
	up, err := openDirectory(path)
	if err != nil {
		return err
	}
	defer up.Close()
	if !u.opts.UserXattr {
		if err := checkTrusted(up); err != nil {
			return err
		}
	}
	in := up
	if u.opts.Merged != "" {
		if in, err = openDirectory(u.opts.Merged); err != nil {
			return err
		}
		defer in.Close()
	}
	if err := u.directory(ctx, up, in, "."); err != nil {
		return err
	}
	return u.tw.Close()
}

func openDirectory(path string) (*os.File, error) {
	fd, err := dirfd.Open(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open directory %q: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// checkTrusted returns an error if the process cannot see trusted attributes. The kernel
// hides them and does not refuse, so that an opaque directory would look like an ordinary
// one. checkTrusted tries to replace an attribute that does not exist. That changes
// nothing, and its error shows whether the attributes are visible.
func checkTrusted(up *os.File) error {
	err := unix.Fsetxattr(int(up.Fd()), "trusted.overlay.none", nil, unix.XATTR_REPLACE)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("the marks of overlayfs cannot be seen without root (CAP_SYS_ADMIN): %w", err)
	}
	return nil
}

// directory writes the directory path and what changed in it. Files are read in the
// directory in. up describes them: it is the same directory, or the upper directory if in
// is the merged one, or nil if the layers below have nothing of what is in the directory
// in.
func (u *upperReader) directory(ctx context.Context, up, in *os.File, path string) error {
	var marks upperMarks
	if up != nil {
		attrs, err := fileXattrs(up)
		if err != nil {
			return fmt.Errorf("attributes of %q: %w", path, err)
		}
		marks, _ = splitXattrs(u.marks, attrs)
		marks.redirected = marks.redirected && !marks.opaque // an opaque directory hides what the redirect leads to
	}
	if err := u.checkWhole(marks, up == in, path); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(in.Fd()), &st); err != nil {
		return fmt.Errorf("stat %q: %w", path, err)
	}
	attrs, err := u.xattrs(up == in, in)
	if err != nil {
		return fmt.Errorf("attributes of %q: %w", path, err)
	}
	if err := u.header(tar.TypeDir, path, &st, attrs, nil); err != nil {
		return err
	}
	list := up
	if marks.redirected {
		up, list = nil, nil
	}
	if marks.opaque || marks.redirected {
		if err := u.marker(gear.JoinPath(path, opaqueName)); err != nil {
			return err
		}
	}
	if list == nil {
		list = in
	}
	names, err := list.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("read directory %q: %w", path, err)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := u.entry(ctx, up, in, name, gear.JoinPath(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// entry writes the entry name of a directory.
func (u *upperReader) entry(ctx context.Context, up, in *os.File, name, path string) error {
	if strings.HasPrefix(name, whiteoutPrefix) {
		return fmt.Errorf("%q cannot be put in a layer: names that begin with %q are whiteouts there", path, whiteoutPrefix)
	}
	if up != nil {
		gone, err := u.check(up, name, path, up == in)
		if err != nil {
			return err
		}
		if gone {
			return u.marker(path[:len(path)-len(name)] + whiteoutPrefix + name)
		}
	}
	st, err := statAt(in, name, path)
	if err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return u.subdirectory(ctx, up, in, name, path)
	case unix.S_IFSOCK:
		if u.opts.Skipped != nil {
			u.opts.Skipped(path, "sockets have no place in a layer")
		}
		return nil
	}
	key := inode{st.Dev, st.Ino}
	if first, ok := u.names[key]; ok && st.Nlink > 1 {
		return u.header(tar.TypeLink, path, &st, nil, func(h *tar.Header) { h.Linkname = first })
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		err = u.regular(ctx, in, name, path, up == in)
	} else {
		err = u.special(in, name, path, &st, up == in)
	}
	if err == nil && st.Nlink > 1 {
		u.names[key] = path
	}
	return err
}

// check reports whether a name in the upper directory is a whiteout. It fails if the name holds
// only part of a file and files are read here.
func (u *upperReader) check(up *os.File, name, path string, here bool) (gone bool, err error) {
	st, err := statAt(up, name, path)
	if err != nil {
		return false, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return st.Rdev == 0, nil
	case unix.S_IFREG:
		attrs, err := nodeXattrs(up, name)
		if err != nil {
			return false, fmt.Errorf("attributes of %q: %w", path, err)
		}
		marks, _ := splitXattrs(u.marks, attrs)
		if marks.whiteout && st.Size == 0 {
			return true, nil
		}
		// A file is redirected only as long as its content is elsewhere.
		marks.redirected = false
		return false, u.checkWhole(marks, here, path)
	}
	return false, nil
}

// checkWhole fails if the upper directory has only part of a file and files are read there.
func (u *upperReader) checkWhole(m upperMarks, here bool, path string) error {
	switch {
	case !here:
		return nil
	case m.metacopy:
		return fmt.Errorf("%q has its content in a lower layer (overlay mounted with metacopy): "+
			"read the upper directory together with its merged one", path)
	case m.redirected:
		return fmt.Errorf("%q was renamed and has its contents in a lower layer (overlay mounted with redirect_dir): "+
			"read the upper directory together with its merged one", path)
	}
	return nil
}

func (u *upperReader) subdirectory(ctx context.Context, up, in *os.File, name, path string) error {
	same := up == in
	in, err := openIn(in, name, path)
	if err != nil {
		return err
	}
	defer in.Close()
	switch {
	case same:
		up = in
	case up != nil:
		if up, err = openIn(up, name, path); err != nil {
			return err
		}
		defer up.Close()
	}
	return u.directory(ctx, up, in, path)
}

func openIn(dir *os.File, name, path string) (*os.File, error) {
	fd, err := dirfd.Open(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, vanished("open directory", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func statAt(dir *os.File, name, path string) (st unix.Stat_t, err error) {
	err = unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return st, vanished("stat", path, err)
	}
	return st, nil
}

// vanished wraps the error of a call on a name that existed a moment ago. If the name is
// gone or is something else by now, it counts as a change.
func vanished(what, path string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("%s %q: %w: %w", what, path, ErrChanged, err)
	}
	return fmt.Errorf("%s %q: %w", what, path, err)
}

// marker writes a whiteout. It has no properties except its name.
func (u *upperReader) marker(path string) error {
	h := &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: path, ModTime: time.Unix(0, 0)}
	if err := u.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return nil
}

// header writes the header of an entry. The function more may add to the header first.
func (u *upperReader) header(kind byte, path string, st *unix.Stat_t, attrs []rootfs.Xattr, more func(*tar.Header)) error {
	h := &tar.Header{
		Format:   tar.FormatPAX,
		Typeflag: kind,
		Name:     path,
		Mode:     int64(st.Mode & 0o7777),
		Uid:      int(st.Uid),
		Gid:      int(st.Gid),
		ModTime:  time.Unix(st.Mtim.Sec, st.Mtim.Nsec),
	}
	if kind == tar.TypeDir {
		h.Name += "/"
	}
	for _, x := range attrs {
		if strings.Contains(x.Name, "=") {
			return fmt.Errorf("attribute %q of %q cannot be put in a layer: its name has a '='", x.Name, path)
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+x.Name] = x.Value
	}
	if more != nil {
		more(h)
	}
	if err := u.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return nil
}
