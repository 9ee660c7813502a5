package repair

import (
	"context"
	"database/sql"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// StoredContent returns what a check needs to know about a stored content. Errors:
// engine.ErrNotFound.
func (c Store) StoredContent(ctx context.Context, d oci.Digest) (StoredContent, error) {
	list, err := ReadContents(ctx, c.db, `SELECT b.id, b.digest, b.size, b.content IS NOT NULL, EXISTS (SELECT 1 FROM manifests m WHERE m.blob_id = b.id), b.suspect <> 0
		FROM blobs b WHERE b.digest = ? AND b.state = 1`, string(d))
	if err != nil || len(list) == 0 {
		return StoredContent{}, orNotFound(err)
	}
	return list[0], nil
}

func orNotFound(err error) error {
	if err == nil {
		err = engine.ErrNotFound
	}
	return err
}

// NamedBy returns the manifests of all repositories that directly name a content, ordered
// by id.
func (c Store) NamedBy(ctx context.Context, d oci.Digest) ([]ManifestRow, error) {
	return ReadNamedBy(ctx, c.db, d)
}

// ReadNamedBy is like NamedBy, for any database.
func ReadNamedBy(ctx context.Context, db *engine.DB, d oci.Digest) ([]ManifestRow, error) {
	var out []ManifestRow
	err := db.Rows(ctx, `SELECT m.id, m.repo_id, m.blob_id, r.name, o.digest, m.media_type
		FROM blobs b JOIN refs f ON f.blob_id = b.id JOIN manifests m ON m.id = f.manifest_id AND m.repo_id = f.repo_id
			JOIN repositories r ON r.id = m.repo_id JOIN blobs o ON o.id = m.blob_id
		WHERE b.digest = ? ORDER BY m.id`, []any{string(d)}, func(r *sql.Rows) error {
		var m ManifestRow
		err := ScanManifest(r, &m)
		out = append(out, m)
		return err
	})
	return out, err
}

// Heal records verified bytes of a known content. They are b.Content, or an object in the
// store if b.Content is nil. The repositories that show the content stay the same.
// Errors: engine.ErrNotFound if the content is not known or is about to be deleted.
func (c Store) Heal(ctx context.Context, b catalog.Blob) (s Shown, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		id, err := t.Insert(`UPDATE blobs SET state = 1, content = ?, size = ?, suspect = 0, tag = ? WHERE digest = ? AND state IN (0, 1) RETURNING id`, b.Content, b.Size, b.Tag, string(b.Digest))
		if err != nil {
			return err
		}
		s, err = shown(t, b.Digest, id)
		return err
	})
	return s, err
}

// Healable reports whether Heal would find a content, and whether any repository has it
// as a manifest.
func (c Store) Healable(ctx context.Context, d oci.Digest) (known, manifest bool, err error) {
	err = c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM blobs WHERE digest = ? AND state IN (0, 1)),
		EXISTS (SELECT 1 FROM blobs b JOIN manifests m ON m.blob_id = b.id WHERE b.digest = ?)`, []any{string(d), string(d)}, &known, &manifest)
	return known, manifest, err
}
