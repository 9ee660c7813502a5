package export

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/dirfd"
	"example.org/slipway/gear/rootfs"
)

// tree is a directory tree that is entered segment by segment, never through a symbolic
// link: whatever the tree holds, no path leads out of it. (openat2 could do that, too,
// but older kernels and some sandboxes lack it.) It keeps the directories above the last
// path open, so that a walk in order opens each directory once. It is not for concurrent
// use.
type tree struct {
	name string // as given, for errors
	open []openDir
}

// openDir is a directory on the way to the last path. The root's name is empty.
type openDir struct {
	name string
	fd   int
}

// openTree opens the directory at path. It follows symbolic links, because the path is the
// caller's.
func openTree(path string) (*tree, error) {
	fd, err := dirfd.Open(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open directory %q: %w", path, err)
	}
	return &tree{name: path, open: []openDir{{fd: fd}}}, nil
}

func (t *tree) close() {
	for _, d := range t.open {
		unix.Close(d.fd)
	}
	t.open = nil
}

func (t *tree) root() int { return t.open[0].fd }

// parent returns the directory that contains path, and the name of path in it. The
// directory is valid until the next call.
func (t *tree) parent(path string) (fd int, name string, err error) {
	depth := 1
	for {
		seg, rest, more := strings.Cut(path, "/")
		if !more {
			t.leave(depth)
			return t.open[depth-1].fd, seg, nil
		}
		if depth == len(t.open) || t.open[depth].name != seg {
			t.leave(depth)
			fd, err := dirfd.Open(t.open[depth-1].fd, seg, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
			if err != nil {
				return -1, "", fmt.Errorf("enter directory %q: %w", seg, err)
			}
			t.open = append(t.open, openDir{seg, fd})
		}
		depth++
		path = rest
	}
}

// leave closes the directories that are open below depth.
func (t *tree) leave(depth int) {
	for _, d := range t.open[depth:] {
		unix.Close(d.fd)
	}
	t.open = t.open[:depth]
}

// takeEmpty returns an error unless the tree is empty. It makes sure that nothing made in it
// inherits an access control list.
func (t *tree) takeEmpty() error {
	fd, err := dirfd.Open(t.root(), ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open directory %q: %w", t.name, err)
	}
	d := os.NewFile(uintptr(fd), t.name)
	defer d.Close()
	names, err := d.Readdirnames(1)
	if len(names) > 0 {
		return fmt.Errorf("directory %q is not empty: it holds %q", t.name, names[0])
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read directory %q: %w", t.name, err)
	}
	err = unix.Fremovexattr(fd, "system.posix_acl_default")
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("take the default access control list from %q: %w", t.name, err)
	}
	return nil
}

// link makes path another name for the file at target.
func (t *tree) link(target, path string) error {
	from, oldName, err := t.parent(target)
	if err == nil {
		// The next call closes directories that are not above its path.
		from, err = unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("hard link %q to %q: %w", path, target, err)
	}
	defer unix.Close(from)
	to, newName, err := t.parent(path)
	if err == nil {
		err = unix.Linkat(from, oldName, to, newName, 0)
	}
	if err != nil {
		return fmt.Errorf("hard link %q to %q: %w", path, target, err)
	}
	return nil
}

// setMeta sets the owner, attributes, mode and times of an entry. The entry is name in the
// directory dir. fd is the entry itself, or -1 if opening it would have effects. The order matters:
// a change of owner clears the setuid bit and security.capability, attributes may need a mode that
// permits writing, and everything changes the times.
func (w *exporter) setMeta(dir int, name string, fd int, e *gear.Entry) error {
	err := unix.Fchownat(dir, name, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW)
	if err := w.lose(e, fmt.Sprintf("owner %d:%d", e.UID, e.GID), err); err != nil {
		return err
	}
	xattrs := e.Xattrs
	if w.opts.Lost != nil {
		var notes []string
		xattrs, _, _, notes = gear.Mountable(&e.Entry)
		for _, note := range notes {
			if err := w.lose(e, note, errNotHeld); err != nil {
				return err
			}
		}
	}
	for _, x := range xattrs {
		if fd >= 0 {
			err = unix.Fsetxattr(fd, x.Name, []byte(x.Value), 0)
		} else {
			err = unix.Lsetxattr(dirfd.Path(dir, name), x.Name, []byte(x.Value), 0)
		}
		if err := w.lose(e, "attribute "+strconv.Quote(x.Name), impossible(dir, err)); err != nil {
			return err
		}
	}
	mode := e.Mode & 0o7777
	switch {
	case e.Type == rootfs.Symlink:
		err = nil
	case fd >= 0:
		err = unix.Fchmod(fd, mode)
	default:
		err = unix.Fchmodat(dir, name, mode, 0)
	}
	if err := w.lose(e, fmt.Sprintf("mode %#o", mode), err); err != nil {
		return err
	}
	ts := unix.Timespec{Sec: e.Sec, Nsec: int64(e.Nsec)}
	if err := unix.UtimesNanoAt(dir, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("time of %q: %w", e.Path, err)
	}
	return nil
}

// errNotHeld is returned, wrapped, for what a file system cannot hold.
var errNotHeld = errors.New("no file can have it here")

// impossible marks the error of an attribute that the file system of dir cannot hold.
// Examples are an invalid access control list, and more bytes than the file system has
// for all attributes of a file.
func impossible(dir int, err error) error {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE):
	case errors.Is(err, unix.ENOSPC): // it is also the error for too many bytes
		var st unix.Statfs_t
		if unix.Fstatfs(dir, &st) != nil || st.Bavail < attributeBlocks {
			return err // it is full
		}
	default:
		return err
	}
	return fmt.Errorf("%w: %w", errNotHeld, err)
}

// attributeBlocks is more blocks of a file system than the attributes of a file can take.
const attributeBlocks = 1024
