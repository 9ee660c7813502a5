package poolfs

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Key names a content as some containers see it. Views do not share nodes, because an
// open in one view must not be answered with something that only another view may see.
type Key struct {
	// View is 0 for files directly below the mount point. Otherwise it is the view whose
	// directory is [ViewDir]. It has up to 48 bits.
	View uint64
	Name [32]byte
}

const (
	viewDigits = 12 // hex digits of a view
	maxView    = 1<<(4*viewDigits) - 1

	// The node id of the directory of view v is viewBit+v<<9. The node id of its
	// subdirectory "ab" is viewBit+v<<9+subBit+0xab. View 0 is the root and has no
	// viewBit.
	subBit  = 1 << 8
	viewBit = 1 << 62
	fileBit = 1 << 63
)

// ViewDir returns the name of a view's directory below the mount point.
func ViewDir(view uint64) string { return fmt.Sprintf("%0*x", viewDigits, view) }

// viewNode returns the node id of a view's directory.
func viewNode(view uint64) uint64 { return viewBit | view<<9 }

// subNode returns the node id of a directory of files.
func subNode(view uint64, sub byte) uint64 {
	if view == 0 {
		return subBit | uint64(sub)
	}
	return viewNode(view) | subBit | uint64(sub)
}

// isDir reports whether a node is a directory of files or a view's directory.
func isDir(node uint64) bool { return isSub(node) || isView(node) }

func isView(node uint64) bool {
	return node&(fileBit|viewBit) == viewBit && node&(1<<9-1) == 0 && viewOf(node) != 0
}

func isSub(node uint64) bool {
	return node&fileBit == 0 && node&subBit != 0 && (node&viewBit != 0) == (viewOf(node) != 0) && viewOf(node) <= maxView
}

// viewOf returns the view of a directory.
func viewOf(node uint64) uint64 { return node &^ viewBit >> 9 }

// NodeID returns the FUSE node id of a content. It is the first 63 bits of the content's
// digest, modified by the view, after a bit that is set. A node id means the same to
// every worker of a connection, so no state about lookups has to survive a worker.
func NodeID(k Key) uint64 {
	return (binary.BigEndian.Uint64(k.Name[:])>>1 ^ mask(k.View)) | fileBit
}

// NameBits returns the first 63 bits of the digest of a view's node.
func NameBits(view, node uint64) uint64 { return (node ^ mask(view)) &^ fileBit }

// mask returns the difference between the node ids of a view and the digests.
func mask(view uint64) uint64 {
	if view == 0 {
		return 0
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], view)
	sum := sha256.Sum256(b[:])
	return binary.BigEndian.Uint64(sum[:]) >> 1
}

// ErrCollision is returned if two different contents would have the same node id. The
// image that was to be added must then get its files without the pool (unpacked).
var ErrCollision = errors.New("another content has the same node id")
