package engine

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
)

//go:embed migrations
var migrations embed.FS

// MinReader is the setting that holds the version of the oldest program that may use the
// schema. The version of a program is the version of the newest schema that it knows.
const MinReader = "min_reader"

func migrator(dialect goose.Dialect, dir string, db *sql.DB) (p *goose.Provider, newest int64, err error) {
	sub, err := fs.Sub(migrations, "migrations/"+dir)
	if err != nil {
		return nil, 0, err
	}
	if p, err = goose.NewProvider(dialect, db, sub); err != nil {
		return nil, 0, err
	}
	sources := p.ListSources()
	return p, sources[len(sources)-1].Version, nil
}

// newestSchema returns the newest version of the schema that this program knows.
func newestSchema() (newest int64, err error) {
	names, err := fs.Glob(migrations, "migrations/sqlite/*.sql")
	for _, name := range names {
		number, _, _ := strings.Cut(path.Base(name), "_")
		v, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, err
		}
		newest = max(newest, v)
	}
	return newest, err
}

func newerSchema(have, newest int64) error {
	return fmt.Errorf("its schema is version %d, made by a newer slipway; this one knows version %d: use the newer one, or restore a backup", have, newest)
}

// CheckSchema returns an error if a newer program made the database.
func (db *DB) CheckSchema(ctx context.Context) error {
	var have int64
	if err := db.Row(ctx, `SELECT COALESCE(MAX(version_id), 0) FROM goose_db_version WHERE is_applied`, nil, &have); err != nil {
		return fmt.Errorf("read the version of its schema: %w", err)
	}
	newest, err := newestSchema()
	if err == nil && have > newest {
		err = newerSchema(have, newest)
	}
	return err
}

// migrateSQLite brings the schema of the file at path up to date. If tell is not nil, it
// copies the file first and calls tell afterwards. A full disk must not keep the registry
// from starting, so a failed copy does not prevent the migration.
func migrateSQLite(ctx context.Context, db *sql.DB, path string, tell func(Migration)) error {
	p, newest, err := migrator(goose.DialectSQLite3, "sqlite", db)
	if err != nil {
		return err
	}
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	if have > newest {
		return newerSchema(have, newest)
	}
	m := Migration{From: have, To: newest}
	if tell == nil || have == 0 || have == newest {
		_, err = p.Up(ctx)
		return err
	}
	m.Copy = path + OldSuffix + strconv.FormatInt(have, 10)
	if m.Err = copyOld(ctx, path, m.Copy); m.Err != nil {
		m.Copy = ""
	}
	if _, err = p.Up(ctx); err == nil {
		tell(m)
	}
	return err
}

// copyOld copies the catalogue at path, in place of the copies of earlier migrations.
func copyOld(ctx context.Context, path, to string) error {
	old, err := filepath.Glob(path + OldSuffix + "*")
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) // SQLite would take the mode of the umask
	if err != nil {
		return err
	}
	err = execAlone(ctx, dsn(path), `VACUUM INTO ?`, to)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(to))
	}
	return err
}

// isNewest reports whether the schema is the newest that this program knows. That is the
// usual case, and then a start need not wait for other processes, nor open more
// connections.
func isNewest(ctx context.Context, conn *sql.Conn) (bool, error) {
	newest, err := newestSchema()
	if err != nil {
		return false, err
	}
	// A later schema of the search path may have the table of another registry.
	var begun bool
	err = conn.QueryRowContext(ctx, `SELECT to_regclass(quote_ident(current_schema()) || '.goose_db_version') IS NOT NULL`).Scan(&begun)
	if err != nil || !begun {
		return false, err
	}
	var have int64
	err = conn.QueryRowContext(ctx, `SELECT COALESCE(MAX(version_id), 0) FROM goose_db_version`).Scan(&have)
	return have == newest, err
}

// migratePostgres brings the schema up to date while other processes use it. It does
// nothing if the schema is up to date. Only one process does so at a time.
func migratePostgres(ctx context.Context, db *sql.DB, lock int64, tell func(Migration)) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	unlock, err := lockForMigration(ctx, conn, lock)
	if err != nil {
		return err
	}
	defer unlock()
	p, newest, err := migrator(goose.DialectPostgres, "postgres", db)
	if err != nil {
		return err
	}
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	if have > newest {
		return mayUse(ctx, conn, have, newest)
	}
	if have == newest {
		return nil // another process did it meanwhile
	}
	if _, err = p.Up(ctx); err == nil && have > 0 && tell != nil {
		tell(Migration{From: have, To: newest})
	}
	return err
}

// mayUse returns an error if this program cannot use a schema that is newer than the one
// it knows. While replicas are replaced one by one, the old ones run beside the first new
// one. So a migration only adds, and raises min_reader if the previous version cannot
// work with it.
func mayUse(ctx context.Context, conn *sql.Conn, have, newest int64) error {
	var oldest string
	if err := conn.QueryRowContext(ctx, `SELECT value FROM settings WHERE name = '`+MinReader+`'`).Scan(&oldest); err != nil {
		return fmt.Errorf("look up who may use its schema: %w", err)
	}
	if v, err := strconv.ParseInt(oldest, 10, 64); err != nil || v > newest || have > newest+1 {
		return newerSchema(have, newest)
	}
	return nil
}

// lockForMigration waits for a lock. It holds no snapshot meanwhile, because the creation
// of an index beside writers would wait for the snapshot's end.
func lockForMigration(ctx context.Context, conn *sql.Conn, lock int64) (unlock func(), err error) {
	for {
		var ok bool
		if err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock($1)`, lock).Scan(&ok); err != nil {
			return nil, err
		}
		if ok {
			return func() {
				// If this fails, the lock ends with its connection.
				_, _ = conn.ExecContext(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, lock)
			}, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
