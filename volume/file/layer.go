package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"example.org/slipway/internal/durable"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// meta is volume.json.
type meta struct {
	Version   int    `json:"version"`
	Parent    string `json:"parent,omitempty"`
	Size      int64  `json:"size"`
	Committed bool   `json:"committed"`
	// Blocks is the number of blocks that a committed volume has itself.
	Blocks int64 `json:"blocks,omitempty"`
}

// errDamaged is returned for a volume.json that cannot be parsed.
var errDamaged = errors.New("its volume.json is damaged")

// meta reads the volume.json of a volume. Errors: block.ErrNotFound, errDamaged.
func (s *Store) meta(id string) (*meta, error) {
	b, err := os.ReadFile(s.volume(id, "volume.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, block.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	var m meta
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if m.Version != version {
		return nil, fmt.Errorf("it is of version %d; known is %d", m.Version, version)
	}
	if m.Parent != "" {
		if err := volref.CheckName(m.Parent); err != nil {
			return nil, fmt.Errorf("%w: its parent: %w", errDamaged, err)
		}
	}
	if err := checkSize(m.Size); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return &m, nil
}

// write replaces volume.json in the directory of a volume.
func (m *meta) write(path string) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, b)
}

// layer is a committed volume that is being read, by itself or below others. Only refs
// changes.
type layer struct {
	id     string
	size   int64
	data   *os.File
	own    []stretch
	parent *layer // nil if there is none

	refs int // guarded by Store.mu
}

// maxChain is the longest chain of volumes. Images are far shorter. The limit ends a
// cycle, which only a damaged directory has.
const maxChain = 2000

// layer returns a committed volume with the volumes below it. drop ends its use. The lock
// is held, so that nobody else opens or removes one of them. Errors: block.ErrNotFound,
// block.ErrNotCommitted.
func (s *Store) layer(id string, depth int) (*layer, error) {
	if l := s.cached(id); l != nil {
		return l, nil
	}
	if depth > maxChain {
		return nil, fmt.Errorf("a chain of more than %d volumes", maxChain)
	}
	m, err := s.meta(id)
	if err != nil {
		return nil, err
	}
	if !m.Committed {
		return nil, block.ErrNotCommitted
	}
	l := &layer{id: id, size: m.Size, refs: 1}
	if m.Parent != "" {
		if l.parent, err = s.layer(m.Parent, depth+1); err != nil {
			return nil, fmt.Errorf("volume %s below it: %w", m.Parent, notMissing(err))
		}
	}
	if l.own, err = s.extents(id, m); err == nil {
		l.data, err = os.Open(s.volume(id, "data"))
	}
	if err != nil {
		return nil, errors.Join(err, s.drop(l.parent))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.layers[id] = l
	return l, nil
}

// notMissing makes sure that a missing volume further down is not reported as the volume
// itself missing.
func notMissing(err error) error {
	if errors.Is(err, block.ErrNotFound) || errors.Is(err, block.ErrNotCommitted) {
		return fmt.Errorf("the directory is damaged: %v", err) //nolint:errorlint // %v, so that callers do not take it for err
	}
	return err
}

func (s *Store) extents(id string, m *meta) ([]stretch, error) {
	b, err := os.ReadFile(s.volume(id, "extents"))
	if err != nil {
		return nil, err
	}
	return decodeExtents(b, m.Size/block.BlockSize)
}

func (s *Store) cached(id string) *layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[id]
	if l != nil {
		l.refs++
	}
	return l
}

// drop ends the use of a layer, which may be nil.
func (s *Store) drop(l *layer) error {
	if l == nil || !s.unused(l) {
		return nil
	}
	return errors.Join(l.data.Close(), s.drop(l.parent))
}

// unused ends one use, and reports whether it was the last.
func (s *Store) unused(l *layer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.refs--; l.refs > 0 {
		return false
	}
	delete(s.layers, l.id)
	return true
}

// readAt fills p from off on, all within the volume.
func (l *layer) readAt(p []byte, off int64) error {
	return readMapped(p, off, l.size, l.data, l.parent, func(b, end int64) (int64, bool) { return runOf(l.own, b, end) })
}

// has reports whether this volume or one below it has block b; otherwise the block is
// zeros. It also returns for how many blocks from b on, up to end, the answer is the
// same.
func (l *layer) has(b, end int64) (n int64, in bool) {
	if l == nil {
		return end - b, false
	}
	if b*block.BlockSize >= l.size {
		return end - b, false
	}
	n, in = runOf(l.own, b, min(end, l.size/block.BlockSize))
	if in {
		return n, true
	}
	return l.parent.has(b, b+n)
}

// readMapped fills p from off on with the bytes of a volume of size bytes: from data if
// run says so, else from the parent, which may be nil, or zeros.
func readMapped(p []byte, off, size int64, data *os.File, parent *layer, run func(b, end int64) (int64, bool)) error {
	for len(p) > 0 {
		b := off / block.BlockSize
		n, own := run(b, size/block.BlockSize)
		part := p[:min(int64(len(p)), (b+n)*block.BlockSize-off)]
		switch {
		case own:
			if k, err := data.ReadAt(part, off); k < len(part) {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF // the file was cut
				}
				return err
			}
		case parent != nil && off < parent.size:
			part = part[:min(int64(len(part)), parent.size-off)]
			if err := parent.readAt(part, off); err != nil {
				return err
			}
		default:
			clear(part)
		}
		p, off = p[len(part):], off+int64(len(part))
	}
	return nil
}
