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

// ErrFull says that the catalogue's disk has no room for anything new. What frees
// room still works.
var ErrFull = errors.New("the catalogue's disk is full")

// A reserve keeps a part of the disk for the changes that make room: SQLite has to
// write to its log before it can delete anything. It is a file beside the catalogue.
// When a change finds the disk full, the file is cut and the change runs again. From
// then on [DB.Room] refuses what is new, until there is room to make the file
// whole again; so nothing but deleting and collecting uses it up. It is given up in
// steps, because whoever else writes to the disk takes what is free.
//
// A quarter of the reserve is only given up by a start: SQLite makes a log and its
// index then, also to read. What the start leaves of it is kept for the next one.
type reserve struct {
	path string
	// want is how many bytes are kept; 0 where the size of the disk is not known.
	want int64

	mu sync.Mutex
	// have is how large the file is, had how large it was at most.
	have, had int64
	// given is how much was given up since the last change that succeeded.
	given int64
}

// reserveSuffix is behind the catalogue's name in that of the reserve.
const reserveSuffix = "-reserve"

const (
	// reserveMost is four times what the log grows to before it is copied into the
	// catalogue's file: that file may have to grow by as much, and a collection writes
	// again as much.
	reserveMost = 4 * checkpointPages * pageBytes
	// reserveShare is which part of a small disk is kept.
	reserveShare = 8
	pageBytes    = 4096
)

// newReserve returns the reserve of the catalogue at path, as it lies there.
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

// diskOf returns the size of a directory's file system and what is free of it. Where
// it does not tell, both are plenty.
func diskOf(dir string) (total, free int64) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Blocks == 0 || st.Bsize <= 0 || st.Blocks > uint64(math.MaxInt64/st.Bsize) {
		return math.MaxInt64, math.MaxInt64
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize
}

// free is what is free of the disk beside the reserve.
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

// fill makes the reserve whole if there is room for that, or at least the part of it
// that a start needs. That it cannot is no error: [DB.Room] tells.
func (r *reserve) fill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, size := range []int64{r.want, r.floor()} {
		if r.free() >= size-r.have+r.floor() {
			r.growTo(size)
		}
	}
}

// refill takes back, behind a change, what of the reserve is free beyond a step. The step
// is for the next change. Only the writer calls it, which has nothing to write then.
func (r *reserve) refill() {
	r.fill()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given = 0
	if step := r.step(); step > 0 {
		r.growTo(min(r.had, r.have+(r.free()/step-1)*step))
	}
}

// keep makes the reserve as large as it was, if the disk allows it.
func (r *reserve) keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.growTo(min(r.had, r.have+r.free()&^(pageBytes-1)))
}

// growTo makes the file of that size, unless it is larger or there is no room. r.mu is held.
func (r *reserve) growTo(size int64) {
	if size > r.have && r.grow(size) == nil {
		r.have, r.had = size, max(size, r.had)
	}
}

// step is how much is given up at first: enough to delete an image.
func (r *reserve) step() int64 { return r.want / 64 &^ (pageBytes - 1) }

// floor is the part that only a start gives up, and also how much is to be free for
// anything new.
func (r *reserve) floor() int64 { return r.want / 4 }

// grow makes the file larger, or leaves it as it is. r.mu is held.
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
		// Random bytes, as zeros may be stored as nothing.
		_, err = io.Copy(io.NewOffsetWriter(f, r.have), io.LimitReader(rand.Reader, size-r.have))
	}
	if err != nil {
		return err
	}
	return f.Sync()
}

// release gives a step of the reserve back to the disk, twice as much each time that
// this was not enough, and for a start all of it. It reports whether there was something
// to give.
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
	// Synced, as file systems with a journal reuse the blocks only after that.
	err = errors.Join(f.Truncate(keep), f.Sync(), f.Close())
	r.have = keep
	return err == nil
}

// logPages is how large the log may grow before it is copied into the catalogue's
// file: a quarter of the reserve at most. nil is no reserve.
func (r *reserve) logPages() int {
	switch {
	case r == nil || r.want == 0:
		return checkpointPages
	case r.low():
		return 1
	}
	return int(min(checkpointPages, r.want/4/pageBytes))
}

// lacksRoom reports whether a failure of SQLite is one of a full disk. Where SQLite
// drops the system's error, the disk is asked.
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

// Room returns nil when the catalogue's disk has room for something new, or an error
// that is [ErrFull].
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
	// The catalogue's file does not become smaller, but what was deleted in it makes
	// room in it.
	var pages int64
	if err := db.Row(context.Background(), `PRAGMA freelist_count`, nil, &pages); err != nil {
		return fmt.Errorf("ask for the free pages of the catalogue: %w", err)
	}
	if pages*pageBytes >= r.floor()/4 {
		return nil
	}
	return fmt.Errorf("%w: %d bytes are free in %s beside the reserve", ErrFull, free, filepath.Dir(r.path))
}

// openReserved opens the connections with a reserve, and gives that up if the disk is
// too full to open them.
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
