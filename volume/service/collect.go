package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/volume/block"
)

const (
	// collectStep is how many rows or volumes one step of a collection considers.
	collectStep = 64
	// inUseAgain is the time until the next attempt to remove a volume that is in use.
	inUseAgain = 10 * time.Minute
	// collectLease is the name of the lease of the process that collects.
	collectLease = "volume-collect"
)

// Collected says what a collection removed.
type Collected struct {
	// Images is the number of images that are gone or no longer wanted as volumes.
	// Volumes is the number of volumes that nothing needed.
	Images  int `json:"images"`
	Volumes int `json:"volumes"`
	// InUse is the number of volumes that are still in use by a node or a container's
	// clone.
	InUse int `json:"in_use"`
	// Credentials is the number of expired credentials that were ended.
	Credentials int `json:"credentials"`
}

// keepHouse collects from time to time until ctx ends.
func (s *Service) keepHouse(ctx context.Context) {
	tick := time.NewTicker(s.opts.CollectEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.gone:
		case <-tick.C:
		}
		_, err := s.Collect(ctx, false)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, engine.ErrLeased):
			s.log.Error("remove volumes that nothing needs; it is tried again", "err", err)
		}
	}
}

// Collect forgets the images that their repositories no longer show, or that are not
// wanted as volumes. It removes volumes that no image has needed for the grace period of
// the catalogue, or, if now is set, that no image needs at present. It waits for another
// collection of this process. Errors: engine.ErrLeased while another process collects.
func (s *Service) Collect(ctx context.Context, now bool) (c Collected, err error) {
	// A volume that one collection has removed may be made again. Another collection must
	// not remove it because of an older list.
	select {
	case s.collecting <- struct{}{}:
		defer func() { <-s.collecting }()
	case <-ctx.Done():
		return c, ctx.Err()
	}
	defer func() {
		if c.Images+c.Volumes > 0 {
			s.log.Info("removed volumes that nothing needs", "images", c.Images, "volumes", c.Volumes, "in_use", c.InUse)
		}
	}()
	if s.cat.DB.Shared() {
		held, release, err := s.cat.DB.Hold(ctx, collectLease, s.owner, s.opts.Lease)
		if err != nil {
			return c, err
		}
		defer release()
		ctx = held
	}
	if err := s.forgetImages(ctx, &c); err != nil {
		return c, fmt.Errorf("forget images that are gone: %w", err)
	}
	store, err := s.storage.get(ctx)
	if err != nil {
		return c, err
	}
	err = s.removeVolumes(ctx, store, now, &c)
	if is, ok := store.(Issuer); ok {
		n, expireErr := is.Expire(ctx)
		c.Credentials = n
		if expireErr != nil {
			err = errors.Join(err, fmt.Errorf("end credentials that are over: %w", expireErr))
		}
	}
	return c, err
}

// forgetImages forgets the images that are gone or not wanted.
func (s *Service) forgetImages(ctx context.Context, c *Collected) error {
	for after := int64(0); ; {
		list, err := s.facts.LostImages(ctx, after, collectStep)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, v := range list {
			after = v.ID
			held, release, ok := s.hold(ctx, v.ID, nil)
			if !ok { // it is being built; the next collection finds it
				continue
			}
			err := s.forgetImage(held, v.ID, c)
			release()
			if err != nil {
				return err
			}
		}
	}
}

// forgetImage forgets one image. Nobody else works on the image.
func (s *Service) forgetImage(ctx context.Context, id int64, c *Collected) error {
	v, err := s.facts.Image(ctx, id)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if v.Referrer != "" {
		s.dropReferrer(ctx, v.ID, v.Repo, v.Referrer)
	}
	gone, err := s.facts.ForgetImage(ctx, id)
	if err == nil && gone {
		c.Images++
		s.endPause(id)
	}
	return err
}

// removeVolumes removes the volumes that nothing needs, children before their parents. A
// volume that cannot be removed does not stop the removal of others.
func (s *Service) removeVolumes(ctx context.Context, store block.Store, now bool, c *Collected) (failed error) {
	place := placeName(store.Place())
	kept := map[string]bool{} // if now is set, these would be found again
	for {
		// Kept volumes may come first each time, and must leave room for others.
		names, err := s.facts.Removing(ctx, place, now, collectStep+len(kept))
		if err != nil {
			return err
		}
		some := false
		for _, name := range names {
			if kept[name] {
				err = s.keep(ctx, place, name)
			} else {
				some = true
				err = s.removeVolume(ctx, store, place, name, kept, c)
			}
			var left *leftError
			if errors.As(err, &left) {
				failed = errors.Join(failed, left)
			} else if err != nil {
				return errors.Join(failed, err)
			}
		}
		if !some {
			return failed
		}
	}
}

// leftError says that a volume could not be removed, and is left for later.
type leftError struct {
	name string
	err  error
}

func (e *leftError) Error() string { return fmt.Sprintf("remove volume %s: %v", e.name, e.err) }
func (e *leftError) Unwrap() error { return e.err }

// removeVolume removes one volume. Errors: *leftError if it is left for later.
func (s *Service) removeVolume(ctx context.Context, store block.Store, place, name string, kept map[string]bool, c *Collected) error {
	err := store.Remove(ctx, name)
	switch {
	case err == nil:
	case errors.Is(err, block.ErrInUse):
		kept[name] = true
		c.InUse++
		return s.keep(ctx, place, name)
	case errors.Is(err, block.ErrAway) || ctx.Err() != nil: // the storage is away for all other volumes, too
		return fmt.Errorf("remove volume %s: %w", name, err)
	default:
		kept[name] = true
		if keepErr := s.keep(ctx, place, name); keepErr != nil {
			return keepErr
		}
		return &leftError{name, err}
	}
	c.Volumes++
	s.metrics.removed.Inc()
	return s.facts.Forget(ctx, place, name)
}

// keep allows a volume to be used again, until the next attempt to remove it.
func (s *Service) keep(ctx context.Context, place, name string) error {
	at, err := s.now(ctx)
	if err != nil {
		return err
	}
	return s.facts.Keep(ctx, place, name, at.Add(inUseAgain))
}
