package fsstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry/objstore"
)

const (
	// writebackStep is how many bytes an upload receives before it orders the kernel to
	// write them back. Otherwise the kernel waits up to 30 s (vm.dirty_expire_centisecs),
	// and Commit has to wait for everything.
	writebackStep = 8 << 20
	// minReserve is the smallest sizeHint, in bytes, that is reserved on the disk.
	minReserve = 1 << 20
	// Beyond the bytes that have arrived, an upload reserves as much space again, but at
	// least minAhead and at most maxAhead. The size hint is only a client's claim, which
	// must not fill the disk before the bytes come.
	minAhead = 8 << 20
	maxAhead = 1 << 30
	// sweepBatch is the number of staging files SweepUploads reads at once.
	sweepBatch = 1024
)

// upload is an [objstore.Upload]. Its file is opened by the first Write and is
// locked while it is open.
type upload struct {
	s    *Store
	id   string
	f    *os.File // nil before the first Write
	size int64
	hint int64 // bytes to reserve in all, 0 for none

	reserved int64 // up to where the disk is reserved, 0 when nothing is
	started  int64 // bytes whose writeback was started
	checked  int64 // up to where there was room; see leaveRoom
	lost     error // what made the upload unusable
}

var _ objstore.Upload = (*upload)(nil)

var errUploadDone = errors.New("upload was committed, suspended or cancelled")

func (s *Store) newUpload(sizeHint int64) *upload {
	u := &upload{s: s, id: rand.Text()}
	if sizeHint >= minReserve {
		u.hint = sizeHint
	}
	return u
}

// NewUpload begins an upload. See [objstore.Store]. If the disk is too full for sizeHint,
// the first Write reports that.
func (s *Store) NewUpload(ctx context.Context, sizeHint int64) (objstore.Upload, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return s.newUpload(sizeHint), nil
}

// Resume continues a suspended upload. See [objstore.Store]. It returns an error for an
// upload that is open here or in another process, and leaves it as it is.
func (s *Store) Resume(ctx context.Context, state string, size int64) (objstore.Upload, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	f, st, err := s.openStaged(state)
	if err == nil && st.Size < size {
		err = fmt.Errorf("it holds %d bytes, not %d: %w", st.Size, size, objstore.ErrNotExist)
	}
	if err == nil && size < 0 {
		err = fmt.Errorf("size %d is negative", size)
	}
	if err == nil {
		// Truncate even if the size is the same: it releases what was reserved beyond it.
		err = f.Truncate(size)
	}
	if err != nil {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		return nil, fmt.Errorf("resume upload %q: %w", state, err)
	}
	return &upload{s: s, id: state, f: f, size: size, started: size &^ 4095}, nil
}

// openStaged opens and locks an existing staging file.
func (s *Store) openStaged(state string) (*os.File, *unix.Stat_t, error) {
	if !validID(state) {
		return nil, nil, objstore.ErrNotExist
	}
	// O_NONBLOCK: opening a FIFO must not wait for a reader.
	fd, err := openat(s.staging, state, unix.O_WRONLY|unix.O_NONBLOCK, 0)
	if notThere(err) {
		return nil, nil, objstore.ErrNotExist
	}
	if err != nil {
		return nil, nil, err
	}
	var st, name unix.Stat_t
	if err = lock(fd); err == nil {
		err = unix.Fstat(fd, &st)
	}
	// The previous holder of the lock may have removed the file, or made it an object,
	// which nobody may write to.
	if err == nil {
		err = unix.Fstatat(s.staging, state, &name, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == unix.ENOENT || err == nil && (name.Ino != st.Ino || name.Dev != st.Dev || st.Mode&unix.S_IFMT != unix.S_IFREG) {
		err = objstore.ErrNotExist
	}
	if err != nil {
		return nil, nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), state), &st, nil
}

// lock makes this process the only one to write to a staging file. A file
// system without locks is taken as one that is not shared.
func lock(fd int) error {
	err := retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	switch err {
	case unix.EWOULDBLOCK:
		return fmt.Errorf("upload is in use: %w", err)
	case unix.ENOSYS, unix.EOPNOTSUPP, unix.ENOLCK:
		return nil
	}
	return err
}

// validID reports whether id could be one that rand.Text makes: 26 characters of base32.
// Nothing else reaches the disk.
func validID(id string) bool {
	for i := range len(id) {
		if c := id[i]; !('A' <= c && c <= 'Z' || '2' <= c && c <= '7') {
			return false
		}
	}
	return len(id) == 26
}

// Abandon drops a suspended upload. See [objstore.Store].
func (s *Store) Abandon(ctx context.Context, state string) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	if !validID(state) {
		return nil
	}
	if err := ignore(unix.Unlinkat(s.staging, state, 0), unix.ENOENT); err != nil {
		return fmt.Errorf("abandon upload %q: %w", state, err)
	}
	return nil
}

func (u *upload) Size() int64 { return u.size }

// Write appends p. The file's size may be more than u.size after an error;
// what is beyond is overwritten by the next Write or cut by Commit.
func (u *upload) Write(p []byte) (int, error) {
	if u.lost != nil {
		return 0, u.lost
	}
	if err := u.open(); err != nil {
		return 0, fmt.Errorf("open upload: %w", u.s.spaceError(err))
	}
	if err := u.reserve(u.size + int64(len(p))); err != nil {
		return 0, fmt.Errorf("reserve disk for upload of %d bytes at %d: %w", u.hint, u.size, u.s.spaceError(err))
	}
	if err := u.leaveRoom(int64(len(p))); err != nil {
		return 0, fmt.Errorf("write upload at %d: %w", u.size, errors.Join(u.s.spaceError(err), u.giveBack()))
	}
	n, err := u.f.WriteAt(p, u.size)
	u.size += int64(n)
	if err != nil {
		err = errors.Join(err, u.giveBack())
		return n, fmt.Errorf("write upload at %d: %w", u.size, u.s.spaceError(err))
	}
	// The last page is left out unless it is full.
	if todo := u.size&^4095 - u.started; todo >= writebackStep {
		// This only starts the writeback. fdatasync will report an error again.
		_ = unix.SyncFileRange(int(u.f.Fd()), u.started, todo, unix.SYNC_FILE_RANGE_WRITE)
		u.started += todo
	}
	return n, nil
}

// open makes the staging file if it is not there yet.
func (u *upload) open() error {
	if u.f != nil {
		return nil
	}
	fd, err := openat(u.s.staging, u.id, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, u.s.fileMode)
	if err != nil {
		return err
	}
	if err := lock(fd); err != nil {
		return errors.Join(err, unix.Close(fd), unix.Unlinkat(u.s.staging, u.id, 0))
	}
	u.f = os.NewFile(uintptr(fd), u.id)
	return nil
}

// reserve reserves disk space for the bytes up to the offset end and for some of what is
// announced to follow. So a lack of space shows before gigabytes have been received.
func (u *upload) reserve(end int64) error {
	// Without a reservation, the bytes up to the size are already in the file.
	from := max(u.reserved, u.size)
	to := min(u.hint, end+min(max(end, minAhead), maxAhead))
	if end <= u.reserved || to <= from {
		return nil
	}
	if u.reserved == 0 && u.hint-u.size > u.available()-u.s.keepFree {
		return unix.ENOSPC
	}
	err := retry(func() error {
		return unix.Fallocate(int(u.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	})
	switch err {
	case nil:
		u.reserved = to
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		u.reserved = to // it may have got a part
		return errors.Join(err, u.giveBack())
	default:
		u.hint = 0 // it is no error that the file system does not support this
	}
	return nil
}

// leaveRoom refuses n more bytes if they would leave less of the disk free than KeepFree. It
// checks once for each MiB, and does not check bytes that are already reserved.
func (u *upload) leaveRoom(n int64) error {
	const step = 1 << 20
	end := u.size + n
	if u.s.keepFree == 0 || end <= max(u.checked, u.reserved) {
		return nil
	}
	if u.available()-u.s.keepFree < n {
		return unix.ENOSPC
	}
	u.checked = end + step
	return nil
}

// available returns the free bytes of the disk, or a large number if they are unknown.
func (u *upload) available() int64 {
	var st unix.Statfs_t
	err := retry(func() error { return unix.Fstatfs(int(u.f.Fd()), &st) })
	if err != nil || st.Blocks == 0 || st.Bsize <= 0 || st.Bavail > uint64(math.MaxInt64/st.Bsize) {
		return math.MaxInt64
	}
	return int64(st.Bavail) * st.Bsize
}

// giveBack returns to the disk what is reserved beyond the size: others need it.
func (u *upload) giveBack() error {
	if u.reserved <= u.size {
		return nil
	}
	// Truncate even if the size is the same: it releases the blocks beyond it.
	if err := u.f.Truncate(u.size); err != nil {
		return fmt.Errorf("give back reserved disk: %w", err)
	}
	u.reserved = 0
	return nil
}

// Tag returns "", because files have no tags.
func (u *upload) Tag() string { return "" }

// Suspend keeps the file and closes it. See [objstore.Upload]. It does not
// look at ctx: a request that was cancelled is a reason to suspend.
func (u *upload) Suspend(context.Context) (string, error) {
	if u.lost != nil {
		return "", u.lost
	}
	err := u.open()
	if err == nil {
		err = u.giveBack() // it may take days to go on
	}
	if err == nil {
		err = u.f.Close() // network file systems report a failed write here
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("suspend upload: %w", u.s.spaceError(err)), u.drop())
	}
	u.lost = errUploadDone
	return u.id, nil
}

// Commit turns the upload into the object with the given key. See [objstore.Upload].
func (u *upload) Commit(ctx context.Context, key string) error {
	if u.lost != nil {
		return u.lost
	}
	if err := u.s.beginKey(ctx, key); err != nil {
		return errors.Join(err, u.drop())
	}
	if err := u.commit(key, false); err != nil {
		return fmt.Errorf("commit object %s: %w", key, err)
	}
	return nil
}

// commit syncs and places the file. In any case the upload is done.
func (u *upload) commit(key string, ifAbsent bool) error {
	err := u.sync()
	if err == nil {
		err = u.s.place(u.s.staging, u.id, key, ifAbsent)
	}
	if err != nil {
		return errors.Join(u.s.spaceError(err), u.drop())
	}
	u.lost = errUploadDone
	// The bytes are durable, so closing cannot lose them. It comes last because it ends
	// the lock.
	_ = u.f.Close()
	return nil
}

// sync makes the bytes durable, and the file as long as the upload.
func (u *upload) sync() error {
	if err := u.open(); err != nil {
		return err
	}
	fd := int(u.f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Size != u.size || u.reserved > u.size {
		if err := u.f.Truncate(u.size); err != nil {
			return err
		}
	}
	if err := retry(func() error { return unix.Fdatasync(fd) }); err != nil {
		return fmt.Errorf("sync upload: %w", err)
	}
	return nil
}

// Cancel drops the upload. See [objstore.Upload].
func (u *upload) Cancel(context.Context) error {
	if u.lost != nil {
		return nil
	}
	if err := u.drop(); err != nil {
		return fmt.Errorf("cancel upload: %w", err)
	}
	return nil
}

// drop removes the file and ends the upload.
func (u *upload) drop() error {
	u.lost = errUploadDone
	if u.f == nil {
		return nil
	}
	// The file is removed before it is closed, because closing ends the lock. An error of
	// Close does not matter for a removed file.
	err := unix.Unlinkat(u.s.staging, u.id, 0)
	_ = u.f.Close()
	return ignore(err, unix.ENOENT)
}

// SweepUploads drops uploads that nobody continued. See [objstore.UploadSweeper]. It
// keeps an upload that is open, here or in another process, however old it is.
func (s *Store) SweepUploads(ctx context.Context, before time.Time, keep func(state string) bool) (n int, bytes int64, err error) {
	if err := s.begin(ctx); err != nil {
		return 0, 0, err
	}
	fd, err := s.paths.openDir(stagingDir)
	if err != nil {
		return 0, 0, fmt.Errorf("list uploads: %w", err)
	}
	dir := os.NewFile(uintptr(fd), stagingDir)
	defer dir.Close() // only read from
	for {
		names, err := dir.Readdirnames(sweepBatch)
		for _, id := range names {
			if err := ctx.Err(); err != nil {
				return n, bytes, err
			}
			size, ok, err := s.sweep(id, before, keep)
			if err != nil {
				return n, bytes, fmt.Errorf("sweep upload %q: %w", id, err)
			}
			if ok {
				n++
				bytes += size
			}
		}
		if err == io.EOF {
			return n, bytes, nil
		}
		if err != nil {
			return n, bytes, fmt.Errorf("list uploads: %w", err)
		}
	}
}

// sweep drops one staging file if it is old, claimed by nobody and not open.
func (s *Store) sweep(id string, before time.Time, keep func(string) bool) (size int64, ok bool, err error) {
	var st unix.Stat_t
	if !validID(id) {
		return 0, false, nil
	}
	if err := unix.Fstatat(s.staging, id, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, false, ignore(err, unix.ENOENT)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !time.Unix(st.Mtim.Unix()).Before(before) || keep(id) {
		return 0, false, nil
	}
	f, now, err := s.openStaged(id)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, objstore.ErrNotExist):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	defer f.Close() // written by nobody
	if !time.Unix(now.Mtim.Unix()).Before(before) {
		return 0, false, nil
	}
	if err := unix.Unlinkat(s.staging, id, 0); err != nil {
		return 0, false, ignore(err, unix.ENOENT)
	}
	return now.Size, true, nil
}
