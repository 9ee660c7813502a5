// Package buffers reuses buffers of many sizes.
package buffers

import (
	"math/bits"
	"sync"
)

// Pool reuses buffers. Each buffer is used only for contents of more than half its size, so
// that small contents do not hold large buffers. The zero value is ready.
type Pool struct{ class [32]sync.Pool }

// leastClass is the class of the smallest buffers, of 512 bytes.
const leastClass = 9

// room returns the size of a buffer of a class. The buffer holds 1<<class bytes. It also
// holds their compressed form if compression does not make them smaller, which adds 3
// bytes for each block of 128 KiB and the header.
func room(class int) int { return 1<<class + 1<<class>>15 + 64 }

// Get returns a buffer of size bytes, which are at most 1<<31.
func (p *Pool) Get(size int64) []byte {
	k := max(bits.Len64(uint64(max(size, 1)-1)), leastClass)
	if b, ok := p.class[k].Get().(*[]byte); ok {
		return (*b)[:size]
	}
	return make([]byte, size, room(k))
}

// Put gives a buffer back.
func (p *Pool) Put(b []byte) {
	k := bits.Len(uint(cap(b))) - 1
	if k >= leastClass && k < len(p.class) && cap(b) >= room(k) {
		p.class[k].Put(&b)
	}
}
