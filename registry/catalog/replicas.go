package catalog

import (
	"context"
	"errors"
	"time"

	"example.org/slipway/oci"
)

// Errors of what processes that share a catalogue agree by.
var (
	// ErrBusy: somebody else uses the upload, or has used it since.
	ErrBusy = newVerdict("somebody else uses the upload")
	// ErrDeleting: the object of this content is being deleted right now; it may
	// be written again once that is done, which takes seconds.
	ErrDeleting = newVerdict("the content is being deleted")
	// ErrUnavailable: the database does not answer. What was to be changed is
	// most probably not changed, but may be.
	ErrUnavailable = errors.New("the catalogue's database does not answer")
)

// ChangeKind says what changed.
type ChangeKind uint8

// Kinds of changes.
const (
	// ChangeTag: a tag of a repository points elsewhere, or is gone. Ref is the tag.
	ChangeTag ChangeKind = iota + 1
	// ChangeManifest: a manifest of a repository is gone, or was repaired. Ref
	// is its digest.
	ChangeManifest
	// ChangeBlob: a repository does not show a blob any more, or the blob was
	// repaired. Ref is its digest.
	ChangeBlob
)

// Change is something that another process has changed, so that what was read
// of it before is out of date.
type Change struct {
	Kind      ChangeKind
	Repo, Ref string
}

// Watcher is told what other processes change; see [Catalog.Watch]. Its methods
// are called one at a time, and what comes next waits for them.
type Watcher interface {
	// Changed tells what has changed.
	Changed(list []Change)
	// Lost tells that changes may be missed from now on. What was read before
	// must not be trusted.
	Lost()
	// Again tells that no change is missed from now on. Whatever was read before
	// must be forgotten when it returns.
	Again()
}

// Shared tells whether other processes may change the catalogue too.
func (c *Catalog) Shared() bool { return c.db.pg != nil }

// Now tells the time by the clock that all times in the catalogue are of:
// Options.Clock if that is set, else the clock of the PostgreSQL server, or of
// this machine.
func (c *Catalog) Now(ctx context.Context) (time.Time, error) {
	if c.opts.Clock != nil {
		return fromMillis(c.now()), nil
	}
	var ms int64
	err := c.db.row(ctx, `SELECT `+serverMillis, nil, &ms)
	return fromMillis(ms), err
}

// Watch tells w what other processes change, until ctx ends: then it returns its
// error. It does not tell what was changed through c, unless that failed with
// ErrUnavailable and may have been changed all the same. It begins with Lost, and
// calls Again when it is connected. A catalogue that is not Shared has nothing to tell.
//
// While Lost has not been called, a change that was committed by another process
// is told within milliseconds, and Lost is called within 4 s of a fault.
func (c *Catalog) Watch(ctx context.Context, w Watcher) error {
	if c.db.pg == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return c.db.pg.watch(ctx, w)
}

// Sync returns when Watch has told its watcher every change that anybody
// committed before the call. It waits while nobody watches, or while Watch has
// lost its connection.
func (c *Catalog) Sync(ctx context.Context) error {
	if c.db.pg == nil {
		return nil
	}
	return c.db.pg.sync(ctx)
}

// Lease takes or prolongs a lease: its owner alone may do the job of that name.
// It ends by itself after d, by the catalogue's clock; whoever holds it counts d
// from before the call. ok is false while somebody else has it.
func (c *Catalog) Lease(ctx context.Context, name, owner string, d time.Duration) (ok bool, err error) {
	err = c.db.write(ctx, func(t *tx) error {
		now := t.now()
		n, err := t.exec(`INSERT INTO leases (name, owner, until) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
			WHERE leases.owner = excluded.owner OR leases.until <= ?`, name, owner, now+d.Milliseconds(), now)
		ok = n > 0
		return err
	})
	return ok && err == nil, err
}

// Unlease ends a lease, if the owner still has it.
func (c *Catalog) Unlease(ctx context.Context, name, owner string) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`DELETE FROM leases WHERE name = ? AND owner = ?`, name, owner)
		return err
	})
}

// voided is the until of an upload whose intent does not hold any more, because
// its object may have been deleted since its claim ran out.
const voided = -1

// ClaimUpload returns an upload that its owner alone may use for d: the claim is
// kept or ended by SaveUploads, and prolonged by KeepUpload. Its Intent, if it has
// one, is of a publication that was cut off. Errors: ErrNotFound, and ErrBusy
// while the claim of another owner lasts.
func (c *Catalog) ClaimUpload(ctx context.Context, repo, id, owner string, d time.Duration) (Upload, error) {
	var u Upload
	err := c.db.write(ctx, func(t *tx) (err error) {
		u, err = scanUpload(func(dest ...any) error {
			return t.row(`SELECT `+uploadColumns+` FROM uploads WHERE id = ? AND repo = ?`, []any{id, repo}, dest...)
		})
		if err != nil {
			return err
		}
		now := t.now()
		until := toMillis(u.Until)
		if until > now && u.Owner != owner {
			return ErrBusy
		}
		if until == voided { // who intended it must not record it any more
			u.Intent = ""
		}
		until = now + d.Milliseconds()
		u.Owner, u.Until = owner, fromMillis(until)
		_, err = t.exec(`UPDATE uploads SET owner = ?, until = ?, intent = ? WHERE id = ?`, owner, until, string(u.Intent), id)
		return err
	})
	if err != nil {
		return Upload{}, err
	}
	return u, nil
}

// KeepUpload prolongs the claim of an upload to d from now. Errors: ErrBusy when
// the owner has lost it.
func (c *Catalog) KeepUpload(ctx context.Context, id, owner string, d time.Duration) error {
	return c.db.write(ctx, func(t *tx) error {
		n, err := t.exec(`UPDATE uploads SET until = ? WHERE id = ? AND owner = ? AND until > 0`, t.now()+d.Milliseconds(), id, owner)
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
func (c *Catalog) ExpiredIntents(ctx context.Context, n int) ([]Upload, error) {
	now, err := c.Now(ctx)
	if err != nil {
		return nil, err
	}
	return c.uploads(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE intent <> '' AND until <= ?
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
func (c *Catalog) BeginDeleting(ctx context.Context, owner string, d time.Duration, digests ...oci.Digest) (granted []oci.Digest, err error) {
	// A commit that was refused may still have the contents.
	if err := c.db.settled(ctx); err != nil {
		return nil, err
	}
	c.addDeleter(owner)
	err = c.db.write(ctx, func(t *tx) error {
		granted = nil
		for _, digest := range digests {
			ok, err := t.beginDeleting(owner, t.now()+d.Milliseconds(), digest)
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

func (t *tx) beginDeleting(owner string, deadline int64, d oci.Digest) (bool, error) {
	var intended bool
	err := t.row(`SELECT EXISTS (SELECT 1 FROM uploads WHERE intent = ? AND until > ?)`, []any{string(d), t.now()}, &intended)
	if err != nil || intended {
		return false, err
	}
	n, err := t.exec(`INSERT INTO blobs (digest, size, state, content, created_at, owner, deadline) VALUES (?, 0, 3, NULL, ?, ?, ?)
		ON CONFLICT (digest) DO UPDATE SET state = 3, owner = excluded.owner, deadline = excluded.deadline
		WHERE blobs.state IN (0, 2) OR blobs.state = 3 AND blobs.deadline <= ?`,
		string(d), t.now(), owner, deadline, t.now())
	if err != nil || n == 0 {
		return false, err
	}
	_, err = t.exec(`UPDATE uploads SET until = ? WHERE intent = ?`, voided, string(d))
	return true, err
}

// StopDeleting gives back the right to delete objects that are still there: the
// deletion was not tried, or is known to have ended without effect. They are
// given to Deleting again.
func (c *Catalog) StopDeleting(ctx context.Context, owner string, digests ...oci.Digest) error {
	return c.db.write(ctx, func(t *tx) error {
		for _, d := range digests {
			if _, err := t.exec(`UPDATE blobs SET state = 2, owner = '', deadline = 0 WHERE digest = ? AND state = 3 AND owner = ?`, string(d), owner); err != nil {
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
func (c *Catalog) Forget(ctx context.Context, digests ...oci.Digest) error {
	owners := c.deleterNames()
	return c.db.write(ctx, func(t *tx) error {
		for _, d := range digests {
			ok, err := t.mayForget(d, owners)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			// A manifest may have named it meanwhile as content that may be absent.
			n, err := t.exec(`DELETE FROM blobs WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM refs WHERE blob_id = blobs.id)`, string(d))
			if err != nil {
				return err
			}
			if n > 0 {
				continue
			}
			if _, err := t.exec(`UPDATE blobs SET state = 0, content = NULL, owner = '', deadline = 0 WHERE digest = ?`, string(d)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tx) mayForget(d oci.Digest, owners map[string]bool) (bool, error) {
	var state int
	var owner string
	var deadline int64
	err := t.row(`SELECT state, owner, deadline FROM blobs WHERE digest = ?`, []any{string(d)}, &state, &owner, &deadline)
	if err == ErrNotFound {
		return false, nil
	}
	return state == stateDropped || state == stateDeleting && owners[owner] && deadline > t.now(), err
}

// addDeleter notes a name under which this Catalog deletes objects.
func (c *Catalog) addDeleter(owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleters == nil {
		c.deleters = map[string]bool{}
	}
	c.deleters[owner] = true
}

func (c *Catalog) deleterNames() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make(map[string]bool, len(c.deleters))
	for n := range c.deleters {
		names[n] = true
	}
	return names
}
