package catalog

import (
	"context"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Errors of what processes that share a catalogue agree by.
var (
	// ErrBusy: somebody else uses the upload, or has used it since.
	ErrBusy = engine.NewVerdict("somebody else uses the upload")
	// ErrDeleting: the object of this content is being deleted right now; it may
	// be written again once that is done, which takes seconds.
	ErrDeleting = engine.NewVerdict("the content is being deleted")
)

// voided is the until of an upload whose intent does not hold any more, because
// its object may have been deleted since its claim ran out.
const voided = -1

// Claim returns an upload that its owner alone may use for d: the claim is
// kept or ended by Uploads.Save, and prolonged by Uploads.Keep. Its Intent, if it has
// one, is of a publication that was cut off. Errors: ErrNotFound, and ErrBusy
// while the claim of another owner lasts.
func (c *Uploads) Claim(ctx context.Context, repo, id, owner string, d time.Duration) (Upload, error) {
	var u Upload
	err := c.DB.Write(ctx, func(t *engine.Tx) (err error) {
		u, err = scanUpload(func(dest ...any) error {
			return t.Row(`SELECT `+uploadColumns+` FROM uploads WHERE id = ? AND repo = ?`, []any{id, repo}, dest...)
		})
		if err != nil {
			return err
		}
		now := t.Now()
		until := engine.ToMillis(u.Until)
		if until > now && u.Owner != owner {
			return ErrBusy
		}
		if until == voided { // who intended it must not record it any more
			u.Intent = ""
		}
		until = now + d.Milliseconds()
		u.Owner, u.Until = owner, engine.FromMillis(until)
		_, err = t.Exec(`UPDATE uploads SET owner = ?, until = ?, intent = ? WHERE id = ?`, owner, until, string(u.Intent), id)
		return err
	})
	if err != nil {
		return Upload{}, err
	}
	return u, nil
}

// Keep prolongs the claim of an upload to d from now. Errors: ErrBusy when
// the owner has lost it.
func (c *Uploads) Keep(ctx context.Context, id, owner string, d time.Duration) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		n, err := t.Exec(`UPDATE uploads SET until = ? WHERE id = ? AND owner = ? AND until > 0`, t.Now()+d.Milliseconds(), id, owner)
		if err == nil && n == 0 {
			err = ErrBusy
		}
		return err
	})
}

// ExpiredIntents returns at most n uploads that were being published by an owner
// whose claim has run out, the oldest first. Those whose content somebody else is
// publishing now are left out: their object cannot be deleted, and would have no
// name if that failed.
func (c *Uploads) ExpiredIntents(ctx context.Context, n int) ([]Upload, error) {
	now, err := c.DB.Now(ctx)
	if err != nil {
		return nil, err
	}
	return c.list(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE intent <> '' AND until <= ?
		AND NOT EXISTS (SELECT 1 FROM uploads o WHERE o.intent = uploads.intent AND o.until > ?) ORDER BY until, id LIMIT ?`, now.UnixMilli(), now.UnixMilli(), n)
}

// BeginDeleting asks for the right to delete the objects of contents. It is
// granted for those that the collector has dropped, or that no row says to be
// here, unless an upload has it as its intent and its claim lasts, or it was
// granted before, to this owner or another, and that deadline has not passed. The objects granted may be
// deleted from the store until d from before the call, and no later; then they
// are given to Forget, or to StopDeleting.
//
// An intent whose claim has run out does not hold any more once the deletion is
// granted: PutBlob refuses it.
func (c *Garbage) BeginDeleting(ctx context.Context, owner string, d time.Duration, digests ...oci.Digest) (granted []oci.Digest, err error) {
	// A commit that was refused may still have the contents.
	if err := c.DB.Settled(ctx); err != nil {
		return nil, err
	}
	c.addDeleter(owner)
	err = c.DB.Write(ctx, func(t *engine.Tx) error {
		granted = nil
		for _, digest := range digests {
			ok, err := beginDeleting(t, owner, t.Now()+d.Milliseconds(), digest)
			if err != nil {
				return err
			}
			if ok {
				granted = append(granted, digest)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return granted, nil
}

func beginDeleting(t *engine.Tx, owner string, deadline int64, d oci.Digest) (bool, error) {
	var intended bool
	err := t.Row(`SELECT EXISTS (SELECT 1 FROM uploads WHERE intent = ? AND until > ?)`, []any{string(d), t.Now()}, &intended)
	if err != nil || intended {
		return false, err
	}
	n, err := t.Exec(`INSERT INTO blobs (digest, size, state, content, created_at, owner, deadline) VALUES (?, 0, 3, NULL, ?, ?, ?)
		ON CONFLICT (digest) DO UPDATE SET state = 3, owner = excluded.owner, deadline = excluded.deadline
		WHERE blobs.state IN (0, 2) OR blobs.state = 3 AND blobs.deadline <= ?`,
		string(d), t.Now(), owner, deadline, t.Now())
	if err != nil || n == 0 {
		return false, err
	}
	_, err = t.Exec(`UPDATE uploads SET until = ? WHERE intent = ?`, voided, string(d))
	return true, err
}

// StopDeleting gives back the right to delete objects that are still there: the
// deletion was not tried, or is known to have ended without effect. They are
// given to Deleting again.
func (c *Garbage) StopDeleting(ctx context.Context, owner string, digests ...oci.Digest) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		for _, d := range digests {
			if _, err := t.Exec(`UPDATE blobs SET state = 2, owner = '', deadline = 0 WHERE digest = ? AND state = 3 AND owner = ?`, string(d), owner); err != nil {
				return err
			}
		}
		return nil
	})
}

// Forget drops the rows of contents whose objects are deleted: those that the
// collector has dropped, and those that were granted to BeginDeleting of this
// Catalog. One whose deadline has passed stays and is given to Deleting again, as
// it may be another owner's by now.
func (c *Garbage) Forget(ctx context.Context, digests ...oci.Digest) error {
	owners := c.deleterNames()
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		for _, d := range digests {
			ok, err := mayForget(t, d, owners)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			// A manifest may have named it meanwhile as content that may be absent.
			n, err := t.Exec(`DELETE FROM blobs WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM refs WHERE blob_id = blobs.id)`, string(d))
			if err != nil {
				return err
			}
			if n > 0 {
				continue
			}
			if _, err := t.Exec(`UPDATE blobs SET state = 0, content = NULL, owner = '', deadline = 0 WHERE digest = ?`, string(d)); err != nil {
				return err
			}
		}
		return nil
	})
}

func mayForget(t *engine.Tx, d oci.Digest, owners map[string]bool) (bool, error) {
	var state int
	var owner string
	var deadline int64
	err := t.Row(`SELECT state, owner, deadline FROM blobs WHERE digest = ?`, []any{string(d)}, &state, &owner, &deadline)
	if err == ErrNotFound {
		return false, nil
	}
	return state == StateDropped || state == StateDeleting && owners[owner] && deadline > t.Now(), err
}

// addDeleter notes a name under which this Catalog deletes objects.
func (c *Garbage) addDeleter(owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleters == nil {
		c.deleters = map[string]bool{}
	}
	c.deleters[owner] = true
}

func (c *Garbage) deleterNames() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make(map[string]bool, len(c.deleters))
	for n := range c.deleters {
		names[n] = true
	}
	return names
}
