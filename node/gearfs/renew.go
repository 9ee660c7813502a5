package gearfs

import (
	"errors"
	"fmt"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/poolfs"
)

// Pool is who serves opens, and has the kernel remember what it has read.
type Pool interface {
	// Renew says that what was said of a content does not count any more. Reads of it
	// that are under way fail soon, and may be waited for.
	Renew(k poolfs.Key)
}

// SetPool says who serves opens. It is called once, before images are added.
func (s *Service) SetPool(p Pool) { s.pool = p }

// errDisowned is returned for what an index said that is not believed any more.
var errDisowned = errors.New("its image's index does not say what the file is")

// renew prepares for files that no known image of the view has. Images that are
// forgotten had them, perhaps, and said something else of them: the parts that came for
// those, and what the kernel has read of these, must not be shown for the new ones.
func (s *Service) renew(v *cachedir.View, files []*gear.File) {
	var again []fileKey
	c := &s.sched
	c.mu.Lock()
	for _, f := range files {
		k := fileKey{v.ID(), f.Name}
		if fl := c.flights[k]; fl != nil && contradiction(f, &fl.f) != nil {
			c.finish(fl, fmt.Errorf("file %x: %w", f.Name, errDisowned))
		}
		lf := c.large[k]
		if lf != nil && contradiction(f, &lf.f) == nil {
			continue // the kernel has read what is right
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

// disown ends a large file for all who have it open.
func (lf *large) disown() {
	err := fmt.Errorf("file %x: %w", lf.f.Name, errDisowned)
	lf.p.Disown(err)
	lf.mu.Lock()
	defer lf.mu.Unlock()
	lf.disowned = err
	lf.notify()
}

// largeOf returns the files that come in chunks.
func largeOf(files []*gear.File) []*gear.File {
	var out []*gear.File
	for _, f := range files {
		if f.Size >= gear.LargeFile {
			out = append(out, f)
		}
	}
	return out
}

// stands reports whether a known image of the view says of a file what f does. The one
// that is asked for it first may have been forgotten meanwhile.
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
		_, i, err := o.table.find(f.Name)
		if err != nil || i < 0 {
			continue
		}
		if known, err := o.table.whole(i); err == nil && contradiction(&f, &known) == nil {
			return true
		}
	}
	return false
}
