//go:build ceph

package rbd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"

	"example.org/slipway/volume/block"
)

const (
	// snapshot is the snapshot that readers read. stateKey is the key of the metadata
	// that says whether they may read it. A volume without it is not complete.
	snapshot       = "slipway"
	stateKey       = "slipway.state"
	stateCommitted = "committed"
	stateRemoving  = "removing"

	blockSize = 4096
)

// features: clones, a single writer, and object maps, which show what a volume stores
// itself without a request for each object.
const features = rbd.FeatureLayering | rbd.FeatureExclusiveLock | rbd.FeatureObjectMap | rbd.FeatureFastDiff

// Create implements block.Store.
func (s *Store) Create(ctx context.Context, id, parent string, size int64) (block.Volume, error) {
	v, err := run(ctx, s, 3*s.o.Timeout, func() (*volume, error) { return s.create(id, parent, size) }, closeLate)
	if err != nil {
		return nil, fmt.Errorf("create volume %s: %w", id, err)
	}
	return v, nil
}

// closeLate closes a volume for which nobody waits any more.
func closeLate(v *volume) { _ = v.close() }

func (s *Store) create(id, parent string, size int64) (*volume, error) {
	at, err := s.in(id)
	if err != nil {
		return nil, err
	}
	if size <= 0 || size%blockSize != 0 {
		return nil, fmt.Errorf("a size of %d bytes is not a multiple of %d", size, blockSize)
	}
	l, err := s.acquire(writer(id), true)
	if errors.Is(err, block.ErrInUse) {
		return nil, fmt.Errorf("%w, and is being written", block.ErrExists)
	}
	if err != nil {
		return nil, err
	}
	there, err := exists(at, id)
	if err == nil && there {
		err = block.ErrExists
	}
	if err != nil {
		l.release()
		return nil, err
	}
	v, err := s.createHeld(at, l, id, parent, size)
	if err != nil {
		if l.valid() { // otherwise the image may be another writer's
			_ = rbd.RemoveImage(at, id) // what is left of it is incomplete, and the next writer deals with it
		}
		_ = l.drop(id)
		return nil, err
	}
	return v, nil
}

// createHeld is like create, for the holder of the writer's lease, on a name that is free. The
// volume takes the lease over.
func (s *Store) createHeld(at *rados.IOContext, l *lease, id, parent string, size int64) (*volume, error) {
	err := translate(s.leases.Create(readers(id), rados.CreateIdempotent))
	switch {
	case err != nil:
	case parent == "":
		err = s.withOptions(func(o *rbd.ImageOptions) error {
			return translate(rbd.CreateImage(at, id, uint64(size), o))
		})
	default:
		err = s.clone(at, id, parent, size)
	}
	if err != nil {
		return nil, err
	}
	return s.openLocked(at, l, id)
}

func (s *Store) withOptions(f func(*rbd.ImageOptions) error) error {
	o := rbd.NewRbdImageOptions()
	defer o.Destroy()
	err := errors.Join(o.SetUint64(rbd.ImageOptionOrder, s.order), o.SetUint64(rbd.ImageOptionFeatures, features))
	if err != nil {
		return err
	}
	return f(o)
}

// clone makes id a clone of parent. The lease keeps the parent until the parent knows the
// clone.
func (s *Store) clone(at *rados.IOContext, id, parent string, size int64) error {
	from, err := s.openReader(parent)
	if err != nil {
		return fmt.Errorf("parent %s: %w", parent, err)
	}
	defer closeLate(from)
	if size < from.size {
		return fmt.Errorf("a size of %d bytes is less than the %d of parent %s", size, from.size, parent)
	}
	in, err := s.in(parent)
	if err != nil {
		return err
	}
	err = s.withOptions(func(o *rbd.ImageOptions) error {
		if err := o.SetUint64(rbd.ImageOptionCloneFormat, 2); err != nil {
			return err
		}
		return translate(rbd.CloneImage(in, parent, snapshot, at, id, o))
	})
	if err != nil || size == from.size {
		return err
	}
	img, err := rbd.OpenImage(at, id, rbd.NoSnapshot)
	if err != nil {
		return translate(err)
	}
	return translate(errors.Join(img.Resize(uint64(size)), img.Close()))
}

// openLocked opens an incomplete volume for the holder of the writer's lease, and locks
// the image. The volume takes the lease over. An image that is still locked belonged to a
// writer that is gone.
func (s *Store) openLocked(at *rados.IOContext, l *lease, id string) (*volume, error) {
	img, err := rbd.OpenImage(at, id, rbd.NoSnapshot)
	if err != nil {
		return nil, translate(err)
	}
	var v *volume
	if err = s.takeLock(img, l); err == nil {
		v, err = s.newVolume(id, img, l, true)
	}
	if err != nil {
		return nil, errors.Join(err, translate(img.Close()))
	}
	return v, nil
}

// takeLock locks an image for the holder of the writer's lease. If a dead process had the
// lease, the watchers are dead, too.
func (s *Store) takeLock(img *rbd.Image, l *lease) error {
	if !l.inherited {
		if err := s.unwatched(img); err != nil {
			return err
		}
	}
	owners, err := img.LockGetOwners()
	if err != nil {
		return translate(err)
	}
	for _, o := range owners {
		if err := img.LockBreak(rbd.LockModeExclusive, o.Owner); err != nil && !isMissing(err) {
			return fmt.Errorf("lock out the last writer: %w", translate(err))
		}
	}
	return translate(img.LockAcquire(rbd.LockModeExclusive))
}

// OpenWriter implements block.Store.
func (s *Store) OpenWriter(ctx context.Context, id string) (block.Volume, error) {
	v, err := run(ctx, s, 3*s.o.Timeout, func() (*volume, error) { return s.openWriter(id) }, closeLate)
	if err != nil {
		return nil, fmt.Errorf("open volume %s to write: %w", id, err)
	}
	return v, nil
}

func (s *Store) openWriter(id string) (*volume, error) {
	var v *volume
	err := s.exclusively(id, func(at *rados.IOContext, l *lease) (bool, error) {
		var err error
		if v, err = s.openLocked(at, l, id); err != nil {
			return false, err
		}
		done, err := isCommitted(v.img)
		if err == nil && done {
			err = block.ErrCommitted
		}
		if err == nil {
			// This is left from an interrupted commit or removal.
			if err = dropSnapshot(v.img); err == nil {
				err = forget(v.img)
			}
		}
		if err != nil {
			err = errors.Join(err, v.close())
		}
		return true, err // v has the lease, or had it
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// exclusively calls f with the writer's lease of an existing volume, and releases the
// lease unless f keeps it. If watchers were in f's way, it makes sure that dead ones do
// not stay.
func (s *Store) exclusively(id string, f func(at *rados.IOContext, l *lease) (keep bool, err error)) error {
	at, err := s.in(id)
	if err != nil {
		return err
	}
	there, err := exists(at, id)
	if err != nil {
		return err
	}
	if !there {
		return block.ErrNotFound
	}
	l, err := s.acquire(writer(id), true)
	if err != nil {
		return err
	}
	keep, err := f(at, l)
	if errors.Is(err, errWatched) { // f has closed the image; a client that watches the image keeps its header loaded
		err = errors.Join(err, s.reload(at, id))
	}
	if !keep {
		l.release()
	}
	return err
}

// exists reports whether there is an image of that name, or remains of one. An
// interrupted removal leaves something without a name: an entry in the directory, or an
// image in the trash, from where librbd deletes it. Both are in the list of names.
func exists(at *rados.IOContext, id string) (bool, error) {
	_, err := at.Stat("rbd_id." + id)
	if !isMissing(err) {
		return err == nil, translate(err)
	}
	names, err := rbd.GetImageNames(at)
	return slices.Contains(names, id), translate(err)
}

// state returns what the metadata of an image says, or "".
func state(img *rbd.Image) (string, error) {
	value, err := img.GetMetadata(stateKey)
	if isMissing(err) {
		return "", nil
	}
	return value, translate(err)
}

// forget removes the state.
func forget(img *rbd.Image) error {
	if err := img.RemoveMetadata(stateKey); err != nil && !isMissing(err) {
		return translate(err)
	}
	return nil
}

// isCommitted reports whether a volume is complete.
func isCommitted(img *rbd.Image) (bool, error) {
	if s, err := state(img); err != nil || s != stateCommitted {
		return false, err
	}
	_, err := img.GetSnapID(snapshot)
	if isMissing(err) {
		return false, nil
	}
	return err == nil, translate(err)
}

// dropSnapshot removes the snapshot if there is one.
func dropSnapshot(img *rbd.Image) error {
	if _, err := img.GetSnapID(snapshot); isMissing(err) {
		return nil
	}
	snap := img.GetSnapshot(snapshot)
	protected, err := snap.IsProtected()
	if err == nil && protected {
		err = snap.Unprotect()
	}
	if err == nil {
		err = snap.Remove()
	}
	if isMissing(err) {
		return nil
	}
	return translate(err)
}

// Commit implements block.Store.
func (s *Store) Commit(ctx context.Context, id string) error {
	err := s.do(ctx, func() error { return s.commit(id) })
	if err != nil {
		return fmt.Errorf("commit volume %s: %w", id, err)
	}
	return nil
}

func (s *Store) commit(id string) error {
	info, err := s.stat(id, false)
	if err != nil || info.Committed {
		return err
	}
	return s.exclusively(id, func(at *rados.IOContext, l *lease) (bool, error) {
		img, err := rbd.OpenImage(at, id, rbd.NoSnapshot)
		if err != nil {
			return false, translate(err)
		}
		return false, errors.Join(s.seal(img, l), translate(img.Close()))
	})
}

// seal makes a volume complete.
func (s *Store) seal(img *rbd.Image, l *lease) error {
	done, err := isCommitted(img)
	if err != nil || done {
		return err
	}
	if err := s.takeLock(img, l); err != nil {
		return err
	}
	if err := dropSnapshot(img); err != nil {
		return err
	}
	snap, err := img.CreateSnapshot(snapshot)
	if err == nil {
		err = snap.Protect()
	}
	if err == nil {
		err = img.SetMetadata(stateKey, stateCommitted)
	}
	return translate(err)
}
