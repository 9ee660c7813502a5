package catalog

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Uploads holds the uploads under way. All methods may run concurrently.
type Uploads struct{ DB *engine.DB }

const uploadColumns = `id, repo, size, state, hash, content, intent, updated_at, owner, until`

func scanUpload(scan func(...any) error) (Upload, error) {
	var u Upload
	var updated, until int64
	err := scan(&u.ID, &u.Repo, &u.Size, &u.State, &u.Hash, &u.Content, &u.Intent, &updated, &u.Owner, &until)
	u.UpdatedAt, u.Until = engine.FromMillis(updated), engine.FromMillis(until)
	return u, err
}

// Save records new or changed uploads. Claims, and uploads with an intent, are durable
// when it returns. Other uploads survive the end of the process, but perhaps not a power
// cut. An upload that the client has not finished need not survive that, and a chunk
// should not cost an fsync.
//
// An upload with an Owner must be new, or claimed by that owner. A zero Until ends the
// claim. An intent lasts as long as the claim, so an intent needs a claim if the
// catalogue is Shared. Save returns ErrBusy if somebody else has claimed the upload, or
// if the object of its intent may have been deleted since. It returns ErrDeleting if the
// object of the new intent is being deleted. In both cases it records none of the
// uploads.
func (c *Uploads) Save(ctx context.Context, uploads ...Upload) error {
	write := c.DB.WriteLazy
	for _, u := range uploads {
		if u.Intent != "" || !u.Until.IsZero() {
			write = c.DB.Write
		}
		if u.Intent != "" && u.Until.IsZero() && c.DB.Shared() {
			return fmt.Errorf("upload %s has an intent without a claim", u.ID)
		}
	}
	return write(ctx, func(t *engine.Tx) error {
		for _, u := range uploads {
			if err := saveUpload(t, u); err != nil {
				return err
			}
		}
		return nil
	})
}

func saveUpload(t *engine.Tx, u Upload) error {
	now := t.Now()
	if u.Intent != "" {
		var deleting bool
		err := t.Row(`SELECT EXISTS (SELECT 1 FROM blobs WHERE digest = ? AND state = 3 AND deadline > ?)`, []any{string(u.Intent), now}, &deleting)
		if err != nil {
			return err
		}
		if deleting {
			return ErrDeleting
		}
	}
	saver := u.Owner
	if u.Until.IsZero() {
		u.Owner = ""
	}
	n, err := t.Exec(`INSERT INTO uploads (`+uploadColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET size = excluded.size, state = excluded.state, hash = excluded.hash,
		content = excluded.content, intent = excluded.intent, updated_at = excluded.updated_at, owner = excluded.owner, until = excluded.until
		WHERE CASE WHEN ? = '' THEN uploads.until <= ? ELSE uploads.owner = ? AND uploads.until >= 0 END`,
		u.ID, u.Repo, u.Size, u.State, u.Hash, u.Content, string(u.Intent), now, u.Owner, engine.ToMillis(u.Until), saver, now, saver)
	if err == nil && n == 0 {
		err = ErrBusy
	}
	return err
}

// Get returns an upload of a repository. Errors: ErrNotFound.
func (c *Uploads) Get(ctx context.Context, repo, id string) (Upload, error) {
	return scanUpload(func(dest ...any) error {
		return c.DB.Row(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE id = ? AND repo = ?`, []any{id, repo}, dest...)
	})
}

// Delete forgets uploads. It skips unknown ids.
func (c *Uploads) Delete(ctx context.Context, ids ...string) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		for _, id := range ids {
			if err := endUpload(t, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// mayRecord returns an error if the object of a content must not be recorded now, because
// it is being deleted or because the intent of its upload is no longer valid. Errors:
// ErrDeleting, ErrBusy.
func mayRecord(t *engine.Tx, b Blob, uploadID string) error {
	if b.Content != nil {
		return nil // there is no object
	}
	var deleting bool
	err := t.Row(`SELECT EXISTS (SELECT 1 FROM blobs WHERE digest = ? AND state = 3 AND deadline > ?)`, []any{string(b.Digest), t.Now()}, &deleting)
	if err != nil {
		return err
	}
	if deleting {
		return ErrDeleting
	}
	if uploadID == "" {
		return nil
	}
	var intent oci.Digest
	var until int64
	err = t.Row(`SELECT intent, until FROM uploads WHERE id = ?`, []any{uploadID}, &intent, &until)
	if err != nil && err != ErrNotFound {
		return err
	}
	// Without claims there is only one process, and it prevents deletions itself.
	claims := t.Shared() || until != 0
	if claims && (err == ErrNotFound || intent != b.Digest || until == voided) {
		return ErrBusy
	}
	return nil
}

func endUpload(t *engine.Tx, id string) error {
	if id == "" {
		return nil
	}
	_, err := t.Exec(`DELETE FROM uploads WHERE id = ?`, id)
	return err
}

// Stale returns at most n uploads that have not changed since the time before, oldest
// first.
func (c *Uploads) Stale(ctx context.Context, before time.Time, n int) ([]Upload, error) {
	return c.list(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE updated_at < ? ORDER BY updated_at LIMIT ?`, before.UnixMilli(), n)
}

// Intents returns the uploads that were being published when the process ended.
func (c *Uploads) Intents(ctx context.Context) ([]Upload, error) {
	return c.list(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE intent <> ''`)
}

// States returns the object store states of all recorded uploads.
func (c *Uploads) States(ctx context.Context) (map[string]bool, error) {
	states := map[string]bool{}
	names, err := c.DB.Names(ctx, `SELECT state FROM uploads WHERE state <> ''`)
	for _, s := range names {
		states[s] = true
	}
	return states, err
}

func (c *Uploads) list(ctx context.Context, query string, args ...any) ([]Upload, error) {
	var out []Upload
	err := c.DB.Rows(ctx, query, args, func(r *sql.Rows) error {
		u, err := scanUpload(r.Scan)
		out = append(out, u)
		return err
	})
	return out, err
}

// Wanted reports whether a digest has a row. Either its content is Known, or something
// names a content that is not here.
func (c *Garbage) Wanted(ctx context.Context, d oci.Digest) (bool, error) {
	if err := c.DB.Settled(ctx); err != nil {
		return false, err
	}
	var n int
	err := c.DB.Row(ctx, `SELECT COUNT(*) FROM blobs WHERE digest = ?`, []any{string(d)}, &n)
	return n > 0, err
}

// Known reports whether a digest has a row that says that its content is in the store, or
// is about to be removed from it. A negative answer is final: no change that was refused
// can take effect later and make it untrue.
func (c *Garbage) Known(ctx context.Context, d oci.Digest) (bool, error) {
	if err := c.DB.Settled(ctx); err != nil {
		return false, err
	}
	var n int
	err := c.DB.Row(ctx, `SELECT COUNT(*) FROM blobs WHERE digest = ? AND state <> 0`, []any{string(d)}, &n)
	return n > 0, err
}
