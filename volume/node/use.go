package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// mountLocal is the flight of Local.
func (m *Manager) mountLocal(ctx context.Context, e *entry, img *volref.Record, volume string) error {
	if err := m.ready(ctx, e); err != nil {
		return err
	}
	if _, ok := m.mounted(e.name); ok {
		return nil
	}
	// A volume that Commit made is in the place of the clones.
	c, since, err := m.creds.forVolume(ctx, img, volume, volref.IsClone(volume))
	if err != nil {
		return fmt.Errorf("get a credential: %w", err)
	}
	r := record{Phase: making, Image: *img, Volume: volume}
	if e.rec != nil {
		r.Tries = e.rec.Tries
	}
	r.Tries++
	r.Mount, r.Since, r.Expires = nil, since, c.Expires
	if err := m.save(e, r); err != nil {
		return err
	}
	m.o.step("record")
	if err := m.bring(ctx, e, r, c); err != nil {
		return errors.Join(err, m.giveUp(ctx, e))
	}
	return nil
}

// mountNetwork is the flight of Network.
func (m *Manager) mountNetwork(ctx context.Context, e *entry, key string, img *volref.Record, volume string) error {
	if err := m.ready(ctx, e); err != nil {
		return err
	}
	if err := m.sameImage(e.name, img, volume); err != nil {
		return err
	}
	if _, ok := m.mounted(e.name); ok {
		return nil
	}
	c, since, err := m.creds.forVolume(ctx, img, volume, true)
	if err != nil {
		return fmt.Errorf("get a credential: %w", err)
	}
	r := record{Phase: making, Key: key, Image: *img, Volume: volume}
	if e.rec != nil {
		r = *e.rec
	} else {
		// The random part distinguishes the clones of two machines. It also distinguishes
		// the clones of two containers with the same key, if the first clone is not gone
		// yet.
		r.Clone = volref.ClonePrefix + nameOf(key)[:16] + "-" + random()
	}
	r.Tries++
	r.Mount, r.Since, r.Expires = nil, since, c.Expires
	if r.Phase == making && m.o.Limits.Late > 0 {
		r.Doubt = time.Now().Add(m.o.Limits.Call + m.o.Limits.Late)
	}
	if err := m.save(e, r); err != nil {
		return err
	}
	m.o.step("record")
	if r.Phase == making {
		if err := m.clone(ctx, e, &r, c); err != nil {
			return errors.Join(err, m.giveUp(ctx, e))
		}
	}
	if err := m.bring(ctx, e, r, c); err != nil {
		return errors.Join(err, m.giveUp(ctx, e))
	}
	return nil
}

// clone makes the container's volume.
func (m *Manager) clone(ctx context.Context, e *entry, r *record, c volref.Credential) error {
	err := m.call(ctx, "clone", func(ctx context.Context) error {
		return m.storage.Clone(ctx, r.Image.Place, c, r.Clone, r.Volume)
	})
	if err == nil {
		r.Doubt = time.Time{} // recorded with the mount
		return nil
	}
	err = fmt.Errorf("clone it: %w", err)
	for _, certain := range []error{block.ErrNotFound, block.ErrNotCommitted, block.ErrExists, block.ErrFull, block.ErrDenied} {
		if errors.Is(err, certain) {
			r.Doubt = time.Time{}
			return errors.Join(err, m.save(e, *r))
		}
	}
	return err
}

// ready makes an entry mountable, or finds that it is mounted. What has failed for good
// is hidden. The mapping of a volume that is only read stays, because its users may have
// stayed, too.
func (m *Manager) ready(ctx context.Context, e *entry) error {
	if e.rec == nil {
		return nil
	}
	if e.rec.Phase != made && e.rec.Key != "" {
		return m.drop(ctx, e) // its clone may be gone
	}
	if mr := e.rec.Mount; mr != nil {
		err := m.holds(mr)
		if err == nil && e.rec.Key != "" && failed(mr.Dir) {
			return m.mend(ctx, e)
		}
		if err == nil {
			return m.revive(e)
		}
		m.log.Info("volume is not mounted any more and is mounted again", "name", e.name, "reason", err)
	}
	m.setReady(e, false)
	if e.rec.Key != "" {
		// A file system is never mounted read-write twice, so its user must have ended.
		if err := m.takeAway(ctx, e.name, e.rec, true); err != nil {
			return fmt.Errorf("take away what was mounted before: %w", err)
		}
		return nil
	}
	_, err := m.unmountOf(e.name, true)
	return err
}

// mend removes the mount of a container's copy after its storage failed, so that it can
// be mounted again. It never does so while the old mount is used, because two mounts of
// one file system would disagree.
func (m *Manager) mend(ctx context.Context, e *entry) error {
	if err := m.takeAway(ctx, e.name, e.rec, false); err != nil {
		return fmt.Errorf("its storage failed, and it became read-only; stop what uses it, and try again: %w", err)
	}
	m.setReady(e, false)
	m.log.Info("a container's volume became read-only and is mounted again", "name", e.name)
	return nil
}

// revive makes an image usable again if it was to be removed but was still in use.
func (m *Manager) revive(e *entry) error {
	if e.rec.Phase != made {
		r := *e.rec
		r.Phase = made
		if err := m.save(e, r); err != nil {
			return err
		}
	}
	m.setReady(e, true)
	return nil
}

// giveUp handles an entry that could not be mounted. It removes what was never handed
// out. A container's copy that was handed out stays, unmounted.
func (m *Manager) giveUp(ctx context.Context, e *entry) error {
	switch {
	case e.rec == nil:
		return nil
	case e.rec.Phase == made:
		return m.takeAway(ctx, e.name, e.rec, true)
	}
	return m.drop(ctx, e)
}

// drop is the flight of DropLocal and DropNetwork.
func (m *Manager) drop(ctx context.Context, e *entry) error {
	if e.rec == nil {
		return nil
	}
	r := *e.rec
	lazy := r.Phase == making || r.Mount == nil || m.holds(r.Mount) != nil
	if r.Phase != leaving {
		r.Phase = leaving
		if err := m.save(e, r); err != nil {
			return err
		}
		m.o.step("leaving")
	}
	m.setReady(e, false)
	if r.Commit != "" {
		if err := m.abandon(ctx, e); err != nil {
			return err
		}
		r.Commit = ""
	}
	if err := m.takeAway(ctx, e.name, &r, lazy); err != nil {
		return err
	}
	if r.Clone != "" {
		err := m.removeVolume(ctx, &r, r.Clone)
		if strings.HasPrefix(e.name, latePrefix) && errors.Is(err, errNoCredential) {
			err = nil // it was removed before, if it was there
		}
		if err != nil {
			return err
		}
		if done, err := m.doubt(e, r); err != nil || done {
			return err
		}
	}
	return m.forget(e)
}

// doubt keeps looking for a clone that may still appear. Meanwhile the container's record
// must go, because its key may be used again. doubt reports whether the record stays, as
// the record of the doubtful clone.
func (m *Manager) doubt(e *entry, r record) (stays bool, err error) {
	if !time.Now().Before(r.Doubt) {
		return false, nil
	}
	if strings.HasPrefix(e.name, latePrefix) {
		return true, nil
	}
	r.Mount = nil
	late := &entry{name: latePrefix + nameOf(r.Clone)}
	if err := m.save(late, r); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries[late.name] = late
	return false, nil
}

// takeAway unmounts and unmaps a record's volume.
func (m *Manager) takeAway(ctx context.Context, name string, r *record, lazy bool) error {
	some, err := m.unmountOf(name, lazy)
	if err != nil {
		return err
	}
	wait := time.Duration(0)
	if some {
		wait = patience
	}
	return m.unmap(ctx, r.mapping(name).Name, wait)
}

// patience is how long a mapping may stay in use after its user has gone, because the
// kernel does not wait when it reports the end of a mount to a file system in user space.
const patience = 500 * time.Millisecond

// unmap removes a mapping. It waits for a while until the mapping is not in use.
func (m *Manager) unmap(ctx context.Context, name string, patience time.Duration) error {
	end := time.Now().Add(patience)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := m.call(ctx, "unmap", func(ctx context.Context) error { return m.storage.Unmap(ctx, name) })
		if err == nil {
			return nil
		}
		if !errors.Is(err, block.ErrInUse) || time.Now().After(end) {
			return fmt.Errorf("unmap %s: %w", name, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// removeVolume deletes a volume that was made here.
func (m *Manager) removeVolume(ctx context.Context, r *record, id string) error {
	c, err := m.creds.toRemove(ctx, r)
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	err = m.call(ctx, "remove", func(ctx context.Context) error {
		return m.storage.Remove(ctx, r.Image.Place, c, id)
	})
	if err != nil {
		if errors.Is(err, block.ErrDenied) {
			m.creds.forget(&r.Image, r.Volume)
		}
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return nil
}
