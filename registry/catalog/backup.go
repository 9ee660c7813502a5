package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"

	"example.org/slipway/oci"
)

// Backup writes a consistent copy of the catalogue, as it is at one moment, to
// a new file at path, while everything goes on. The copy is one file without a
// log beside it, durable but for its name. Uploads under way are not in it:
// their bytes lie elsewhere and are not worth keeping. The copy of a catalogue on
// PostgreSQL is one of SQLite, which Move brings back.
func (c *Catalog) Backup(ctx context.Context, path string) (err error) {
	if c.db.pg != nil {
		return c.backupPostgres(ctx, path)
	}
	var seq int
	var name, source string
	err = c.db.row(ctx, `SELECT seq, name, file FROM pragma_database_list WHERE name = 'main'`, nil, &seq, &name, &source)
	if err != nil {
		return fmt.Errorf("find the catalogue's file: %w", err)
	}
	// SQLite makes the file with the mode of the umask, or takes an empty one.
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

// execAlone runs one statement on a connection of its own.
func execAlone(ctx context.Context, dsn, statement string, args ...any) error {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(ctx, statement, args...)
	return errors.Join(err, db.Close())
}

// Snapshot is a copy of a catalogue that nobody changes any more, such as
// Backup makes. Opening it changes nothing, so it may lie on a read-only disk.
type Snapshot struct{ db *database }

// OpenSnapshot opens the copy at path. Errors: fs.ErrNotExist.
func OpenSnapshot(ctx context.Context, path string) (*Snapshot, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open the copy of the catalogue: %w", err)
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=ro&immutable=1&_pragma=query_only(1)")
	if err != nil {
		return nil, fmt.Errorf("open the copy of the catalogue: %w", err)
	}
	s := newSnapshot(db)
	var n int
	if err := s.db.row(ctx, `SELECT COUNT(*) FROM sqlite_master WHERE name IN ('blobs', 'links', 'manifests', 'refs', 'tags')`, nil, &n); err != nil || n != 5 {
		return nil, errors.Join(fmt.Errorf("%s is not a catalogue", path), err, s.Close())
	}
	return s, nil
}

func newSnapshot(db *sql.DB) *Snapshot {
	e := &sqlite{readers: db}
	e.reading.prepare = db.PrepareContext
	return &Snapshot{&database{engine: e, lite: e}}
}

// Close closes the snapshot.
func (s *Snapshot) Close() error {
	s.db.lite.reading.close()
	return s.db.lite.readers.Close()
}

// Integrity asks SQLite whether the file is sound; see [Catalog.Integrity].
func (s *Snapshot) Integrity(ctx context.Context, quick bool, n int) ([]string, error) {
	return s.db.integrity(ctx, quick, n)
}

// Objects returns at most n contents that are objects in the store and whose
// ids are behind after, in order of id.
func (s *Snapshot) Objects(ctx context.Context, after int64, n int) ([]StoredContent, error) {
	return s.db.contents(ctx, `SELECT id, digest, size, 0, 0, 0 FROM blobs WHERE id > ? AND state = 1 AND content IS NULL ORDER BY id LIMIT ?`, after, n)
}

// Totals are how many contents a snapshot has, and where.
type Totals struct {
	// Manifests and Blobs: each content counts once, as a manifest if any
	// repository has it as one.
	Manifests, Blobs int64
	// Tags of all repositories.
	Tags int64
	// Inline contents are in the snapshot itself, Objects in the store; with
	// their bytes.
	Inline, InlineBytes, Objects, ObjectBytes int64
}

// Totals counts the contents. It reads the whole table of blobs.
func (s *Snapshot) Totals(ctx context.Context) (n Totals, err error) {
	err = s.db.row(ctx, `SELECT COALESCE(SUM(content IS NOT NULL), 0), COALESCE(SUM(CASE WHEN content IS NOT NULL THEN size END), 0),
		COALESCE(SUM(content IS NULL), 0), COALESCE(SUM(CASE WHEN content IS NULL THEN size END), 0),
		(SELECT COUNT(DISTINCT blob_id) FROM manifests), (SELECT COUNT(*) FROM tags) FROM blobs WHERE state = 1`, nil,
		&n.Inline, &n.InlineBytes, &n.Objects, &n.ObjectBytes, &n.Manifests, &n.Tags)
	n.Blobs = max(0, n.Inline+n.Objects-n.Manifests)
	return n, err
}

// Presence looks up digests; see [Catalog.Presence].
func (s *Snapshot) Presence(ctx context.Context, digests []oci.Digest) (map[oci.Digest]Presence, error) {
	return s.db.presence(ctx, digests)
}
