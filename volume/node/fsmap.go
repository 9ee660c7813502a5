package node

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"example.org/slipway/volume/block"
)

// fsMap is a stretch of a file system's device and its owner; linux/fsmap.h.
type fsMap struct {
	device, flags                   uint32
	physical, owner, offset, length uint64
	_                               [3]uint64
}

// fsMapCount is how many stretches are requested at once: 64 KiB.
const fsMapCount = 1024

// fsMapHead is the request to the kernel: 192 bytes, followed by the answer.
type fsMapHead struct {
	iflags, oflags, count, entries uint32
	_                              [6]uint64
	keys                           [2]fsMap
	recs                           [fsMapCount]fsMap
}

const (
	getFSMap     = 0xc0c0583b
	fsMapSpecial = 0x10 // flag: the owner is one that the kernel defines
	fsMapLast    = 0x20 // flag: there are no more
	fsMapFree    = 1    // special owner
)

// usedExtents lists the stretches of a mounted file system's device that are not free, in
// order.
func usedExtents(root *os.File) ([]block.Extent, error) {
	var used []block.Extent
	h := &fsMapHead{count: fsMapCount}
	high := &h.keys[1]
	high.device, high.flags = ^uint32(0), ^uint32(0)
	high.physical, high.owner, high.offset = ^uint64(0), ^uint64(0), ^uint64(0)
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, root.Fd(), getFSMap, uintptr(unsafe.Pointer(h)))
		if errno != 0 {
			return nil, errno
		}
		n := min(int(h.entries), fsMapCount)
		for i := range h.recs[:n] {
			f := &h.recs[i]
			if f.flags&fsMapSpecial != 0 && f.owner == fsMapFree {
				continue
			}
			off, length := int64(f.physical), int64(f.length)
			if k := len(used) - 1; k >= 0 && used[k].Off+used[k].Len == off {
				used[k].Len += length
				continue
			}
			used = append(used, block.Extent{Off: off, Len: length})
		}
		if n == 0 || h.recs[n-1].flags&fsMapLast != 0 {
			return used, nil
		}
		h.keys[0] = h.recs[n-1] // continue after it
	}
}
