package upload

import (
	"context"
	"errors"
	"time"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// janitor removes what crashes and absent clients leave of uploads.
type janitor struct {
	us *Uploads
	// swept is when this process last swept a store that replicas share.
	swept time.Duration
}

// Recover settles the publications that were in progress when the process ended. It
// removes an object that nobody recorded. Contents whose deletion had begun are left to
// the collector. rebooted says that the machine went down during the last run, which
// began before started.
func (us *Uploads) Recover(ctx context.Context, rebooted bool, started time.Time) error {
	if us.replica.Shared { // other replicas go on; those with expired claims do not
		return us.janitor.settleExpired(ctx)
	}
	left, err := us.cat.Uploads.Intents(ctx)
	if err != nil {
		return err
	}
	for _, u := range left {
		if err := us.janitor.settle(ctx, u); err != nil {
			return err
		}
	}
	if rebooted {
		if err := us.janitor.dropUnsynced(ctx); err != nil {
			return err
		}
	}
	return us.janitor.sweep(ctx, started)
}

// dropUnsynced ends the uploads from before a power cut. The digest of the received bytes
// is known, but some of the bytes may never have reached the disk.
func (g *janitor) dropUnsynced(ctx context.Context) error {
	list, err := g.us.cat.Uploads.DropStored(ctx)
	if err != nil {
		return err
	}
	for _, u := range list {
		if err := g.us.store.Abandon(ctx, u.State); err != nil {
			return err
		}
		g.us.log.Info("dropped an upload that was under way when the machine went down", "repo", u.Repo, "upload", u.ID, "bytes", u.Size)
	}
	return nil
}

// settle removes what the publication of an upload left behind. The upload itself goes on
// from the position that the client last learnt, if its bytes are there.
func (g *janitor) settle(ctx context.Context, u catalog.Upload) error {
	// A push of the same content must not come between the question and the deletion.
	defer g.us.storage.Locks.Lock(u.Intent)()
	// Content that an image lacks is left for fsck, which reads it and restores it.
	wanted, err := g.us.cat.Garbage.Wanted(ctx, u.Intent)
	if err != nil {
		return err
	}
	if !wanted {
		if err := g.us.store.Delete(ctx, storage.BlobKey(u.Intent)); err != nil {
			return err
		}
	}
	if err := g.us.store.Delete(ctx, verifyKey(u.ID)); err != nil {
		return err
	}
	log := g.us.log.With("repo", u.Repo, "upload", u.ID, "digest", u.Intent)
	if kept, err := g.reopen(ctx, &u); err != nil || kept {
		log.Info("kept an upload whose end was cut off", "bytes", u.Size)
		return err
	}
	if u.State != "" {
		if err := g.us.store.Abandon(ctx, u.State); err != nil {
			return err
		}
	}
	log.Info("dropped an upload that was cut off while being published")
	return g.us.cat.Uploads.Delete(ctx, u.ID)
}

// reopen turns an upload that was being published into one that can be continued.
func (g *janitor) reopen(ctx context.Context, u *catalog.Upload) (bool, error) {
	if u.Size == 0 {
		return false, nil
	}
	if u.State != "" {
		obj, err := g.us.store.Resume(ctx, u.State, u.Size)
		if errors.Is(err, objstore.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if u.State, err = obj.Suspend(ctx); err != nil {
			return false, err
		}
	}
	u.Intent = ""
	return true, g.us.cat.Uploads.Save(ctx, *u)
}

// verifyKey is the key of an upload whose digest is being computed from the store because
// it could not be computed while the bytes came in.
func verifyKey(uploadID string) string { return "slipway/verify/" + uploadID }
