package poolfs

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
)

const (
	rootNode = 1
	dirBase  = 0x100 // the node id of directory "ab" is dirBase+0xab
	dirEnd   = dirBase + 0x100
	fileBit  = 1 << 63
)

func isDir(node uint64) bool { return node >= dirBase && node < dirEnd }

// NodeID is the FUSE node id of a content: the first 63 bits of its digest behind a set bit. It means the same to every
// worker of a connection, so nothing about lookups has to survive one.
func NodeID(name [32]byte) uint64 {
	return binary.BigEndian.Uint64(name[:8])>>1 | fileBit
}

// ErrCollision is returned when two different contents would have the same node id. The files of the image that was
// to be added must then be had in another way than through the pool (unpacked).
var ErrCollision = errors.New("another content has the same node id")

// ErrSize is returned when a content is added with another size than it is known with: one of the two is a lie.
var ErrSize = errors.New("the content is known with another size")

// Nodes is the table of the contents that images on this node refer to, which turns node ids back to digests. It is
// not kept: whoever knows the images fills it again after a restart, before the server starts. Its zero value is
// empty and ready. It may be used concurrently.
//
// Memory: 48 bytes for a content, in slices sorted by digest, one for each of the first 65,536 prefixes in use, grown
// by an eighth: about 60 bytes all in all (measured: BenchmarkNodes).
type Nodes struct {
	mu     sync.RWMutex
	shards [256]*[256][]node
	count  int
}

type node struct {
	name [32]byte
	size int64
	refs uint32
}

// find returns where the content with the 16-bit prefix of key is or belongs; only the first bits of key count when it
// was made of a node id.
func (n *Nodes) find(key []byte) (*[]node, int, bool) {
	s := n.shards[key[0]]
	if s == nil {
		return nil, 0, false
	}
	b := &s[key[1]]
	i, ok := slices.BinarySearchFunc(*b, key, func(e node, k []byte) int { return bytes.Compare(e.name[:len(k)], k) })
	return b, i, ok
}

// Add counts one more user of a content. It fails with [ErrCollision] or [ErrSize] and then counts nothing.
func (n *Nodes) Add(name [32]byte, size int64) error {
	if size < 0 {
		return fmt.Errorf("content %x has size %d", name, size)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.shards[name[0]] == nil {
		n.shards[name[0]] = new([256][]node)
	}
	b, i, ok := n.find(name[:])
	if ok {
		e := &(*b)[i]
		if e.size != size {
			return fmt.Errorf("content %x of %d bytes: %w: %d", name, size, ErrSize, e.size)
		}
		e.refs++
		return nil
	}
	// The digests that share a node id are neighbours in the order.
	for _, j := range []int{i - 1, i} {
		if j >= 0 && j < len(*b) && NodeID((*b)[j].name) == NodeID(name) {
			return fmt.Errorf("content %x: %w: %x", name, ErrCollision, (*b)[j].name)
		}
	}
	if len(*b) == cap(*b) {
		*b = append(make([]node, 0, len(*b)+len(*b)/8+1), *b...)
	}
	*b = slices.Insert(*b, i, node{name: name, size: size, refs: 1})
	n.count++
	return nil
}

// Remove counts one user less of a content and forgets it with the last one. Removing what is not there does nothing.
func (n *Nodes) Remove(name [32]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, i, ok := n.find(name[:])
	if !ok {
		return
	}
	if e := &(*b)[i]; e.refs > 1 {
		e.refs--
		return
	}
	*b = slices.Delete(*b, i, i+1)
	n.count--
	if len(*b) == 0 {
		*b = nil
	}
}

// Size tells the size of a content, and whether it is known.
func (n *Nodes) Size(name [32]byte) (int64, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	b, i, ok := n.find(name[:])
	if !ok {
		return 0, false
	}
	return (*b)[i].size, true
}

// Resolve turns a node id into the content it stands for.
func (n *Nodes) Resolve(id uint64) (name [32]byte, size int64, ok bool) {
	if id&fileBit == 0 {
		return name, 0, false
	}
	var key [8]byte
	binary.BigEndian.PutUint64(key[:], id<<1)
	n.mu.RLock()
	defer n.mu.RUnlock()
	b, i, _ := n.find(key[:])
	if b == nil || i >= len(*b) || NodeID((*b)[i].name) != id {
		return name, 0, false
	}
	e := &(*b)[i]
	return e.name, e.size, true
}

// Len is the number of different contents.
func (n *Nodes) Len() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.count
}

// PathOf is the path of a content below the root of the pool, "ab/cdef…".
func PathOf(name [32]byte) string {
	var b [65]byte
	hex.Encode(b[:2], name[:1])
	b[2] = '/'
	hex.Encode(b[3:], name[1:])
	return string(b[:])
}
