package fsstore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry/objstore"
)

// maxDurable is the number of directories remembered as durable without being in use. An
// entry takes about 150 bytes. There are fewer than 300 directories above blobs, and a
// few directories for each repository.
const maxDurable = 16384

// placeAttempts bounds how often place starts again because another process removed a
// directory under it.
const placeAttempts = 100

// dirTable knows the directories that commits are using, which must not be removed. It
// also knows the directories whose entry in their parent is durable, so that the parent
// needs no fsync. The zero value is ready.
//
// A directory that is in use is not removed by this process. Hence it stays durable while
// it is in use, once it was found to be durable.
type dirTable struct {
	mu sync.Mutex
	m  map[string]*dirState
}

type dirState struct {
	uses    int
	durable bool
	untidy  bool // to be removed if empty, when it is no longer in use
}

// lease is the use of a directory and all above it by one commit.
type lease struct {
	dir  string
	made bool // this commit made dir itself
}

// acquire marks dir and all directories above it as used.
func (t *dirTable) acquire(dir string) *lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = make(map[string]*dirState)
	}
	for d := dir; d != "."; d = path.Dir(d) {
		st := t.m[d]
		if st == nil {
			st = &dirState{}
			t.m[d] = st
		}
		st.uses++
	}
	return &lease{dir: dir}
}

// release ends a lease. It reports whether a deletion found dir in use and left it to be
// tidied up.
func (t *dirTable) release(l *lease) (untidy bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for d := l.dir; d != "."; d = path.Dir(d) {
		st := t.m[d]
		st.uses--
		if st.uses > 0 {
			continue
		}
		untidy = untidy || st.untidy
		st.untidy = false
		// A directory that was made for a blob will hold no other object. Remembering it
		// would only push out directories that matter.
		if !st.durable || d == l.dir && l.made {
			delete(t.m, d)
		}
	}
	t.shrink()
	return untidy
}

// shrink forgets half of the unused directories if there are too many. Forgetting a
// directory costs an fsync later and nothing else. t.mu is held.
func (t *dirTable) shrink() {
	if len(t.m) <= maxDurable {
		return
	}
	for d, st := range t.m {
		if st.uses == 0 {
			delete(t.m, d)
		}
		if len(t.m) <= maxDurable/2 {
			return
		}
	}
}

// isDurable reports whether the entry of a leased directory needs no fsync.
func (t *dirTable) isDurable(dir string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[dir].durable
}

// setDurable records that the entry of a leased directory is durable, or that
// it was made anew and is not.
func (t *dirTable) setDurable(dir string, durable bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m[dir].durable = durable
}

// remove calls rmdir if dir is not in use, and reports whether that succeeded. No commit
// begins to use dir in between.
func (t *dirTable) remove(dir string, rmdir func() error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if st := t.m[dir]; st != nil && st.uses > 0 {
		st.untidy = true
		return false
	}
	if rmdir() != nil {
		return false
	}
	delete(t.m, dir)
	return true
}

// tidy removes dir and the directories above it as far as they are empty and not in use.
// A failure is ignored: an empty directory does no harm.
func (s *Store) tidy(dir string) {
	for ; dir != "."; dir = path.Dir(dir) {
		parent, base := split(dir)
		fd, err := s.paths.open(parent, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return
		}
		removed := s.dirs.remove(dir, func() error { return unix.Unlinkat(fd, base, unix.AT_REMOVEDIR) })
		closeDir(fd)
		if !removed {
			return
		}
	}
}

// release ends a lease, and tidies up what a deletion left because of the lease.
func (s *Store) release(l *lease) {
	if s.dirs.release(l) {
		s.tidy(l.dir)
	}
}

// place durably turns a file into the object with the given key. The file is called name
// and lies in the directory from. The file's data must be durable already. If ifAbsent is
// set and there is something under the key, the error is EEXIST.
func (s *Store) place(from int, name, key string, ifAbsent bool) (err error) {
	dir, base := split(key)
	l := s.dirs.acquire(dir)
	defer func() {
		s.release(l)
		if err != nil && l.made {
			s.tidy(dir)
		}
	}()
	for range placeAttempts {
		var fd int
		if fd, err = s.makeDir(l, dir); err == nil {
			if err = s.rename(from, name, fd, base, ifAbsent); err == nil {
				err = s.syncDirs(l, fd)
			}
			closeDir(fd)
		}
		if err == unix.ENOTDIR || err == unix.ELOOP {
			return fmt.Errorf("%w: %s, or what is above it, is no directory", objstore.ErrTaken, dir)
		}
		// ENOENT: another process removed a directory that was still empty. Or the file
		// itself is gone; the number of attempts bounds that case.
		if err != unix.ENOENT {
			break
		}
		var st unix.Stat_t
		if unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
			return fmt.Errorf("file %s: %w", name, objstore.ErrNotExist)
		}
	}
	return err
}

// makeDir opens the directory of a lease, or one above it, and creates missing
// directories. Errors are plain errnos.
func (s *Store) makeDir(l *lease, dir string) (fd int, err error) {
	fd, err = s.paths.openDir(dir)
	if err != unix.ENOENT || dir == "." {
		return fd, err
	}
	parent, base := split(dir)
	pfd, err := s.makeDir(l, parent)
	if err != nil {
		return -1, err
	}
	defer closeDir(pfd)
	switch err := unix.Mkdirat(pfd, base, s.dirMode); err {
	case nil:
		s.dirs.setDurable(dir, false)
		l.made = l.made || dir == l.dir
	case unix.EEXIST: // made by another one just now
	default:
		return -1, err
	}
	return openat(pfd, base, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// rename moves a file to another directory. The file name in the directory from becomes
// the file base in the directory dirfd.
func (s *Store) rename(from int, name string, dirfd int, base string, ifAbsent bool) error {
	if !ifAbsent {
		err := unix.Renameat(from, name, dirfd, base)
		if err == unix.EISDIR {
			if err := moveDirAside(dirfd, base); err != nil {
				return err
			}
			err = unix.Renameat(from, name, dirfd, base)
		}
		return err
	}
	err := unix.Renameat2(from, name, dirfd, base, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	// NFS has no RENAME_NOREPLACE. A kill between the two calls leaves a
	// second name of the object in _staging, which does no harm: nobody
	// writes to it, and SweepUploads removes it.
	if err := unix.Linkat(from, name, dirfd, base, 0); err != nil {
		return err
	}
	return ignore(unix.Unlinkat(from, name, 0), unix.ENOENT)
}

// moveDirAside moves a directory out of an object's place. It removes the directory if it
// is empty. Otherwise it renames it beside its old place, so that nothing in it is lost.
func moveDirAside(dirfd int, base string) error {
	err := unix.Unlinkat(dirfd, base, unix.AT_REMOVEDIR)
	if err == unix.ENOTEMPTY || err == unix.EEXIST {
		err = unix.Renameat(dirfd, base, dirfd, base+".aside-"+rand.Text())
	}
	if err != nil && err != unix.ENOENT {
		return fmt.Errorf("%w: the directory %s cannot be moved away: %w", objstore.ErrTaken, base, err)
	}
	return nil
}

// syncDirs makes the entries of the lease's directory fd durable. It also makes the entry
// of that directory durable, and the entries of the directories above it, unless they are
// durable already.
//
// The order does not matter after a power cut, because an object can be reached only if
// its whole chain of directories is on the disk. Bottom up is cheapest: on ext4, XFS and
// btrfs the first fsync commits the whole transaction, and the others only flush the
// disk's cache. Measured on ext4, this is as fast as a single fsync of the lowest
// directory, and concurrent calls are no faster.
func (s *Store) syncDirs(l *lease, fd int) error {
	if err := fsync(fd); err != nil {
		return fmt.Errorf("sync directory %s: %w", l.dir, err)
	}
	for d := l.dir; d != "."; d = path.Dir(d) {
		if s.dirs.isDurable(d) {
			continue
		}
		pfd, err := s.paths.openDir(path.Dir(d))
		if err == nil {
			err = errors.Join(fsync(pfd), unix.Close(pfd))
		}
		if err != nil {
			return fmt.Errorf("sync directory %s: %w", path.Dir(d), err)
		}
		s.dirs.setDurable(d, true)
	}
	return nil
}
