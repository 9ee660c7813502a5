package dataroot

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry"
)

// ErrInUse says that another process uses the data root.
var ErrInUse = errors.New("the data directory is in use by another slipway process")

// lockFile is the lock that reserves a data root for one process. The kernel releases it
// when the process ends, however it ends.
type lockFile struct {
	f         *os.File // registry.LockFile
	root      *os.File // the directory is locked too, because the file can be removed
	dir       string
	removeDir bool // the directory of an in-memory root is removed on release
}

func lockRoot(dir string) (*lockFile, error) {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	switch err := flock(root); err {
	case nil:
	case unix.EBADF, unix.EINVAL, unix.ENOLCK, unix.ENOSYS, unix.EOPNOTSUPP:
		// The lock on the file has to be enough. NFS, for one, locks only files that are
		// open for writing, and a directory never is.
	default:
		root.Close()
		return nil, lockError(dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, registry.LockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		root.Close()
		if errors.Is(err, unix.EROFS) {
			return nil, fmt.Errorf("the disk of %s is mounted read-only, and slipway has to write there also to serve pulls; see the kernel's log for why, and mount it again: %w", dir, err)
		}
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := flock(f); err != nil {
		f.Close()
		root.Close()
		return nil, lockError(dir, err)
	}
	return &lockFile{f: f, root: root, dir: dir}, nil
}

// unlock closes a file and gives its lock up. Closing alone leaves the lock to a child
// process that is just being started and has not run its program yet.
func unlock(f *os.File) error {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // a file system without locks has none to give up
	return f.Close()
}

func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// lockError says why dir could not be locked.
func lockError(dir string, err error) error {
	if errors.Is(err, unix.EWOULDBLOCK) {
		return inUse(dir)
	}
	return fmt.Errorf("lock the data directory %s: %w", dir, err)
}

// rootInUse reports whether a process uses a data root. It changes nothing there.
func rootInUse(dir string) bool {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer unlock(root)
	return errors.Is(flock(root), unix.EWOULDBLOCK)
}

func inUse(dir string) error { return fmt.Errorf("%w: %s", ErrInUse, dir) }

func (l *lockFile) release() error {
	err := errors.Join(unlock(l.f), unlock(l.root))
	if l.removeDir {
		err = errors.Join(err, os.RemoveAll(l.dir))
	}
	return err
}

// checkOwner returns an error if this process runs as root and the directory belongs to
// another user. The files it would create could not be read by a server that runs as that
// user.
func checkOwner(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return nil // opening it will report the error
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || st.Uid == 0 {
		return nil
	}
	name := "#" + strconv.Itoa(int(st.Uid))
	if u, err := user.LookupId(name[1:]); err == nil {
		name = u.Username
	}
	return fmt.Errorf("%s belongs to user %s and no server uses it; run this as that user, so that a server can read what it writes: sudo -u '%s' slipway ...", dir, name, name)
}
