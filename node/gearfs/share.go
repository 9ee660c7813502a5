package gearfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

// Shared is a file of an image whose contents may be given to somebody who may read from
// the image's sources.
type Shared struct {
	File   gear.File // with its chunks
	Source SourceRef // by which the file was found
	img    *image
}

// Share finds a file among the images that have a source for which from returns true. It
// finds no file of another image, and takes no longer if there is one.
func (s *Service) Share(name gear.Name, from func(SourceRef) bool) (*Shared, bool) {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	for _, img := range s.images {
		for _, ref := range img.rec.Sources {
			if !from(ref) {
				continue
			}
			if _, i, err := img.table.Find(name); err == nil && i >= 0 {
				if f, err := img.table.Whole(i); err == nil {
					return &Shared{f, ref, img}, true
				}
			}
			break
		}
	}
	return nil, false
}

// Chunk returns a chunk of a large file, or the whole of a file that has no chunks. The
// bytes are what a source sent, but may have been damaged since. Errors: fs.ErrNotExist if
// they are not on this node.
func (h *Shared) Chunk(i int) ([]byte, error) {
	off, n := int64(0), h.File.Size
	if h.File.Size >= gear.LargeFile {
		if i < 0 || i >= len(h.File.Chunks) {
			return nil, fs.ErrNotExist
		}
		off, n = int64(i)*gear.ChunkSize, int64(gear.ChunkLen(h.File.Size, i))
	}
	buf := make([]byte, n)
	file, err := h.img.view.OpenFile(h.File.Name)
	if err == nil {
		_, err = io.ReadFull(io.NewSectionReader(file, off, n), buf)
		return buf, errors.Join(err, file.Close())
	}
	if !isNotExist(err) || h.File.Size < gear.LargeFile || !h.img.view.HasPart(h.File.Name) {
		return nil, err
	}
	p, err := h.img.view.Partial(h.File)
	if err != nil {
		return nil, fmt.Errorf("chunk %d of file %x: %w", i, h.File.Name, fs.ErrNotExist)
	}
	defer p.Close()
	if _, err := p.ReadAt(buf, off); errors.Is(err, cachedir.ErrMissing) {
		return nil, fmt.Errorf("chunk %d of file %x: %w", i, h.File.Name, fs.ErrNotExist)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return buf, nil
}

// Has reports whether Chunk would find the bytes.
func (h *Shared) Has(i int) bool {
	if h.img.view.Has(h.File.Name) {
		return true
	}
	if i < 0 || i >= len(h.File.Chunks) || !h.img.view.HasPart(h.File.Name) {
		return false
	}
	p, err := h.img.view.Partial(h.File)
	if err != nil {
		return errors.Is(err, errComplete)
	}
	defer p.Close()
	return p.Has(i)
}
