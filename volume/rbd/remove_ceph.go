//go:build ceph

package rbd

import (
	"context"
	"errors"
	"fmt"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"

	"example.org/slipway/volume/block"
)

// removals is how many timeouts a removal may take. It deletes every object separately,
// and each of these calls is bounded.
const removals = 20

// Remove implements block.Store.
func (s *Store) Remove(ctx context.Context, id string) error {
	_, err := run(ctx, s, removals*s.o.Timeout, func() (struct{}, error) { return struct{}{}, s.remove(id) }, nil)
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return nil
}

func (s *Store) remove(id string) error {
	err := s.exclusively(id, func(at *rados.IOContext, l *lease) (bool, error) {
		if err := s.retire(at, l, id); err != nil {
			return false, err
		}
		switch err := rbd.RemoveImage(at, id); {
		case errno(err) == eBusy: // not snapshots or clones: there are none any more
			return false, fmt.Errorf("%w (%w)", errWatched, err)
		case err != nil && !isMissing(err):
			return false, translate(err)
		}
		if there, err := exists(at, id); err != nil || there {
			return false, errors.Join(err, errors.New("something of it is left; the next removal takes it"))
		}
		return true, l.drop(id)
	})
	if errors.Is(err, block.ErrNotFound) {
		return nil
	}
	return err
}

// retire removes everything that keeps an image from being removed.
func (s *Store) retire(at *rados.IOContext, l *lease, id string) error {
	if err := s.unread(id); err != nil {
		return err
	}
	img, err := rbd.OpenImage(at, id, rbd.NoSnapshot)
	if isMissing(err) {
		return nil // only a name is left of it
	}
	if err != nil {
		return translate(err)
	}
	return errors.Join(s.withdraw(img, l, id), translate(img.Close()))
}

func (s *Store) withdraw(img *rbd.Image, l *lease, id string) error {
	if err := childless(img); err != nil {
		return err
	}
	if err := s.takeLock(img, l); err != nil {
		return err
	}
	was, err := isCommitted(img)
	if err != nil {
		return err
	}
	if was {
		if err := img.SetMetadata(stateKey, stateRemoving); err != nil {
			return translate(err)
		}
		// A reader that came meanwhile either got its lease before the snapshot was
		// withdrawn, and may read, or will find the snapshot withdrawn. A client that
		// makes a clone holds a lease until the clone exists.
		if err := errors.Join(s.unread(id), childless(img)); err != nil {
			return errors.Join(err, translate(img.SetMetadata(stateKey, stateCommitted)))
		}
	}
	return dropSnapshot(img)
}

// unread returns ErrInUse if somebody has the volume open for reading.
func (s *Store) unread(id string) error {
	alive, _, err := s.holders(readers(id))
	if err == nil && alive {
		err = fmt.Errorf("%w: it has readers", block.ErrInUse)
	}
	return err
}

// childless returns ErrInUse if a volume has clones.
func childless(img *rbd.Image) error {
	children, err := img.ListChildrenAttributes()
	if err != nil {
		return translate(err)
	}
	if len(children) > 0 {
		return fmt.Errorf("%w: it has %d clones, one is %s", block.ErrInUse, len(children), children[0].ImageName)
	}
	return nil
}
