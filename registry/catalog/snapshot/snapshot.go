// Package snapshot reads the copy of a catalogue that is part of a backup, and corrects
// it while the backup is made.
package snapshot

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/repair"
)

// Snapshot is a copy of a catalogue that nobody changes any more, such as Backup creates.
// Opening it changes nothing, so it may be on a read-only disk.
type Snapshot struct{ db *engine.DB }

// Open opens the copy at path. Errors: fs.ErrNotExist.
func Open(ctx context.Context, path string) (*Snapshot, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open the copy of the catalogue: %w", err)
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=ro&immutable=1&_pragma=query_only(1)")
	if err != nil {
		return nil, fmt.Errorf("open the copy of the catalogue: %w", err)
	}
	s := newSnapshot(db)
	var n int
	if err := s.db.Row(ctx, `SELECT COUNT(*) FROM sqlite_master WHERE name IN ('blobs', 'links', 'manifests', 'refs', 'tags')`, nil, &n); err != nil || n != 5 {
		return nil, errors.Join(fmt.Errorf("%s is not a catalogue", path), err, s.Close())
	}
	return s, nil
}

func newSnapshot(db *sql.DB) *Snapshot { return &Snapshot{engine.OpenFile(db)} }

// Close closes the snapshot.
func (s *Snapshot) Close() error { return s.db.CloseFile() }

// Integrity asks SQLite whether the file is sound; see [engine.DB.Integrity].
func (s *Snapshot) Integrity(ctx context.Context, quick bool, n int) ([]string, error) {
	return s.db.Integrity(ctx, quick, n)
}

// Objects returns at most n contents that are objects in the store and that have ids
// greater than after, ordered by id.
func (s *Snapshot) Objects(ctx context.Context, after int64, n int) ([]repair.StoredContent, error) {
	return repair.ReadContents(ctx, s.db, `SELECT id, digest, size, 0, 0, 0 FROM blobs WHERE id > ? AND state = 1 AND content IS NULL ORDER BY id LIMIT ?`, after, n)
}

// Totals says how many contents a snapshot has, and where they are.
type Totals struct {
	// Manifests and Blobs count each content once. A content counts as a manifest if any
	// repository has it as one.
	Manifests, Blobs int64
	// Tags of all repositories.
	Tags int64
	// Inline counts the contents in the snapshot itself, and Objects counts the contents
	// in the store. InlineBytes and ObjectBytes are their sizes.
	Inline, InlineBytes, Objects, ObjectBytes int64
}

// Totals counts the contents. It reads the whole table of blobs.
func (s *Snapshot) Totals(ctx context.Context) (n Totals, err error) {
	err = s.db.Row(ctx, `SELECT COALESCE(SUM(content IS NOT NULL), 0), COALESCE(SUM(CASE WHEN content IS NOT NULL THEN size END), 0),
		COALESCE(SUM(content IS NULL), 0), COALESCE(SUM(CASE WHEN content IS NULL THEN size END), 0),
		(SELECT COUNT(DISTINCT blob_id) FROM manifests), (SELECT COUNT(*) FROM tags) FROM blobs WHERE state = 1`, nil,
		&n.Inline, &n.InlineBytes, &n.Objects, &n.ObjectBytes, &n.Manifests, &n.Tags)
	n.Blobs = max(0, n.Inline+n.Objects-n.Manifests)
	return n, err
}

// Presence looks up digests; see [repair.Store.Presence].
func (s *Snapshot) Presence(ctx context.Context, digests []oci.Digest) (map[oci.Digest]repair.Presence, error) {
	return repair.LookUp(ctx, s.db, digests)
}
