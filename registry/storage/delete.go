package storage

import (
	"context"
	"errors"
	"fmt"

	"example.org/slipway/oci"
)

// deletingFor is how many leases the right to delete an object lasts. The deletion takes
// at most one of them. What is then still in progress has the rest of the time to end.
const deletingFor = 5

// Delete deletes the objects of contents that are marked as being deleted. A push of the same
// content either finds the mark gone or restores the content, which is then left alone.
// Locks make the push and the deletion exclude each other. If replicas share the
// catalogue, its rows do so: Delete then also marks the contents, unless something needs
// them or somebody is publishing them. granted is how many contents this replica had the
// right to delete.
func (s *Storage) Delete(ctx context.Context, digests ...oci.Digest) (granted int, err error) {
	if len(digests) == 0 {
		return 0, nil
	}
	if s.replica.Shared {
		return s.deleteShared(ctx, digests)
	}
	return len(digests), s.deleteAlone(ctx, digests)
}

func (s *Storage) deleteAlone(ctx context.Context, digests []oci.Digest) error {
	defer s.Locks.LockAll(digests)()
	var gone []oci.Digest
	var errs []error
	for _, d := range digests {
		deleting, err := s.cat.Garbage.IsDeleting(ctx, d)
		if err != nil {
			return fmt.Errorf("check %s before it is deleted: %w", d, err)
		}
		if !deleting {
			continue
		}
		if !oci.ValidDigest(d) { // from a damaged catalogue; no such object exists
			s.log.Warn("dropped a content whose digest is none", "digest", d)
			gone = append(gone, d)
			continue
		}
		if err := s.store.Delete(ctx, BlobKey(d)); err != nil {
			errs = append(errs, err)
			continue // the mark stays; the next run tries again
		}
		gone = append(gone, d)
	}
	if len(gone) > 0 {
		errs = append(errs, s.cat.Garbage.Forget(ctx, gone...))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("delete objects: %w", err)
	}
	return nil
}

// deleteShared deletes the objects of the contents that the catalogue lets this replica
// delete: contents that nothing needs and nobody is publishing.
func (s *Storage) deleteShared(ctx context.Context, digests []oci.Digest) (granted int, err error) {
	p := s.replica
	defer s.Locks.LockAll(digests)()
	// No object is deleted after this deadline. So no deletion in progress can hit the
	// object that another replica writes later.
	within, cancel := context.WithTimeout(ctx, p.Lease)
	defer cancel()
	list, err := s.cat.Garbage.BeginDeleting(within, p.Owner, deletingFor*p.Lease, digests...)
	if err != nil {
		return 0, fmt.Errorf("ask for the right to delete objects: %w", err)
	}
	var gone, back []oci.Digest
	var errs []error
	for _, d := range list {
		if !oci.ValidDigest(d) { // from a damaged catalogue; no such object exists
			s.log.Warn("dropped a content whose digest is none", "digest", d)
			gone = append(gone, d)
			continue
		}
		if within.Err() != nil { // not tried
			back = append(back, d)
			continue
		}
		if err := s.store.Delete(within, BlobKey(d)); err != nil {
			errs = append(errs, err) // the deletion may still happen; only the deadline prevents it
			continue
		}
		gone = append(gone, d)
	}
	rest, stop := context.WithTimeout(context.WithoutCancel(ctx), p.Lease)
	defer stop()
	if len(gone) > 0 {
		errs = append(errs, s.cat.Garbage.Forget(rest, gone...))
	}
	if len(back) > 0 {
		errs = append(errs, within.Err(), s.cat.Garbage.StopDeleting(rest, p.Owner, back...))
	}
	if err := errors.Join(errs...); err != nil {
		return len(list), fmt.Errorf("delete objects: %w", err)
	}
	return len(list), nil
}
