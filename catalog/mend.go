package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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
// the log is begun anew. Hence mend, for the file too, before there is a third.
// A process that finds the log after a crash copies all of it.
//
// Third, the refused commit may be whole in the log. It comes back at the next
// start unless something was committed over it. Hence settled.

// mend makes durable what SQLite takes to be, before a batch, if it may not be.
func (t *tx) mend() error {
	if !t.torn {
		return nil
	}
	if err := t.begin(); err != nil { // keeps everybody else from writing
		return err
	}
	defer t.rollback()
	if err := rewriteLog(t.log); err != nil {
		return fmt.Errorf("make the catalogue's log durable after a failure: %w", err)
	}
	if t.fileTorn {
		if err := rewrite(t.file); err != nil {
			return fmt.Errorf("make the catalogue durable after a failure: %w", err)
		}
	}
	t.torn, t.fileTorn = false, false
	return nil
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
// when it finds nothing to sync there it finds nothing to lose.
func (t *tx) checkpoint() {
	if t.batches++; t.lazy || t.torn || t.batches < checkpointEvery {
		return
	}
	t.batches = 0
	pages, copied, err := t.walCheckpoint("NOOP")
	if err == nil && pages-copied >= checkpointPages {
		_, _, err = t.walCheckpoint("PASSIVE")
	}
	if err != nil {
		// No change depends on it: the log has everything, and is mended first.
		t.torn, t.fileTorn = true, true
	}
}

// walCheckpoint returns how many pages the log has, and how many of them are in
// the catalogue's file.
func (t *tx) walCheckpoint(mode string) (pages, copied int, err error) {
	var busy int
	err = t.row("PRAGMA wal_checkpoint("+mode+")", nil, &busy, &pages, &copied)
	return pages, copied, err
}

// settled returns nil when no commit that was refused can come back any more.
// Who deletes an object because the catalogue does not name it asks first.
func (db *database) settled(ctx context.Context) error {
	if !db.doubt.Load() {
		return nil
	}
	err := db.write(ctx, func(t *tx) error {
		// Nobody reads it. It changes the first page, also when it stays the
		// same, so there is something to commit.
		_, err := t.exec("PRAGMA user_version = 1")
		return err
	})
	if err != nil {
		return fmt.Errorf("commit over what was refused before: %w", err)
	}
	return nil
}
