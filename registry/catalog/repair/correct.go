package repair

import (
	"context"
	"database/sql"
	"fmt"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// Shown says where a content was visible. Whoever remembers the content there must forget
// it now.
type Shown struct {
	// Links are the repositories that showed the content as a blob. Manifests are the
	// repositories that have it as a manifest.
	Links, Manifests []string
}

// MarkAbsent records that a content is not here any more, whatever the catalogue said
// before. From now on no repository shows it, and the next push brings it back. Manifests
// still name it, so that the other contents of the images that need it are not collected.
// If the content is a Gear layer, the right to its files is kept, but has no effect until
// the repository shows the layer again. The collector removes the right. inline says that
// the caller found the content in the catalogue, and not in the store. MarkAbsent returns
// engine.ErrNotFound if that has changed. It also returns engine.ErrNotFound for a layer
// that is assembled by its recipe, because the files of the layer must not be collected.
func (c Store) MarkAbsent(ctx context.Context, d oci.Digest, inline bool) (Shown, error) {
	var s Shown
	err := c.db.Write(ctx, func(t *engine.Tx) error {
		var id int64
		err := t.Row(`SELECT id FROM blobs WHERE digest = ? AND state = 1 AND CASE WHEN content IS NULL THEN 0 ELSE 1 END = ?
			AND NOT EXISTS (SELECT 1 FROM gear_recipes g WHERE g.digest = blobs.digest AND g.state >= 3)`, []any{string(d), inline}, &id)
		if err != nil {
			return err
		}
		if s, err = shown(t, d, id); err != nil {
			return err
		}
		// Queue the content. If nothing names it, the collector then drops its row, and
		// the repositories that held nothing else.
		due := t.Due()
		for _, q := range []struct {
			query string
			args  []any
		}{
			{`UPDATE blobs SET state = 0, content = NULL WHERE id = ?`, []any{id}},
			{`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 0, repo_id, blob_id, ? FROM links WHERE blob_id = ?
				ON CONFLICT (kind, repo_id, blob_id) DO UPDATE SET due_at = excluded.due_at`, []any{due, id}},
			{`DELETE FROM links WHERE blob_id = ?`, []any{id}},
		} {
			if _, err := t.Exec(q.query, q.args...); err != nil {
				return err
			}
		}
		return enqueueLeak(t, id, due)
	})
	return s, err
}

// shown returns where a content that is about to change is visible, and notes the change
// for other processes.
func shown(t *engine.Tx, d oci.Digest, blobID int64) (s Shown, err error) {
	for _, q := range []struct {
		query string
		names *[]string
		kind  engine.ChangeKind
	}{
		{`SELECT r.name FROM links l JOIN repositories r ON r.id = l.repo_id WHERE l.blob_id = ?`, &s.Links, engine.ChangeBlob},
		{`SELECT r.name FROM manifests m JOIN repositories r ON r.id = m.repo_id WHERE m.blob_id = ?`, &s.Manifests, engine.ChangeManifest},
	} {
		err := t.Rows(q.query, []any{blobID}, func(r *sql.Rows) error {
			var name string
			err := r.Scan(&name)
			*q.names = append(*q.names, name)
			t.Changed(q.kind, name, string(d))
			return err
		})
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// TakeBack records that a content is here although the catalogue says that it is not. The
// caller has verified the bytes. They are b.Content, or the object in the store if
// b.Content is nil. b.Content is required if some repository has the content as a
// manifest. No repository shows the content as a blob yet; see LinkNamed. Errors:
// engine.ErrNotFound if the catalogue does not record the content as absent.
func (c Store) TakeBack(ctx context.Context, b catalog.Blob) (s Shown, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		var id int64
		if err := t.Row(`SELECT id FROM blobs WHERE digest = ? AND state = 0`, []any{string(b.Digest)}, &id); err != nil {
			return err
		}
		if _, err := t.Exec(`UPDATE blobs SET state = 1, size = ?, content = ?, suspect = 0, tag = '' WHERE id = ?`, b.Size, b.Content, id); err != nil {
			return err
		}
		if s, err = shown(t, b.Digest, id); err != nil {
			return err
		}
		return enqueueLeak(t, id, t.Due())
	})
	return s, err
}

// SetContent puts verified bytes into the row of a stored content. Errors:
// engine.ErrNotFound.
func (c Store) SetContent(ctx context.Context, d oci.Digest, content []byte) (Shown, error) {
	return c.correct(ctx, d, `UPDATE blobs SET content = ?, size = ?, suspect = 0 WHERE id = ?`, content, len(content))
}

// SetSize corrects the size in bytes of a stored content whose bytes were verified.
// Errors: engine.ErrNotFound.
func (c Store) SetSize(ctx context.Context, d oci.Digest, size int64) (Shown, error) {
	return c.correct(ctx, d, `UPDATE blobs SET size = ?, suspect = 0 WHERE id = ?`, size)
}

func (c Store) correct(ctx context.Context, d oci.Digest, query string, args ...any) (s Shown, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		var id int64
		if err := t.Row(`SELECT id FROM blobs WHERE digest = ? AND state = 1`, []any{string(d)}, &id); err != nil {
			return err
		}
		if s, err = shown(t, d, id); err != nil {
			return err
		}
		_, err := t.Exec(query, append(args[:len(args):len(args)], id)...)
		return err
	})
	return s, err
}

// enqueueLeak queues a content for the collector, on behalf of no repository.
func enqueueLeak(t *engine.Tx, blobID, due int64) error {
	return catalog.Enqueue(t, catalog.GCBlob, 0, blobID, due)
}

// QueueLeak queues a leak for the collector, unless it is no longer a leak.
func (c Store) QueueLeak(ctx context.Context, l Leak) (done bool, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		done = false
		var n int
		err := t.Row(`SELECT COUNT(*) FROM blobs WHERE id = ? AND digest = ? AND `+leaked, []any{l.ID, string(l.Digest)}, &n)
		if err != nil || n == 0 {
			return err
		}
		done = true
		return enqueueLeak(t, l.ID, t.Due())
	})
	return done, err
}

// still reports whether a manifest still exists as it was read.
func still(t *engine.Tx, m ManifestRow) (bool, error) {
	var n int
	err := t.Row(`SELECT COUNT(*) FROM manifests WHERE id = ? AND repo_id = ? AND blob_id = ?`, []any{m.ID, m.repoID, m.blobID}, &n)
	return n > 0, err
}

// AddRefs records that a manifest names contents. done is false if the manifest is gone.
func (c Store) AddRefs(ctx context.Context, m ManifestRow, named []oci.Descriptor) (done bool, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) (err error) {
		if done, err = still(t, m); err != nil || !done {
			return err
		}
		return catalog.NameOptional(t, m.repoID, m.ID, named, t.Now())
	})
	return done, err
}

// DropRefs removes the record that a manifest names contents. done is false if the
// manifest is gone.
func (c Store) DropRefs(ctx context.Context, m ManifestRow, digests []oci.Digest) (done bool, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) (err error) {
		if done, err = still(t, m); err != nil || !done {
			return err
		}
		due := t.Due()
		for _, d := range digests {
			var id int64
			if err := t.Row(`SELECT id FROM blobs WHERE digest = ?`, []any{string(d)}, &id); err != nil {
				return err
			}
			if _, err := t.Exec(`DELETE FROM refs WHERE repo_id = ? AND blob_id = ? AND manifest_id = ?`, m.repoID, id, m.ID); err != nil {
				return err
			}
			for _, kind := range []int{catalog.GCBlob, catalog.GCManifest} {
				if err := catalog.Enqueue(t, kind, m.repoID, id, due); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return done, err
}

// LinkNamed makes a stored content visible in the repository of a manifest that names it.
// done is false if the content or the manifest is gone.
func (c Store) LinkNamed(ctx context.Context, m ManifestRow, d oci.Digest) (done bool, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		done = false
		var id int64
		err := t.Row(`SELECT b.id FROM refs f JOIN blobs b ON b.id = f.blob_id
			WHERE f.manifest_id = ? AND f.repo_id = ? AND b.digest = ? AND b.state = 1`, []any{m.ID, m.repoID, string(d)}, &id)
		if err == engine.ErrNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		done = true
		now := t.Now()
		return catalog.Link(t, m.repoID, id, now, t.Due())
	})
	return done, err
}

// DeleteDangling deletes a row, if it still points nowhere.
func (c Store) DeleteDangling(ctx context.Context, d Dangling) (done bool, err error) {
	for _, rel := range relations() {
		if rel.table != d.Table {
			continue
		}
		where := fmt.Sprintf(`(%s, %s, %s) = (?, ?, ?) AND (%s)`, rel.keys[0], rel.keys[1], rel.keys[2], rel.bad)
		err = c.db.Write(ctx, func(t *engine.Tx) error {
			done = false
			if d.Table == "manifests" {
				if done, err = deleteDanglingManifest(t, where, d.key[:]); done {
					t.Changed(engine.ChangeManifest, d.Repo, string(d.Digest))
				}
				return err
			}
			n, err := t.Exec(`DELETE FROM `+rel.table+` WHERE `+where, d.key[:]...)
			if done = n > 0; done {
				t.Changed(engine.ChangeBlob, d.Repo, string(d.Digest))
				t.Changed(engine.ChangeTag, d.Repo, d.Tag)
			}
			if err != nil || !done || d.Table == "gc_queue" {
				return err
			}
			// Then the collector drops the repository if it held nothing else.
			_, err = t.Exec(`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 0, id, 0, ? FROM repositories WHERE id = ?
				ON CONFLICT DO NOTHING`, t.Due(), d.key[0])
			return err
		})
		return done, err
	}
	return false, fmt.Errorf("no table %q", d.Table)
}

// deleteDanglingManifest deletes a manifest and the rows that belong to it, and queues
// what it named.
func deleteDanglingManifest(t *engine.Tx, where string, key []any) (bool, error) {
	var id, repoID, blobID int64
	err := t.Row(`SELECT id, repo_id, blob_id FROM manifests WHERE `+where, key, &id, &repoID, &blobID)
	if err == engine.ErrNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	due := t.Due()
	if err := catalog.RemoveManifest(t, repoID, id, blobID, due, catalog.Origin{Cause: oci.CauseRepair}); err != nil {
		return false, err
	}
	var n int
	if err := t.Row(`SELECT COUNT(*) FROM repositories WHERE id = ?`, []any{repoID}, &n); err != nil || n > 0 {
		return true, err
	}
	// Entries of a repository that does not exist are queued for no repository instead.
	if _, err := t.Exec(`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 0, 0, blob_id, due_at FROM gc_queue WHERE repo_id = ? AND kind = 0
		ON CONFLICT (kind, repo_id, blob_id) DO UPDATE SET due_at = excluded.due_at`, repoID); err != nil {
		return false, err
	}
	_, err = t.Exec(`DELETE FROM gc_queue WHERE repo_id = ?`, repoID)
	return true, err
}
