package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"example.org/slipway/internal/durable"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// errOf adds to an error what was attempted with which volume.
func errOf(what, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s volume %s: %w", what, id, storageError(err))
}

// opening runs a step that opens a volume, and closes the volume if nobody waits any
// more.
func (s *Store) opening(ctx context.Context, what, id string, open func(*held) (*volume, error)) (block.Volume, error) {
	if err := s.check(id); err != nil {
		return nil, errOf(what, id, err)
	}
	var mu sync.Mutex // guards v and late
	var v *volume
	late := false
	err := s.io.do(ctx, func(ctx context.Context, _ beat) error {
		var opened *volume
		err := s.locked(ctx, func(h *held) (err error) {
			opened, err = open(h)
			return err
		})
		mu.Lock()
		defer mu.Unlock()
		if opened != nil && (err != nil || late) {
			return errors.Join(err, opened.Close())
		}
		v = opened
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	if err == nil {
		return v, nil
	}
	late = true
	if v != nil {
		err = errors.Join(err, v.Close())
	}
	return nil, errOf(what, id, err)
}

// Create implements [block.Store].
func (s *Store) Create(ctx context.Context, id, parent string, size int64) (block.Volume, error) {
	err := checkSize(size)
	if err == nil && parent != "" {
		err = volref.CheckName(parent)
	}
	if err != nil {
		return nil, errOf("create", id, err)
	}
	return s.opening(ctx, "create", id, func(h *held) (*volume, error) { return s.create(h, id, parent, size) })
}

func (s *Store) create(h *held, id, parent string, size int64) (_ *volume, err error) {
	if _, err := os.Lstat(s.volume(id)); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = block.ErrExists
		}
		return nil, err
	}
	m := &meta{Version: version, Parent: parent, Size: size}
	var below *layer
	if parent != "" {
		if below, err = s.layer(parent, 0); err != nil {
			return nil, fmt.Errorf("parent %s: %w", parent, err)
		}
		if below.size > size {
			return nil, errors.Join(fmt.Errorf("its parent has %d bytes, more than its %d", below.size, size), s.drop(below))
		}
	}
	if err := s.makeVolume(h, id, m); err != nil {
		return nil, errors.Join(err, s.drop(below))
	}
	v, err := s.writer(id, m, below)
	if err != nil {
		// Perhaps there was no room for a lease. The new volume is removed again.
		return nil, errors.Join(err, s.discard(id, m))
	}
	return v, nil
}

// makeVolume creates the directory of a volume, as a whole or not at all.
func (s *Store) makeVolume(h *held, id string, m *meta) error {
	temp := s.path("tmp", token())
	err := s.fillVolume(temp, m)
	if err == nil && m.Parent != "" {
		// This comes first, so that no parent is taken for a volume without children. The
		// name of a child that was never created is recognized later.
		children := s.volume(m.Parent, "children")
		if err = os.WriteFile(filepath.Join(children, id), nil, 0o600); err == nil {
			err = durable.SyncDir(children)
		}
	}
	if err == nil {
		err = h.still()
	}
	if err == nil {
		err = os.Rename(temp, s.volume(id))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	return durable.SyncDir(s.path("volumes"))
}

func (s *Store) fillVolume(dir string, m *meta) error {
	for _, d := range []string{"", "leases", "children"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	for _, name := range []string{"data", "map", "recent"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			return err
		}
	}
	return m.write(filepath.Join(dir, "volume.json"))
}

// writer opens a volume for writing. The lock is held, and nobody has the volume open.
func (s *Store) writer(id string, m *meta, parent *layer) (*volume, error) {
	w, err := s.openWriter(id, m, parent)
	if err != nil {
		return nil, errors.Join(err, s.drop(parent))
	}
	l, err := s.lease(id, writing)
	if err != nil {
		return nil, errors.Join(err, w.close(), s.drop(parent))
	}
	v := s.newVolume(id, m.Size, l)
	v.w = w
	return v, nil
}

// Open implements [block.Store].
func (s *Store) Open(ctx context.Context, id string) (block.Volume, error) {
	return s.opening(ctx, "open", id, func(*held) (*volume, error) {
		top, err := s.layer(id, 0)
		if err != nil {
			return nil, err
		}
		l, err := s.lease(id, reading)
		if err != nil {
			return nil, errors.Join(err, s.drop(top))
		}
		v := s.newVolume(id, top.size, l)
		v.top = top
		return v, nil
	})
}

// OpenWriter implements [block.Store].
func (s *Store) OpenWriter(ctx context.Context, id string) (block.Volume, error) {
	return s.opening(ctx, "open for writing", id, func(*held) (*volume, error) {
		m, err := s.unwritten(id)
		if err != nil {
			return nil, err
		}
		var below *layer
		if m.Parent != "" {
			if below, err = s.layer(m.Parent, 0); err != nil {
				return nil, fmt.Errorf("volume %s below it: %w", m.Parent, notMissing(err))
			}
		}
		return s.writer(id, m, below)
	})
}

// unwritten returns the metadata of a volume that nobody writes. Errors:
// block.ErrNotFound, block.ErrCommitted, block.ErrInUse.
func (s *Store) unwritten(id string) (*meta, error) {
	m, err := s.meta(id)
	if err != nil {
		return nil, err
	}
	if m.Committed {
		return nil, block.ErrCommitted
	}
	if _, writers, err := s.users(s.volume(id)); err != nil || writers > 0 {
		return nil, errors.Join(err, inUse(writers > 0))
	}
	return m, nil
}

func inUse(yes bool) error {
	if yes {
		return block.ErrInUse
	}
	return nil
}

// Commit implements [block.Store].
func (s *Store) Commit(ctx context.Context, id string) error {
	// It is opened for writing, so that there is no other writer while the bytes are made
	// durable, which may take long.
	v, err := s.opening(ctx, "commit", id, func(*held) (*volume, error) {
		m, err := s.unwritten(id)
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(s.volume(id, lost)); !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(errLost, err)
		}
		return s.writer(id, m, nil)
	})
	if errors.Is(err, block.ErrCommitted) {
		return nil
	}
	if err != nil {
		return err
	}
	w := v.(*volume)
	err = w.order.do(s.io, true, func(alive beat) error { return s.commit(ctx, w, alive) })
	return errors.Join(errOf("commit", id, err), v.Close())
}

func (s *Store) commit(ctx context.Context, v *volume, alive beat) error {
	if err := v.w.flush(alive); err != nil {
		return err
	}
	own := v.w.bits.stretches(v.size / block.BlockSize)
	if err := durable.WriteFile(s.volume(v.id, "extents"), encodeExtents(own)); err != nil {
		return err
	}
	alive()
	return s.locked(ctx, func(h *held) error {
		m, err := s.meta(v.id)
		if err == nil {
			err = errors.Join(v.lease.valid(), h.still())
		}
		if err != nil {
			return err
		}
		m.Committed, m.Blocks = true, blocksOf(own)
		if err := m.write(s.volume(v.id, "volume.json")); err != nil {
			return err
		}
		for _, name := range []string{"map", "recent"} {
			_ = os.Remove(s.volume(v.id, name)) // nobody reads it any more
		}
		return nil
	})
}

// Remove implements [block.Store].
func (s *Store) Remove(ctx context.Context, id string) error {
	err := s.check(id)
	if err == nil {
		err = s.io.do(ctx, func(ctx context.Context, _ beat) error { return s.remove(ctx, id) })
	}
	return errOf("remove", id, err)
}

func (s *Store) remove(ctx context.Context, id string) error {
	var temp string
	err := s.locked(ctx, func(h *held) error {
		if _, err := os.Lstat(s.volume(id)); err != nil {
			return ignore(err, fs.ErrNotExist)
		}
		m, err := s.meta(id)
		if errors.Is(err, block.ErrNotFound) || errors.Is(err, errDamaged) {
			m = &meta{} // nothing can be read of it, but it must not stay for ever
		} else if err != nil {
			return err
		}
		readers, writers, err := s.users(s.volume(id))
		if err == nil {
			err = inUse(readers+writers > 0)
		}
		if err == nil {
			err = s.childless(id)
		}
		if err == nil {
			err = h.still()
		}
		if err == nil {
			temp, err = s.detach(id, m)
		}
		return err
	})
	if temp != "" { // also if the lock was lost meanwhile
		err = errors.Join(err, os.RemoveAll(temp))
	}
	return err
}

// childless returns block.ErrInUse if a volume has clones.
func (s *Store) childless(id string) error {
	names, err := os.ReadDir(s.volume(id, "children"))
	if err != nil {
		return ignore(err, fs.ErrNotExist)
	}
	for _, e := range names {
		m, err := s.meta(e.Name())
		if err == nil && m.Parent == id {
			return fmt.Errorf("%w: %s is a clone of it", block.ErrInUse, e.Name())
		}
		if err = ignore(err, block.ErrNotFound); err == nil {
			// This is the name of a clone that was never created, or is gone.
			err = ignore(os.Remove(s.volume(id, "children", e.Name())), fs.ErrNotExist)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// detach removes a volume from the existing ones. Its files are then in temp.
func (s *Store) detach(id string, m *meta) (temp string, err error) {
	temp = s.path("tmp", token())
	if err := os.Rename(s.volume(id), temp); err != nil {
		return "", err
	}
	err = durable.SyncDir(s.path("volumes"))
	if err == nil && m.Parent != "" {
		err = ignore(os.Remove(s.volume(m.Parent, "children", id)), fs.ErrNotExist)
	}
	return temp, err
}

// discard removes a volume that was only just created. The lock is held.
func (s *Store) discard(id string, m *meta) error {
	temp, err := s.detach(id, m)
	if err != nil {
		return err
	}
	return os.RemoveAll(temp)
}
