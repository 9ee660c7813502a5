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

// A failed fsync of the log leaves two things that SQLite does not deal with.
//
// First, the kernel may have marked pages of the log clean that never reached
// the disk. The next fsync passes them over and succeeds. What the failed commit
// itself wrote does not matter, as the next one is written over it; but lazy
// commits before it count as done. Everything committed behind such a gap would
// be lost with the power, as recovery reads the log only up to the gap. Hence
// mend, before anything else is committed. The same gap is there when a process
// was killed after the failure: the next one reads the refused commit from the
// page cache, takes it for a good one, and goes on behind it. Hence
// mendBeforeUse.
//
// Second, the refused commit may be whole in the log. It comes back at the next
// start unless something was committed over it. Hence settled.

// mend makes durable what is in the log, before a batch, if it may not be.
func (t *tx) mend() error {
	if !t.torn {
		return nil
	}
	if err := t.begin(); err != nil { // keeps everybody else from writing
		return err
	}
	defer t.rollback()
	if err := rewrite(t.log); err != nil {
		return fmt.Errorf("make the catalogue's log durable after a failure: %w", err)
	}
	t.torn = false
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
	err = rewrite(log)
	_, err2 := conn.ExecContext(ctx, "ROLLBACK")
	return errors.Join(err, err2)
}

// rewrite writes a file's bytes over themselves, so that each page is one to be
// written back, and syncs it. Others may read the file meanwhile. A file that is
// not there, or empty, needs nothing.
func rewrite(path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
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
