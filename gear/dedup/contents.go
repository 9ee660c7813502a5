package dedup

import (
	"crypto/sha256"
	"iter"
	"math/bits"
	"sync"
)

// name is the SHA-256 of a content.
type name = [sha256.Size]byte

// contents is the table of all distinct contents, files and chunks alike: a chunk that
// equals a small file is the same content.
//
// The table takes about 66 bytes for each content: 16 in list and, at the usual load of a
// map, about 50 in ids. A file of several chunks takes another 24 bytes, and 4 for each
// chunk.
type contents struct {
	mu   sync.Mutex
	ids  map[name]uint32
	list []content
	// pieces has the chunks of the files that have more than one chunk.
	pieces map[uint32][]uint32
}

// content is one entry of the table. Both sizes are in bytes.
type content struct {
	size   int64
	stored int64 // compressed, or size if that is less
}

func newContents() *contents {
	return &contents{ids: map[name]uint32{}, pieces: map[uint32][]uint32{}}
}

// claim returns the content's number. mine is true for the first caller, who must find
// out how much space the content takes and call settle. Nobody reads a size before all
// layers are read, so nobody has to wait for the first caller.
func (c *contents) claim(n name, size int64) (id uint32, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id, ok := c.ids[n]; ok {
		return id, false
	}
	id = uint32(len(c.list))
	c.ids[n] = id
	c.list = append(c.list, content{size: size})
	return id, true
}

// settle records the compressed size of a content.
func (c *contents) settle(id uint32, compressed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list[id].stored = min(compressed, c.list[id].size)
}

// cut records the chunks of a content.
func (c *contents) cut(id uint32, pieces []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pieces[id] = pieces
}

// chunks returns the chunks of the given files.
func (c *contents) chunks(files set) set {
	var out set
	for id := range files.all() {
		pieces, ok := c.pieces[id]
		if !ok {
			out.add(id)
		}
		for _, p := range pieces {
			out.add(p)
		}
	}
	return out
}

// amount returns the number and sizes of contents.
func (c *contents) amount(of set) (a amount) {
	for id := range of.all() {
		a.objects++
		a.stored += c.list[id].stored
		a.raw += c.list[id].size
	}
	return a
}

// set is a set of small numbers, one bit for each number.
type set []uint64

func (s *set) add(id uint32) {
	s.grow(int(id/64) + 1)
	(*s)[id/64] |= 1 << (id % 64)
}

func (s *set) grow(n int) {
	if n > len(*s) {
		*s = append(*s, make(set, n-len(*s))...)
	}
}

func (s *set) union(t set) {
	s.grow(len(t))
	for i, w := range t {
		(*s)[i] |= w
	}
}

func (s set) all() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i, w := range s {
			for ; w != 0; w &= w - 1 {
				if !yield(uint32(i*64 + bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}
