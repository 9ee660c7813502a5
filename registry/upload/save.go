package upload

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
)

// saveOpen gives uploads that have been open for a while a row in the catalogue. A timer
// calls it, and saveOpen sets that timer again while uploads without a row remain.
func (us *Uploads) saveOpen() {
	done := us.beginSaving()
	if done == nil {
		return
	}
	defer us.background.Done()
	open := us.unsaved(us.replica.Now().Add(-saveAfter), done)
	var rows []catalog.Upload
	var saved []*upload
	for _, u := range open {
		if !u.mu.TryLock() {
			continue // a request holds it and will save it
		}
		if !u.gone {
			if row, err := u.row(""); err == nil {
				rows, saved = append(rows, row), append(saved, u)
				continue // stays locked until it is saved
			}
		}
		u.mu.Unlock()
	}
	var err error
	if len(rows) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err = us.cat.Uploads.Save(ctx, rows...)
		cancel()
	}
	us.mu.Lock()
	for _, u := range saved {
		u.saved = err == nil
		u.mu.Unlock()
	}
	for _, u := range open {
		u.saving = nil
	}
	close(done)
	left := false
	for _, u := range us.byID {
		left = left || !u.saved
	}
	us.timer = nil
	if left && !us.closed {
		us.timer = time.AfterFunc(saveAfter, us.saveOpen)
	}
	us.mu.Unlock()
	if err != nil {
		us.log.Error("record open uploads", "err", err)
	}
}

// clientOf returns the client whose share of the uploads a request uses. It is zero if
// the client is not known.
func clientOf(ctx context.Context) netip.Addr {
	if actor := oci.ActorFrom(ctx); actor != nil {
		return oci.ClientOf(actor.Addr)
	}
	return netip.Addr{}
}

// remove removes an upload from RAM. us.mu is held.
func (us *Uploads) remove(u *upload) {
	if us.byID[u.id] != u {
		return // the upload was never there, or has left
	}
	delete(us.byID, u.id)
	if !u.client.IsValid() {
		return
	}
	if us.ofClient[u.client]--; us.ofClient[u.client] == 0 {
		delete(us.ofClient, u.client)
	}
}

// beginSaving makes Close wait for saveOpen. It returns nil after Close.
func (us *Uploads) beginSaving() chan struct{} {
	us.mu.Lock()
	defer us.mu.Unlock()
	if us.closed {
		return nil
	}
	us.background.Add(1)
	return make(chan struct{})
}

// unsaved returns uploads without a row that began before the given time. It marks them
// as being saved until saving is closed.
func (us *Uploads) unsaved(before time.Time, saving chan struct{}) []*upload {
	us.mu.Lock()
	defer us.mu.Unlock()
	var out []*upload
	for _, u := range us.byID {
		if !u.saved && !u.touched.After(before) {
			u.saving = saving
			out = append(out, u)
		}
		if len(out) == 1000 {
			break
		}
	}
	return out
}

// close ends saveOpen.
func (us *Uploads) close() {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.closed = true
	if us.timer != nil {
		us.timer.Stop()
	}
}

// saveAll saves every open upload before the process ends. Requests have ended by then,
// and close was called.
func (us *Uploads) saveAll(ctx context.Context) error {
	if us.replica.Shared { // the uploads have rows, or only this process knows them
		return nil
	}
	for {
		open := us.unsaved(us.replica.Now(), nil)
		if len(open) == 0 {
			return nil
		}
		var rows []catalog.Upload
		for _, u := range open {
			for !u.mu.TryLock() { // held by a request that drain could not end
				select {
				case <-ctx.Done():
					return fmt.Errorf("save upload %s, which is in use: %w", u.id, ctx.Err())
				case <-time.After(10 * time.Millisecond):
				}
			}
			row, err := u.row("")
			u.mu.Unlock()
			if err != nil {
				return fmt.Errorf("save upload %s: %w", u.id, err)
			}
			rows = append(rows, row)
		}
		if err := us.cat.Uploads.Save(ctx, rows...); err != nil {
			return fmt.Errorf("save open uploads: %w", err)
		}
		us.mu.Lock()
		for _, u := range open {
			u.saved = true
		}
		us.mu.Unlock()
	}
}

// Purge drops uploads that were abandoned for too long, removes idle ones from RAM, and
// removes what a crash left in the store without a row.
func (us *Uploads) Purge(ctx context.Context) error {
	now, idle := us.replica.Now(), idleAfter
	if us.replica.Shared {
		idle = idleShared
	}
	us.mu.Lock()
	for _, u := range us.byID {
		if u.saved && now.Sub(u.touched) > idle && u.mu.TryLock() {
			u.gone = true // for a request that found the upload a moment ago
			us.remove(u)
			u.unfollow()
			u.mu.Unlock()
		}
	}
	us.mu.Unlock()
	if us.replica.Shared {
		return us.janitor.purgeShared(ctx)
	}
	stale, err := us.cat.Uploads.Stale(ctx, now.Add(-us.opts.MaxAge), 1000)
	if err != nil {
		return err
	}
	for _, row := range stale {
		if err := us.janitor.purgeOne(ctx, row); err != nil {
			return err
		}
	}
	return us.janitor.sweep(ctx, now.Add(-us.opts.MaxAge))
}

// purgeOne drops an upload whose row is old, unless the upload was continued after the
// row was read.
func (g *janitor) purgeOne(ctx context.Context, row catalog.Upload) error {
	g.us.restoring.Lock()
	defer g.us.restoring.Unlock()
	u := g.us.inRAM(row.ID)
	if u == nil && row.Intent != "" {
		return g.settle(ctx, row)
	}
	if u == nil {
		u = &upload{us: g.us, id: row.ID, repo: row.Repo, state: row.State, saved: true}
	}
	if !u.mu.TryLock() {
		return nil
	}
	defer u.mu.Unlock()
	now, err := g.us.cat.Uploads.Get(ctx, row.Repo, row.ID)
	if errors.Is(err, catalog.ErrNotFound) || (err == nil && now.UpdatedAt.After(row.UpdatedAt)) {
		return nil
	}
	if err != nil {
		return err
	}
	u.drop(ctx)
	return nil
}

// sweep looks in the store for uploads that the catalogue does not know.
func (g *janitor) sweep(ctx context.Context, before time.Time) error {
	sweeper, ok := objstore.As[objstore.UploadSweeper](g.us.store)
	if !ok {
		return nil
	}
	states, err := g.us.cat.Uploads.States(ctx)
	if err != nil {
		return err
	}
	n, size, err := sweeper.SweepUploads(ctx, before, func(state string) bool { return states[state] })
	if n > 0 {
		g.us.log.Info("removed parts of uploads that a crash left behind", "uploads", n, "bytes", size)
	}
	return err
}
