package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
)

// holdsIndex reports whether a layer looks like the layer of a Gear image.
func holdsIndex(x *gear.Index) bool {
	_, ok := x.Lookup(".slipway/index")
	return ok && len(x.Entries) == 3
}

// takeIndex records the index in the layer of a Gear image as that layer's index. It
// requires that a repository which shows the layer may already read every file of the
// index, and that the index describes these files correctly. The index counts only in
// such repositories. Errors: gear.ErrInvalid; errForeign if there is no such repository,
// whether or not the files are stored elsewhere. A different answer would reveal what
// others have.
func (s *Service) takeIndex(ctx context.Context, d oci.Digest, diffID [32]byte) error {
	x, err := s.embedded(ctx, d)
	if err != nil {
		return err
	}
	names := stored(x)
	granted, later, err := s.grantees(ctx, d, names)
	if err != nil {
		return err
	}
	if len(granted) == 0 {
		return cmp.Or(later, errForeign)
	}
	w, err := s.files.NewWriter(ctx)
	if err != nil {
		return err
	}
	defer w.Abort(ctx)
	missing, err := w.Missing(ctx, names)
	if err != nil {
		return err
	}
	for i := range missing {
		if missing[i] {
			return fmt.Errorf("file %x of the Gear image in %s is damaged: %w", names[i], d, filestore.ErrLost)
		}
	}
	if err := s.honest(ctx, x); err != nil {
		return err
	}
	if err := commitIndex(ctx, w, x, gearfacts.Layer{Digest: d, Bytes: total(x), DiffID: diffID, Embedded: true}); err != nil {
		return err
	}
	s.metrics.converted.Inc()
	return cmp.Or(s.grantTo(ctx, d, granted), later)
}

// grantees returns the repositories that show the layer of a Gear image and may read all
// of its files. later is an awaitsError if other repositories may become able to read
// them once layers that they push are converted. That happens because a client can make a
// Gear image from indexes that are published before the files are stored.
func (s *Service) grantees(ctx context.Context, d oci.Digest, names []gear.Name) (granted []string, later, err error) {
	repos, err := s.facts.Repositories(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	for _, repo := range repos {
		// This comes before the look at the files, so that no end of a conversion is
		// missed.
		awaited, err := s.facts.Awaited(ctx, repo, d)
		if err != nil && !errors.Is(err, catalog.ErrNotFound) {
			return nil, nil, err
		}
		may, err := s.mayAll(ctx, repo, names)
		switch {
		case err != nil:
			return nil, nil, err
		case may:
			granted = append(granted, repo)
		case awaited != "":
			later = &awaitsError{awaited}
		}
	}
	return granted, later, nil
}

func (s *Service) grantTo(ctx context.Context, d oci.Digest, repos []string) error {
	for _, repo := range repos {
		if err := s.facts.Grant(ctx, repo, d); err != nil {
			return err
		}
	}
	return nil
}

// grantMore lets further repositories use the recorded layer of a Gear image. It changes
// nothing for other layers.
func (s *Service) grantMore(ctx context.Context, d oci.Digest) error {
	l, err := s.facts.Layer(ctx, d)
	if err != nil || !l.Embedded {
		return err
	}
	x, err := s.index(ctx, l.Index)
	if err != nil {
		return err
	}
	granted, later, err := s.grantees(ctx, d, stored(x))
	if err != nil {
		return err
	}
	return cmp.Or(s.grantTo(ctx, d, granted), later)
}

// awaitsError says that files of a Gear image may come with a layer that is queued.
type awaitsError struct{ layer oci.Digest }

// Error implements error.
func (e *awaitsError) Error() string {
	return "the Gear image waits for the conversion of " + string(e.layer)
}

// errForeign says why a repository cannot use the layer of a Gear image.
var errForeign = errors.New("the Gear image holds files that the repository does not; convert the original image in it")

// embedded reads the index in the layer of a Gear image. It checks that the bytes are
// still the bytes that were pushed, because the index decides who is given what.
func (s *Service) embedded(ctx context.Context, d oci.Digest) (*gear.Index, error) {
	body, _, err := s.blobs.OpenBlob(ctx, d, 0)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	sum := newSum(d)
	x, err := gear.ReadImageLayer(ctx, io.TeeReader(body, sum), s.opts.Index)
	if err != nil {
		return nil, err
	}
	if err := sum.check(body); err != nil {
		return nil, err
	}
	return x, nil
}

// mayAll reports whether a repository may read all files of a Gear image in other ways
// than through that image. Otherwise a client who knows an index could make an image of
// other people's files.
func (s *Service) mayAll(ctx context.Context, repo string, names []gear.Name) (bool, error) {
	may, err := s.contents.Visible(ctx, repo, names)
	return err == nil && !slices.Contains(may, false), err
}

// grantOne lets a repository use the layer of a Gear image that is recorded already. It
// does so now, or once layers that the repository pushes are converted.
func (s *Service) grantOne(ctx context.Context, repo string, l gearfacts.Layer) error {
	if granted, err := s.facts.Granted(ctx, repo, l.Digest); err != nil || granted {
		return err
	}
	_, awaited := s.facts.Awaited(ctx, repo, l.Digest) // before the look-up, so that no end of a conversion is missed
	if awaited != nil && !errors.Is(awaited, catalog.ErrNotFound) {
		return awaited
	}
	x, err := s.index(ctx, l.Index)
	if err != nil {
		return err
	}
	may, err := s.mayAll(ctx, repo, stored(x))
	switch {
	case err != nil:
		return err
	case may:
		return s.facts.Grant(ctx, repo, l.Digest)
	case awaited == nil:
		return s.facts.Requeue(ctx, l.Digest)
	}
	s.log.Info("a Gear image was pushed whose files are not in its repository", "repo", repo, "layer", l.Digest)
	return nil
}

// maxAwaits bounds the number of Gear images for which the awaited layer is remembered.
// The others are considered again when they are due.
const maxAwaits = 4096

// postpone leaves a Gear image in the queue until a layer is converted.
func (s *Service) postpone(ctx context.Context, d, layer oci.Digest) error {
	now, err := s.now(ctx)
	if err == nil {
		err = s.facts.Postpone(ctx, now.Add(firstRetry), d)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	if len(s.awaits) >= maxAwaits {
		clear(s.awaits)
	}
	s.awaits[d] = layer
	s.mu.Unlock()
	if !s.coming(ctx, layer) { // it ended meanwhile
		s.lookAgain(ctx, d)
	}
	return nil
}

// lookAgain makes postponed Gear images due.
func (s *Service) lookAgain(ctx context.Context, layers ...oci.Digest) {
	now, err := s.now(ctx)
	if err == nil {
		err = s.facts.Postpone(ctx, now, layers...)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("look again at postponed Gear images", "err", err)
	}
}

// mayUse returns an error if a repository may not use the layer of a Gear image, or not
// yet. Errors: *gear.PendingError.
func (s *Service) mayUse(ctx context.Context, repo string, d oci.Digest) error {
	ok, err := s.facts.Granted(ctx, repo, d)
	if err != nil || ok {
		return err
	}
	if s.coming(ctx, d) { // the layer is recorded before it is known who may use it
		return &gear.PendingError{RetryAfter: retryAfter}
	}
	// The conversion may have ended in between, with a grant.
	if ok, err = s.facts.Granted(ctx, repo, d); err == nil && !ok {
		err = &gear.PendingError{Reason: errForeign.Error()}
	}
	return err
}
