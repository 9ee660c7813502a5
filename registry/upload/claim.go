package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/replica"
	"example.org/slipway/registry/storage"
)

// claim is the exclusive right of a request to an upload when replicas share the
// catalogue. It is renewed until it is ended.
type claim struct {
	us *Uploads
	id string
	// row is the upload as the request found it. It has no ID if the upload has no row
	// yet.
	row catalog.Upload
	// settled says that the row is to be left as it is, or that it is gone. u.mu guards
	// it.
	settled bool
	// lost says that another request has the upload.
	lost atomic.Bool

	mu    sync.Mutex // held during calls to the catalogue
	timer *time.Timer
	ended bool
}

// start begins to renew the claim, which was made a moment ago.
func (c *claim) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended && c.timer == nil {
		c.timer = time.AfterFunc(c.us.replica.Lease/3, c.prolong)
	}
}

func (c *claim) prolong() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	p := c.us.replica
	ctx, cancel := context.WithTimeout(context.Background(), p.Lease)
	defer cancel()
	// If the catalogue does not answer, the claim may still be valid later. If it is not,
	// the catalogue refuses what is recorded in the end.
	if err := c.us.cat.Uploads.Keep(ctx, c.id, p.Owner, p.Lease); errors.Is(err, catalog.ErrBusy) {
		c.lost.Store(true)
		return
	}
	c.timer.Reset(p.Lease / 3)
}

// end stops the renewal. Nothing renews the claim after end has returned.
func (c *claim) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// lostClaim reports whether another request has taken the upload. u.mu is held.
func (u *upload) lostClaim() bool { return u.claim != nil && u.claim.lost.Load() }

// stillClaimed reports whether the present request still has the upload. It is called
// before an upload is dropped, because the renewal notices a loss only later. If the
// catalogue does not answer, the upload is left as it is. u.mu is held.
func (u *upload) stillClaimed(ctx context.Context, saved bool) bool {
	if u.claim == nil || u.lostClaim() {
		return u.claim == nil
	}
	if u.private || !saved {
		return true // nobody else knows it
	}
	p := u.us.replica
	return u.us.cat.Uploads.Keep(ctx, u.id, p.Owner, p.Lease) == nil
}

func uploadBusy() error {
	return &oci.Error{Code: oci.CodeBlobUploadInvalid, Status: http.StatusConflict, Message: "another request is writing to this upload; ask for its status and continue from there"}
}

// claimTries bounds how often an upload that changes hands is looked up.
const claimTries = 5

// claim is like acquire, for replicas that share the catalogue. The state of an upload is in
// its row. RAM only holds the client whose share the upload counts in, and its follower.
func (us *Uploads) claim(ctx context.Context, repo, id string) (*upload, error) {
	for range claimTries {
		u, err := us.take(ctx, repo, id)
		if err != nil {
			return nil, err
		}
		row, err := us.cat.Uploads.Claim(ctx, repo, id, us.replica.Owner, us.replica.Lease)
		if err == nil && row.Intent == "" {
			u.claim = &claim{us: us, id: id, row: row}
			if err = u.load(row); err == nil {
				u.claim.start()
				return u, nil
			}
			u.release()
			return nil, err
		}
		us.leave(u, errors.Is(err, catalog.ErrNotFound))
		switch {
		case errors.Is(err, catalog.ErrNotFound):
			return nil, uploadUnknown(repo, id)
		case errors.Is(err, catalog.ErrBusy):
			return nil, uploadBusy()
		case err != nil:
			return nil, storage.ClientError("continue upload "+id, err)
		}
		// The publication of the upload was cut off. It is settled first, as if nobody
		// had asked for the upload.
		row.Until = time.UnixMilli(1)
		if err := us.cat.Uploads.Save(ctx, row); err != nil {
			return nil, storage.ClientError("continue upload "+id, err)
		}
		if err := us.janitor.settleShared(ctx, row); err != nil {
			return nil, storage.ClientError("settle upload "+id, err)
		}
	}
	return nil, uploadBusy()
}

// take finds an upload, or adds an entry for an upload of another replica, and locks it.
func (us *Uploads) take(ctx context.Context, repo, id string) (*upload, error) {
	if us.inRAM(id) == nil {
		// Changing the catalogue is expensive, and clients can easily invent ids.
		if _, err := us.cat.Uploads.Get(ctx, repo, id); errors.Is(err, catalog.ErrNotFound) {
			return nil, uploadUnknown(repo, id)
		} else if err != nil {
			return nil, storage.ClientError("look up upload "+id, err)
		}
	}
	for {
		us.mu.Lock()
		u := us.byID[id]
		if u == nil {
			u = &upload{us: us, id: id, repo: repo, saved: true, touched: us.replica.Now()}
			us.byID[id] = u
		}
		us.mu.Unlock()
		if u.repo != repo {
			return nil, uploadUnknown(repo, id)
		}
		if !u.mu.TryLock() {
			return nil, uploadBusy()
		}
		if !u.gone {
			return u, nil
		}
		u.mu.Unlock() // the upload left RAM in between
	}
}

// leave releases an upload. The upload stays in RAM only if RAM alone knows something
// about it.
func (us *Uploads) leave(u *upload, ended bool) {
	u.buf, u.hash = nil, nil
	if !u.gone && (ended || u.follower == nil && !u.client.IsValid()) {
		u.finish()
	}
	us.mu.Lock()
	u.touched = us.replica.Now()
	us.mu.Unlock()
	u.mu.Unlock()
}

// release ends a request's use of an upload that it acquired.
func (u *upload) release() {
	c := u.claim
	if c == nil {
		u.letGo()
		u.mu.Unlock()
		return
	}
	u.claim = nil
	c.end()
	if !u.gone && !c.settled { // the request's changes do not count
		row := c.row
		row.Until = time.Time{}
		ctx, cancel := context.WithTimeout(context.Background(), u.us.replica.Lease)
		if err := u.us.cat.Uploads.Save(ctx, row); err != nil && !errors.Is(err, catalog.ErrBusy) {
			u.us.log.Warn("let go of an upload, which can be continued a little later", "upload", u.id, "err", err)
		}
		cancel()
	}
	u.us.leave(u, false)
}

// statusShared returns where an upload stands without claiming it. ok is false if the
// upload must be claimed.
func (us *Uploads) statusShared(ctx context.Context, repo, id string) (size int64, ok bool, err error) {
	row, err := us.cat.Uploads.Get(ctx, repo, id)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return 0, false, uploadUnknown(repo, id)
	case err != nil:
		return 0, false, storage.ClientError("look up upload "+id, err)
	case row.Until.After(us.replica.Now()):
		return 0, false, uploadBusy()
	}
	return row.Size, row.Intent == "", nil
}

// pushWhole is like Push, for replicas that share the catalogue. Only this request knows the
// upload, so the upload has no row before its intent.
func (us *Uploads) pushWhole(ctx context.Context, repo string, d oci.Digest, size int64, body io.Reader) (oci.Descriptor, error) {
	if err := errors.Join(us.storage.Writable(), oci.CheckName(repo), oci.CheckDigest(d)); err != nil {
		return oci.Descriptor{}, err
	}
	u := us.newUpload(repo)
	u.client, u.private = clientOf(ctx), true
	u.claim = &claim{us: us, id: u.id}
	u.mu.Lock()
	if err := us.add(u); err != nil {
		u.mu.Unlock()
		return oci.Descriptor{}, err
	}
	defer u.release()
	desc, err := u.commit(ctx, 0, size, body, d)
	if !u.gone {
		u.drop(ctx)
	}
	return desc, err
}

// intentWait bounds how long a push waits for a deletion of the same content to end. A
// deletion takes milliseconds unless the replica that began it has died.
const intentWait = 20 * time.Second

// recordIntent records that an upload is about to be published. row is the upload
// with its intent.
func (u *upload) recordIntent(ctx context.Context, row catalog.Upload) error {
	if !u.us.replica.Shared {
		return u.us.cat.Uploads.Save(ctx, row)
	}
	c := u.claim // the claim of this request, which waits for us
	began := time.Now()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		row.Owner, row.Until = u.us.replica.Owner, u.us.replica.Now().Add(u.us.replica.Lease)
		err := u.us.cat.Uploads.Save(ctx, row)
		if err == nil {
			c.start()
			return nil
		}
		if !errors.Is(err, catalog.ErrDeleting) || time.Since(began)+wait > intentWait {
			return err
		}
		time.Sleep(wait)
	}
}

// unpublishShared is like unpublish, for replicas that share the catalogue. Another replica may
// be publishing the same content, and calls to the store or the catalogue may still take
// effect. So the upload's row is left, and is settled when its claim has expired. If another
// replica has taken the claim and settled it before the object was there, this process is the
// last one that knows of the object.
func (u *upload) unpublishShared(ctx context.Context, d oci.Digest, because error) {
	u.keepRow()
	log := u.us.log.With("repo", u.repo, "digest", d, "upload", u.id)
	if !u.lostClaim() && !errors.Is(because, catalog.ErrBusy) {
		log.Warn("a blob could not be recorded; what is left of it is removed soon", "err", because)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.us.replica.Lease)
	defer cancel()
	if err := u.us.janitor.deleteUnwanted(ctx, d); err != nil {
		log.Error("take back a blob that came too late; run slipway fsck --repair", "err", err)
	}
}

// settleExpired settles the interrupted publications of all replicas.
func (g *janitor) settleExpired(ctx context.Context) error {
	const page = 100
	for {
		left, err := g.us.cat.Uploads.ExpiredIntents(ctx, page)
		if err != nil {
			return fmt.Errorf("look for publications that were cut off: %w", err)
		}
		var errs []error
		for _, u := range left {
			if err := g.settleShared(ctx, u); err != nil {
				errs = append(errs, fmt.Errorf("settle upload %s: %w", u.ID, err))
			}
		}
		if len(left) < page || len(errs) > 0 {
			return errors.Join(errs...)
		}
	}
}

// settleShared is like settle, for an upload whose claim has expired. The object is deleted
// before the row that names it, and only with the right to delete it. That right makes the
// catalogue refuse whatever the upload's last owner still records.
func (g *janitor) settleShared(ctx context.Context, u catalog.Upload) error {
	if err := g.deleteUnwanted(ctx, u.Intent); err != nil {
		return err
	}
	row, err := g.us.cat.Uploads.Claim(ctx, u.Repo, u.ID, g.us.replica.Owner+"/settle", g.us.replica.Lease)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrBusy) {
		return nil // the upload ended, or goes on
	}
	if err != nil {
		return err
	}
	log := g.us.log.With("repo", u.Repo, "upload", u.ID, "digest", u.Intent)
	if row.Intent != "" && row.Intent != u.Intent { // it went on meanwhile, and was cut off again
		row.Until = time.UnixMilli(1)
		return g.us.cat.Uploads.Save(ctx, row)
	}
	if err := g.us.store.Delete(ctx, verifyKey(u.ID)); err != nil {
		return err
	}
	row.Until = time.Time{}
	if kept, err := g.reopen(ctx, &row); err != nil || kept {
		log.Info("kept an upload whose end was cut off", "bytes", row.Size)
		return err
	}
	if row.State != "" {
		if err := g.us.store.Abandon(ctx, row.State); err != nil {
			return err
		}
	}
	log.Info("dropped an upload that was cut off while being published")
	return g.us.cat.Uploads.Delete(ctx, u.ID)
}

// deleteUnwanted deletes an object that a publication may have left, if no row has its
// digest. Content that an image lacks is left for fsck, which reads it and restores it.
// Nothing is lost if a row appears between the question and the deletion, because the
// object was never acknowledged.
func (g *janitor) deleteUnwanted(ctx context.Context, d oci.Digest) error {
	wanted, err := g.us.cat.Garbage.Wanted(ctx, d)
	if err != nil || wanted {
		return err
	}
	_, err = g.us.storage.Delete(ctx, d)
	return err
}

// purgeShared is purge for replicas that share the catalogue. One replica at a time looks
// for abandoned uploads.
func (g *janitor) purgeShared(ctx context.Context) error {
	if err := g.settleExpired(ctx); err != nil {
		return err
	}
	held, release, mine, err := g.us.replica.Alone(ctx, replica.LeaseUploads, "purge")
	if !mine || err != nil {
		return err
	}
	defer release()
	return replica.LeaseError(held, g.purgeAlone(held))
}

func (g *janitor) purgeAlone(ctx context.Context) error {
	stale, err := g.us.cat.Uploads.Stale(ctx, g.us.replica.Now().Add(-g.us.opts.MaxAge), 1000)
	if err != nil {
		return err
	}
	for _, row := range stale {
		if err := g.purgeStale(ctx, row); err != nil {
			return err
		}
	}
	if at := g.us.replica.Steady(); g.swept == 0 || at-g.swept >= sweepEvery {
		g.swept = at
		return g.sweep(ctx, g.us.replica.Now().Add(-min(g.us.opts.MaxAge, sweepAge)))
	}
	return nil
}

const (
	// sweepEvery is the time between two sweeps of a store that replicas share.
	sweepEvery = 10 * time.Minute
	// sweepAge is the age at which a part of an upload without a row is taken for a
	// leftover. Until then a request of another replica may be writing to it.
	sweepAge = 24 * time.Hour
)

// purgeStale drops an upload whose row is old, unless a request has claimed it.
func (g *janitor) purgeStale(ctx context.Context, row catalog.Upload) error {
	if row.Intent != "" {
		return nil // it is settled first
	}
	now, err := g.us.cat.Uploads.Claim(ctx, row.Repo, row.ID, g.us.replica.Owner+"/settle", g.us.replica.Lease)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	if now.UpdatedAt.After(row.UpdatedAt) || now.Intent != "" { // it has been continued
		if now.Until = (time.Time{}); now.Intent != "" {
			now.Until = time.UnixMilli(1)
		}
		return g.us.cat.Uploads.Save(ctx, now)
	}
	if now.State != "" {
		if err := g.us.store.Abandon(ctx, now.State); err != nil && !errors.Is(err, objstore.ErrNotExist) {
			return err
		}
	}
	return g.us.cat.Uploads.Delete(ctx, row.ID)
}
