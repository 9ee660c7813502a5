package filestore

import (
	"io"
	"sync"

	"example.org/slipway/gear"
)

// batch is the memory that a call of Stream needs, which is some 300 KB for 1,000 names.
type batch struct {
	in  batchReader
	out batchWriter
}

// batches lends batches to calls of Stream. The zero value is ready.
type batches struct{ pool sync.Pool }

func (p *batches) take(s *Store, w io.Writer, names []gear.Name) *batch {
	b, ok := p.pool.Get().(*batch)
	if !ok {
		b = &batch{}
	}
	b.in.s, b.in.rest = s, names
	b.out.s, b.out.w = s, w
	return b
}

func (p *batches) give(b *batch) {
	in, out := &b.in, &b.out
	in.close()
	*in = batchReader{plans: in.plans, along: in.along[:0], open: in.open[:0],
		keys: in.keys[:0], packs: in.packs[:0]}
	*out = batchWriter{out: out.out[:0]}
	if cap(out.out) > headRoom { // it had a dictionary
		out.out = nil
	}
	p.pool.Put(b)
}

// windowBuffers lends buffers to windows. The zero value is ready.
type windowBuffers struct{ pool sync.Pool }

// take returns a buffer. All buffers have the same size.
func (p *windowBuffers) take() *[headRoom + batchBytes + alongBytes]byte {
	if b, ok := p.pool.Get().(*[headRoom + batchBytes + alongBytes]byte); ok {
		return b
	}
	return new([headRoom + batchBytes + alongBytes]byte)
}

func (p *windowBuffers) give(b *[headRoom + batchBytes + alongBytes]byte) {
	if b != nil {
		p.pool.Put(b)
	}
}
