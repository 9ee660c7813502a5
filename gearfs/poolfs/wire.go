package poolfs

import (
	"encoding/hex"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"example.org/slipway/gearfs/fuse"
)

const (
	maxNameLen = 62 // the longest name that can exist

	iocBackingOpen  = 0x4010e501 // _IOW(229, 1, struct fuse_backing_map)
	iocBackingClose = 0x4004e502 // _IOW(229, 2, uint32)
)

// attrTTL is how long the kernel may remember a name and its attributes, in seconds. They are functions of the digest
// and never change; a day only bounds what a mistake could cost.
const attrTTL = 86400

// lookupNode tells the node a LOOKUP asks for: a directory below the root, or a file below a directory, whose full
// digest it returns. ok is false when no such name can exist.
func lookupNode(r *fuse.Request) (node uint64, name [32]byte, ok bool) {
	switch {
	case r.Node == fuse.RootNode && len(r.Name) == 2:
		var b [1]byte
		if !decodeHex(b[:], r.Name) {
			return 0, name, false
		}
		return dirBase + uint64(b[0]), name, true
	case isDir(r.Node) && len(r.Name) == maxNameLen:
		name[0] = byte(r.Node - dirBase)
		if !decodeHex(name[1:], r.Name) {
			return 0, name, false
		}
		return NodeID(name), name, true
	}
	return 0, name, false
}

// decodeHex decodes lower-case hex only: one name per content.
func decodeHex(dst, src []byte) bool {
	for _, c := range src {
		if c >= 'A' && c <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, src)
	return err == nil
}

// errnoOf is what a process sees of a backend's error.
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
