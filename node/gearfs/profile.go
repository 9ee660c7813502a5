package gearfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/internal/durable"
)

// A profile on disk, all numbers little endian:
//
//	0   8     magic
//	8   4     number of names
//	12  4     CRC-32C of bytes 0 to 11 and of all behind byte 16
//	16  32*N  names, in the order of their first opens
const (
	profileMagic  = "SLGPROF\x01"
	profileHeader = 16
	profileFile   = "profile"
	// maxProfile is how many names a profile has at most, as in a registry.
	maxProfile = 20_000
	// profileAge is how old a profile may be before the registry is asked again.
	profileAge = time.Hour
	// profileWait bounds that question, firstWait how long a start waits for it.
	profileWait = 10 * time.Second
	firstWait   = 2 * time.Second
	// profileRetry is when a registry that did not answer is asked again, noProfile
	// when one that had none is: the first start anywhere makes it.
	profileRetry = 10 * time.Second
	noProfile    = time.Minute
	// leastRTT is what a question over a network takes at least; a source that is
	// quicker had asked before.
	leastRTT = 100 * time.Microsecond
)

// encodeProfile makes a profile's file.
func encodeProfile(names []gear.Name) []byte {
	b := make([]byte, profileHeader, profileHeader+32*len(names))
	copy(b, profileMagic)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(names)))
	for i := range names {
		b = append(b, names[i][:]...)
	}
	binary.LittleEndian.PutUint32(b[12:], profileSum(b))
	return b
}

func profileSum(b []byte) uint32 {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[profileHeader:])
}

// parseProfile reads it.
func parseProfile(b []byte) ([]gear.Name, error) {
	if len(b) < profileHeader || string(b[:8]) != profileMagic {
		return nil, errors.New("not a profile of version 1")
	}
	n := binary.LittleEndian.Uint32(b[8:])
	if n > maxProfile || len(b) != profileHeader+32*int(n) {
		return nil, fmt.Errorf("profile of %d names in %d bytes", n, len(b))
	}
	if binary.LittleEndian.Uint32(b[12:]) != profileSum(b) {
		return nil, errors.New("profile with a wrong checksum")
	}
	names := make([]gear.Name, n)
	for i := range names {
		names[i] = gear.Name(b[profileHeader+32*i:])
	}
	return names, nil
}

// readProfile returns the profile that is kept of an image, and how old it is;
// nil if there is none.
func (s *Service) readProfile(img *image) ([]gear.Name, time.Duration) {
	path := filepath.Join(img.dir, profileFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, 0
	}
	st, err := os.Stat(path)
	var names []gear.Name
	if err == nil {
		names, err = parseProfile(b)
	}
	if err != nil {
		s.log.Warn("profile of an image is damaged", "image", img.name(), "err", err)
		return nil, 0
	}
	return names, s.opts.Clock().Sub(st.ModTime())
}

// profileOf returns an image's profile: the one that is kept, and for lack of that
// the registry's. One that is old is asked for again, for the next start.
func (s *Service) profileOf(ctx context.Context, img *image) []gear.Name {
	names, age := s.readProfile(img)
	if names != nil && age < profileAge {
		return names
	}
	asked := s.askProfile(img)
	if names != nil {
		return names
	}
	ctx, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	select {
	case <-asked:
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	names, _ = s.readProfile(img)
	return names
}

// askProfile asks the registry for an image's profile, unless that was done lately,
// and returns a channel that is closed when it is over.
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
		names, err := s.pullProfile(img)
		if err == nil && names != nil {
			err = s.SetProfile(img.chain, names)
		} else if err == nil {
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

// pullProfile returns the profile of the first source that has one; nil if none.
func (s *Service) pullProfile(img *image) ([]gear.Name, error) {
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
			var names []gear.Name
			names, err = src.Profile(ctx)
			if err == nil {
				if took := time.Since(began); took >= leastRTT {
					s.ObserveLink(ref.Registry, took, 0, 0)
				}
				return names, nil
			}
		}
		if !isNotExist(err) {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", ref, err))
		}
	}
	return nil, failed
}

// Profile returns the profile that is kept of an image, nil if there is none.
// Errors: ErrUnknown.
func (s *Service) Profile(chain string) ([]gear.Name, error) {
	img := s.image(chain)
	if img == nil {
		return nil, fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	names, _ := s.readProfile(img)
	return names, nil
}

// SetProfile replaces the profile that is kept of an image; an empty one removes
// it. Names the image does not have are left out. Errors: ErrUnknown.
func (s *Service) SetProfile(chain string, names []gear.Name) error {
	img := s.image(chain)
	if img == nil {
		return fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	keep := make([]gear.Name, 0, min(len(names), maxProfile))
	for _, name := range names {
		if len(keep) < maxProfile && img.Has(name) {
			keep = append(keep, name)
		}
	}
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
	if err := durable.WriteFile(path, encodeProfile(keep)); err != nil {
		return fmt.Errorf("profile of image %s: %w", chain, err)
	}
	return nil
}
