package snapshot

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/repair"
)

// These settings exist only in a backup's catalogue.
const (
	// incompleteSetting holds the images that the backup does not have completely, as a
	// JSON list.
	incompleteSetting = "backup_incomplete"
)

// Draft is a copy of a catalogue that is about to become a backup's catalogue. It is a
// snapshot that the maker of the backup still corrects. A crash leaves it unusable.
type Draft struct {
	*Snapshot
	path string
	rw   *sql.DB // one connection
	// before says that the earlier backup's catalogue is attached as "before".
	before bool
}

// OpenDraft opens the copy at path. before is the path of the earlier backup's catalogue,
// or "" if there is none. The draft takes from there what the registry has lost.
func OpenDraft(ctx context.Context, path, before string) (*Draft, error) {
	rw, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=rw&_pragma=journal_mode(MEMORY)&_pragma=synchronous(OFF)")
	if err != nil {
		return nil, fmt.Errorf("open the copy of the catalogue: %w", err)
	}
	rw.SetMaxOpenConns(1)
	d := &Draft{Snapshot: newSnapshot(rw), path: path, rw: rw}
	if before != "" {
		_, err := rw.ExecContext(ctx, `ATTACH ? AS before`, "file:"+(&url.URL{Path: before}).EscapedPath()+"?mode=ro&immutable=1")
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open the earlier backup's catalogue: %w", err), d.Close())
		}
		d.before = true
	}
	return d, nil
}

// Finish makes the corrections durable and closes the draft.
func (d *Draft) Finish() error {
	if err := d.Close(); err != nil {
		return err
	}
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Suspects returns the contents that are suspect in the registry; see
// [repair.Store.MarkSuspect]. It clears the mark in the draft, because the maker of the
// backup verifies its copies. It also clears the tags of objects, because the objects of
// the backup have other tags.
func (d *Draft) Suspects(ctx context.Context) (map[oci.Digest]bool, error) {
	if err := d.exec(ctx, `UPDATE blobs SET tag = '' WHERE tag <> ''`); err != nil {
		return nil, err
	}
	out := map[oci.Digest]bool{}
	err := d.db.Rows(ctx, `UPDATE blobs SET suspect = 0 WHERE suspect <> 0 RETURNING digest`, nil, func(r *sql.Rows) error {
		var digest oci.Digest
		err := r.Scan(&digest)
		out[digest] = true
		return err
	})
	return out, err
}

// Lost returns at most n contents that are not stored, although a manifest names them or
// they are manifests. Their ids are greater than after, and they are ordered by id.
func (d *Draft) Lost(ctx context.Context, after int64, n int) ([]repair.StoredContent, error) {
	return repair.ReadContents(ctx, d.db, `SELECT id, digest, size, 0, 0, 0 FROM blobs WHERE id > ? AND state <> 1 AND `+namedBlob+` ORDER BY id LIMIT ?`, after, n)
}

// namedBlob is a condition on a row of blobs. It says that a manifest names the content
// or is the content.
const namedBlob = `(EXISTS (SELECT 1 FROM refs f WHERE f.blob_id = blobs.id) OR EXISTS (SELECT 1 FROM manifests m WHERE m.blob_id = blobs.id))`

// Before returns the bytes of a content from the earlier backup's catalogue. Errors:
// engine.ErrNotFound.
func (d *Draft) Before(ctx context.Context, digest oci.Digest) ([]byte, error) {
	if !d.before {
		return nil, engine.ErrNotFound
	}
	var content []byte
	err := d.db.Row(ctx, `SELECT content FROM before.blobs WHERE digest = ? AND state = 1 AND content IS NOT NULL`, []any{string(digest)}, &content)
	return content, err
}

// Keep records that a content is in the backup although the registry has no good copy of
// it. Its bytes are in the catalogue, or in an object of the given size if content is
// nil. A repository shows the content if it did so in the earlier backup and a manifest
// of it still names the content.
func (d *Draft) Keep(ctx context.Context, digest oci.Digest, content []byte, size int64) error {
	var bytes any
	if content != nil {
		bytes = content
	}
	if err := d.exec(ctx, `UPDATE blobs SET state = 1, content = ?, size = ?, suspect = 0 WHERE digest = ?`, bytes, size, string(digest)); err != nil || !d.before {
		return err
	}
	return d.exec(ctx, `INSERT OR IGNORE INTO links (repo_id, blob_id, created_at)
		SELECT r.id, b.id, l.created_at FROM before.blobs ob JOIN before.links l ON l.blob_id = ob.id JOIN before.repositories o ON o.id = l.repo_id
			JOIN main.repositories r ON r.name = o.name JOIN main.blobs b ON b.digest = ob.digest
		WHERE ob.digest = ? AND EXISTS (SELECT 1 FROM main.refs f WHERE f.repo_id = r.id AND f.blob_id = b.id)`, string(digest))
}

// NamedBy is as [repair.Store.NamedBy].
func (d *Draft) NamedBy(ctx context.Context, digest oci.Digest) ([]repair.ManifestRow, error) {
	return repair.ReadNamedBy(ctx, d.db, digest)
}

// Link makes the repository of a manifest show a content that the manifest needs.
func (d *Draft) Link(ctx context.Context, m repair.ManifestRow, digest oci.Digest) error {
	return d.exec(ctx, `INSERT OR IGNORE INTO links (repo_id, blob_id, created_at)
		SELECT m.repo_id, b.id, m.created_at FROM manifests m, blobs b WHERE m.id = ? AND b.digest = ?`, m.ID, string(digest))
}

// Lose records that the backup has no good copy of a content; see [repair.Store.MarkAbsent].
func (d *Draft) Lose(ctx context.Context, digest oci.Digest) error {
	const id = `(SELECT id FROM blobs WHERE digest = ?)`
	for _, q := range []string{
		`INSERT OR IGNORE INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 0, repo_id, blob_id, 0 FROM links WHERE blob_id = ` + id,
		`INSERT OR IGNORE INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 0, 0, id, 0 FROM blobs WHERE digest = ?`,
		`DELETE FROM links WHERE blob_id = ` + id,
		`UPDATE blobs SET state = 0, content = NULL WHERE digest = ?`,
	} {
		if err := d.exec(ctx, q, string(digest)); err != nil {
			return err
		}
	}
	return nil
}

// SetIncomplete records the images of which the backup lacks something.
func (d *Draft) SetIncomplete(ctx context.Context, images []string) error {
	if len(images) == 0 {
		return d.exec(ctx, `DELETE FROM settings WHERE name = ?`, incompleteSetting)
	}
	b, err := json.Marshal(images)
	if err != nil {
		return err
	}
	return d.exec(ctx, `INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, incompleteSetting, string(b))
}

func (d *Draft) exec(ctx context.Context, query string, args ...any) error {
	_, err := d.rw.ExecContext(ctx, query, args...)
	return err
}

// Gap is a content that is not stored, although the manifest names it or is the content
// itself.
type Gap struct {
	Manifest repair.ManifestRow
	Digest   oci.Digest
}

// Gaps returns the gaps of at most n manifests with ids greater than after, ordered by
// these ids. It returns all gaps of each of them.
func (s *Snapshot) Gaps(ctx context.Context, after int64, n int) ([]Gap, error) {
	var out []Gap
	err := s.db.Rows(ctx, `WITH broken(id) AS (
			SELECT DISTINCT m.id FROM blobs b JOIN manifests m ON m.blob_id = b.id WHERE b.state <> 1 AND m.id > ?1
			UNION SELECT DISTINCT f.manifest_id FROM blobs b JOIN refs f ON f.blob_id = b.id WHERE b.state <> 1 AND f.manifest_id > ?1
			ORDER BY 1 LIMIT ?2)
		SELECT m.id, m.repo_id, m.blob_id, r.name, o.digest, m.media_type, b.digest
		FROM broken JOIN manifests m ON m.id = broken.id JOIN repositories r ON r.id = m.repo_id JOIN blobs o ON o.id = m.blob_id
			JOIN blobs b ON b.state <> 1 AND (b.id = m.blob_id OR b.id IN (SELECT blob_id FROM refs WHERE manifest_id = m.id))
		ORDER BY m.id, b.id`, []any{after, n}, func(r *sql.Rows) error {
		var g Gap
		err := repair.ScanManifest(r, &g.Manifest, &g.Digest)
		out = append(out, g)
		return err
	})
	return out, err
}

// InlineContent is a content whose bytes are in the catalogue.
type InlineContent struct {
	ID     int64
	Digest oci.Digest
	Bytes  []byte
}

// Inlines returns at most n contents whose bytes are in the catalogue and that have ids
// greater than after, ordered by id.
func (s *Snapshot) Inlines(ctx context.Context, after int64, n int) ([]InlineContent, error) {
	var out []InlineContent
	err := s.db.Rows(ctx, `SELECT id, digest, content FROM blobs WHERE id > ? AND state = 1 AND content IS NOT NULL ORDER BY id LIMIT ?`, []any{after, n}, func(r *sql.Rows) error {
		var c InlineContent
		err := r.Scan(&c.ID, &c.Digest, &c.Bytes)
		out = append(out, c)
		return err
	})
	return out, err
}

// Inline returns the bytes of a content that the catalogue holds. Errors:
// engine.ErrNotFound.
func (s *Snapshot) Inline(ctx context.Context, d oci.Digest) (content []byte, err error) {
	err = s.db.Row(ctx, `SELECT content FROM blobs WHERE digest = ? AND state = 1 AND content IS NOT NULL`, []any{string(d)}, &content)
	return content, err
}

// Named reports whether a manifest names a content or is the content.
func (s *Snapshot) Named(ctx context.Context, d oci.Digest) (named bool, err error) {
	err = s.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM blobs WHERE digest = ? AND `+namedBlob+`)`, []any{string(d)}, &named)
	return named, err
}

// Uses returns the images that need a content; see [repair.Store.Uses].
func (s *Snapshot) Uses(ctx context.Context, d oci.Digest, n int) ([]repair.Use, error) {
	return repair.ReadUses(ctx, s.db, d, n)
}

// Identity returns the id of the registry from which the snapshot was taken, and the id
// of the registry that this one continues, if any. id is "" if the snapshot was made
// before registries had ids.
func (s *Snapshot) Identity(ctx context.Context) (id, continues string, err error) {
	err = s.db.Row(ctx, `SELECT COALESCE((SELECT value FROM settings WHERE name = ?), ''), COALESCE((SELECT value FROM settings WHERE name = ?), '')`,
		[]any{catalog.IdentitySetting, catalog.ContinuesSetting}, &id, &continues)
	return id, continues, err
}

// Incomplete returns the images of which the backup lacks something.
func (s *Snapshot) Incomplete(ctx context.Context) (images []string, err error) {
	var text string
	switch err := s.db.Row(ctx, `SELECT value FROM settings WHERE name = ?`, []any{incompleteSetting}, &text); {
	case err == engine.ErrNotFound:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return images, json.Unmarshal([]byte(text), &images)
}

// SharesManifest reports whether two snapshots have a manifest in common, in a
// repository of the same name.
func (d *Draft) SharesManifest(ctx context.Context) (shares bool, err error) {
	if !d.before {
		return false, nil
	}
	err = d.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM before.manifests om JOIN before.blobs ob ON ob.id = om.blob_id JOIN before.repositories o ON o.id = om.repo_id
		JOIN main.blobs b ON b.digest = ob.digest JOIN main.repositories r ON r.name = o.name JOIN main.manifests m ON m.repo_id = r.id AND m.blob_id = b.id)`, nil, &shares)
	return shares, err
}

// CheckSchema returns an error if a newer program made the snapshot.
func (s *Snapshot) CheckSchema(ctx context.Context) error {
	return s.db.CheckSchema(ctx)
}
