package service

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/starts"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
)

// MayLook returns an error unless a repository shows a layer whose index can be read.
// Unlike StoredIndex it queues nothing. It is for callers that only look. Errors:
// BLOB_UNKNOWN, gear.ErrNotConverted, *gear.PendingError.
func (s *Service) MayLook(ctx context.Context, repo string, d oci.Digest) error {
	_, err := s.lookAt(ctx, repo, d)
	return err
}

// Look returns the index of a layer that a repository shows, and queues nothing. Errors:
// as for MayLook.
func (s *Service) Look(ctx context.Context, repo string, d oci.Digest) (*gear.Index, error) {
	l, err := s.lookAt(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	x, err := s.index(ctx, l.Index)
	var damaged *filestore.CorruptError // only the first reader gets it
	if errors.Is(err, filestore.ErrLost) || errors.As(err, &damaged) {
		return nil, &gear.PendingError{RetryAfter: retryAfter, Reason: "its index is damaged and made again"}
	}
	return x, err
}

func (s *Service) lookAt(ctx context.Context, repo string, d oci.Digest) (gearfacts.Layer, error) {
	_, err := s.cat.Blob(ctx, repo, d)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
		return gearfacts.Layer{}, oci.Errorf(oci.CodeBlobUnknown, "%s has no layer %s", repo, d)
	}
	if err != nil {
		return gearfacts.Layer{}, err
	}
	l, err := s.facts.Layer(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return l, s.whyNot(ctx, d)
	}
	if err == nil && l.Embedded {
		err = s.mayUse(ctx, repo, d)
	}
	return l, err
}

// whyNot returns an error that says why a layer has no index.
func (s *Service) whyNot(ctx context.Context, d oci.Digest) error {
	if active, _ := s.isActive(d); active {
		return &gear.PendingError{RetryAfter: retryAfter}
	}
	job, err := s.facts.Job(ctx, d)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return gear.ErrNotConverted
	case err != nil:
		return fmt.Errorf("look up the conversion of %s: %w", d, err)
	}
	return s.waiting(job)
}

// bookSource is how the book of starts reads images.
type bookSource struct{ *Service }

var _ starts.Source = bookSource{}

// Visible implements starts.Source.
func (s bookSource) Visible(ctx context.Context, repo string, names []gear.Name, wait bool) ([]bool, error) {
	return s.look(ctx, repo, names, wait)
}

// OpenBlob implements starts.Source.
func (s bookSource) OpenBlob(ctx context.Context, d oci.Digest, off int64) (io.ReadCloser, int64, error) {
	return s.blobs.OpenBlob(ctx, d, off)
}

// OpenFile implements starts.Source.
func (s bookSource) OpenFile(ctx context.Context, name gear.Name) (starts.File, error) {
	return s.files.Open(ctx, name)
}
