// Package fsstore keeps objects as files of a local or network file system.
//
// The object of key a/b/c is the regular file root/a/b/c. Uploads, and Puts
// under way, are files in root/_staging, named by 26 random characters. Keys
// below _staging and lost+found are refused. A key cannot be the directory of
// another key: with a/b stored, a/b/c is an error.
//
// # Durability
//
// An object comes into being by these system calls:
//
//	openat(_staging, id, O_CREAT|O_EXCL)    at the first Write
//	flock(LOCK_EX)                          one writer for each upload
//	fallocate(KEEP_SIZE)                    with a sizeHint of 1 MiB or more
//	pwrite ...                              each Write
//	sync_file_range(SYNC_FILE_RANGE_WRITE)  every 8 MiB: start writing back
//	ftruncate                               if more was reserved than written
//	fdatasync                               the bytes are durable
//	mkdirat                                 each directory that is missing
//	renameat2(_staging/id -> key)           the object is visible, whole
//	fsync(directory of the object)          the name is durable
//	fsync(its parent) ...                   for each directory not known to be durable
//
// Put does all of this in one call. A conditional Put renames with RENAME_NOREPLACE, or
// uses linkat and unlinkat if the file system lacks it. A kill or a power cut at any
// point leaves no partial object, because the name appears only after fdatasync. It may
// leave a file in _staging, which SweepUploads removes. Between the rename and the last
// fsync, another caller can already see the object, although a power cut can still remove
// it.
//
// After a failed fdatasync the kernel may have dropped the dirty pages and
// marked them clean, so that a second fdatasync succeeds without the bytes
// being on the disk. Hence a failure there is final: the upload is removed.
//
// AdoptFile does to a file from elsewhere what Commit does to an upload, beginning
// with fdatasync. A file of another file system is copied. A power cut right after the
// rename leaves the old name or the new one, on file systems where rename is one
// change of the journal (ext4, XFS, btrfs).
//
// Suspend does not sync. A suspended upload survives the death of the process.
// After a power cut it may be shorter, which Resume reports as ErrNotExist; on
// a file system that updates the size before the data (ext4 with
// data=writeback) it may hold wrong bytes.
//
// # Safety
//
// No path is resolved through a symbolic link below root, and none leaves root: openat2
// with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, or, where the kernel or a seccomp filter
// forbids openat2, one openat with O_NOFOLLOW for each segment. Symbolic links,
// directories, FIFOs and other special files are not objects. They are neither read nor
// listed.
//
// Several processes may share one root. Each upload is locked with flock while
// it is open, so that a process that lost an upload to another one cannot
// write into the committed object.
package fsstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/durable"
	"example.org/slipway/registry/objstore"
)

const (
	stagingDir = "_staging"
	// lostFound belongs to fsck at the root of an ext4 file system. Only root can read
	// it.
	lostFound = "lost+found"
)

// Options are the options of a Store. The zero value works.
type Options struct {
	// DirMode is the mode of directories the store makes, before the umask.
	// Default 0700: objects may be private.
	DirMode fs.FileMode
	// FileMode is the mode of files the store makes, before the umask.
	// Default 0600.
	FileMode fs.FileMode
	// Dirs are directories that objects will be in. New refuses a store in which one of
	// them, or what is directly below it, is a symbolic link or another file system. By
	// default nothing is checked, and the first object there fails instead.
	Dirs []string
	// KeepFree is how many bytes of the disk must stay free. A write or a Put that would
	// leave less fails with ErrNoSpace. Default 0.
	KeepFree int64
}

// inodesAgain is how long the store waits before it asks again for inodes after it ran
// out: somebody has to delete files first.
const inodesAgain = 30 * time.Second

// Store is an [objstore.Store], [objstore.UploadSweeper] and [objstore.Mover] in
// a directory.
// It holds two descriptors, one more for each open object or upload that was
// written to or resumed, and a few during a call.
type Store struct {
	root     string // absolute
	paths    resolver
	staging  int // descriptor of root/_staging
	dirMode  uint32
	fileMode uint32
	keepFree int64
	dirs     dirTable
	bufs     buffers
	closed   atomic.Bool
}

var (
	_ objstore.Store         = (*Store)(nil)
	_ objstore.UploadSweeper = (*Store)(nil)
	_ objstore.Mover         = (*Store)(nil)
	_ objstore.Opener        = (*Store)(nil)
	_ objstore.Adopter       = (*Store)(nil)
)

// New opens the store in the directory root, and creates it if it is missing. root itself
// may be reached through symbolic links. opts may be nil.
func New(root string, opts *Options) (*Store, error) {
	if opts == nil {
		opts = &Options{}
	}
	s := &Store{dirMode: 0o700, fileMode: 0o600, staging: -1, keepFree: opts.KeepFree}
	if opts.DirMode != 0 {
		s.dirMode = uint32(opts.DirMode.Perm())
	}
	if opts.FileMode != 0 {
		s.fileMode = uint32(opts.FileMode.Perm())
	}
	var err error
	if s.root, err = filepath.Abs(root); err != nil {
		return nil, fmt.Errorf("resolve store directory: %w", err)
	}
	if err := MakeDir(s.root, fs.FileMode(s.dirMode)); err != nil {
		return nil, fmt.Errorf("make store directory: %w", err)
	}
	if s.paths, err = newResolver(s.root); err != nil {
		return nil, fmt.Errorf("open store directory %s: %w", s.root, err)
	}
	if err := s.openStaging(); err != nil {
		return nil, errors.Join(fmt.Errorf("open staging directory %s/%s: %w", s.root, stagingDir, err), s.Close())
	}
	if err := s.checkLayout(opts.Dirs); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// MakeDir creates the directory dir and its missing parents, each one durably. mode is
// before the umask. Existing directories are left as they are.
func MakeDir(dir string, mode fs.FileMode) error {
	err := os.Mkdir(dir, mode)
	parent := filepath.Dir(dir)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := MakeDir(parent, mode); err != nil {
			return err
		}
		err = os.Mkdir(dir, mode)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return durable.SyncDir(parent)
}

// openStaging makes and opens the staging directory.
func (s *Store) openStaging() error {
	err := unix.Mkdirat(s.paths.root, stagingDir, s.dirMode)
	if err != nil && err != unix.EEXIST {
		return err
	}
	if err == nil {
		if err := fsync(s.paths.root); err != nil {
			return err
		}
	}
	s.staging, err = s.paths.openDir(stagingDir)
	return err
}

// Close releases the store's descriptors. It must not run together with
// another method. Objects and uploads that are open stay usable, but an upload
// cannot be committed any more.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	err := unix.Close(s.paths.root)
	if s.staging >= 0 {
		err = errors.Join(err, unix.Close(s.staging))
	}
	return err
}

// begin makes the checks with which every method starts.
func (s *Store) begin(ctx context.Context) error {
	if s.closed.Load() {
		return fmt.Errorf("object store %s: %w", s.root, fs.ErrClosed)
	}
	return ctx.Err()
}

// beginKey is like begin, for a method with a key.
func (s *Store) beginKey(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if top, _, _ := strings.Cut(key, "/"); reserved(top) {
		return fmt.Errorf("key %q: %s is kept for the file system store", key, top)
	}
	return s.begin(ctx)
}

// reserved reports whether no object may have a name at the root.
func reserved(top string) bool { return top == stagingDir || top == lostFound }

// Get opens n bytes of an object from the offset off. See [objstore.Store].
func (s *Store) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return nil, err
	}
	if off < 0 {
		return nil, fmt.Errorf("read object %s: offset %d is negative", key, off)
	}
	// O_NONBLOCK: opening a FIFO must not wait for a writer.
	fd, info, err := s.open(key, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	off = min(off, info.Size)
	end := info.Size
	if n >= 0 && n < end-off {
		end = off + n
	}
	return &object{f: os.NewFile(uintptr(fd), key), info: info, off: off, end: end, bufs: &s.bufs}, nil
}

// OpenAt opens an object for reads at places. See [objstore.Opener].
func (s *Store) OpenAt(ctx context.Context, key string) (objstore.ReadAtCloser, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return nil, err
	}
	fd, _, err := s.open(key, unix.O_RDONLY|unix.O_NONBLOCK) // not blocked by a FIFO
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), key), nil
}

// Stat describes an object. See [objstore.Store].
func (s *Store) Stat(ctx context.Context, key string) (objstore.Info, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return objstore.Info{}, err
	}
	fd, info, err := s.open(key, unix.O_PATH)
	if err != nil {
		return objstore.Info{}, err
	}
	return info, unix.Close(fd)
}

// open opens the file of an object and checks that it is one. On file systems that identify
// files by their names (NFS and some FUSE file systems), an open file is gone once another file
// takes its name. It is then opened again.
func (s *Store) open(key string, flags int) (fd int, info objstore.Info, err error) {
	for range 3 {
		if fd, info, err = s.openOnce(key, flags); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESTALE) {
			break
		}
	}
	return fd, info, err
}

func (s *Store) openOnce(key string, flags int) (fd int, info objstore.Info, err error) {
	fd, err = s.paths.open(key, flags)
	if notThere(err) {
		return -1, info, fmt.Errorf("object %s: %w", key, objstore.ErrNotExist)
	}
	if err != nil {
		return -1, info, fmt.Errorf("open object %s: %w", key, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err != nil {
		err = fmt.Errorf("stat object %s: %w", key, err)
	} else if st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("object %s: %w", key, objstore.ErrNotExist)
	}
	if err != nil {
		return -1, info, errors.Join(err, unix.Close(fd))
	}
	return fd, infoOf(key, &st), nil
}

func infoOf(key string, st *unix.Stat_t) objstore.Info {
	return objstore.Info{Key: key, Size: st.Size, ModTime: time.Unix(st.Mtim.Unix())}
}

// Put writes a small object whole. See [objstore.Store]. When it returns
// ErrExist the other object is durable.
func (s *Store) Put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	if err := s.beginKey(ctx, key); err != nil {
		return err
	}
	if ifAbsent {
		if _, err := s.Stat(ctx, key); err == nil {
			return s.exists(key)
		}
	}
	u := s.newUpload(-1)
	if _, err := u.Write(data); err != nil {
		return errors.Join(fmt.Errorf("put object %s: %w", key, err), u.drop())
	}
	err := u.commit(key, ifAbsent)
	if errors.Is(err, unix.EEXIST) && ifAbsent {
		return s.exists(key)
	}
	if err != nil {
		return fmt.Errorf("put object %s: %w", key, err)
	}
	return nil
}

// exists returns the error of a conditional Put whose key is taken. The writer of the
// object may still be syncing its directories.
func (s *Store) exists(key string) error {
	dir, base := split(key)
	l := s.dirs.acquire(dir)
	defer s.release(l)
	fd, err := s.paths.openDir(dir)
	if notThere(err) { // deleted meanwhile
		return fmt.Errorf("object %s: %w", key, objstore.ErrExist)
	}
	if err != nil {
		return fmt.Errorf("open directory of object %s: %w", key, err)
	}
	defer closeDir(fd)
	var st unix.Stat_t
	if err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("put object %s: %w", key, objstore.ErrTaken)
	}
	if err := s.syncDirs(l, fd); err != nil {
		return fmt.Errorf("sync directory of object %s: %w", key, err)
	}
	return fmt.Errorf("object %s: %w", key, objstore.ErrExist)
}

// Delete removes an object, and the directories it leaves empty. See
// [objstore.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.beginKey(ctx, key); err != nil {
		return err
	}
	dir, base := split(key)
	fd, err := s.paths.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if notThere(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open directory of object %s: %w", key, err)
	}
	var st unix.Stat_t
	if err = unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		err = unix.Unlinkat(fd, base, 0)
	}
	closeDir(fd)
	if ignore(err, unix.ENOENT) != nil {
		return fmt.Errorf("delete object %s: %w", key, err)
	}
	s.tidy(dir)
	return nil
}

// Move gives an object another key. See [objstore.Mover].
func (s *Store) Move(ctx context.Context, from, to string) error {
	if err := errors.Join(s.beginKey(ctx, from), s.beginKey(ctx, to)); err != nil {
		return err
	}
	dir, base := split(from)
	fd, err := s.paths.openDir(dir)
	if err == nil {
		var st unix.Stat_t
		if err = unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			err = unix.ENOENT
		}
		if err == nil {
			err = s.place(fd, base, to, false)
		}
		if err == nil {
			err = fsync(fd)
		}
		closeDir(fd)
	}
	if notThere(err) {
		err = objstore.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("move object %s to %s: %w", from, to, s.spaceError(err))
	}
	s.tidy(dir)
	return nil
}

// split takes a key apart into directory and name. The directory of a key
// without slash is ".".
func split(key string) (dir, base string) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 {
		return ".", key
	}
	return key[:i], key[i+1:]
}

// ignore returns err unless it is errno.
func ignore(err error, errno unix.Errno) error {
	if err == errno {
		return nil
	}
	return err
}

// spaceError marks errors that mean a full disk or quota. A disk that only lacks inodes
// is not full: small contents, which need none, are still stored.
func (s *Store) spaceError(err error) error {
	var st unix.Statfs_t
	if errors.Is(err, unix.ENOSPC) && unix.Fstatfs(s.paths.root, &st) == nil && st.Files > 0 && st.Ffree == 0 {
		return &objstore.BusyError{RetryAfter: inodesAgain, Err: fmt.Errorf("the file system has no inodes left: %w", err)}
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", objstore.ErrNoSpace, err)
	}
	return err
}
