package poolfs

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Key names a content as some containers see it. Views do not share nodes: an open in
// one must not be answered from what another may see.
type Key struct {
	// View is 0 for what lies directly below the mount point, or that of the directory
	// [ViewDir]. It has up to 48 bits.
	View uint64
	Name [32]byte
}

const (
	viewDigits = 12 // hex digits of a view
	maxView    = 1<<(4*viewDigits) - 1

	// The node id of view v's directory is viewBit+v<<9, that of "ab" in it
	// viewBit+v<<9+subBit+0xab. View 0 is the root, and has no viewBit.
	subBit  = 1 << 8
	viewBit = 1 << 62
	fileBit = 1 << 63
)

// ViewDir is the directory of a view below the mount point.
func ViewDir(view uint64) string { return fmt.Sprintf("%0*x", viewDigits, view) }

// viewNode is the node id of a view's directory.
func viewNode(view uint64) uint64 { return viewBit | view<<9 }

// subNode is the node id of a directory of files.
func subNode(view uint64, sub byte) uint64 {
	if view == 0 {
		return subBit | uint64(sub)
	}
	return viewNode(view) | subBit | uint64(sub)
}

// isDir reports whether a node is a directory of files, or that of a view.
func isDir(node uint64) bool { return isSub(node) || isView(node) }

func isView(node uint64) bool {
	return node&(fileBit|viewBit) == viewBit && node&(1<<9-1) == 0 && viewOf(node) != 0
}

func isSub(node uint64) bool {
	return node&fileBit == 0 && node&subBit != 0 && (node&viewBit != 0) == (viewOf(node) != 0) && viewOf(node) <= maxView
}

// viewOf is the view of a directory.
func viewOf(node uint64) uint64 { return node &^ viewBit >> 9 }

// NodeID is the FUSE node id of a content: the first 63 bits of its digest, changed by its view, behind a set bit. It
// means the same to every worker of a connection, so nothing about lookups has to survive one.
func NodeID(k Key) uint64 {
	return (binary.BigEndian.Uint64(k.Name[:])>>1 ^ mask(k.View)) | fileBit
}

// NameBits returns the first 63 bits of the digest that a node of a view has.
func NameBits(view, node uint64) uint64 { return (node ^ mask(view)) &^ fileBit }

// mask is what node ids of a view differ by from digests.
func mask(view uint64) uint64 {
	if view == 0 {
		return 0
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], view)
	sum := sha256.Sum256(b[:])
	return binary.BigEndian.Uint64(sum[:]) >> 1
}

// ErrCollision is returned when two different contents would have the same node id. The files of the image that was
// to be added must then be had in another way than through the pool (unpacked).
var ErrCollision = errors.New("another content has the same node id")
