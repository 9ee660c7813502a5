package filestore

import (
	"io"
	"math/bits"
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

// buffers reuses buffers. Each buffer is used only for pieces of more than half its size,
// so that small pieces do not hold large buffers.
type buffers struct{ class [32]sync.Pool }

// leastClass is the class of the smallest buffers, of 512 bytes.
const leastClass = 9

// room returns the size of a buffer of a class. The buffer holds 1<<class bytes. It also
// holds their compressed form if compression does not make them smaller, which adds 3
// bytes for each block of 128 KiB and the header.
func room(class int) int { return 1<<class + 1<<class>>15 + 64 }

// get returns a buffer of size bytes. size is at most gear.LargeFile.
func (p *buffers) get(size int64) []byte {
	k := max(bits.Len64(uint64(max(size, 1)-1)), leastClass)
	if b, ok := p.class[k].Get().(*[]byte); ok {
		return (*b)[:size]
	}
	return make([]byte, size, room(k))
}

// put gives a buffer back.
func (p *buffers) put(b []byte) {
	k := bits.Len(uint(cap(b))) - 1
	if k >= leastClass && k < len(p.class) && cap(b) >= room(k) {
		p.class[k].Put(&b)
	}
}
