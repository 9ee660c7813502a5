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

// viewOf returns the view of a trust domain. The view of "" shows every file.
func viewOf(domain string) cachedir.ViewID {
	if domain == "" {
		return 0
	}
	sum := sha256.Sum256([]byte("slipway trust domain\x00" + domain))
	id := cachedir.ViewID(binary.BigEndian.Uint64(sum[:])) & cachedir.MaxViewID
	return max(id, 1)
}

// DomainID returns a short name of a trust domain, made of hex digits.
func DomainID(domain string) string { return viewOf(domain).String() }

// fileKey identifies a file of a trust domain. What was sent to one domain proves nothing
// for another.
type fileKey struct {
	view cachedir.ViewID
	name gear.Name
}

// key returns the key of a file of the image.
func (img *image) key(name gear.Name) fileKey { return fileKey{img.view.ID(), name} }

// poolKey returns the file's key in the pool.
func (k fileKey) poolKey() poolfs.Key { return poolfs.Key{View: uint64(k.view), Name: k.name} }

func keyOf(k poolfs.Key) fileKey { return fileKey{cachedir.ViewID(k.View), k.Name} }

// Data returns the directories that hold the contents of an image's files: the cache as
// the image's domain sees it, and the domain's directory below a pool's mount point.
// Errors: ErrUnknown.
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

// Views implements poolfs.Resolver. The result includes the views of forgotten images,
// because the pool may still hold their files.
func (s *Service) Views() []uint64 {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	return s.views
}

// noteView adds a view to Views.
func (s *Service) noteView(id cachedir.ViewID) {
	s.imagesMu.Lock()
	defer s.imagesMu.Unlock()
	if !slices.Contains(s.views, uint64(id)) {
		s.views = append(s.views[:len(s.views):len(s.views)], uint64(id))
	}
}
