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

// holdsIndex reports whether a layer looks like that of a Gear image.
func holdsIndex(x *gear.Index) bool {
	_, ok := x.Lookup(".slipway/index")
	return ok && len(x.Entries) == 3
}

// takeIndex records the index in the layer of a Gear image as that layer's, if a
// repository that shows the layer may read every file of it already, and if it says of
// these files what they are. It counts in such repositories only. Errors:
// gear.ErrInvalid; errForeign if there is none, whether or not the
// files are somewhere else: to be told that would be to be told what others have.
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

// grantees returns which of the repositories that show the layer of a Gear image may
// read all of its files. later is an awaitsError if others still may when the layers
// that they push are converted: whoever converts an image makes the Gear image of
// indexes that are given out before the files are stored.
func (s *Service) grantees(ctx context.Context, d oci.Digest, names []gear.Name) (granted []string, later, err error) {
	repos, err := s.facts.Repositories(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	for _, repo := range repos {
		// Before the look at the files, so that no end of a conversion is missed.
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

// grantMore lets further repositories use the layer of a Gear image that is recorded.
// Of other layers it changes nothing.
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

// errForeign is why the layer of a Gear image is of no use in a repository.
var errForeign = errors.New("the Gear image holds files that the repository does not; convert the original image in it")

// embedded reads the index in the layer of a Gear image. That its bytes are still
// those that were pushed is checked, as the index decides who is given what.
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

// mayAll reports whether a repository may read all files of a Gear image by other
// ways than that image. Else whoever knows an index could make himself an image
// of other people's files.
func (s *Service) mayAll(ctx context.Context, repo string, names []gear.Name) (bool, error) {
	may, err := s.contents.Visible(ctx, repo, names)
	return err == nil && !slices.Contains(may, false), err
}

// grantOne lets a repository use the layer of a Gear image that is known already, now or
// when layers that the repository pushes are converted.
func (s *Service) grantOne(ctx context.Context, repo string, l gearfacts.Layer) error {
	if granted, err := s.facts.Granted(ctx, repo, l.Digest); err != nil || granted {
		return err
	}
	_, awaited := s.facts.Awaited(ctx, repo, l.Digest) // before the look, so that no end is missed
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

// maxAwaits bounds for how many Gear images it is known what they wait for. The others
// are looked at again when they are due.
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

// lookAgain makes Gear images due that were postponed.
func (s *Service) lookAgain(ctx context.Context, layers ...oci.Digest) {
	now, err := s.now(ctx)
	if err == nil {
		err = s.facts.Postpone(ctx, now, layers...)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("look again at postponed Gear images", "err", err)
	}
}

// mayUse reports, as an error, that a repository may not use the layer of a Gear image,
// or not yet. Errors: *PendingError.
func (s *Service) mayUse(ctx context.Context, repo string, d oci.Digest) error {
	ok, err := s.facts.Granted(ctx, repo, d)
	if err != nil || ok {
		return err
	}
	if s.coming(ctx, d) { // it is recorded before it is known who may use it
		return &PendingError{RetryAfter: retryAfter}
	}
	// It may have ended in between, with a grant.
	if ok, err = s.facts.Granted(ctx, repo, d); err == nil && !ok {
		err = &PendingError{Reason: errForeign.Error()}
	}
	return err
}
