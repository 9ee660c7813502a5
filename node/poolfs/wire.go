package poolfs

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
)

const (
	maxNameLen = 62 // the longest possible name

	iocBackingOpen  = 0x4010e501 // _IOW(229, 1, struct fuse_backing_map)
	iocBackingClose = 0x4004e502 // _IOW(229, 2, uint32)
)

// attrTTL is how long the kernel may cache a name and its attributes, in seconds. They
// are functions of the digest and never change. The bound of a day only limits the damage
// of a mistake.
const attrTTL = 86400

// lookupNode returns the node that a LOOKUP names: a directory of a view, a directory of
// files, or a file with its key. ok is false if the name cannot exist.
func lookupNode(r *fuse.Request) (node uint64, k Key, ok bool) {
	switch {
	case r.Node == fuse.RootNode && len(r.Name) == viewDigits:
		var b [8]byte
		if !decodeHex(b[2:], r.Name) {
			return 0, k, false
		}
		view := binary.BigEndian.Uint64(b[:])
		return viewNode(view), k, view != 0
	case (r.Node == fuse.RootNode || isView(r.Node)) && len(r.Name) == 2:
		var b [1]byte
		if !decodeHex(b[:], r.Name) {
			return 0, k, false
		}
		if r.Node == fuse.RootNode {
			return subNode(0, b[0]), k, true
		}
		return subNode(viewOf(r.Node), b[0]), k, true
	case isSub(r.Node) && len(r.Name) == maxNameLen:
		k.View, k.Name[0] = viewOf(r.Node), byte(r.Node)
		if !decodeHex(k.Name[1:], r.Name) {
			return 0, k, false
		}
		return NodeID(k), k, true
	}
	return 0, k, false
}

// decodeHex decodes lower-case hex only, so that each content has one name.
func decodeHex(dst, src []byte) bool {
	for _, c := range src {
		if c >= 'A' && c <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, src)
	return err == nil
}

// errnoOf returns the error number that a process gets for a backend's error.
func errnoOf(err error) unix.Errno {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, fuse.ErrKilled):
		return unix.EINTR
	case errors.Is(err, fs.ErrNotExist):
		return unix.ENOENT
	}
	return unix.EIO
}
