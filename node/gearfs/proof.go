package gearfs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs/table"
)

// proofTime bounds how long an image may take to prove one file. In that time, a file of
// 1 GiB arrives at 30 Mbit/s.
const proofTime = 5 * time.Minute

// FileSet is a set of files that do not contradict each other. The zero value is empty.
type FileSet struct {
	list []*gear.File // sorted by name
}

// With returns the set with more files, or how files contradict each other. Errors: those
// of [Service.AddImage].
func (s FileSet) With(files []gear.File) (FileSet, error) {
	more, err := table.Sorted(files)
	if err == nil {
		more, err = table.Union(s.list, more)
	}
	return FileSet{more}, err
}

// Check returns why an image with these files, perhaps among others, could not be added.
// It is called before the image is promised to anybody. Errors: those of AddImage.
func (s *Service) Check(spec ImageSpec, files []gear.File) error {
	set, err := FileSet{}.With(files)
	if err != nil {
		return err
	}
	return s.CheckSet(spec, set)
}

// CheckSet is like Check, for a set.
func (s *Service) CheckSet(spec ImageSpec, files FileSet) error {
	v, err := s.cache.View(viewOf(spec.Domain))
	if err != nil {
		return err
	}
	s.addMu.Lock()
	defer s.addMu.Unlock()
	_, err = s.settle(v, spec.Sources, files)
	return err
}

// settle compares the files of a new image with the files of all other images of its
// domain. If two images contradict each other, one of them lies, and coming first is no
// reason to be believed: the new image must prove what it says about the file. If it can,
// the other image is forgotten, which harms only containers of that image. If it cannot,
// the new image is refused. Images of other domains do not matter, because each domain
// has its own view. settle returns the files, sorted by name, that no known image of the
// domain has. addMu is held.
func (s *Service) settle(v *cachedir.View, sources []SourceRef, files FileSet) ([]*gear.File, error) {
	rest := files.list
	for _, o := range s.allImages() {
		if o.view != v {
			continue
		}
		left, odd, err := o.table.Clash(rest)
		if errors.Is(err, ErrConflict) {
			if proof := s.prove(v, sources, *odd); proof != nil {
				return nil, fmt.Errorf("%w; %w (image %s)", err, proof, o.chain)
			}
			s.log.Error("an image's index lies about a file; the image is forgotten", "image", o.name(), "chain", o.chain, "file", fmt.Sprintf("%x", odd.Name))
			left, err = rest, s.remove(o.chain)
			s.renew(v, rest)
		}
		if err != nil {
			return nil, fmt.Errorf("%w (image %s)", err, o.chain)
		}
		rest = left // known images agree with each other
	}
	return rest, nil
}

// prove returns nil if a file is proved to be what a new image says. The proof is a file
// in the cache, or else what the image's own sources deliver.
func (s *Service) prove(v *cachedir.View, sources []SourceRef, f gear.File) error {
	if file, err := v.OpenFile(f.Name); err == nil {
		proof := judge(f, file)
		if err := file.Close(); err != nil {
			return err
		}
		if !errors.Is(proof, errOther) { // otherwise the file was damaged on disk
			return proof
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, proofTime)
	defer cancel()
	proof := errors.New("it has no source to prove what it says")
	for _, ref := range sources {
		s.sched.mu.Lock()
		known := s.sched.source(ref)
		s.sched.mu.Unlock()
		src, err := s.sched.dialled(known)
		if err == nil {
			err = src.Fetch(ctx, []gear.File{f}, func(_ int, r io.Reader) error { return judge(f, r) })
		}
		if err == nil {
			return nil
		}
		proof = fmt.Errorf("%s does not prove what it says: %w", ref, err)
	}
	return proof
}

// errOther is returned, wrapped, for bytes that do not belong to the file.
var errOther = errors.New("other bytes")

// judge returns an error unless the bytes are the file with the size and the chunks that
// f states.
func judge(f gear.File, r io.Reader) error {
	whole := sha256.New()
	var size counter
	r = io.TeeReader(r, io.MultiWriter(whole, &size))
	wrong := -1
	for k := range f.Chunks {
		chunk := sha256.New()
		if _, err := io.CopyN(chunk, r, gear.ChunkSize); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if sum(chunk) != f.Chunks[k] && wrong < 0 {
			wrong = k
		}
	}
	rest := &io.LimitedReader{R: r, N: gear.MaxFile}
	if _, err := io.Copy(io.Discard, rest); err != nil {
		return err
	}
	switch {
	case sum(whole) != f.Name:
		return fmt.Errorf("file %x: %w: %w", f.Name, errOther, gear.ErrContent)
	case int64(size) != f.Size:
		return fmt.Errorf("file %x has %d bytes, not %d: %w", f.Name, size, f.Size, ErrConflict)
	case wrong >= 0:
		return fmt.Errorf("chunk %d of file %x is another: %w", wrong, f.Name, ErrConflict)
	}
	return nil
}

func sum(h hash.Hash) gear.Name { return gear.Name(h.Sum(nil)) }

// counter counts the bytes written to it.
type counter int64

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
