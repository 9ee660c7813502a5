package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// A failed fsync has three consequences that SQLite does not handle.
//
// First, the kernel may have marked pages as clean that never reached the disk. The next
// fsync skips these pages and succeeds. In the log, the pages of the failed commit do not
// matter, because the next commit overwrites them. But earlier lazy commits count as
// done, and their pages may be missing too. Recovery reads the log only up to such a gap,
// so a power cut would lose everything that was committed after it. Hence mend runs
// before anything else is committed. The same gap exists if a process was killed after
// the failure. The next process reads the refused commit from the page cache, accepts it,
// and appends to the log after it. Hence mendBeforeUse.
//
// Second, readers can stop a checkpoint half way. It counts the pages that it has copied
// into the catalogue's file as done, and leaves their fsync to the next checkpoint. If
// the second checkpoint fails, a third one copies and syncs only its own part, and then
// the log starts again from its beginning. Hence mendFile runs before a third checkpoint.
// Until then the log continues to grow. If the process crashes, the next one finds the
// log and copies all of it.
//
// Third, the refused commit may be whole in the log. It comes back at the next start,
// unless something was committed over it. Hence Settled.

// mend runs before a batch. It makes the log durable, unless that is certain already.
func (e *sqlite) mend() error {
	if !e.torn {
		return nil
	}
	err := e.alone(func() error { return rewriteLog(e.log) })
	if err != nil {
		return fmt.Errorf("make the catalogue's log durable after a failure: %w", err)
	}
	e.torn = false
	return nil
}

// explain says in the error of a commit if the disk was full. If a write failed, SQLite
// says so itself. File systems that allocate late find out during an fsync. In that case
// SQLite drops the system's error, but the fsync that mends the log returns it again.
func (e *sqlite) explain(err error) error {
	if mendErr := e.mend(); errors.Is(mendErr, syscall.ENOSPC) || errors.Is(mendErr, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", err, mendErr)
	}
	return e.impaired(err)
}

// impaired adds a reason to a failure if the machine cannot write or open files, because
// SQLite drops the system's error.
func (e *sqlite) impaired(err error) error {
	var coded interface{ Code() int }
	const readOnly, ioErr, cantOpen = 8, 10, 14
	if !errors.As(err, &coded) {
		return err
	}
	switch coded.Code() & 0xff {
	case readOnly, ioErr, cantOpen:
		dir := filepath.Dir(e.log)
		if cause := tryDir(dir); cause != nil {
			return fmt.Errorf("%w: %w", err, cause)
		}
		if e.reserve != nil && e.reserve.lacksRoom(err) {
			return fmt.Errorf("%w: the disk of %s is full, and the reserve is used up; free a megabyte there by hand: %w", err, dir, syscall.ENOSPC)
		}
	}
	return err
}

// tryDir opens a directory and sets its time of access.
func tryDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
	return errors.Join(unix.UtimesNanoAt(unix.AT_FDCWD, dir, now, 0), f.Close())
}

// mendFile runs before a checkpoint. It makes what was copied into the catalogue's file
// durable, unless that is certain already.
func (e *sqlite) mendFile() error {
	if !e.fileTorn {
		return nil
	}
	err := e.alone(func() error { return rewrite(e.file) })
	if err != nil {
		return fmt.Errorf("make the catalogue durable after a failure: %w", err)
	}
	e.fileTorn = false
	return nil
}

// alone runs the function do while nobody else writes.
func (e *sqlite) alone(do func() error) error {
	if err := e.do("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer e.rollback(nil)
	return do()
}

// mendBeforeUse makes durable what the previous process left in the log.
func mendBeforeUse(ctx context.Context, db *sql.DB, log string) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err = rewriteLog(log)
	_, err2 := conn.ExecContext(ctx, "ROLLBACK")
	return errors.Join(err, err2)
}

// rewriteLog is like rewrite, for the log, which may not exist.
func rewriteLog(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(rewrite(f), f.Close())
}

// rewrite writes a file's bytes over themselves, so that each page must be written back,
// and syncs the file. Others may read the file meanwhile. An empty file needs nothing.
func rewrite(f *os.File) error {
	buf := make([]byte, 256<<10)
	for off := int64(0); ; {
		n, err := f.ReadAt(buf, off)
		if err != nil && err != io.EOF {
			return err
		}
		if _, err := f.WriteAt(buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
		switch {
		case off == 0:
			return nil
		case err == io.EOF:
			return f.Sync()
		}
	}
}

const (
	// checkpointPages is how large the log may become before it is copied into the
	// catalogue's file, in pages of 4 KiB.
	checkpointPages = 2000
	// checkpointEvery is the number of batches between checks of the size of the log. A
	// check takes 9 us.
	checkpointEvery = 8
)

// checkpoint copies the log into the catalogue's file once the log is large. SQLite would
// do so by itself, but would hide failures.
//
// checkpoint waits for a synced batch. It syncs the log itself, but after a synced batch
// there is nothing left to sync, and so nothing to lose. If there is no such batch for a
// long time, it makes the next batch a synced one.
func (e *sqlite) checkpoint() {
	synced := !e.lazy && !e.syncNext
	every, most := checkpointEvery, e.reserve.logPages()
	if most == 1 { // each page of the log counts
		every = 1
	}
	if e.batches++; e.torn || e.batches < every || !synced && e.batches%every != 0 {
		return
	}
	pages, copied, err := e.walCheckpoint("NOOP")
	if synced {
		e.batches = 0
		if err == nil && pages-copied >= most && e.mendFile() == nil {
			_, _, err = e.walCheckpoint("PASSIVE")
			if e.makeRoom(err) {
				_, _, err = e.walCheckpoint("PASSIVE")
			}
		}
	} else if err == nil && pages-copied >= 3*most { // a higher limit, because usually a change that is synced anyway comes first
		e.syncNext = true
	}
	if isIOError(err) {
		// No change depends on the checkpoint: the log has everything, and another
		// attempt follows when both files are mended.
		e.torn, e.fileTorn = true, true
	}
}

// isIOError distinguishes a failed fsync, and other failures of the disk, from a lack of
// room, which loses nothing.
func isIOError(err error) bool {
	var coded interface{ Code() int }
	const sqliteIOErr = 10 // the other bits say which call failed
	return errors.As(err, &coded) && coded.Code()&0xff == sqliteIOErr
}

// walCheckpoint returns how many pages the log has, and how many of them are already in
// the catalogue's file.
func (e *sqlite) walCheckpoint(mode string) (pages, copied int, err error) {
	var busy int
	one := firstRow{dest: []any{&busy, &pages, &copied}}
	rows, err := e.query(nil, "PRAGMA wal_checkpoint("+mode+")", nil)
	return pages, copied, one.result(eachRow(rows, err, one.scan))
}

func (e *sqlite) Settled(ctx context.Context) error {
	if !e.doubt.Load() {
		return nil
	}
	err := e.db.Write(ctx, e.touch)
	if err != nil {
		return fmt.Errorf("commit over what was refused before: %w", err)
	}
	return nil
}

// touch gives a transaction something to commit. Nobody reads the value that it writes.
// It changes the first page even if the value stays the same.
func (e *sqlite) touch(t *Tx) error {
	_, err := t.Exec("PRAGMA user_version = 1")
	return err
}
