package catalog

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// AdoptBlob is like PutBlob, for a repository that is a copy of a repository of another
// registry, in which manifests arrive before the contents that they name. AdoptBlob does not
// queue a content that a manifest names, because the content stays until the manifest goes.
// added reports whether the content was not stored before. Errors: ErrBusy, ErrDeleting.
func (c *Catalog) AdoptBlob(ctx context.Context, repo string, b Blob, uploadID string) (added bool, err error) {
	err = c.DB.Write(ctx, func(t *engine.Tx) error {
		if err := mayRecord(t, b, uploadID); err != nil {
			return err
		}
		now := t.Now()
		repoID, err := Repository(t, repo, now)
		if err != nil {
			return err
		}
		s, err := storeNew(t, b, now)
		if added = s.added; err != nil {
			return err
		}
		if err := endUpload(t, uploadID); err != nil {
			return err
		}
		return linkNamed(t, repoID, s.id, now, t.Due())
	})
	return added && err == nil, err
}

// LinkStored makes an already stored content visible in a repository that is a copy of
// another registry's repository; see AdoptBlob. It returns ErrNotStored if the content is
// not stored or is suspect.
func (c *Catalog) LinkStored(ctx context.Context, repo string, d oci.Digest) (Blob, error) {
	b := Blob{Digest: d}
	err := c.DB.Write(ctx, func(t *engine.Tx) error {
		blobID, err := liveBlob(t, &b)
		if err != nil {
			return err
		}
		now := t.Now()
		repoID, err := Repository(t, repo, now)
		if err != nil {
			return err
		}
		return linkNamed(t, repoID, blobID, now, t.Due())
	})
	return b, err
}

// linkNamed is like Link, for a content that a manifest of the repository may name already. In
// that case the collector need not examine the content before the manifest is removed, and the
// removal queues it.
func linkNamed(t *engine.Tx, repoID, blobID, now, due int64) error {
	n, err := t.Exec(`INSERT INTO links (repo_id, blob_id, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, repoID, blobID, now)
	if err != nil {
		return err
	}
	if n == 0 {
		_, err = t.Exec(`UPDATE gc_queue SET due_at = ? WHERE kind = 0 AND repo_id = ? AND blob_id = ?`, due, repoID, blobID)
		return err
	}
	_, err = t.Exec(`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 0, CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT)
		WHERE NOT EXISTS (SELECT 1 FROM refs WHERE repo_id = ? AND blob_id = ?)
		ON CONFLICT (kind, repo_id, blob_id) DO UPDATE SET due_at = excluded.due_at`, repoID, blobID, due, repoID, blobID)
	return err
}

// Naming returns at most n manifests of a repository that name a content, the newest
// first.
func (c *Catalog) Naming(ctx context.Context, repo string, d oci.Digest, n int) ([]Manifest, error) {
	var out []Manifest
	err := c.DB.Rows(ctx, `SELECT `+manifestColumns+` FROM repositories r
		CROSS JOIN blobs n ON n.digest = ?
		CROSS JOIN refs f ON f.repo_id = r.id AND f.blob_id = n.id
		CROSS JOIN manifests m ON m.id = f.manifest_id
		CROSS JOIN blobs b ON b.id = m.blob_id AND b.state = 1
		WHERE r.name = ? ORDER BY m.id DESC LIMIT ?`, []any{string(d), repo, n}, func(r *sql.Rows) error {
		m, err := scanManifest(r.Scan)
		out = append(out, m)
		return err
	})
	return out, err
}

// Linked reports which of the contents a repository shows.
func (c *Catalog) Linked(ctx context.Context, repo string, digests []oci.Digest) (map[oci.Digest]bool, error) {
	return c.which(ctx, "links", repo, digests, hasBytes)
}

// ManifestsHere reports which of the digests are manifests of a repository.
func (c *Catalog) ManifestsHere(ctx context.Context, repo string, digests []oci.Digest) (map[oci.Digest]bool, error) {
	return c.which(ctx, "manifests", repo, digests, hasBytes)
}

// ManifestsKnown is like ManifestsHere, but includes the manifests whose bytes are lost.
func (c *Catalog) ManifestsKnown(ctx context.Context, repo string, digests []oci.Digest) (map[oci.Digest]bool, error) {
	return c.which(ctx, "manifests", repo, digests, "")
}

// hasBytes restricts a query to contents whose bytes are stored.
const hasBytes = " AND b.state = 1"

// which reports which of the digests have a row in a table for a repository. It considers
// only contents that meet a condition.
func (c *Catalog) which(ctx context.Context, table, repo string, digests []oci.Digest, condition string) (map[oci.Digest]bool, error) {
	out := make(map[oci.Digest]bool, len(digests))
	err := engine.InParts(digests, func(part []oci.Digest) error {
		args := make([]any, 0, len(part)+1)
		for _, d := range part {
			args = append(args, string(d))
		}
		return c.DB.Rows(ctx, `SELECT b.digest FROM blobs b WHERE b.digest IN (`+engine.Marks("?", len(part))+`)`+condition+`
			AND EXISTS (SELECT 1 FROM repositories r JOIN `+table+` x ON x.repo_id = r.id AND x.blob_id = b.id WHERE r.name = ?)`,
			append(args, repo), func(r *sql.Rows) error {
				var d oci.Digest
				err := r.Scan(&d)
				out[d] = true
				return err
			})
	})
	return out, err
}

// DroppedImages is what DropImages removed from a repository.
type DroppedImages struct {
	// Tags that are gone.
	Tags []string
	// Collected lists the removed manifests and blobs, and those of their contents that
	// nothing needs any more. Its Objects must be deleted and then passed to Forget.
	Collected
}

// DropImages removes manifests of a repository and their tags. It also removes what only
// these manifests kept in the repository: the manifests that an index names, the
// manifests that refer to them, and the blobs that no other manifest of the repository
// names. A content that no repository shows any more is dropped at once, without a grace
// period. So no client may have been told that the content is there, except to pull it.
// DropImages skips digests that are not there. Unless usedBefore is zero, it also skips
// images that arrived or were pulled at usedBefore or later.
func (c *Garbage) DropImages(ctx context.Context, repo string, usedBefore time.Time, digests ...oci.Digest) (DroppedImages, error) {
	var out DroppedImages
	err := c.DB.Write(ctx, func(t *engine.Tx) error {
		out = DroppedImages{}
		repoID, err := findRepository(t, repo)
		if err == ErrNoRepository {
			return nil
		}
		if err != nil {
			return err
		}
		for _, d := range digests {
			if err := dropImage(t, repo, repoID, d, usedBefore, &out); err != nil {
				return err
			}
		}
		return takeFreed(t, &out.Collected)
	})
	if err != nil {
		out = DroppedImages{}
	}
	return out, err
}

// dropImage removes a manifest and what it kept, and queues what that frees, with the due
// time dueFreed.
func dropImage(t *engine.Tx, repo string, repoID int64, d oci.Digest, usedBefore time.Time, out *DroppedImages) error {
	m := retired{digest: d}
	var used int64
	err := t.Row(`SELECT m.id, m.blob_id, `+LastUse+` FROM blobs b JOIN manifests m ON m.repo_id = ? AND m.blob_id = b.id WHERE b.digest = ?`,
		[]any{repoID, string(d)}, &m.id, &m.blobID, &used)
	if err == ErrNotFound || err == nil && !usedBefore.IsZero() && used >= usedBefore.UnixMilli() {
		return nil
	}
	if err != nil {
		return err
	}
	tags, err := tagsOf(t, m.id)
	if err != nil {
		return err
	}
	p := newRetirement(t, RetireOptions{})
	p.repoID = repoID
	var went Retired
	next, err := p.take(m, &went)
	if err != nil {
		return err
	}
	gone, err := p.follow(next, &went)
	if err != nil {
		return err
	}
	for _, tag := range went.Tags {
		if !slices.Contains(tags, tag.Name) {
			tags = append(tags, tag.Name)
		}
	}
	origin := Origin{Cause: oci.CauseMirror}
	for _, tag := range tags {
		if err := removeTag(t, repo, repoID, tag, dueFreed, origin); err != nil {
			return err
		}
	}
	out.Tags = append(out.Tags, tags...)
	for _, m := range append([]retired{m}, gone...) {
		if err := RemoveManifest(t, repoID, m.id, m.blobID, dueFreed, origin); err != nil {
			return err
		}
		t.Changed(engine.ChangeManifest, repo, string(m.digest))
		out.Unlinked = append(out.Unlinked, Unlinked{Repo: repo, Digest: m.digest, Manifest: true})
	}
	return nil
}

// takeFreed collects what is queued with the due time dueFreed, and what that frees in
// turn.
func takeFreed(t *engine.Tx, out *Collected) error {
	for {
		list, err := dueCandidates(t, CollectOptions{Max: 1024, Before: time.UnixMilli(0), After: &Candidate{due: dueFreed - 1}})
		if err != nil || len(list) == 0 {
			return err
		}
		for i := range list {
			if err := collectOne(t, &list[i], CollectOptions{}, out); err != nil {
				return err
			}
		}
	}
}

// DropBlob removes a blob from a repository even if manifests name it. As in DropImages,
// the content is dropped at once if no other repository shows it. Errors: ErrNotFound.
func (c *Garbage) DropBlob(ctx context.Context, repo string, d oci.Digest) (Collected, error) {
	var out Collected
	err := c.DB.Write(ctx, func(t *engine.Tx) error {
		out = Collected{}
		k := Candidate{kind: GCBlob, repo: repo, digest: d, present: true}
		err := t.Row(`SELECT r.id, b.id, b.size, b.content IS NOT NULL FROM repositories r
			JOIN blobs b ON b.digest = ? AND b.state = 1
			JOIN links l ON l.repo_id = r.id AND l.blob_id = b.id
			WHERE r.name = ?`, []any{string(d), repo}, &k.repoID, &k.blobID, &k.size, &k.inline)
		if err != nil {
			return err
		}
		if err := unlink(t, &k, &out); err != nil {
			return err
		}
		if err := dropContent(t, &k, &out); err != nil {
			return err
		}
		return DropRepository(t, k.repoID)
	})
	if errors.Is(err, ErrNotFound) {
		return Collected{}, ErrNotFound
	}
	return out, err
}
