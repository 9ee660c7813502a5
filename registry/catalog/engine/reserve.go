package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrFull says that the catalogue's disk has no room for anything new. Changes that free
// room still work.
var ErrFull = errors.New("the catalogue's disk is full")

// A reserve keeps a part of the disk for the changes that make room, because SQLite must
// write to its log before it can delete anything. The reserve is a file beside the
// catalogue. If a change finds the disk full, the file is truncated and the change runs
// again. From then on [DB.Room] refuses new content until there is room to restore the
// whole file. So only deleting and collecting use the reserve up. It is given up in
// steps, because anyone else who writes to the disk takes the free space.
//
// Only a start gives up the last quarter of the reserve, because SQLite then creates a
// log and its index, even for reading. What the start leaves of it is kept for the next
// start.
type reserve struct {
	path string
	// want is how many bytes to keep. It is 0 if the size of the disk is not known.
	want int64

	mu sync.Mutex
	// have is the size of the file, and had is the largest size that it has had.
	have, had int64
	// given is how many bytes were given up since the last successful change.
	given int64
}

// reserveSuffix is what follows the catalogue's name in the name of the reserve.
const reserveSuffix = "-reserve"

const (
	// reserveMost is the maximum size of the reserve. It is four times the size at which
	// the log is copied into the catalogue's file. That file may have to grow by as much,
	// and a collection writes as much again.
	reserveMost = 4 * checkpointPages * pageBytes
	// reserveShare is the divisor that gives the share of a small disk to keep.
	reserveShare = 8
	pageBytes    = 4096
)

// newReserve returns the reserve of the catalogue at path, with the file's present size.
func newReserve(path string) *reserve {
	r := &reserve{path: path + reserveSuffix}
	if total, _ := diskOf(filepath.Dir(path)); total > 0 && total < math.MaxInt64 {
		r.want = min(reserveMost, total/reserveShare) &^ (pageBytes - 1)
	}
	if st, err := os.Stat(r.path); err == nil {
		r.have = min(st.Size(), r.want)
		r.had = r.have
	}
	return r
}

// diskOf returns the size of a directory's file system and its free space. If the file
// system does not say, both are huge.
func diskOf(dir string) (total, free int64) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Blocks == 0 || st.Bsize <= 0 || st.Blocks > uint64(math.MaxInt64/st.Bsize) {
		return math.MaxInt64, math.MaxInt64
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize
}

// free returns the free space of the disk, without the reserve.
func (r *reserve) free() int64 {
	_, free := diskOf(filepath.Dir(r.path))
	return free
}

// low reports whether a part of the reserve was given up.
func (r *reserve) low() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.have < r.want
}

// fill makes the reserve whole if there is room, or at least the part that a start needs.
// A failure is no error, because [DB.Room] reports it.
func (r *reserve) fill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, size := range []int64{r.want, r.floor()} {
		if r.free() >= size-r.have+r.floor() {
			r.growTo(size)
		}
	}
}

// refill runs after a change. It enlarges the reserve again by the free space of the
// disk, but leaves one step free for the next change. Only the writer calls it, while it
// has nothing to write.
func (r *reserve) refill() {
	r.fill()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given = 0
	if step := r.step(); step > 0 {
		r.growTo(min(r.had, r.have+(r.free()/step-1)*step))
	}
}

// keep makes the reserve as large as it was, as far as the disk allows.
func (r *reserve) keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.growTo(min(r.had, r.have+r.free()&^(pageBytes-1)))
}

// growTo enlarges the file to size, unless it is larger already or there is no room. r.mu
// is held.
func (r *reserve) growTo(size int64) {
	if size > r.have && r.grow(size) == nil {
		r.have, r.had = size, max(size, r.had)
	}
}

// step returns how much is given up at first. That is enough to delete an image.
func (r *reserve) step() int64 { return r.want / 64 &^ (pageBytes - 1) }

// floor returns the size of the part that only a start gives up. The same amount must be
// free for anything new.
func (r *reserve) floor() int64 { return r.want / 4 }

// grow enlarges the file, or leaves it as it is. r.mu is held.
func (r *reserve) grow(size int64) (err error) {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Truncate(r.have))
		}
		err = errors.Join(err, f.Close())
	}()
	err = unix.Fallocate(int(f.Fd()), 0, r.have, size-r.have)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		// Write random bytes, because the file system may store zeros as nothing.
		_, err = io.Copy(io.NewOffsetWriter(f, r.have), io.LimitReader(rand.Reader, size-r.have))
	}
	if err != nil {
		return err
	}
	return f.Sync()
}

// release gives a step of the reserve back to the disk, and twice as much each time if
// that was not enough. If all is set, as at a start, it gives back everything. It reports
// whether there was something to give back.
func (r *reserve) release(all bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	part := max(r.given, r.step())
	keep := max(r.floor(), r.have-part)
	if all {
		keep = 0
	}
	if r.have <= keep {
		return false
	}
	r.given += part
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	// Sync, because file systems with a journal reuse the blocks only after that.
	err = errors.Join(f.Truncate(keep), f.Sync(), f.Close())
	r.have = keep
	return err == nil
}

// logPages returns how large the log may become before it is copied into the catalogue's
// file. That is at most a quarter of the reserve. r is nil if there is no reserve.
func (r *reserve) logPages() int {
	switch {
	case r == nil || r.want == 0:
		return checkpointPages
	case r.low():
		return 1
	}
	return int(min(checkpointPages, r.want/4/pageBytes))
}

// lacksRoom reports whether the disk was full when SQLite failed. If SQLite drops the
// system's error, lacksRoom asks the disk.
func (r *reserve) lacksRoom(err error) bool {
	const sqliteFull = 13
	const hardlyAny = 64 << 10 // the index of the log grows by 32 KiB
	var coded interface{ Code() int }
	switch {
	case err == nil:
		return false
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return true
	case errors.As(err, &coded) && coded.Code()&0xff == sqliteFull:
		return true
	}
	return errors.As(err, &coded) && r.free() < hardlyAny
}

// Room returns nil if the catalogue's disk has room for something new. Otherwise it
// returns an error that wraps [ErrFull].
func (db *DB) Room() error {
	if db.lite == nil || db.lite.reserve == nil {
		return nil
	}
	r := db.lite.reserve
	if r.low() {
		r.fill()
	}
	free := r.free()
	if !r.low() && free >= r.floor() {
		return nil
	}
	// The catalogue's file does not shrink, but pages that were deleted in it can be used
	// again.
	var pages int64
	if err := db.Row(context.Background(), `PRAGMA freelist_count`, nil, &pages); err != nil {
		return fmt.Errorf("ask for the free pages of the catalogue: %w", err)
	}
	if pages*pageBytes >= r.floor()/4 {
		return nil
	}
	return fmt.Errorf("%w: %d bytes are free in %s beside the reserve", ErrFull, free, filepath.Dir(r.path))
}

// openReserved opens the connections of a catalogue that may have a reserve. It gives up
// the whole reserve if the disk is too full to open them.
func (e *sqlite) openReserved(ctx context.Context, path string, readers int) error {
	err := e.open(ctx, path, readers)
	if e.reserve == nil {
		return err
	}
	if e.reserve.lacksRoom(err) && e.reserve.release(true) {
		err = e.open(ctx, path, readers)
	}
	if err == nil {
		e.reserve.keep()
		e.reserve.fill()
	}
	return err
}
