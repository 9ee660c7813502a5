package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const (
	// shrinkStep is how many pages of the file one change gives back: a push waits for
	// some milliseconds, and a full disk has room for them in the log.
	shrinkStep = 256
	// shrinkLeast is how many free pages, 4 MiB, are never worth it: the next pushes use
	// them.
	shrinkLeast = 1024
)

// freshDSN makes the file of a new catalogue one that can give pages back; that has to
// be settled before anything is in it.
func freshDSN(path string) string {
	return fileURI(path) + "?_pragma=auto_vacuum(2)&_pragma=journal_mode(WAL)"
}

// Shrink gives free pages of the catalogue's file back to the disk while they are more
// than a quarter of it, as after many deletions. The file gets shorter with the next copy
// of the log into it. A file that an older version made stays as long as it is.
func (db *DB) Shrink(ctx context.Context) error {
	lite := db.lite
	if lite == nil {
		return nil
	}
	for before := int64(0); ; {
		var mode, pages, free int64
		for pragma, n := range map[string]*int64{"auto_vacuum": &mode, "page_count": &pages, "freelist_count": &free} {
			if err := db.Row(ctx, "PRAGMA "+pragma, nil, n); err != nil {
				return fmt.Errorf("look how much of the catalogue's file is free: %w", err)
			}
		}
		if mode == 0 || free < shrinkLeast || free < pages/4 || pages == before {
			return nil
		}
		before = pages
		err := db.Write(ctx, func(t *Tx) error {
			if err := lite.touch(t); err != nil {
				return err
			}
			return t.Rows(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", shrinkStep), nil, func(*sql.Rows) error { return nil })
		})
		if err != nil {
			return fmt.Errorf("shrink the catalogue's file: %w", err)
		}
	}
}

// empty reports whether a catalogue's file was made just now: nothing is in it, nor in
// a log.
func empty(f *os.File, log string) bool {
	st, err := f.Stat()
	_, logErr := os.Lstat(log)
	return err == nil && st.Size() == 0 && errors.Is(logErr, fs.ErrNotExist)
}
