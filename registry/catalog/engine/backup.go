package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
)

// Backup writes a consistent copy of the catalogue at one moment to a new file at path,
// while the catalogue is in use. The copy is one file without a log beside it. Its bytes
// are durable, but its name may not be. It does not contain uploads under way, because
// their bytes are elsewhere and not worth keeping. A catalogue on PostgreSQL is copied
// into an SQLite catalogue, which Move brings back.
func (db *DB) Backup(ctx context.Context, path string) (err error) {
	if db.pg != nil {
		return db.backupPostgres(ctx, path)
	}
	var seq int
	var name, source string
	err = db.Row(ctx, `SELECT seq, name, file FROM pragma_database_list WHERE name = 'main'`, nil, &seq, &name, &source)
	if err != nil {
		return fmt.Errorf("find the catalogue's file: %w", err)
	}
	// SQLite would create the file with the mode of the umask. But it accepts an empty
	// file.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("copy the catalogue: %w", err)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	if err := execAlone(ctx, dsn(source), `VACUUM INTO ?`, path); err != nil {
		return fmt.Errorf("copy the catalogue: %w", err)
	}
	plain := "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=journal_mode(DELETE)&_pragma=synchronous(FULL)"
	for _, table := range notInBackups {
		if err := execAlone(ctx, plain, `DELETE FROM `+table); err != nil {
			return fmt.Errorf("leave %s out of the copy of the catalogue: %w", table, err)
		}
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync the copy of the catalogue: %w", err)
	}
	return nil
}

// execAlone runs one statement on a separate connection.
func execAlone(ctx context.Context, dsn, statement string, args ...any) error {
	one, err := sql.Open("sqlite", dsn)
	if err != nil {
		return err
	}
	one.SetMaxOpenConns(1)
	_, err = one.ExecContext(ctx, statement, args...)
	return errors.Join(err, one.Close())
}
