package gearfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/poolfs"
)

var (
	_ poolfs.Backend  = (*Service)(nil)
	_ poolfs.Resolver = (*Service)(nil)
	_ poolfs.Content  = (*fileContent)(nil)
	_ poolfs.Content  = (*partialContent)(nil)
)

// Size implements poolfs.Backend.
func (s *Service) Size(k poolfs.Key) (int64, bool) {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	for _, img := range s.images {
		if img.key(k.Name) != keyOf(k) {
			continue
		}
		if f, i, err := img.table.Find(k.Name); err == nil && i >= 0 {
			return f.Size, true
		}
	}
	return 0, false
}

// Resolve implements poolfs.Resolver. It finds the content of a node without its own
// table of nodes, because a node's number is a part of the name.
func (s *Service) Resolve(node uint64) (k poolfs.Key, size int64, ok bool) {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	for _, img := range s.images {
		f, ok := img.table.Node(poolfs.NameBits(uint64(img.view.ID()), node))
		if k = img.key(f.Name).poolKey(); ok && poolfs.NodeID(k) == node {
			return k, f.Size, true
		}
	}
	return poolfs.Key{}, 0, false
}

// lookup returns a file with its chunks, and an image of its domain that has it.
func (s *Service) lookup(k fileKey) (gear.File, *image, error) {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	var failed error
	for _, img := range s.images {
		if img.key(k.name) != k {
			continue
		}
		_, i, err := img.table.Find(k.name)
		if err == nil && i >= 0 {
			var f gear.File
			if f, err = img.table.Whole(i); err == nil {
				return f, img, nil
			}
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return gear.File{}, nil, failed
	}
	return gear.File{}, nil, fmt.Errorf("no image has file %x: %w", k.name, fs.ErrNotExist)
}

// maxReopen bounds how often a file is fetched again because it was evicted or found
// damaged between its arrival and its opening.
const maxReopen = 3

// Open implements poolfs.Backend. A large file that is not complete is opened as soon as
// it can be read. If no source has the file, Open returns an error that is not
// fs.ErrNotExist, because the image does have the file.
func (s *Service) Open(ctx context.Context, k poolfs.Key) (poolfs.Content, error) {
	name := k.Name
	f, img, err := s.lookup(keyOf(k))
	if err != nil {
		return nil, err
	}
	s.opened(keyOf(k))
	s.cache.Pin(name)
	defer s.cache.Unpin(name)
	img.st.opens.Add(1)
	began := time.Now()
	for range maxReopen {
		var file *os.File
		if file, err = s.openCached(img, f); err == nil {
			return &fileContent{file}, nil
		}
		if !isNotExist(err) {
			return nil, err
		}
		if f.Size >= gear.LargeFile {
			pc, err := s.openLarge(img, f)
			if errors.Is(err, errComplete) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("file %x: %w", name, err)
			}
			return pc, nil
		}
		err = s.demand(ctx, img, f)
		s.stalled(img, time.Since(began))
		if err != nil {
			img.st.errors.Add(1)
			return nil, fmt.Errorf("open for image %s: %w", img.name(), hideNotExist(err))
		}
	}
	return nil, fmt.Errorf("file %x is gone again as soon as it has arrived: %w", name, hideNotExist(err))
}

// demand waits for a file that is being opened, and then requests its siblings.
func (s *Service) demand(ctx context.Context, img *image, f gear.File) error {
	fl := s.sched.join(img, f, onDemand, false)
	defer s.sched.leave(fl)
	s.missed(img, f.Name)
	return s.sched.await(ctx, fl, true)
}

// hideNotExist keeps the text of an error but hides that it wraps fs.ErrNotExist, which
// would mean that the image has no such file.
func hideNotExist(err error) error {
	if isNotExist(err) {
		return errors.New(err.Error())
	}
	return err
}

// openCached opens a complete file, and removes it if its size is wrong.
func (s *Service) openCached(img *image, f gear.File) (*os.File, error) {
	file, err := img.view.OpenFile(f.Name)
	if err != nil {
		return nil, err
	}
	st, err := file.Stat()
	if err == nil && st.Size() == f.Size {
		return file, nil
	}
	_ = file.Close()
	if err != nil {
		return nil, err
	}
	s.cache.Damaged(f.Name, fmt.Sprintf("it has %d bytes, not %d", st.Size(), f.Size))
	return nil, fmt.Errorf("file %x: %w", f.Name, fs.ErrNotExist)
}

// openLarge opens the chunks of a large file. If the file is not very large, it is
// fetched as a whole.
func (s *Service) openLarge(img *image, f gear.File) (*partialContent, error) {
	lf, err := s.sched.acquire(img, f)
	if err != nil {
		return nil, err
	}
	if f.Size <= streamWhole && lf.p.Left() > 0 {
		s.sched.bring(img, lf)
	} else {
		s.tryComplete(lf)
	}
	s.sched.mu.Lock()
	lf.readers++
	s.sched.mu.Unlock()
	return &partialContent{s: s, lf: lf}, nil
}

// fileContent is a complete file.
type fileContent struct{ f *os.File }

// File implements poolfs.Content.
func (c *fileContent) File() *os.File { return c.f }

// ReadAt implements poolfs.Content.
func (c *fileContent) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	return c.f.ReadAt(p, off)
}

// Close implements poolfs.Content.
func (c *fileContent) Close() error { return c.f.Close() }

// File implements poolfs.Content. It returns nil: a file that was opened partial stays
// partial.
func (pc *partialContent) File() *os.File { return nil }

// Close implements poolfs.Content.
func (pc *partialContent) Close() error {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	if !pc.closed {
		pc.closed = true
		c := &pc.s.sched
		c.mu.Lock()
		pc.lf.readers--
		c.drop(pc.lf)
		c.mu.Unlock()
	}
	return nil
}
