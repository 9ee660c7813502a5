package rebuild

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"example.org/slipway/gear/rebuild/deflate"
)

const (
	magic = "SLRECIP\x01"
	// maxSegmentTarget bounds the plain bytes of a segment without its last block.
	maxSegmentTarget = 4 << 20
	maxSegmentPlain  = maxSegmentTarget + deflate.MaxPlain
	maxSegmentBits   = 8 * (maxSegmentPlain + 4<<20)
	// maxLayer is the maximum size of a layer and of its tar. An index has the same limit
	// of 1 TiB.
	maxLayer = 1 << 40
)

// Recipe rebuilds one layer.
type Recipe struct {
	// Size is the size of the layer in bytes, and Plain the size of the tar in it.
	Size, Plain int64
	// Digest is the SHA-256 of the layer, and DiffID the SHA-256 of the tar.
	Digest, DiffID [sha256.Size]byte

	// Skeleton is the skeleton of the tar, in the form that Skeleton.Append writes. If it
	// is empty, the recipe has none.
	Skeleton []byte

	segments []segment
	tail     []byte // bytes behind the last gzip member
}

// segment is a part of a layer that is rebuilt independently.
type segment struct {
	bit, bits int64 // position and length in the layer
	at, plain int64 // position and length of its plain bytes
	model     deflate.Model
	data      []byte
}

// Segments returns the number of parts that are rebuilt independently.
func (r *Recipe) Segments() int { return len(r.segments) }

// Encoder returns the name of the encoder that most of the layer was predicted with.
func (r *Recipe) Encoder() string {
	plain := map[deflate.Model]int64{}
	var most deflate.Model
	for i := range r.segments {
		m := r.segments[i].model
		plain[m] += r.segments[i].plain + 1
		if plain[m] > plain[most] {
			most = m
		}
	}
	return most.String()
}

// Append appends the stored form of the recipe: docs/formats/recipe.md.
func (r *Recipe) Append(b []byte) []byte {
	b = append(b, magic...)
	b = append(append(b, r.Digest[:]...), r.DiffID[:]...)
	b = binary.AppendUvarint(b, uint64(r.Size))
	b = binary.AppendUvarint(b, uint64(r.Plain))
	b = appendBytes(b, r.tail)
	b = binary.AppendUvarint(b, uint64(len(r.segments)))
	for i := range r.segments {
		s := &r.segments[i]
		b = append(b, byte(s.model.Family), s.model.Level, s.model.Variant)
		b = binary.AppendUvarint(b, uint64(s.bits))
		b = binary.AppendUvarint(b, uint64(s.plain))
		b = binary.AppendUvarint(b, uint64(len(s.data)))
	}
	b = binary.AppendUvarint(b, uint64(len(r.Skeleton)))
	for i := range r.segments {
		b = append(b, r.segments[i].data...)
	}
	return append(b, r.Skeleton...)
}

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// Parse reads a recipe. It keeps b. It returns ErrDamaged, wrapped, if b is not a recipe.
func Parse(b []byte) (*Recipe, error) {
	p := &parser{b: b}
	r := new(Recipe)
	if m := p.take(len(magic)); !bytes.Equal(m, []byte(magic)) {
		return nil, fmt.Errorf("%w: not a recipe of version 1", ErrDamaged)
	}
	copy(r.Digest[:], p.take(sha256.Size))
	copy(r.DiffID[:], p.take(sha256.Size))
	r.Size, r.Plain = p.number(maxLayer), p.number(maxLayer)
	r.tail = p.take(int(p.number(deflate.MaxHeader)))
	n := p.number(int64(len(p.b)) / leastSegment)
	r.segments = make([]segment, n)
	bit, at := int64(0), int64(0)
	for i := range r.segments {
		s := &r.segments[i]
		p.segment(s)
		s.bit, s.at = bit, at
		bit += s.bits
		at += s.plain
	}
	skeleton := p.number(int64(len(p.b)))
	for i := range r.segments {
		s := &r.segments[i]
		s.data = p.take(len(s.data))
	}
	r.Skeleton = p.take(int(skeleton))
	switch {
	case p.bad || len(p.b) > 0:
		return nil, fmt.Errorf("%w: it is cut off or has a number out of bounds", ErrDamaged)
	case n == 0 || bit != 8*(r.Size-int64(len(r.tail))) || at != r.Plain:
		return nil, fmt.Errorf("%w: its segments are not the whole layer", ErrDamaged)
	}
	return r, nil
}

// leastSegment is the minimum number of bytes that describe a segment.
const leastSegment = 6

// parser reads fields. bad says that a field was missing.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) take(n int) []byte {
	if n > len(p.b) {
		p.bad, n = true, len(p.b)
	}
	v := p.b[:n:n]
	p.b = p.b[n:]
	return v
}

func (p *parser) number(limit int64) int64 {
	v, n := binary.Uvarint(p.b)
	if n <= 0 || v > uint64(limit) {
		p.bad = true
		return 0
	}
	p.b = p.b[n:]
	return int64(v)
}

// segment reads the description of a segment. Of the segment's data, it sets only the
// length.
func (p *parser) segment(s *segment) {
	m := p.take(3)
	if p.bad {
		return
	}
	s.model = deflate.Model{Family: deflate.Family(m[0]), Level: m[1], Variant: m[2]}
	s.bits, s.plain = p.number(maxSegmentBits), p.number(maxSegmentPlain)
	n := p.number(int64(len(p.b)))
	s.data = p.b[:n]
	p.bad = p.bad || !s.model.Valid() || s.bits == 0
}
