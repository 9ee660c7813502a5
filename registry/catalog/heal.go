package catalog

import (
	"context"
	"database/sql"

	"example.org/slipway/oci"
)

// StoredContent returns a stored content as a check walks over it. Errors: ErrNotFound.
func (c *Catalog) StoredContent(ctx context.Context, d oci.Digest) (StoredContent, error) {
	list, err := c.db.contents(ctx, `SELECT b.id, b.digest, b.size, b.content IS NOT NULL, EXISTS (SELECT 1 FROM manifests m WHERE m.blob_id = b.id), b.suspect <> 0
		FROM blobs b WHERE b.digest = ? AND b.state = 1`, string(d))
	if err != nil || len(list) == 0 {
		return StoredContent{}, orNotFound(err)
	}
	return list[0], nil
}

func orNotFound(err error) error {
	if err == nil {
		err = ErrNotFound
	}
	return err
}

// NamedBy returns the manifests of all repositories that name a content themselves, in
// order of id.
func (c *Catalog) NamedBy(ctx context.Context, d oci.Digest) ([]ManifestRow, error) {
	return c.db.namedBy(ctx, d)
}

func (db *database) namedBy(ctx context.Context, d oci.Digest) ([]ManifestRow, error) {
	var out []ManifestRow
	err := db.rows(ctx, `SELECT m.id, m.repo_id, m.blob_id, r.name, o.digest, m.media_type
		FROM blobs b JOIN refs f ON f.blob_id = b.id JOIN manifests m ON m.id = f.manifest_id AND m.repo_id = f.repo_id
			JOIN repositories r ON r.id = m.repo_id JOIN blobs o ON o.id = m.blob_id
		WHERE b.digest = ? ORDER BY m.id`, []any{string(d)}, func(r *sql.Rows) error {
		var m ManifestRow
		err := r.Scan(&m.ID, &m.repoID, &m.blobID, &m.Repo, &m.Digest, &m.MediaType)
		out = append(out, m)
		return err
	})
	return out, err
}

// Heal records verified bytes of a content that is known: b.Content, or with nil an
// object of the store. Where it is shown does not change. Errors:
// ErrNotFound if the content is not known or about to be deleted.
func (c *Catalog) Heal(ctx context.Context, b Blob) (s Shown, err error) {
	err = c.db.write(ctx, func(t *tx) error {
		id, err := t.insert(`UPDATE blobs SET state = 1, content = ?, size = ?, suspect = 0, tag = ? WHERE digest = ? AND state IN (0, 1) RETURNING id`, b.Content, b.Size, b.Tag, string(b.Digest))
		if err != nil {
			return err
		}
		s, err = t.shown(b.Digest, id)
		return err
	})
	return s, err
}

// Healable reports whether Heal would find a content, and whether any repository has
// it as a manifest.
func (c *Catalog) Healable(ctx context.Context, d oci.Digest) (known, manifest bool, err error) {
	err = c.db.row(ctx, `SELECT EXISTS (SELECT 1 FROM blobs WHERE digest = ? AND state IN (0, 1)),
		EXISTS (SELECT 1 FROM blobs b JOIN manifests m ON m.blob_id = b.id WHERE b.digest = ?)`, []any{string(d), string(d)}, &known, &manifest)
	return known, manifest, err
}
