package catalog

import (
	"context"
	"database/sql"

	"example.org/slipway/oci"
)

// ErrChanged is returned when a tag is no longer what it was when the decision
// to remove it was made.
var ErrChanged = newVerdict("the tag has changed since")

// ErrInUse is returned when a client has just been told that a manifest is there.
var ErrInUse = newVerdict("a client was just told of it")

// RetireTag removes a tag, if it still is as it was read, and then its manifest
// and whatever only that one kept in the repository: the manifests an index
// names, and the manifests that refer to it, unless they have a tag, another
// index names them, or their subject stays. It returns the digests of the
// manifests removed. keep may veto the removal of a manifest, and with it of
// the tag: ErrInUse. Errors: ErrChanged, ErrInUse.
func (c *Catalog) RetireTag(ctx context.Context, repo string, tag TagInfo, keep func(oci.Digest) bool) (removed []oci.Digest, err error) {
	err = c.db.write(ctx, func(t *tx) error {
		removed = nil
		var start retired
		var repoID int64
		err := t.row(`SELECT t.repo_id, m.id, m.blob_id, b.digest FROM repositories r JOIN tags t ON t.repo_id = r.id
			JOIN manifests m ON m.id = t.manifest_id JOIN blobs b ON b.id = m.blob_id
			WHERE r.name = ? AND t.name = ? AND t.updated_at = ? AND b.digest = ?`,
			[]any{repo, tag.Name, tag.Updated.UnixMilli(), string(tag.Digest)}, &repoID, &start.id, &start.blobID, &start.digest)
		if err == ErrNotFound {
			return ErrChanged
		}
		if err != nil {
			return err
		}
		due := t.now() + c.grace.Milliseconds()
		if _, err := t.exec(`DELETE FROM tags WHERE repo_id = ? AND name = ?`, repoID, tag.Name); err != nil {
			return err
		}
		t.changed(ChangeTag, repo, tag.Name)
		if err := t.enqueue(gcManifest, repoID, start.blobID, due); err != nil {
			return err
		}
		removed, err = t.retire(repoID, start, due, keep)
		for _, d := range removed {
			t.changed(ChangeManifest, repo, string(d))
		}
		return err
	})
	if err != nil {
		removed = nil
	}
	return removed, err
}

type retired struct {
	id, blobID int64
	digest     oci.Digest
}

// retire removes a manifest that nothing keeps, and goes on with those it kept.
func (t *tx) retire(repoID int64, start retired, due int64, keep func(oci.Digest) bool) (removed []oci.Digest, err error) {
	queue := []retired{start}
	for len(queue) > 0 {
		m := queue[0]
		queue = queue[1:]
		kept, err := t.manifestKept(m.id)
		if err == ErrNotFound || kept {
			continue // kept, or reached in two ways and gone
		}
		if err != nil {
			return nil, err
		}
		if keep != nil && keep(m.digest) {
			return nil, ErrInUse
		}
		next, err := t.keptBy(repoID, m)
		if err != nil {
			return nil, err
		}
		if err := t.removeManifest(repoID, m.id, m.blobID, due); err != nil {
			return nil, err
		}
		removed = append(removed, m.digest)
		queue = append(queue, next...)
	}
	return removed, nil
}

// manifestKept tells whether a tag, an index or a subject keeps a manifest.
func (t *tx) manifestKept(id int64) (kept bool, err error) {
	err = t.row(`SELECT EXISTS (SELECT 1 FROM tags WHERE manifest_id = m.id)
		OR EXISTS (SELECT 1 FROM refs WHERE repo_id = m.repo_id AND blob_id = m.blob_id)
		OR EXISTS (SELECT 1 FROM manifests s JOIN blobs b ON b.id = s.blob_id WHERE s.repo_id = m.repo_id AND b.digest = m.subject)
		FROM manifests m WHERE m.id = ?`, []any{id}, &kept)
	return kept, err
}

// keptBy returns the manifests that an index names and those that refer to it.
func (t *tx) keptBy(repoID int64, m retired) ([]retired, error) {
	var out []retired
	err := t.rows(`SELECT c.id, c.blob_id, b.digest FROM refs f JOIN manifests c ON c.repo_id = f.repo_id AND c.blob_id = f.blob_id
			JOIN blobs b ON b.id = c.blob_id WHERE f.manifest_id = ?
		UNION SELECT s.id, s.blob_id, b.digest FROM manifests s JOIN blobs b ON b.id = s.blob_id WHERE s.repo_id = ? AND s.subject = ?`,
		[]any{m.id, repoID, string(m.digest)}, func(r *sql.Rows) error {
			var c retired
			err := r.Scan(&c.id, &c.blobID, &c.digest)
			out = append(out, c)
			return err
		})
	return out, err
}

// RetentionInfos returns all tags of a repository, newest first. Other than in
// TagInfos, LastPull also counts pulls of the manifest by digest and, of an
// index, of the manifests it names: many clients ask for a tag with HEAD and
// pull by digest.
func (c *Catalog) RetentionInfos(ctx context.Context, repo string) ([]TagInfo, error) {
	var out []TagInfo
	err := c.db.rows(ctx, `SELECT t.name, b.digest, t.updated_at, t.pulled_at, m.pulled_at,
			COALESCE((SELECT MAX(c.pulled_at) FROM refs f JOIN manifests c ON c.repo_id = f.repo_id AND c.blob_id = f.blob_id WHERE f.manifest_id = m.id), 0)
		FROM repositories r
		JOIN tags t ON t.repo_id = r.id
		JOIN manifests m ON m.id = t.manifest_id
		JOIN blobs b ON b.id = m.blob_id
		WHERE r.name = ? ORDER BY t.updated_at DESC, t.name DESC`, []any{repo}, func(r *sql.Rows) error {
		var t TagInfo
		var updated, byTag, byDigest, child int64
		err := r.Scan(&t.Name, &t.Digest, &updated, &byTag, &byDigest, &child)
		t.Updated, t.LastPull = fromMillis(updated), fromMillis(max(byTag, byDigest, child))
		out = append(out, t)
		return err
	})
	return out, err
}
