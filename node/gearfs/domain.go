package gearfs

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/poolfs"
)

// viewOf is the view of a trust domain; that of "" shows every file.
func viewOf(domain string) cachedir.ViewID {
	if domain == "" {
		return 0
	}
	sum := sha256.Sum256([]byte("slipway trust domain\x00" + domain))
	id := cachedir.ViewID(binary.BigEndian.Uint64(sum[:])) & cachedir.MaxViewID
	return max(id, 1)
}

// DomainID is a short name of a trust domain, of hex digits.
func DomainID(domain string) string { return viewOf(domain).String() }

// fileKey names a file of a trust domain: what one domain has been sent is no proof
// for another.
type fileKey struct {
	view cachedir.ViewID
	name gear.Name
}

// key names a file of the image.
func (img *image) key(name gear.Name) fileKey { return fileKey{img.view.ID(), name} }

// poolKey is what the pool calls it.
func (k fileKey) poolKey() poolfs.Key { return poolfs.Key{View: uint64(k.view), Name: k.name} }

func keyOf(k poolfs.Key) fileKey { return fileKey{cachedir.ViewID(k.View), k.Name} }

// Data returns the directories in which the contents of an image's files are found:
// the cache as the image's domain sees it, and below a pool's mount point the part of
// that domain. Errors: ErrUnknown.
func (s *Service) Data(chain, pool string) ([]string, error) {
	img := s.image(chain)
	if img == nil {
		return nil, fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	if img.view.ID() == 0 {
		return []string{img.view.Files(), pool}, nil
	}
	return []string{img.view.Files(), filepath.Join(pool, poolfs.ViewDir(uint64(img.view.ID())))}, nil
}

// Views implements poolfs.Resolver. Those of images that are forgotten are among them,
// whose files the pool may still hold.
func (s *Service) Views() []uint64 {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	return s.views
}

// noteView has a view among Views.
func (s *Service) noteView(id cachedir.ViewID) {
	s.imagesMu.Lock()
	defer s.imagesMu.Unlock()
	if !slices.Contains(s.views, uint64(id)) {
		s.views = append(s.views[:len(s.views):len(s.views)], uint64(id))
	}
}
