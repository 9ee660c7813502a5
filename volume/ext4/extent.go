package ext4

import "encoding/binary"

// A node of the tree of extents has a header, and then entries of 12 bytes.
//
//	0 u16 magic, 2 u16 entries, 4 u16 entries that it can have, 6 u16 depth
//
// An entry of a leaf (depth 0) is
//
//	0 u32 first block of the file, 4 u16 blocks, 8 u32 first block of the device
//
// and an entry of any other node is
//
//	0 u32 first block of the file, 4 u32 block of the node below
const (
	extentMagic = 0xF30A
	extentSize  = 12
	rootExtents = 4                             // in the inode
	nodeExtents = (blockSize - 12) / extentSize // in a block
	maxExtent   = 1 << 15                       // blocks
)

// extentsOf returns how many extents runs take.
func extentsOf(runs []run) int64 {
	n := int64(0)
	for _, r := range runs {
		n += (int64(r.n) + maxExtent - 1) / maxExtent
	}
	return n
}

// treeBlocks returns how many blocks the extents of runs take outside of the inode.
func treeBlocks(runs []run) int64 {
	blocks := int64(0)
	for n := extentsOf(runs); n > rootExtents; blocks += n {
		n = (n + nodeExtents - 1) / nodeExtents
	}
	return blocks
}

// extentTree returns the part in the inode, and the blocks of the tree with the leaves
// first. places says where the blocks go.
func extentTree(runs, places []run) (root []byte, blocks []written) {
	le := binary.LittleEndian
	entries := make([]byte, 0, extentsOf(runs)*extentSize)
	at := uint32(0)
	for _, r := range runs {
		for from := uint32(0); from < r.n; from += maxExtent {
			n := min(r.n-from, maxExtent)
			entries = le.AppendUint32(entries, at)
			entries = le.AppendUint32(entries, n)
			entries = le.AppendUint32(entries, r.block+from)
			at += n
		}
	}
	depth := uint16(0)
	next := placesOf(places)
	for ; len(entries) > rootExtents*extentSize; depth++ {
		var above []byte
		for len(entries) > 0 {
			n := min(len(entries), nodeExtents*extentSize)
			place := next()
			above = append(above, entries[:4]...)
			above = le.AppendUint32(above, place)
			above = le.AppendUint32(above, 0)
			blocks = append(blocks, written{place, extentNode(entries[:n], nodeExtents, depth, blockSize)})
			entries = entries[n:]
		}
		entries = above
	}
	return extentNode(entries, rootExtents, depth, 60), blocks
}

// extentNode returns a node with the given entries in size bytes.
func extentNode(entries []byte, most, depth uint16, size int) []byte {
	b, le := make([]byte, size), binary.LittleEndian
	le.PutUint16(b, extentMagic)
	le.PutUint16(b[2:], uint16(len(entries)/extentSize))
	le.PutUint16(b[4:], most)
	le.PutUint16(b[6:], depth)
	copy(b[12:], entries)
	return b
}

// placesOf returns a function that returns the blocks of runs one by one.
func placesOf(runs []run) func() uint32 {
	used := uint32(0)
	return func() uint32 {
		if len(runs) == 0 {
			return 0 // the tree is too large for the device, which resize finds
		}
		b := runs[0].block + used
		if used++; used == runs[0].n {
			runs, used = runs[1:], 0
		}
		return b
	}
}
