// Package historyfacts reads the histories of tags, and what was removed from repositories.
package historyfacts

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// History reads how tags changed, and what was removed.
type History struct{ DB *engine.DB }

// Tag returns at most n changes of a tag, the last one first. A tag that was set before
// histories were kept has one change, of an unknown cause. Errors: catalog.ErrNotFound for a tag
// that never existed, or was deleted long ago.
func (h History) Tag(ctx context.Context, repo, tag string, n int) ([]oci.TagChange, error) {
	id, err := catalog.RepositoryID(ctx, h.DB, repo)
	if err == catalog.ErrNoRepository {
		err = catalog.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	var out []oci.TagChange
	const state = `CASE WHEN h.digest = '' THEN '' WHEN EXISTS (SELECT 1 FROM blobs b JOIN manifests m ON m.blob_id = b.id WHERE b.digest = h.digest AND m.repo_id = h.repo_id) THEN '` + oci.StateHere + `'
		WHEN EXISTS (SELECT 1 FROM trash x WHERE x.repo_id = h.repo_id AND x.digest = h.digest) THEN '` + oci.StateDeleted + `' ELSE '` + oci.StateGone + `' END`
	scan := func(r *sql.Rows) error {
		var c oci.TagChange
		var at int64
		err := r.Scan(&c.Digest, &at, &c.Cause, &c.By, &c.State)
		c.At = engine.FromMillis(at)
		out = append(out, c)
		return err
	}
	// The history lacks tags that an earlier version of the program set while servers
	// were being updated.
	err = h.DB.Rows(ctx, `SELECT h.digest, h.at, '', '', '`+oci.StateHere+`' FROM (SELECT b.digest AS digest, t.updated_at AS at FROM tags t
			JOIN manifests m ON m.id = t.manifest_id JOIN blobs b ON b.id = m.blob_id WHERE t.repo_id = ? AND t.name = ?) h
		WHERE h.digest <> COALESCE((SELECT digest FROM tag_history WHERE repo_id = ? AND tag = ? ORDER BY id DESC LIMIT 1), '')`, []any{id, tag, id, tag}, scan)
	if err == nil {
		err = h.DB.Rows(ctx, `SELECT h.digest, h.at, h.cause, h.actor, `+state+` FROM tag_history h
			WHERE h.repo_id = ? AND h.tag = ? ORDER BY h.id DESC LIMIT ?`, []any{id, tag, n}, scan)
	}
	if err == nil && len(out) == 0 {
		err = catalog.ErrNotFound
	}
	return out[:min(len(out), n)], err
}

// restorable selects what can be restored: the content is still here, and nobody has
// pushed it again.
const restorable = `FROM repositories r JOIN trash x ON x.repo_id = r.id JOIN blobs b ON b.digest = x.digest AND b.state = 1 AND b.content IS NOT NULL
	WHERE r.name = ? AND NOT EXISTS (SELECT 1 FROM manifests m WHERE m.repo_id = r.id AND m.blob_id = b.id)`

// Manifests returns at most n digests of manifests of a repository, the last one first. So
// an index comes before what it names. Errors: catalog.ErrNoRepository.
func (h History) Manifests(ctx context.Context, repo string, n int) ([]oci.Digest, error) {
	id, err := catalog.RepositoryID(ctx, h.DB, repo)
	if err != nil {
		return nil, err
	}
	names, err := h.DB.Names(ctx, `SELECT b.digest FROM manifests m CROSS JOIN blobs b ON b.id = m.blob_id WHERE m.repo_id = ? ORDER BY m.id DESC LIMIT ?`, id, n)
	out := make([]oci.Digest, len(names))
	for i, name := range names {
		out[i] = oci.Digest(name)
	}
	return out, err
}

// Deleted lists at most n manifests of a repository that were removed and can be
// restored, the last one first.
func (h History) Deleted(ctx context.Context, repo string, n int) ([]oci.DeletedManifest, error) {
	var out []oci.DeletedManifest
	err := h.DB.Rows(ctx, `SELECT x.digest, x.media_type, b.size, x.tags, x.deleted_at, x.cause, x.actor, x.until `+restorable+` ORDER BY x.id DESC LIMIT ?`, []any{repo, n},
		func(r *sql.Rows) error {
			d, err := scanDeleted(func(dest ...any) error { return r.Scan(dest...) })
			out = append(out, d)
			return err
		})
	return out, err
}

// RemovedWith calls each for the manifests of a repository that were removed for the same cause
// and can be restored until the same time, the first one first. So it has what one step of
// retention removed. content is valid during the call only.
func (h History) RemovedWith(ctx context.Context, repo, cause string, until time.Time, each func(d oci.DeletedManifest, content []byte) error) error {
	return h.DB.Rows(ctx, `SELECT x.digest, x.media_type, b.size, x.tags, x.deleted_at, x.cause, x.actor, x.until, b.content `+restorable+` AND x.cause = ? AND x.until = ? ORDER BY x.id`,
		[]any{repo, cause, engine.ToMillis(until)}, func(r *sql.Rows) error {
			var content sql.RawBytes
			d, err := scanDeleted(func(dest ...any) error { return r.Scan(append(dest, &content)...) })
			if err != nil {
				return err
			}
			return each(d, content)
		})
}

// DeletedManifest returns a manifest of a repository that was removed and can be
// restored, with its content. Errors: catalog.ErrNotFound.
func (h History) DeletedManifest(ctx context.Context, repo string, d oci.Digest) (found oci.DeletedManifest, content []byte, err error) {
	found, err = scanDeleted(func(dest ...any) error {
		return h.DB.Row(ctx, `SELECT x.digest, x.media_type, b.size, x.tags, x.deleted_at, x.cause, x.actor, x.until, b.content `+restorable+` AND x.digest = ?`,
			[]any{repo, string(d)}, append(dest, &content)...)
	})
	return found, content, err
}

func scanDeleted(scan func(...any) error) (d oci.DeletedManifest, err error) {
	var tags string
	var at, until int64
	if err := scan(&d.Digest, &d.MediaType, &d.Size, &tags, &at, &d.Cause, &d.By, &until); err != nil {
		return d, err
	}
	d.At, d.Until = engine.FromMillis(at), engine.FromMillis(until)
	if err := json.Unmarshal([]byte(tags), &d.Tags); err != nil {
		return d, fmt.Errorf("tags of the deleted manifest %s: %w", d.Digest, err)
	}
	return d, nil
}
