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

// A failed fsync leaves three things that SQLite does not deal with.
//
// First, the kernel may have marked pages clean that never reached the disk. The
// next fsync passes them over and succeeds. In the log, what the failed commit
// itself wrote does not matter, as the next one is written over it; but lazy
// commits before it count as done. Everything committed behind such a gap would
// be lost with the power, as recovery reads the log only up to the gap. Hence
// mend, before anything else is committed. The same gap is there when a process
// was killed after the failure: the next one reads the refused commit from the
// page cache, takes it for a good one, and goes on behind it. Hence
// mendBeforeUse.
//
// Second, a checkpoint that readers stop half way counts the pages it has copied
// into the catalogue's file as done, and leaves their fsync to the one that goes
// on. When that fails, a third one copies and syncs only its own part, and then
// the log is begun anew. Hence mendFile, before there is a third; until then the
// log goes on growing. A process that finds it after a crash copies all of it.
//
// Third, the refused commit may be whole in the log. It comes back at the next
// start unless something was committed over it. Hence settled.

// mend makes durable what is in the log, before a batch, if it may not be.
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

// explain adds to the failure of a commit that there was no room, if that was it.
// Of a write SQLite says so. Of an fsync, where file systems that allocate late
// find out, it drops the system's error; the fsync that mends the log has it too.
func (e *sqlite) explain(err error) error {
	if mendErr := e.mend(); errors.Is(mendErr, syscall.ENOSPC) || errors.Is(mendErr, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", err, mendErr)
	}
	return e.impaired(err)
}

// impaired adds to a failure what keeps the machine from writing or opening files, if
// that was it: SQLite drops the system's error.
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

// tryDir opens a directory and touches it.
func tryDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
	return errors.Join(unix.UtimesNanoAt(unix.AT_FDCWD, dir, now, 0), f.Close())
}

// mendFile makes durable what was copied into the catalogue's file, before a
// checkpoint, if it may not be.
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

// alone runs do while nobody else writes.
func (e *sqlite) alone(do func() error) error {
	if err := e.do("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer e.rollback(nil)
	return do()
}

// mendBeforeUse makes durable what the process before left in the log.
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

// rewriteLog is rewrite for the log, which may not be there.
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

// rewrite writes a file's bytes over themselves, so that each page is one to be
// written back, and syncs it. Others may read the file meanwhile. An empty file
// needs nothing.
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
	// checkpointPages is how large the log may grow before it is copied into
	// the catalogue's file, in pages of 4 KiB.
	checkpointPages = 2000
	// checkpointEvery is after how many batches the size of the log is looked
	// at. That costs 9 us.
	checkpointEvery = 8
)

// checkpoint copies the log into the catalogue's file when it has become large.
// SQLite would do so by itself, and hide its failures.
//
// It waits for a batch that was synced: the checkpoint itself syncs the log, and
// when it finds nothing to sync there it finds nothing to lose. When none comes
// for long, it makes the next batch one.
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
	} else if err == nil && pages-copied >= 3*most { // more, as most often a change comes that is synced anyway
		e.syncNext = true
	}
	if isIOError(err) {
		// No change depends on it: the log has everything, and another attempt
		// follows when both are mended.
		e.torn, e.fileTorn = true, true
	}
}

// isIOError tells an fsync that failed, and other failures of the disk, from a
// lack of room, which takes nothing away.
func isIOError(err error) bool {
	var coded interface{ Code() int }
	const sqliteIOErr = 10 // the rest of the code says in which call
	return errors.As(err, &coded) && coded.Code()&0xff == sqliteIOErr
}

// walCheckpoint returns how many pages the log has, and how many of them are in
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

// touch makes a transaction have something to commit. Nobody reads what it
// writes; it changes the first page, also when that stays the same.
func (e *sqlite) touch(t *Tx) error {
	_, err := t.Exec("PRAGMA user_version = 1")
	return err
}
