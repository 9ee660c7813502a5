package catalog

import (
	"context"
	"database/sql"
	"time"

	"example.org/slipway/oci"
)

const uploadColumns = `id, repo, size, state, hash, content, intent, updated_at`

func scanUpload(scan func(...any) error) (Upload, error) {
	var u Upload
	var updated int64
	err := scan(&u.ID, &u.Repo, &u.Size, &u.State, &u.Hash, &u.Content, &u.Intent, &updated)
	u.UpdatedAt = fromMillis(updated)
	return u, err
}

// SaveUploads records uploads as they stand, new or changed. Those with an
// intent are durable when it returns. The others survive the end of the process
// but perhaps not a power cut: what a client must not lose then is not an
// upload it has still to finish, and a chunk should not cost an fsync.
func (c *Catalog) SaveUploads(ctx context.Context, uploads ...Upload) error {
	write := c.db.writeLazy
	for _, u := range uploads {
		if u.Intent != "" {
			write = c.db.write
		}
	}
	return write(ctx, func(t *tx) error {
		for _, u := range uploads {
			_, err := t.exec(`INSERT INTO uploads (`+uploadColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT (id) DO UPDATE SET size = excluded.size, state = excluded.state, hash = excluded.hash,
				content = excluded.content, intent = excluded.intent, updated_at = excluded.updated_at`,
				u.ID, u.Repo, u.Size, u.State, u.Hash, u.Content, string(u.Intent), c.now())
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Upload returns an upload of a repository. Errors: ErrNotFound.
func (c *Catalog) Upload(ctx context.Context, repo, id string) (Upload, error) {
	s, err := c.db.reader(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE id = ? AND repo = ?`)
	if err != nil {
		return Upload{}, err
	}
	u, err := scanUpload(s.QueryRowContext(ctx, id, repo).Scan)
	return u, notFound(err)
}

// DeleteUploads forgets uploads. Unknown ids are passed over.
func (c *Catalog) DeleteUploads(ctx context.Context, ids ...string) error {
	return c.db.write(ctx, func(t *tx) error {
		for _, id := range ids {
			if err := t.endUpload(id); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tx) endUpload(id string) error {
	if id == "" {
		return nil
	}
	_, err := t.exec(`DELETE FROM uploads WHERE id = ?`, id)
	return err
}

// StaleUploads returns at most n uploads not changed since before, oldest first.
func (c *Catalog) StaleUploads(ctx context.Context, before time.Time, n int) ([]Upload, error) {
	return c.uploads(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE updated_at < ? ORDER BY updated_at LIMIT ?`, before.UnixMilli(), n)
}

// Intents returns the uploads that were being published when the process ended.
func (c *Catalog) Intents(ctx context.Context) ([]Upload, error) {
	return c.uploads(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE intent <> ''`)
}

// UploadStates returns the object store states of all recorded uploads.
func (c *Catalog) UploadStates(ctx context.Context) (map[string]bool, error) {
	states := map[string]bool{}
	names, err := c.names(ctx, `SELECT state FROM uploads WHERE state <> ''`)
	for _, s := range names {
		states[s] = true
	}
	return states, err
}

func (c *Catalog) uploads(ctx context.Context, query string, args ...any) ([]Upload, error) {
	var out []Upload
	err := c.db.rows(ctx, query, args, func(r *sql.Rows) error {
		u, err := scanUpload(r.Scan)
		out = append(out, u)
		return err
	})
	return out, err
}

// Known tells whether a digest has a row that says its content is, or is about
// to be removed from, the store. A negative answer is final: no change that was
// refused can come back and make it untrue.
func (c *Catalog) Known(ctx context.Context, d oci.Digest) (bool, error) {
	if err := c.db.settled(ctx); err != nil {
		return false, err
	}
	var n int
	err := c.db.row(ctx, `SELECT COUNT(*) FROM blobs WHERE digest = ? AND state <> 0`, []any{string(d)}, &n)
	return n > 0, err
}
