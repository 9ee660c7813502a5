package poolfs

import (
	"encoding/binary"
	"errors"
)

const (
	dirBase = 0x100 // the node id of directory "ab" is dirBase+0xab
	dirEnd  = dirBase + 0x100
	fileBit = 1 << 63
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
