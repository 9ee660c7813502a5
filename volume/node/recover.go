package node

import (
	"context"
	"errors"
	"strings"
	"time"

	"example.org/slipway/node/view"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// recover takes over what is recorded and mounted. It does not ask the storage.
func (m *Manager) recover() error {
	all, err := m.records()
	if err != nil {
		return err
	}
	for name, r := range all {
		e := &entry{name: name, rec: r}
		if r.Phase == made && r.Mount != nil {
			err := m.holds(r.Mount)
			e.ready = err == nil
			if err != nil {
				m.log.Info("volume is not mounted any more; it will be when it is used", "name", name, "reason", err)
			}
		}
		m.entries[name] = e
	}
	return nil
}

// These are how long Open waits for the removal of what an earlier Manager left, and how
// long Close waits for operations in progress.
const (
	startPatience = 5 * time.Second
	endPatience   = 5 * time.Second
)

// sweeper tidies up for as long as the Manager is open.
func (m *Manager) sweeper() {
	tick := time.NewTicker(m.o.Limits.Sweep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.sweep(m.ctx)
		case <-m.ctx.Done():
			return
		}
	}
}

// sweep removes what should not exist, and replaces credentials. It waits for a while.
// What takes longer continues without it.
func (m *Manager) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	names := map[string]bool{}
	for _, name := range m.namesOf(m.untidy) {
		names[name] = true
	}
	if err := m.strays(ctx, names); err != nil {
		m.log.Warn("remains of volumes are not searched for", "error", err)
	}
	if err := m.findRefused(ctx, names); err != nil {
		m.log.Warn("whether credentials are refused is not known", "error", err)
	}
	var flights []*flight
	for name := range names {
		fl, err := m.join(name, "tidy", m.tidy)
		if err != nil {
			return // closed
		}
		flights = append(flights, fl)
	}
	for _, fl := range flights {
		select {
		case <-fl.done:
		case <-ctx.Done():
			return
		}
	}
}

// untidy reports whether there is something to do for a record. Manager.mu is held.
func (m *Manager) untidy(r *record) bool {
	return r.Phase != made || r.Commit != "" || m.aged(r)
}

// aged reports whether half of the lifetime of a record's credential is over.
func (m *Manager) aged(r *record) bool {
	return !r.Expires.IsZero() && time.Now().After(halfway(r.Since, r.Expires))
}

// strays removes mounts and mappings of this Manager that belong to no entry. They were
// left by a process that was killed in the middle of its work; the mount may even have
// appeared after its death.
func (m *Manager) strays(ctx context.Context, names map[string]bool) error {
	mounts, err := view.Mounts(m.o.Run)
	if err != nil {
		return err
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		dir, below := strings.CutPrefix(mounts[i].Dir, m.o.Run+"/")
		if !below || !m.stray(mounts[i].Dir) {
			continue
		}
		if name := dir[:max(strings.LastIndexByte(dir, '.'), 0)]; ours(name) {
			if _, err := view.Unmount(mounts[i].Dir); err != nil {
				return err
			}
			names[name] = true
			m.log.Info("unmounted what nobody knows of", "dir", mounts[i].Dir)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, m.o.Limits.Call)
	defer cancel()
	mapped, err := m.storage.Mapped(ctx)
	for _, name := range mapped {
		committing := strings.HasPrefix(name, commitPrefix)
		name = strings.TrimPrefix(name, commitPrefix)
		if ours(name) && (committing || !m.used(name)) {
			names[name] = true
		}
	}
	return err
}

// findRefused finds mounts whose credential the storage refuses.
func (m *Manager) findRefused(ctx context.Context, names map[string]bool) error {
	s, ok := m.o.Storage.(Refuser)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.o.Limits.Call)
	defer cancel()
	list, err := s.Refused(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused = map[string]bool{}
	for _, name := range list {
		if e := m.entries[name]; e != nil && e.ready {
			m.refused[name], names[name] = true, true
		}
	}
	return err
}

func (m *Manager) isRefused(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused[name]
}

// ours reports whether a name has the form of this package's names.
func ours(name string) bool {
	return strings.HasPrefix(name, localPrefix) || strings.HasPrefix(name, networkPrefix)
}

// stray reports whether the mount at a directory belongs to nobody.
func (m *Manager) stray(dir string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running[dir] {
		return false
	}
	for _, e := range m.entries {
		if e.rec != nil && e.rec.Mount != nil && e.rec.Mount.Dir == dir {
			return false
		}
	}
	return true
}

// used reports whether a mapping is mounted or about to be.
func (m *Manager) used(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[name]
	return e != nil && (e.ready || e.flight != nil)
}

// tidy is the flight of the sweeper.
func (m *Manager) tidy(ctx context.Context, e *entry) error {
	err := m.tidyUp(ctx, e)
	if err != nil && !errors.Is(err, context.Canceled) {
		m.log.Warn("volume is not in order and is looked at again", "name", e.name, "error", err)
	}
	return err
}

func (m *Manager) tidyUp(ctx context.Context, e *entry) error {
	if e.rec == nil {
		if _, err := m.unmountOf(e.name, true); err != nil {
			return err
		}
		return errors.Join(m.unmap(ctx, commitPrefix+e.name, 0), m.unmap(ctx, e.name, patience))
	}
	if e.rec.Phase != made {
		return m.drop(ctx, e)
	}
	if e.rec.Commit != "" {
		if err := m.abandon(ctx, e); err != nil {
			return err
		}
	} else if err := m.unmap(ctx, commitPrefix+e.name, 0); err != nil {
		return err
	}
	if _, ok := m.mounted(e.name); !ok {
		// It is mounted again on its next use.
		m.setReady(e, false)
		return m.takeAway(ctx, e.name, e.rec, true)
	}
	if m.isRefused(e.name) {
		m.creds.refused(&e.rec.Image, e.rec.Volume, e.rec.Since)
		m.log.Info("the storage refuses a volume's credential; it is given another", "name", e.name)
		return m.renew(ctx, e)
	}
	if m.aged(e.rec) {
		return m.renew(ctx, e)
	}
	return nil
}

// renew replaces the credential of a mount before it expires.
func (m *Manager) renew(ctx context.Context, e *entry) error {
	r := *e.rec
	c, since, err := m.creds.forVolume(ctx, &r.Image, r.Volume, r.Key != "" || volref.IsClone(r.Volume))
	if err != nil {
		return err
	}
	mp := r.mapping(e.name)
	mp.Credential = c
	err = m.call(ctx, "map", func(ctx context.Context) error {
		_, err := m.storage.Map(ctx, mp)
		return err
	})
	if err != nil {
		if errors.Is(err, block.ErrDenied) {
			m.creds.forget(&r.Image, r.Volume)
		}
		return err
	}
	r.Since, r.Expires = since, c.Expires
	return m.save(e, r)
}
