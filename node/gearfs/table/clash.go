package table

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/node/poolfs"
)

// ErrConflict is returned, wrapped, if two indexes describe a content differently.
var ErrConflict = errors.New("contradicts another image")

// nodeKey returns the key of a file in the pool. The pool cannot distinguish names with
// the same key.
func nodeKey(f *gear.File) uint64 { return binary.BigEndian.Uint64(f.Name[:]) >> 1 }

// Node returns the file with a key in the pool, without its chunks.
func (t *Table) Node(key uint64) (gear.File, bool) {
	i := t.seek(key << 1)
	if i == len(t.keys) || t.keys[i]>>1 != key {
		return gear.File{}, false
	}
	f, _, err := t.at(i)
	return f, err == nil
}

// Sorted returns the files that have a content, each once, sorted by name. Errors:
// poolfs.ErrCollision.
func Sorted(files []gear.File) ([]*gear.File, error) {
	out := make([]*gear.File, 0, len(files))
	for i := range files {
		if files[i].Size > 0 {
			out = append(out, &files[i])
		}
	}
	slices.SortFunc(out, func(a, b *gear.File) int { return bytes.Compare(a.Name[:], b.Name[:]) })
	out = slices.CompactFunc(out, func(a, b *gear.File) bool { return a.Name == b.Name && a.Size == b.Size })
	for i := 1; i < len(out); i++ {
		a, b := out[i-1], out[i]
		switch {
		case a.Name == b.Name:
			return nil, fmt.Errorf("file %x has two sizes: %w", a.Name, gear.ErrInvalid)
		case nodeKey(a) == nodeKey(b):
			return nil, fmt.Errorf("files %x and %x: %w", a.Name, b.Name, poolfs.ErrCollision)
		}
	}
	return out, nil
}

// Union returns the files of two sorted lists, each once. Errors: those of Contradiction.
func Union(a, b []*gear.File) ([]*gear.File, error) {
	out := make([]*gear.File, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		var f *gear.File
		if len(b) == 0 || len(a) > 0 && bytes.Compare(a[0].Name[:], b[0].Name[:]) <= 0 {
			f, a = a[0], a[1:]
		} else {
			f, b = b[0], b[1:]
		}
		if n := len(out); n > 0 && nodeKey(out[n-1]) == nodeKey(f) {
			if err := Contradiction(out[n-1], f); err != nil {
				return nil, err
			}
			continue
		}
		out = append(out, f)
	}
	return out, nil
}

// Clash compares sorted files with a table. It returns the files that the table does not
// have, and the first file that the table describes differently.
func (t *Table) Clash(files []*gear.File) (rest []*gear.File, odd *gear.File, err error) {
	rest = files[:0:0]
	at := 0
	for i, f := range files {
		key := nodeKey(f)
		for at < len(t.keys) && t.keys[at]>>1 < key {
			at++
		}
		if at == len(t.keys) {
			return append(rest, files[i:]...), nil, nil
		}
		if t.keys[at]>>1 > key {
			rest = append(rest, f)
			continue
		}
		known, err := t.Whole(at)
		if err == nil {
			err = Contradiction(f, &known)
		}
		if err != nil {
			return nil, f, err
		}
	}
	return rest, nil, nil
}

// Contradiction returns how two indexes differ about a file, or nil.
func Contradiction(a, b *gear.File) error {
	switch {
	case a.Name != b.Name:
		return fmt.Errorf("files %x and %x: %w", a.Name, b.Name, poolfs.ErrCollision)
	case a.Size != b.Size:
		return fmt.Errorf("file %x of %d bytes and of %d: %w", a.Name, a.Size, b.Size, ErrConflict)
	case !slices.Equal(a.Chunks, b.Chunks):
		return fmt.Errorf("file %x with other chunks: %w", a.Name, ErrConflict)
	}
	return nil
}
