package catalog

import (
	"context"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// These errors coordinate the processes that share a catalogue.
var (
	// ErrBusy says that somebody else uses the upload, or has used it since.
	ErrBusy = engine.NewVerdict("somebody else uses the upload")
	// ErrDeleting says that the content's object is being deleted right now. The object
	// may be written again once that is done, which takes seconds.
	ErrDeleting = engine.NewVerdict("the content is being deleted")
)

// voided is the value of Until for an upload whose intent is no longer valid, because the
// object may have been deleted since the claim expired.
const voided = -1

// Claim returns an upload that owner alone may use for the time d. Uploads.Save keeps or
// ends the claim, and Uploads.Keep prolongs it. If the upload has an Intent, its
// publication was interrupted. Errors: ErrNotFound, and ErrBusy while another owner's
// claim lasts.
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
		if until == voided { // whoever had the intent must not record the object any more
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

// Keep prolongs the claim of an upload to d from now. It returns ErrBusy if the owner has
// lost the claim.
func (c *Uploads) Keep(ctx context.Context, id, owner string, d time.Duration) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		n, err := t.Exec(`UPDATE uploads SET until = ? WHERE id = ? AND owner = ? AND until > 0`, t.Now()+d.Milliseconds(), id, owner)
		if err == nil && n == 0 {
			err = ErrBusy
		}
		return err
	})
}

// ExpiredIntents returns at most n uploads whose owner was publishing them when the claim
// expired, the oldest first. It leaves out uploads whose content somebody else is
// publishing now: the object cannot be deleted meanwhile, and if that publication failed,
// no row would name the object.
func (c *Uploads) ExpiredIntents(ctx context.Context, n int) ([]Upload, error) {
	now, err := c.DB.Now(ctx)
	if err != nil {
		return nil, err
	}
	return c.list(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE intent <> '' AND until <= ?
		AND NOT EXISTS (SELECT 1 FROM uploads o WHERE o.intent = uploads.intent AND o.until > ?) ORDER BY until, id LIMIT ?`, now.UnixMilli(), now.UnixMilli(), n)
}

// BeginDeleting asks for the right to delete the objects of contents. It grants the right
// if the collector has dropped the content, or if no row says that the content is here.
// It refuses the right while an upload has the content as its intent and the claim of the
// upload lasts. It also refuses the right while an earlier grant, to this owner or
// another, has not passed its deadline. The granted objects may be deleted from the store
// for the time d, counted from before the call, and no longer. Then the contents must be
// passed to Forget or to StopDeleting.
//
// Once the deletion is granted, an intent whose claim has expired is no longer valid, and
// PutBlob refuses it.
func (c *Garbage) BeginDeleting(ctx context.Context, owner string, d time.Duration, digests ...oci.Digest) (granted []oci.Digest, err error) {
	// A commit that was refused may still have recorded the contents.
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

// StopDeleting returns the right to delete objects that are still there, because the
// deletion was not tried or is known to have had no effect. Deleting returns these
// contents again.
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

// Forget drops the rows of contents whose objects are deleted. They are contents that the
// collector has dropped, and contents whose deletion BeginDeleting of this Catalog has
// granted. If the deadline of a content has passed, the row stays and Deleting returns it
// again, because another owner may have the right to delete it by now.
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
			// A manifest may name it by now as an optional content.
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
