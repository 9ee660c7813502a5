package gearfs

import (
	"errors"
	"fmt"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs/table"
	"example.org/slipway/node/poolfs"
)

// Pool serves the opens of files. It also lets the kernel cache what was read.
type Pool interface {
	// Renew invalidates everything that was reported about a content. Running reads of
	// the content fail soon. Renew may wait for them.
	Renew(k poolfs.Key)
}

// SetPool sets the pool that serves opens. It is called once, before images are added.
func (s *Service) SetPool(p Pool) { s.pool = p }

// errDisowned is returned for a file whose description in an index is no longer believed.
var errDisowned = errors.New("its image's index does not say what the file is")

// renew prepares for files that no known image of the view has. A forgotten image may
// have described the same names differently. Its partial chunks, and what the kernel has
// cached of them, must not be shown for the new files.
func (s *Service) renew(v *cachedir.View, files []*gear.File) {
	var again []fileKey
	c := &s.sched
	c.mu.Lock()
	for _, f := range files {
		k := fileKey{v.ID(), f.Name}
		if fl := c.flights[k]; fl != nil && table.Contradiction(f, &fl.f) != nil {
			c.finish(fl, fmt.Errorf("file %x: %w", f.Name, errDisowned))
		}
		lf := c.large[k]
		if lf != nil && table.Contradiction(f, &lf.f) == nil {
			continue // what the kernel has cached is right
		}
		if lf != nil {
			delete(c.large, k)
			lf.disown()
		}
		again = append(again, k)
	}
	c.mu.Unlock()
	for _, k := range again {
		if s.pool != nil {
			s.pool.Renew(k.poolKey())
		}
	}
}

// disown ends a large file for all callers that have it open.
func (lf *large) disown() {
	err := fmt.Errorf("file %x: %w", lf.f.Name, errDisowned)
	lf.p.Disown(err)
	lf.mu.Lock()
	defer lf.mu.Unlock()
	lf.disowned = err
	lf.notify()
}

// largeOf returns the files that are fetched in chunks.
func largeOf(files []*gear.File) []*gear.File {
	var out []*gear.File
	for _, f := range files {
		if f.Size >= gear.LargeFile {
			out = append(out, f)
		}
	}
	return out
}

// stands reports whether a known image of the view describes a file as f does. The image
// for which the file was requested first may have been forgotten meanwhile.
func (s *Service) stands(img *image, f gear.File) bool {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	if s.images[img.chain] == img {
		return true
	}
	for _, o := range s.images {
		if o.view != img.view {
			continue
		}
		_, i, err := o.table.Find(f.Name)
		if err != nil || i < 0 {
			continue
		}
		if known, err := o.table.Whole(i); err == nil && table.Contradiction(&f, &known) == nil {
			return true
		}
	}
	return false
}
