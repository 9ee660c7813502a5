package gearfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	"example.org/slipway/internal/durable"
)

// This is the format of a stored profile. All numbers are little endian.
//
//	0   8     magic
//	8   4     number of names N
//	12  4     CRC-32C of bytes 0 to 11 and of all bytes from 16 on
//	16  32*N  names, in the order of their first opens
//	    N     for each name, a letter for the reason to expect it: predict.Origin
//	    rest  the manifest from which names were inherited
//
// Version 1 ends with the names.
const (
	profileMagic  = "SLGPROF\x02"
	profileMagic1 = "SLGPROF\x01"
	profileHeader = 16
	profileFile   = "profile"
	// maxProfile bounds the names in a profile. A registry has the same bound.
	maxProfile = 20_000
	// profileAge is the age at which a profile is requested from the registry again.
	profileAge = time.Hour
	// profileWait bounds that request. firstWait bounds how long a start waits for it.
	profileWait = 10 * time.Second
	firstWait   = 2 * time.Second
	// profileRetry is the pause before a registry that did not answer is asked again.
	// noProfile is the pause for a registry that had no profile: the first start anywhere
	// makes one.
	profileRetry = 10 * time.Second
	noProfile    = time.Minute
	// leastRTT is the shortest time of a request over a network. If a source answers
	// faster, it had the answer already.
	leastRTT = 100 * time.Microsecond
	// maxDonor bounds the length in bytes of a manifest's name.
	maxDonor = 200
)

// Profile lists the files that a container of an image opens first, in that order.
type Profile struct {
	Files []predict.File
	// Donor is the manifest of the image from which files were inherited, or empty if
	// none were.
	Donor string
}

// ownProfile returns a profile that was made by containers of the image itself.
func ownProfile(names []gear.Name) Profile { return Profile{Files: predict.Files(names, "")} }

// inferred reports whether no container of the image is known to have made the profile.
func (p *Profile) inferred() bool { return predict.Inferred(p.Files) }

// guess reports whether the profile was made without an earlier version of the image.
func (p *Profile) guess() bool {
	return p.inferred() && !slices.ContainsFunc(p.Files, func(f predict.File) bool { return f.From == predict.Series })
}

// encodeProfile encodes a profile.
func encodeProfile(p Profile) []byte {
	b := make([]byte, profileHeader, profileHeader+33*len(p.Files)+len(p.Donor))
	copy(b, profileMagic)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(p.Files)))
	for i := range p.Files {
		b = append(b, p.Files[i].Name[:]...)
	}
	b = append(append(b, predict.Origins(p.Files)...), p.Donor...)
	binary.LittleEndian.PutUint32(b[12:], profileSum(b))
	return b
}

func profileSum(b []byte) uint32 {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[profileHeader:])
}

// parseProfile decodes a profile.
func parseProfile(b []byte) (Profile, error) {
	if len(b) < profileHeader || string(b[:8]) != profileMagic && string(b[:8]) != profileMagic1 {
		return Profile{}, errors.New("not a profile of version 1 or 2")
	}
	n := int(binary.LittleEndian.Uint32(b[8:]))
	least, most := profileHeader+33*n, profileHeader+33*n+maxDonor
	if string(b[:8]) == profileMagic1 {
		least, most = profileHeader+32*n, profileHeader+32*n
	}
	if n > maxProfile || len(b) < least || len(b) > most {
		return Profile{}, fmt.Errorf("profile of %d names in %d bytes", n, len(b))
	}
	if binary.LittleEndian.Uint32(b[12:]) != profileSum(b) {
		return Profile{}, errors.New("profile with a wrong checksum")
	}
	names := make([]gear.Name, n)
	for i := range names {
		names[i] = gear.Name(b[profileHeader+32*i:])
	}
	rest := b[profileHeader+32*n:]
	if len(rest) == 0 {
		return ownProfile(names), nil
	}
	for _, o := range rest[:n] {
		if !predict.Origin(o).Valid() {
			return Profile{}, fmt.Errorf("profile with a file of origin %q", o)
		}
	}
	return Profile{predict.Files(names, string(rest[:n])), string(rest[n:])}, nil
}

// readProfile returns the stored profile of an image and its age, or nil if there is
// none.
func (s *Service) readProfile(img *image) (Profile, time.Duration) {
	path := filepath.Join(img.dir, profileFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return Profile{}, 0
	}
	st, err := os.Stat(path)
	var p Profile
	if err == nil {
		p, err = parseProfile(b)
	}
	if err != nil {
		s.log.Warn("profile of an image is damaged", "image", img.name(), "err", err)
		return Profile{}, 0
	}
	return p, s.opts.Clock().Sub(st.ModTime())
}

// profileOf returns an image's stored profile, or the registry's if none is stored. A
// profile that is old or only inferred is requested again, for the next start.
func (s *Service) profileOf(ctx context.Context, img *image) Profile {
	p, age := s.readProfile(img)
	if p.Files != nil && age < profileAge && (!p.inferred() || age < noProfile) {
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
		if err == nil && (len(p.Files) == 0 || p.inferred()) {
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
func (s *Service) takeProfile(img *image, p Profile) error {
	if p.inferred() {
		if kept, _ := s.readProfile(img); kept.Files != nil && !kept.inferred() {
			return nil
		}
	}
	return s.setProfile(img.chain, p)
}

// pullProfile returns the profile of the first source that has one, or an empty profile
// if none has.
func (s *Service) pullProfile(img *image) (Profile, error) {
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
			var p Profile
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
	return Profile{}, failed
}

// Profile returns the stored profile of an image, or an empty one if there is none.
// Errors: ErrUnknown.
func (s *Service) Profile(chain string) (Profile, error) {
	img := s.image(chain)
	if img == nil {
		return Profile{}, fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	p, _ := s.readProfile(img)
	return p, nil
}

// SetProfile replaces the stored profile of an image by files that its containers open.
// An empty list removes the profile. Names that the image does not have are omitted.
// Errors: ErrUnknown.
func (s *Service) SetProfile(chain string, names []gear.Name) error {
	return s.setProfile(chain, ownProfile(names))
}

func (s *Service) setProfile(chain string, p Profile) error {
	img := s.image(chain)
	if img == nil {
		return fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	if len(p.Donor) > maxDonor {
		p.Donor = ""
	}
	keep := make([]predict.File, 0, min(len(p.Files), maxProfile))
	for _, f := range p.Files {
		if len(keep) < maxProfile && img.Has(f.Name) {
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
	if err := durable.WriteFile(path, encodeProfile(p)); err != nil {
		return fmt.Errorf("profile of image %s: %w", chain, err)
	}
	return nil
}
