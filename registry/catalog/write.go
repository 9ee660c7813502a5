package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Kinds of rows in gc_queue.
const (
	GCBlob     = 0
	GCManifest = 1
	// gcPart marks a manifest without a tag that lost its subject or the index that named
	// it. The collector removes it, unless something else needs it. It does so even if it
	// does not remove other manifests without a tag.
	gcPart = 2
)

// Enqueue records that something of a repository may have become garbage. If it is queued
// already, its due time changes, so that a change of mind within the grace period always
// wins.
func Enqueue(t *engine.Tx, kind int, repoID, blobID, due int64) error {
	_, err := t.Exec(`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (kind, repo_id, blob_id) DO UPDATE SET due_at = excluded.due_at`, kind, repoID, blobID, due)
	return err
}

// Repository returns a repository's id, and creates the repository if necessary. The
// transaction remembers ids, because most changes of a batch concern few repositories.
func Repository(t *engine.Tx, name string, now int64) (int64, error) {
	if id, ok := t.Repositories[name]; ok {
		return id, nil
	}
	id, err := findRepository(t, name)
	if err == ErrNoRepository {
		id, err = t.Insert(`INSERT INTO repositories (name, created_at) VALUES (?, ?) RETURNING id`, name, now)
	}
	if err == nil {
		if t.Repositories == nil {
			t.Repositories = map[string]int64{}
		}
		t.Repositories[name] = id
	}
	return id, err
}

func findRepository(t *engine.Tx, name string) (id int64, err error) {
	err = t.Row(`SELECT id FROM repositories WHERE name = ?`, []any{name}, &id)
	if err == ErrNotFound {
		err = ErrNoRepository
	}
	return id, err
}

// store records a content as stored and returns the id of its row. The caller has the
// bytes and has checked that they match the digest. b.Content is nil for an object in the
// store.
func store(t *engine.Tx, b Blob, now int64) (int64, error) {
	s, err := storeNew(t, b, now)
	return s.id, err
}

// storedRow is the row of a content that was recorded as stored.
type storedRow struct {
	id int64
	// added says that the row was created or changed.
	added bool
	Recorded
}

// storeNew is like store, but returns more about the row. A correct row stays as it is. A row
// that is suspect, or that contradicts the bytes at hand, is corrected. Bytes in the catalogue
// are never replaced by an object, because manifests are read from the catalogue.
func storeNew(t *engine.Tx, b Blob, now int64) (s storedRow, err error) {
	t.MarkDirty()
	err = t.Row(`INSERT INTO blobs (digest, size, state, content, tag, created_at) VALUES (?, ?, 1, ?, ?, ?)
		ON CONFLICT (digest) DO UPDATE SET state = 1, size = excluded.size, tag = excluded.tag, created_at = excluded.created_at, owner = '', deadline = 0,
		content = CASE WHEN blobs.state = 1 AND excluded.content IS NULL THEN blobs.content ELSE excluded.content END,
		suspect = CASE WHEN blobs.state = 1 AND excluded.content IS NULL AND blobs.content IS NOT NULL THEN blobs.suspect ELSE 0 END
		WHERE blobs.state <> 1 OR blobs.suspect <> 0 OR blobs.size <> excluded.size
		OR (excluded.content IS NOT NULL AND blobs.content <> excluded.content)
		OR (excluded.tag <> '' AND blobs.tag <> excluded.tag)
		RETURNING id, content IS NULL, EXISTS (SELECT 1 FROM refs f WHERE f.blob_id = blobs.id
			AND NOT EXISTS (SELECT 1 FROM links l WHERE l.repo_id = f.repo_id AND l.blob_id = f.blob_id))`,
		[]any{string(b.Digest), b.Size, b.Content, b.Tag, now}, &s.id, &s.Object, &s.Named)
	if s.added = err != ErrNotFound; !s.added { // it is there
		err = t.Row(`SELECT id, content IS NULL FROM blobs WHERE digest = ?`, []any{string(b.Digest)}, &s.id, &s.Object)
	}
	return s, err
}

// Link makes a repository show a content, and queues the content for the collector.
func Link(t *engine.Tx, repoID, blobID, now, due int64) error {
	n, err := t.Exec(`INSERT INTO links (repo_id, blob_id, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, repoID, blobID, now)
	if err != nil {
		return err
	}
	if n == 0 { // known; if the collector has it in its queue, keep it for another grace period
		_, err = t.Exec(`UPDATE gc_queue SET due_at = ? WHERE kind = 0 AND repo_id = ? AND blob_id = ?`, due, repoID, blobID)
		return err
	}
	return Enqueue(t, GCBlob, repoID, blobID, due)
}

// PutBlob records a stored content and makes it visible in a repository. If uploadID is
// not "", it ends that upload in the same transaction. A nil Content says that the object
// is durable in the store. If the upload is claimed, the content must then be the
// upload's intent. PutBlob returns ErrBusy if the claim has expired and the object may
// have been deleted since. Errors: ErrBusy, ErrDeleting.
func (c *Catalog) PutBlob(ctx context.Context, repo string, b Blob, uploadID string) (rec Recorded, err error) {
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
		if err != nil {
			return err
		}
		rec = s.Recorded
		if err := endUpload(t, uploadID); err != nil {
			return err
		}
		return Link(t, repoID, s.id, now, t.Due())
	})
	return rec, err
}

// Recorded is what PutBlob found out about a content.
type Recorded struct {
	// Object says that the content is an object in the store, according to its row.
	Object bool
	// Named says that the row was created or changed, and that manifests name the content
	// in repositories that do not show it.
	Named bool
}

func liveBlob(t *engine.Tx, b *Blob) (id int64, err error) {
	err = t.Row(`SELECT id, size FROM blobs WHERE digest = ? AND state = 1 AND suspect = 0`, []any{string(b.Digest)}, &id, &b.Size)
	if err == ErrNotFound {
		err = ErrNotStored
	}
	return id, err
}

// MountBlob makes a blob of one repository (from) visible in another (to). It returns
// ErrNotFound if the first repository does not show the blob, or if the blob is suspect.
func (c *Catalog) MountBlob(ctx context.Context, to, from string, d oci.Digest) (Blob, error) {
	b := Blob{Digest: d}
	err := c.DB.Write(ctx, func(t *engine.Tx) error {
		var blobID int64
		err := t.Row(`SELECT b.id, b.size FROM repositories r
			JOIN blobs b ON b.digest = ? AND b.state = 1 AND b.suspect = 0
			JOIN links l ON l.repo_id = r.id AND l.blob_id = b.id
			WHERE r.name = ?`, []any{string(d), from}, &blobID, &b.Size)
		if err != nil {
			return err
		}
		now := t.Now()
		repoID, err := Repository(t, to, now)
		if err != nil {
			return err
		}
		return Link(t, repoID, blobID, now, t.Due())
	})
	return b, err
}

// DeleteBlob removes a blob from a repository. The collector removes the content once no
// repository shows it. Errors: ErrNotFound, ErrReferenced.
func (c *Catalog) DeleteBlob(ctx context.Context, repo string, d oci.Digest) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		var repoID, blobID int64
		var needed bool
		err := t.Row(`SELECT r.id, b.id, EXISTS (SELECT 1 FROM refs f WHERE f.repo_id = r.id AND f.blob_id = b.id)
			FROM repositories r
			JOIN blobs b ON b.digest = ? AND b.state = 1
			JOIN links l ON l.repo_id = r.id AND l.blob_id = b.id
			WHERE r.name = ?`, []any{string(d), repo}, &repoID, &blobID, &needed)
		if err != nil {
			return err
		}
		if needed {
			return ErrReferenced
		}
		if _, err := t.Exec(`DELETE FROM links WHERE repo_id = ? AND blob_id = ?`, repoID, blobID); err != nil {
			return err
		}
		if err := revokeGear(t, repoID, blobID); err != nil {
			return err
		}
		t.Changed(engine.ChangeBlob, repo, string(d))
		// The link itself has no grace period, but the content has one: another push may
		// be about to mount or name it.
		return Enqueue(t, GCBlob, repoID, blobID, t.Due())
	})
}

// PutManifest records a manifest, what it names, and its tags. replaced lists the tags
// that pointed elsewhere before. Errors: *MissingError, *SizeError, *ImmutableError,
// *MediaTypeError.
func (c *Catalog) PutManifest(ctx context.Context, repo string, m NewManifest) (replaced []string, err error) {
	var annotations any
	if len(m.Annotations) > 0 {
		b, err := json.Marshal(m.Annotations)
		if err != nil {
			return nil, err
		}
		annotations = string(b)
	}
	var conflict *MediaTypeError
	err = c.DB.Write(ctx, func(t *engine.Tx) error {
		replaced, conflict = nil, nil
		repoID, named, err := checkManifest(t, repo, m)
		if errors.As(err, &conflict) {
			return nil // nothing was written, so the other changes of the batch go on
		}
		if err != nil {
			return err
		}
		now := t.Now()
		due := t.Due()
		if repoID == 0 {
			if repoID, err = Repository(t, repo, now); err != nil {
				return err
			}
		}
		id, blobID, err := insertManifest(t, repoID, m, annotations, now)
		if err != nil {
			return err
		}
		if err := name(t, repoID, id, named); err != nil {
			return err
		}
		if err := NameOptional(t, repoID, id, m.Optional, now); err != nil {
			return err
		}
		if err := untrash(t, repoID, m.Digest); err != nil {
			return err
		}
		for _, tag := range m.Tags {
			moved, err := setTag(t, newTag{repo: repo, repoID: repoID, manifestID: id, name: tag, digest: m.Digest}, now, due, m.Origin)
			if err != nil {
				return err
			}
			if moved {
				replaced = append(replaced, tag)
			}
		}
		// Whoever pushes a part again wants it as an image.
		if _, err := t.Exec(`DELETE FROM gc_queue WHERE kind = 2 AND repo_id = ? AND blob_id = ?`, repoID, blobID); err != nil {
			return err
		}
		if len(m.Tags) > 0 {
			return nil
		}
		return Enqueue(t, GCManifest, repoID, blobID, due)
	})
	if err == nil && conflict != nil {
		err = conflict
	}
	return replaced, err
}

// maxMissing is the maximum number of digests in a MissingError.
const maxMissing = 100

// checkManifest makes all checks that can fail, before anything is written. It returns
// the ids of the repository (0 if it is new) and of everything that the manifest names.
func checkManifest(t *engine.Tx, repo string, m NewManifest) (repoID int64, named []int64, err error) {
	repoID, err = findRepository(t, repo)
	if err != nil && err != ErrNoRepository {
		return 0, nil, err
	}
	if repoID != 0 {
		if err := checkMediaType(t, repoID, m); err != nil {
			return 0, nil, err
		}
	}
	var missing MissingError
	var wrong *SizeError
	for _, list := range []struct {
		digests []oci.Digest
		visible string
	}{
		{m.Blobs, `EXISTS (SELECT 1 FROM links l WHERE l.blob_id = b.id AND l.repo_id = ?)`},
		// An index may also name plain blobs.
		{m.Manifests, `(EXISTS (SELECT 1 FROM manifests m WHERE m.blob_id = b.id AND m.repo_id = ?)
			OR EXISTS (SELECT 1 FROM links l WHERE l.blob_id = b.id AND l.repo_id = ?))`},
	} {
		ids, err := visible(t, repoID, list.visible, list.digests)
		if err != nil {
			return 0, nil, err
		}
		for _, d := range list.digests {
			if c, ok := ids[d]; ok {
				named = append(named, c.id)
				if size, ok := m.Sizes[d]; ok && size != c.size && wrong == nil {
					wrong = &SizeError{Digest: d, Named: size, Stored: c.size}
				}
			} else if missing.Total++; missing.Total <= maxMissing {
				missing.Digests = append(missing.Digests, d)
			}
		}
	}
	if missing.Total > 0 {
		return 0, nil, &missing
	}
	if wrong != nil {
		return 0, nil, wrong
	}
	if m.Immutable != nil && repoID != 0 {
		for _, tag := range m.Tags {
			if err := checkImmutable(t, repoID, m.Digest, tag, m.Immutable); err != nil {
				return 0, nil, err
			}
		}
	}
	return repoID, named, nil
}

// storedContent is the id and size of a content.
type storedContent struct{ id, size int64 }

// visible returns those of the contents that are stored, are not suspect, and meet the
// condition. All placeholders of the condition stand for the repository. It looks up many
// contents with one statement, because a manifest may name thousands and this is the only
// writer.
func visible(t *engine.Tx, repoID int64, condition string, digests []oci.Digest) (map[oci.Digest]storedContent, error) {
	ids := make(map[oci.Digest]storedContent, len(digests))
	more := make([]any, strings.Count(condition, "?"))
	for i := range more {
		more[i] = repoID
	}
	err := engine.InParts(digests, func(part []oci.Digest) error {
		args := make([]any, 0, len(part)+len(more))
		for _, d := range part {
			args = append(args, string(d))
		}
		query := `SELECT b.digest, b.id, b.size FROM blobs b WHERE b.digest IN (` + engine.Marks("?", len(part)) + `) AND b.state = 1 AND b.suspect = 0 AND ` + condition
		return t.Rows(query, append(args, more...), func(r *sql.Rows) error {
			var d oci.Digest
			var c storedContent
			err := r.Scan(&d, &c.id, &c.size)
			ids[d] = c
			return err
		})
	})
	return ids, err
}

// checkMediaType refuses a manifest that the repository has with another media type.
// Whoever pulls it by digest or by an immutable tag must always get the same.
func checkMediaType(t *engine.Tx, repoID int64, m NewManifest) error {
	var stored string
	err := t.Row(`SELECT m.media_type FROM blobs b JOIN manifests m ON m.repo_id = ? AND m.blob_id = b.id WHERE b.digest = ?`,
		[]any{repoID, string(m.Digest)}, &stored)
	switch {
	case err == ErrNotFound:
		return nil
	case err == nil && stored != m.MediaType:
		return &MediaTypeError{stored}
	}
	return err
}

func checkImmutable(t *engine.Tx, repoID int64, d oci.Digest, tag string, immutable func(string) bool) error {
	if !immutable(tag) {
		return nil
	}
	var at string
	err := t.Row(`SELECT b.digest FROM tags t JOIN manifests m ON m.id = t.manifest_id JOIN blobs b ON b.id = m.blob_id
		WHERE t.repo_id = ? AND t.name = ?`, []any{repoID, tag}, &at)
	if err == ErrNotFound || (err == nil && at == string(d)) {
		return nil
	}
	if err == nil {
		err = &ImmutableError{Tag: tag}
	}
	return err
}

func insertManifest(t *engine.Tx, repoID int64, m NewManifest, annotations any, now int64) (id, blobID int64, err error) {
	blobID, err = store(t, Blob{Digest: m.Digest, Size: int64(len(m.Content)), Content: m.Content}, now)
	if err != nil {
		return 0, 0, err
	}
	// The same bytes may have been pushed as a blob too large for the catalogue. A
	// manifest is always read from the catalogue.
	if _, err = t.Exec(`UPDATE blobs SET content = ? WHERE id = ? AND content IS NULL`, m.Content, blobID); err != nil {
		return 0, 0, err
	}
	var subject any
	if m.Subject != "" {
		subject = string(m.Subject)
	}
	id, err = t.Insert(`INSERT INTO manifests (repo_id, blob_id, media_type, artifact_type, subject, annotations, created_at, pulled_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, 0)
		ON CONFLICT (repo_id, blob_id) DO NOTHING RETURNING id`,
		repoID, blobID, m.MediaType, m.ArtifactType, subject, annotations, now)
	if err == ErrNotFound { // it is there
		err = t.Row(`SELECT id FROM manifests WHERE repo_id = ? AND blob_id = ?`, []any{repoID, blobID}, &id)
	}
	return id, blobID, err
}

// name records that a manifest names contents.
func name(t *engine.Tx, repoID, manifestID int64, blobIDs []int64) error {
	return engine.InParts(blobIDs, func(part []int64) error {
		args := make([]any, 0, 3*len(part))
		for _, id := range part {
			args = append(args, repoID, id, manifestID)
		}
		_, err := t.Exec(`INSERT INTO refs (repo_id, blob_id, manifest_id) VALUES `+engine.Marks("(?, ?, ?)", len(part))+` ON CONFLICT DO NOTHING`, args...)
		return err
	})
}

// NameOptional records that a manifest names contents that need not be here. If they are
// here, or arrive later, they are kept.
func NameOptional(t *engine.Tx, repoID, manifestID int64, named []oci.Descriptor, now int64) error {
	return engine.InParts(named, func(part []oci.Descriptor) error {
		rows := make([]any, 0, 3*len(part))
		digests := make([]any, 0, 2+len(part))
		digests = append(digests, repoID, manifestID)
		for _, d := range part {
			rows = append(rows, string(d.Digest), d.Size, now)
			digests = append(digests, string(d.Digest))
		}
		if _, err := t.Exec(`INSERT INTO blobs (digest, size, state, content, created_at) VALUES `+engine.Marks("(?, ?, 0, NULL, ?)", len(part))+`
			ON CONFLICT (digest) DO NOTHING`, rows...); err != nil {
			return err
		}
		_, err := t.Exec(`INSERT INTO refs (repo_id, blob_id, manifest_id)
			SELECT ?, b.id, ? FROM blobs b WHERE b.digest IN (`+engine.Marks("?", len(part))+`) ON CONFLICT DO NOTHING`, digests...)
		return err
	})
}

// newTag is a tag that is to point at a manifest.
type newTag struct {
	repo, name         string
	repoID, manifestID int64
	digest             oci.Digest
}

// setTag points a tag at a manifest and reports whether it pointed elsewhere.
func setTag(t *engine.Tx, n newTag, now, due int64, o Origin) (moved bool, err error) {
	repo, repoID, manifestID, tag := n.repo, n.repoID, n.manifestID, n.name
	var before, beforeBlob int64
	err = t.Row(`SELECT t.manifest_id, m.blob_id FROM tags t JOIN manifests m ON m.id = t.manifest_id WHERE t.repo_id = ? AND t.name = ?`,
		[]any{repoID, tag}, &before, &beforeBlob)
	if err != nil && err != ErrNotFound {
		return false, err
	}
	if before != manifestID {
		if before == 0 {
			err = recordNewTag(t, o, repoID, tag, n.digest)
		} else {
			err = recordTags(t, o, n.digest, `t.repo_id = ? AND t.name = ?`, repoID, tag)
		}
		if err == nil {
			err = trimTag(t, repoID, tag)
		}
		if err != nil {
			return false, err
		}
	}
	_, err = t.Exec(`INSERT INTO tags (repo_id, name, manifest_id, updated_at, pulled_at) VALUES (?, ?, ?, ?, 0)
		ON CONFLICT (repo_id, name) DO UPDATE SET manifest_id = excluded.manifest_id, updated_at = excluded.updated_at`,
		repoID, tag, manifestID, now)
	if err != nil || before == manifestID {
		return false, err
	}
	t.Changed(engine.ChangeTag, repo, tag)
	if before == 0 {
		return false, nil
	}
	// Pulls by this tag until now were pulls of the manifest that the tag leaves.
	for _, query := range []string{
		`UPDATE manifests SET pulled_at = (SELECT t.pulled_at FROM tags t WHERE t.repo_id = ? AND t.name = ?)
			WHERE id = ? AND pulled_at < (SELECT t.pulled_at FROM tags t WHERE t.repo_id = ? AND t.name = ?)`,
		`UPDATE tags SET pulled_at = 0 WHERE repo_id = ? AND name = ?`,
	} {
		args := []any{repoID, tag, before, repoID, tag}
		if _, err := t.Exec(query, args[:strings.Count(query, "?")]...); err != nil {
			return false, err
		}
	}
	return true, Enqueue(t, GCManifest, repoID, beforeBlob, due)
}

// DeleteTag removes a tag. Errors: ErrNotFound, *ImmutableError.
func (c *Catalog) DeleteTag(ctx context.Context, repo, tag string, immutable func(string) bool) error {
	o := OriginOf(ctx, oci.CauseDelete)
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		var repoID, blobID int64
		err := t.Row(`SELECT t.repo_id, m.blob_id FROM repositories r JOIN tags t ON t.repo_id = r.id
			JOIN manifests m ON m.id = t.manifest_id WHERE r.name = ? AND t.name = ?`, []any{repo, tag}, &repoID, &blobID)
		if err != nil {
			return err
		}
		if immutable != nil && immutable(tag) {
			return &ImmutableError{Tag: tag}
		}
		if err := recordTags(t, o, "", `t.repo_id = ? AND t.name = ?`, repoID, tag); err != nil {
			return err
		}
		if _, err := t.Exec(`DELETE FROM tags WHERE repo_id = ? AND name = ?`, repoID, tag); err != nil {
			return err
		}
		t.Changed(engine.ChangeTag, repo, tag)
		return Enqueue(t, GCManifest, repoID, blobID, t.Due())
	})
}

// DeleteManifest removes a manifest and the tags that point at it, and returns these
// tags. It refuses to remove a part of an index that has an immutable tag. Errors:
// ErrNotFound, *ImmutableError.
func (c *Catalog) DeleteManifest(ctx context.Context, repo string, d oci.Digest, immutable func(string) bool) (tags []string, err error) {
	o := OriginOf(ctx, oci.CauseDelete)
	err = c.DB.Write(ctx, func(t *engine.Tx) error {
		var repoID, id, blobID int64
		err := t.Row(`SELECT m.repo_id, m.id, m.blob_id FROM repositories r JOIN blobs b ON b.digest = ?
			JOIN manifests m ON m.repo_id = r.id AND m.blob_id = b.id WHERE r.name = ?`, []any{string(d), repo}, &repoID, &id, &blobID)
		if err != nil {
			return err
		}
		if tags, err = tagsOf(t, id); err != nil {
			return err
		}
		if err := checkParts(t, id, immutable); err != nil {
			return err
		}
		for _, tag := range tags {
			t.Changed(engine.ChangeTag, repo, tag)
		}
		t.Changed(engine.ChangeManifest, repo, string(d))
		return RemoveManifest(t, repoID, id, blobID, t.Due(), o)
	})
	return tags, err
}

func tagsOf(t *engine.Tx, manifestID int64) ([]string, error) {
	var tags []string
	err := t.Rows(`SELECT name FROM tags WHERE manifest_id = ? ORDER BY name`, []any{manifestID}, func(r *sql.Rows) error {
		var s string
		err := r.Scan(&s)
		tags = append(tags, s)
		return err
	})
	return tags, err
}

// RemoveManifest deletes a manifest's rows. It queues what the manifest named, the
// manifests that refer to it, and its own content. The manifest can be restored until
// due.
func RemoveManifest(t *engine.Tx, repoID, id, blobID, due int64, o Origin) error {
	if err := trash(t, repoID, id, due, o); err != nil {
		return err
	}
	if err := recordTags(t, o, "", `t.manifest_id = ?`, id); err != nil {
		return err
	}
	queue := []struct {
		query string
		args  []any
	}{
		{`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 0, repo_id, blob_id, ? FROM refs WHERE manifest_id = ?
			ON CONFLICT (kind, repo_id, blob_id) DO UPDATE SET due_at = excluded.due_at`, []any{due, id}},
		// The manifests that this one named, or that refer to it, may have lost what kept
		// them. A manifest with a tag is an image by itself.
		{`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 2, m.repo_id, m.blob_id, ? FROM refs f
			JOIN manifests m ON m.repo_id = f.repo_id AND m.blob_id = f.blob_id WHERE f.manifest_id = ? AND NOT EXISTS (SELECT 1 FROM tags t WHERE t.manifest_id = m.id)
			ON CONFLICT (kind, repo_id, blob_id) DO UPDATE SET due_at = excluded.due_at`, []any{due, id}},
		{`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 2, m.repo_id, m.blob_id, ? FROM manifests m
			WHERE m.repo_id = ? AND m.subject = (SELECT digest FROM blobs WHERE id = ?) AND NOT EXISTS (SELECT 1 FROM tags t WHERE t.manifest_id = m.id)
			ON CONFLICT (kind, repo_id, blob_id) DO UPDATE SET due_at = excluded.due_at`, []any{due, repoID, blobID}},
		{`DELETE FROM refs WHERE manifest_id = ?`, []any{id}},
		{`DELETE FROM tags WHERE manifest_id = ?`, []any{id}},
		{`DELETE FROM manifests WHERE id = ?`, []any{id}},
	}
	for _, q := range queue {
		if _, err := t.Exec(q.query, q.args...); err != nil {
			return err
		}
	}
	return Enqueue(t, GCBlob, repoID, blobID, due)
}

// Pull is the time when something was last pulled.
type Pull struct {
	Repo string
	// Ref is a tag or a digest.
	Ref string
	At  int64 // Unix milliseconds
}

// RecordPulls records the times of many last pulls. It skips what is gone by now.
func (c *Catalog) RecordPulls(ctx context.Context, pulls []Pull) error {
	return c.DB.WriteLazy(ctx, func(t *engine.Tx) error {
		for _, p := range pulls {
			repoID, err := findRepository(t, p.Repo)
			if errors.Is(err, ErrNoRepository) {
				continue
			}
			if err != nil {
				return err
			}
			if oci.IsDigest(p.Ref) {
				_, err = t.Exec(`UPDATE manifests SET pulled_at = ? WHERE repo_id = ? AND blob_id = (SELECT id FROM blobs WHERE digest = ?) AND pulled_at < ?`,
					p.At, repoID, p.Ref, p.At)
			} else {
				_, err = t.Exec(`UPDATE tags SET pulled_at = ? WHERE repo_id = ? AND name = ? AND pulled_at < ?`, p.At, repoID, p.Ref, p.At)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
