// Package repair is the part of the catalogue that serves checks and repairs. It reads
// everything that the catalogue records, finds rows that contradict each other, and
// corrects rows according to bytes that the caller has verified.
package repair

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// Store reads and corrects a catalogue. All methods may run concurrently.
type Store struct{ db *engine.DB }

// New returns the Store of a database.
func New(db *engine.DB) Store { return Store{db} }

// StoredContent is what a check needs to know about a stored content, without its bytes.
type StoredContent struct {
	ID     int64
	Digest oci.Digest
	// Size is the size in bytes that the catalogue records.
	Size int64
	// Inline says that the bytes are in the catalogue.
	Inline bool
	// Manifest says that some repository has the content as a manifest.
	Manifest bool
	// Suspect says that a read of the content failed or returned wrong bytes; see
	// MarkSuspect.
	Suspect bool
}

// Contents returns at most n stored contents with ids greater than after, ordered by id.
func (c Store) Contents(ctx context.Context, after int64, n int) ([]StoredContent, error) {
	return ReadContents(ctx, c.db, `SELECT b.id, b.digest, b.size, b.content IS NOT NULL, EXISTS (SELECT 1 FROM manifests m WHERE m.blob_id = b.id), b.suspect <> 0
		FROM blobs b WHERE b.id > ? AND b.state = 1 ORDER BY b.id LIMIT ?`, after, n)
}

// ReadContents reads StoredContents with a query for their columns.
func ReadContents(ctx context.Context, db *engine.DB, query string, args ...any) ([]StoredContent, error) {
	var out []StoredContent
	err := db.Rows(ctx, query, args, func(r *sql.Rows) error {
		var s StoredContent
		err := r.Scan(&s.ID, &s.Digest, &s.Size, &s.Inline, &s.Manifest, &s.Suspect)
		out = append(out, s)
		return err
	})
	return out, err
}

// Extent is how far a check that begins now must go. Later rows have larger ids or are
// new.
type Extent struct {
	LastContent, LastManifest int64
	// Contents is the number of stored contents, Bytes is their total size, and Manifests
	// is the number of manifests.
	Contents, Bytes, Manifests int64
}

// Extent counts what there is to check.
func (c Store) Extent(ctx context.Context) (Extent, error) {
	var e Extent
	err := c.db.Row(engine.Whole(ctx), `SELECT (SELECT COALESCE(MAX(id), 0) FROM blobs), (SELECT COALESCE(MAX(id), 0) FROM manifests),
		(SELECT COUNT(*) FROM blobs WHERE state = 1), (SELECT COALESCE(SUM(size), 0) FROM blobs WHERE state = 1),
		(SELECT COUNT(*) FROM manifests)`, nil, &e.LastContent, &e.LastManifest, &e.Contents, &e.Bytes, &e.Manifests)
	return e, err
}

// Presence says what the catalogue records about the object of a content.
type Presence int

// These are the values of Presence.
const (
	// Unknown means that there is no row, or that the row says that the content is not
	// here.
	Unknown Presence = iota
	// Object means that the content is an object in the store.
	Object
	// Inline means that the bytes are in the catalogue, so that no object is needed.
	Inline
	// Deleting means that the collector is about to delete the object.
	Deleting
)

// Presence looks up digests. It omits digests that are Unknown. The result is final, like
// that of catalog.Garbage.Known.
func (c Store) Presence(ctx context.Context, digests []oci.Digest) (map[oci.Digest]Presence, error) {
	if err := c.db.Settled(ctx); err != nil {
		return nil, err
	}
	return LookUp(ctx, c.db, digests)
}

// LookUp is like Presence, for any database. Its result is not final.
func LookUp(ctx context.Context, db *engine.DB, digests []oci.Digest) (map[oci.Digest]Presence, error) {
	out := make(map[oci.Digest]Presence, len(digests))
	for _, d := range digests {
		var state int
		var inline bool
		err := db.Row(ctx, `SELECT state, content IS NOT NULL FROM blobs WHERE digest = ?`, []any{string(d)}, &state, &inline)
		switch {
		case err == engine.ErrNotFound || (err == nil && state == catalog.StateAbsent):
		case err != nil:
			return nil, err
		case state == catalog.StateDropped || state == catalog.StateDeleting:
			out[d] = Deleting
		case inline:
			out[d] = Inline
		default:
			out[d] = Object
		}
	}
	return out, nil
}

// Absent returns those of the digests whose row says that the content is not here. The
// value reports whether some repository has the content as a manifest.
func (c Store) Absent(ctx context.Context, digests []oci.Digest) (map[oci.Digest]bool, error) {
	if err := c.db.Settled(ctx); err != nil {
		return nil, err
	}
	out := map[oci.Digest]bool{}
	for _, d := range digests {
		var manifest bool
		err := c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM manifests m WHERE m.blob_id = b.id) FROM blobs b WHERE b.digest = ? AND b.state = 0`,
			[]any{string(d)}, &manifest)
		switch err {
		case nil:
			out[d] = manifest
		case engine.ErrNotFound:
		default:
			return nil, err
		}
	}
	return out, nil
}

// ManifestRow is what a check needs to know about a manifest of a repository.
type ManifestRow struct {
	ID        int64
	Repo      string
	Digest    oci.Digest
	MediaType string

	repoID, blobID int64
}

// ScanManifest reads the columns id, repo_id, blob_id, the repository's name, digest and
// media type, and the columns that follow them.
func ScanManifest(r *sql.Rows, m *ManifestRow, more ...any) error {
	return r.Scan(append([]any{&m.ID, &m.repoID, &m.blobID, &m.Repo, &m.Digest, &m.MediaType}, more...)...)
}

// ManifestRows returns at most n manifests with ids greater than after, ordered by id.
func (c Store) ManifestRows(ctx context.Context, after int64, n int) ([]ManifestRow, error) {
	var out []ManifestRow
	err := c.db.Rows(ctx, `SELECT m.id, m.repo_id, m.blob_id, r.name, b.digest, m.media_type
		FROM manifests m JOIN repositories r ON r.id = m.repo_id JOIN blobs b ON b.id = m.blob_id
		WHERE m.id > ? ORDER BY m.id LIMIT ?`, []any{after, n}, func(r *sql.Rows) error {
		var m ManifestRow
		err := ScanManifest(r, &m)
		out = append(out, m)
		return err
	})
	return out, err
}

// Ref is a content that the catalogue records as named by a manifest.
type Ref struct {
	Digest oci.Digest
	// Stored says that the content is stored somewhere. Linked says that the manifest's
	// repository shows it. Manifest says that the repository has it as a manifest.
	Stored, Linked, Manifest bool
}

// RefsOf returns what the catalogue records as named by a manifest. ok is false if the
// manifest is gone.
func (c Store) RefsOf(ctx context.Context, m ManifestRow) (refs []Ref, ok bool, err error) {
	err = c.db.Rows(ctx, `SELECT COALESCE(b.digest, ''), COALESCE(b.state, 0) = 1,
			EXISTS (SELECT 1 FROM links l WHERE l.repo_id = m.repo_id AND l.blob_id = f.blob_id),
			EXISTS (SELECT 1 FROM manifests o WHERE o.repo_id = m.repo_id AND o.blob_id = f.blob_id)
		FROM manifests m LEFT JOIN refs f ON f.manifest_id = m.id AND f.repo_id = m.repo_id LEFT JOIN blobs b ON b.id = f.blob_id
		WHERE m.id = ? AND m.repo_id = ? AND m.blob_id = ?`, []any{m.ID, m.repoID, m.blobID}, func(r *sql.Rows) error {
		ok = true
		var f Ref
		err := r.Scan(&f.Digest, &f.Stored, &f.Linked, &f.Manifest)
		if f.Digest != "" {
			refs = append(refs, f)
		}
		return err
	})
	return refs, ok, err
}

// Leak is a content that nothing shows or names, and that is not queued for the collector
// either.
type Leak struct {
	ID     int64
	Digest oci.Digest
	Size   int64
}

// leaked is a condition on a row of blobs. It says that the row is a leak. The list of
// queued contents is made once per statement, instead of a search for each row.
const leaked = `blobs.state IN (0, 1) AND NOT EXISTS (SELECT 1 FROM links WHERE blob_id = blobs.id)
	AND NOT EXISTS (SELECT 1 FROM manifests WHERE blob_id = blobs.id) AND NOT EXISTS (SELECT 1 FROM refs WHERE blob_id = blobs.id)
	AND blobs.id NOT IN (SELECT blob_id FROM gc_queue WHERE kind = 0)`

// Leaks returns at most n leaks with ids greater than after, ordered by id.
func (c Store) Leaks(ctx context.Context, after int64, n int) ([]Leak, error) {
	var out []Leak
	err := c.db.Rows(engine.Whole(ctx), `SELECT id, digest, size FROM blobs WHERE id > ? AND `+leaked+` ORDER BY id LIMIT ?`, []any{after, n}, func(r *sql.Rows) error {
		var l Leak
		err := r.Scan(&l.ID, &l.Digest, &l.Size)
		out = append(out, l)
		return err
	})
	return out, err
}

// Dangling is a row that points at rows that do not exist.
type Dangling struct {
	Table string
	// Repo, Digest and Tag are set as far as they are still known.
	Repo   string
	Digest oci.Digest
	Tag    string

	key [3]any
}

// String describes the row.
func (d Dangling) String() string { return fmt.Sprintf("row %v of table %s", d.key, d.Table) }

// relation says which rows of a table point nowhere.
type relation struct {
	table string
	// keys are the columns of the primary key, padded with constants to three.
	keys [3]string
	// bad is an SQL condition for a row that points nowhere.
	bad string
	// repo, digest and tag are SQL expressions that describe the row.
	repo, digest, tag string
}

// relations returns the tables in such an order that the repair of a table creates no
// dangling rows in the tables before it.
func relations() []relation {
	const repo = `COALESCE((SELECT name FROM repositories r WHERE r.id = TABLE.repo_id), '')`
	const digest = `COALESCE((SELECT digest FROM blobs b WHERE b.id = TABLE.blob_id), '')`
	const noRepo = `NOT EXISTS (SELECT 1 FROM repositories r WHERE r.id = TABLE.repo_id)`
	const noBlob = `NOT EXISTS (SELECT 1 FROM blobs b WHERE b.id = TABLE.blob_id)`
	list := []relation{
		{"manifests", [3]string{"id", "0", "0"}, noRepo + " OR " + noBlob, repo, digest, "''"},
		// Only stored contents can be shown.
		{"links", [3]string{"repo_id", "blob_id", "0"}, noRepo + ` OR NOT EXISTS (SELECT 1 FROM blobs b WHERE b.id = links.blob_id AND b.state = 1)`, repo, digest, "''"},
		{"refs", [3]string{"repo_id", "blob_id", "manifest_id"}, noBlob + ` OR NOT EXISTS (SELECT 1 FROM manifests m WHERE m.id = refs.manifest_id AND m.repo_id = refs.repo_id)`,
			repo, digest, "''"},
		{"tags", [3]string{"repo_id", "name", "0"}, noRepo + ` OR NOT EXISTS (SELECT 1 FROM manifests m WHERE m.id = tags.manifest_id AND m.repo_id = tags.repo_id)`,
			repo, "''", "name"},
		// A missing blob is normal here, because it may have been removed through another
		// repository. Leaks are queued for repository 0.
		{"gc_queue", [3]string{"kind", "repo_id", "blob_id"}, `kind NOT IN (0, 1, 2) OR (repo_id <> 0 AND ` + noRepo + `)`, repo, digest, "''"},
	}
	for i := range list {
		r := &list[i]
		for _, s := range []*string{&r.bad, &r.repo, &r.digest} {
			*s = strings.ReplaceAll(*s, "TABLE", r.table)
		}
	}
	return list
}

// Dangling returns at most n rows that point nowhere. It begins after the given row, or
// with the first row if after is nil.
func (c Store) Dangling(ctx context.Context, after *Dangling, n int) ([]Dangling, error) {
	var out []Dangling
	for _, rel := range relations() {
		from := [3]any{-1, -1, -1}
		if rel.keys[1] == "name" {
			from[1] = ""
		}
		if after != nil {
			if after.Table != rel.table {
				continue
			}
			from, after = after.key, nil
		}
		query := fmt.Sprintf(`SELECT %[1]s, %[2]s, %[3]s, %[4]s, %[5]s, %[6]s FROM %[7]s WHERE (%[1]s, %[2]s, %[3]s) > (?, ?, ?) AND (%[8]s) ORDER BY 1, 2, 3 LIMIT ?`,
			rel.keys[0], rel.keys[1], rel.keys[2], rel.repo, rel.digest, rel.tag, rel.table, rel.bad)
		err := c.db.Rows(engine.Whole(ctx), query, []any{from[0], from[1], from[2], n - len(out)}, func(r *sql.Rows) error {
			d := Dangling{Table: rel.table}
			err := r.Scan(&d.key[0], &d.key[1], &d.key[2], &d.Repo, &d.Digest, &d.Tag)
			out = append(out, d)
			return err
		})
		if err != nil || len(out) == n {
			return out, err
		}
	}
	return out, nil
}

// Use is an image that needs a content.
type Use struct {
	Repo     string
	Manifest oci.Digest
	// Tag is empty if the manifest has no tags.
	Tag string
}

// String returns the name of the image: repo:tag or repo@digest.
func (u Use) String() string {
	if u.Tag != "" {
		return u.Repo + ":" + u.Tag
	}
	return u.Repo + "@" + string(u.Manifest)
}

// Uses returns at most n tags and untagged manifests that need a content. The manifest is
// the content, names it, or names a manifest that needs it.
func (c Store) Uses(ctx context.Context, d oci.Digest, n int) ([]Use, error) {
	return ReadUses(ctx, c.db, d, n)
}

// ReadUses is like Uses, for any database.
func ReadUses(ctx context.Context, db *engine.DB, d oci.Digest, n int) ([]Use, error) {
	var out []Use
	err := db.Rows(ctx, `WITH RECURSIVE
		blob(id) AS (SELECT id FROM blobs WHERE digest = ?),
		up(repo_id, manifest_id, blob_id) AS (
			SELECT m.repo_id, m.id, m.blob_id FROM manifests m WHERE m.blob_id = (SELECT id FROM blob)
			UNION SELECT m.repo_id, m.id, m.blob_id FROM refs f JOIN manifests m ON m.id = f.manifest_id WHERE f.blob_id = (SELECT id FROM blob)
			UNION SELECT m.repo_id, m.id, m.blob_id FROM up u JOIN refs f ON f.repo_id = u.repo_id AND f.blob_id = u.blob_id JOIN manifests m ON m.id = f.manifest_id)
		SELECT r.name, b.digest, COALESCE(t.name, '') FROM up JOIN repositories r ON r.id = up.repo_id JOIN blobs b ON b.id = up.blob_id
			LEFT JOIN tags t ON t.manifest_id = up.manifest_id ORDER BY 1, 3, 2 LIMIT ?`, []any{string(d), n}, func(r *sql.Rows) error {
		var u Use
		err := r.Scan(&u.Repo, &u.Manifest, &u.Tag)
		out = append(out, u)
		return err
	})
	return out, err
}
