package fsstore

import (
	"strings"

	"golang.org/x/sys/unix"
)

// resolver opens paths below a directory without ever following a symbolic
// link or leaving the directory.
type resolver struct {
	root int // descriptor of the directory, good for fsync
	// walk opens segment by segment, where openat2 cannot be used. It costs
	// two system calls for each segment, against one for the whole path.
	walk bool
}

// newResolver opens root, and finds out whether openat2 can be used.
func newResolver(root string) (resolver, error) {
	var r resolver
	err := retry(func() (err error) {
		r.root, err = unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return r, err
	}
	fd, err := r.open(".", unix.O_PATH)
	switch err {
	case nil:
		return r, unix.Close(fd)
	case unix.ENOSYS, unix.EPERM: // Linux before 5.6 answers ENOSYS, and a seccomp filter may answer either
		r.walk = true
		return r, nil
	}
	_ = unix.Close(r.root)
	return r, err
}

// open opens path, which is relative and clean.
func (r resolver) open(path string, flags int) (fd int, err error) {
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW
	if r.walk {
		return r.openWalk(path, flags)
	}
	how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	err = retry(func() (err error) {
		fd, err = unix.Openat2(r.root, path, &how)
		return err
	})
	return fd, err
}

// openDir opens a directory for reading and fsync.
func (r resolver) openDir(path string) (int, error) {
	return r.open(path, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openWalk opens path one segment at a time.
func (r resolver) openWalk(path string, flags int) (fd int, err error) {
	dir := r.root
	for more := true; more; {
		var seg string
		seg, path, more = strings.Cut(path, "/")
		f := flags
		if more {
			f = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		fd, err = openat(dir, seg, f, 0)
		if dir != r.root {
			closeDir(dir)
		}
		if err != nil {
			return -1, err
		}
		dir = fd
	}
	return fd, nil
}

// openat opens the one name below dir.
func openat(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
		return err
	})
	return fd, err
}

// notThere reports whether opening a path failed because there is no such object: no such
// name, a file or symbolic link in place of a directory, or a symbolic link or a socket
// in place of a file.
func notThere(err error) bool {
	return err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP || err == unix.ENXIO
}

// retry calls f until no signal interrupts it. Network file systems and FUSE report such
// interruptions.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// closeDir closes the descriptor of a directory. Nothing is written through it, so an
// error would mean nothing.
func closeDir(fd int) { _ = unix.Close(fd) }

func fsync(fd int) error { return retry(func() error { return unix.Fsync(fd) }) }
