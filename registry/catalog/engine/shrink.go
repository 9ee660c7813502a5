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
	// shrinkStep is how many pages of the file one change gives back. A push waits for
	// some milliseconds meanwhile, and even on a full disk the log has room for the
	// pages.
	shrinkStep = 256
	// shrinkLeast is the number of free pages, 4 MiB, below which the file is not shrunk,
	// because the next pushes use them.
	shrinkLeast = 1024
)

// freshDSN returns a data source name that creates a catalogue's file so that it can give
// pages back. This must be set before the file has any content.
func freshDSN(path string) string {
	return fileURI(path) + "?_pragma=auto_vacuum(2)&_pragma=journal_mode(WAL)"
}

// Shrink gives free pages of the catalogue's file back to the disk while they are more
// than a quarter of the file, as after many deletions. The file becomes shorter when the
// log is next copied into it. A file that an older version created does not shrink.
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

// empty reports whether a catalogue's file is new: it has no content, and there is no
// log.
func empty(f *os.File, log string) bool {
	st, err := f.Stat()
	_, logErr := os.Lstat(log)
	return err == nil && st.Size() == 0 && errors.Is(logErr, fs.ErrNotExist)
}
