package gearfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	"example.org/slipway/internal/durable"
	"example.org/slipway/node/gearfs/starts"
)

const (
	profileFile = "profile"
	// profileAge is the age at which a profile is requested from the registry again.
	profileAge = time.Hour
	// profileWait bounds that request. firstWait bounds how long a start waits for it.
	profileWait = 10 * time.Second
	firstWait   = 2 * time.Second
	// profileRetry is the pause before the next request to a registry that did not
	// answer. noProfile is the pause for a registry that had no profile, because the
	// first start on any node makes one.
	profileRetry = 10 * time.Second
	noProfile    = time.Minute
	// leastRTT is the shortest time of a request over a network. If a source answers
	// faster, it had the answer already.
	leastRTT = 100 * time.Microsecond
)

// readProfile returns the stored profile of an image and its age, or nil if there is
// none.
func (s *Service) readProfile(img *image) (starts.Profile, time.Duration) {
	path := filepath.Join(img.dir, profileFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return starts.Profile{}, 0
	}
	st, err := os.Stat(path)
	var p starts.Profile
	if err == nil {
		p, err = starts.Parse(b)
	}
	if err != nil {
		s.log.Warn("profile of an image is damaged", "image", img.name(), "err", err)
		return starts.Profile{}, 0
	}
	return p, s.opts.Clock().Sub(st.ModTime())
}

// profileOf returns an image's stored profile, or the registry's if none is stored. A
// profile that is old or only inferred is requested again, for the next start.
func (s *Service) profileOf(ctx context.Context, img *image) starts.Profile {
	p, age := s.readProfile(img)
	if p.Files != nil && age < profileAge && (!p.Inferred() || age < noProfile) {
		return p
	}
	asked := s.askProfile(img)
	if p.Files != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	select {
	case <-asked:
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	p, _ = s.readProfile(img)
	return p
}

// askProfile requests an image's profile from the registry, unless that was done lately.
// It returns a channel that is closed when the request is done.
func (s *Service) askProfile(img *image) <-chan struct{} {
	img.st.mu.Lock()
	defer img.st.mu.Unlock()
	if img.st.asking != nil && s.opts.Clock().Before(img.st.askAgain) {
		return img.st.asking
	}
	done := make(chan struct{})
	img.st.asking, img.st.askAgain = done, s.opts.Clock().Add(profileAge)
	s.goWork(func() {
		defer close(done)
		again := profileAge
		p, err := s.pullProfile(img)
		if err == nil && len(p.Files) > 0 {
			err = s.takeProfile(img, p)
		}
		if err == nil && (len(p.Files) == 0 || p.Inferred()) {
			again = noProfile
		}
		if err != nil {
			again = profileRetry
			if s.ctx.Err() == nil {
				s.log.Info("profile of an image cannot be had", "image", img.name(), "err", err)
			}
		}
		img.st.mu.Lock()
		img.st.askAgain = s.opts.Clock().Add(again)
		img.st.mu.Unlock()
	})
	return done
}

// takeProfile stores the registry's profile, unless it is worth less than the known one:
// an inferred profile does not replace what containers of this node have opened.
func (s *Service) takeProfile(img *image, p starts.Profile) error {
	if p.Inferred() {
		if kept, _ := s.readProfile(img); kept.Files != nil && !kept.Inferred() {
			return nil
		}
	}
	return s.setProfile(img.chain, p)
}

// pullProfile returns the profile of the first source that has one, or an empty profile
// if none has.
func (s *Service) pullProfile(img *image) (starts.Profile, error) {
	ctx, cancel := context.WithTimeout(s.ctx, profileWait)
	defer cancel()
	s.imagesMu.RLock()
	refs := img.rec.Sources
	s.imagesMu.RUnlock()
	var failed error
	for _, ref := range refs {
		s.sched.mu.Lock()
		known := s.sched.source(ref)
		s.sched.mu.Unlock()
		src, err := s.sched.dialled(known)
		if err == nil {
			began := time.Now()
			var p starts.Profile
			p, err = src.Profile(ctx)
			if err == nil {
				if took := time.Since(began); took >= leastRTT {
					s.ObserveLink(ref.Registry, took, 0, 0)
				}
				return p, nil
			}
		}
		if !isNotExist(err) {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", ref, err))
		}
	}
	return starts.Profile{}, failed
}

// Profile returns the stored profile of an image, or an empty one if there is none.
// Errors: ErrUnknown.
func (s *Service) Profile(chain string) (starts.Profile, error) {
	img := s.image(chain)
	if img == nil {
		return starts.Profile{}, fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	p, _ := s.readProfile(img)
	return p, nil
}

// SetProfile replaces the stored profile of an image by files that its containers open.
// An empty list removes the profile. Names that the image does not have are omitted.
// Errors: ErrUnknown.
func (s *Service) SetProfile(chain string, names []gear.Name) error {
	return s.setProfile(chain, starts.Own(names))
}

func (s *Service) setProfile(chain string, p starts.Profile) error {
	img := s.image(chain)
	if img == nil {
		return fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	if len(p.Donor) > starts.MaxDonor {
		p.Donor = ""
	}
	keep := make([]predict.File, 0, min(len(p.Files), starts.MaxFiles))
	for _, f := range p.Files {
		if len(keep) < starts.MaxFiles && img.Has(f.Name) {
			keep = append(keep, f)
		}
	}
	p.Files = keep
	s.addMu.Lock() // so that the image is not removed meanwhile
	defer s.addMu.Unlock()
	if s.image(chain) != img {
		return fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	path := filepath.Join(img.dir, profileFile)
	if len(keep) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the profile of image %s: %w", chain, err)
		}
		return nil
	}
	img.st.mu.Lock()
	defer img.st.mu.Unlock()
	if err := durable.WriteFile(path, p.Encode()); err != nil {
		return fmt.Errorf("profile of image %s: %w", chain, err)
	}
	return nil
}
