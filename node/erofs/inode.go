package erofs

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strings"
)

// The superblock is at byte 1,024. Fields that are not listed are zero.
//
//	 0 u32  magic
//	 4 u32  CRC-32C of bytes 1,024 to 4,095 with this field zero, not inverted
//	 8 u32  features that readers may ignore: checksum (1), times (2)
//	12 u8   block size as a power of two
//	14 u16  number of the root's inode
//	16 u64  number of inodes
//	36 u32  number of blocks
//	40 u32  first block of the metadata
//	48 [16] UUID
//	80 u32  features that readers must know: chunks (4), except in images with room
//	        for all contents
const (
	superOffset     = 1024
	superMagic      = 0xE0F5E1E2
	superUUID       = 48
	compatChecksum  = 1
	compatMtime     = 2
	incompatChunked = 4
)

// These are the fields of an inode in its long form. The short form has no time in
// kernels before 6.17 and no owner above 65,535.
//
//	 0 u16 form and layout: 1 | layout<<1
//	 2 u16 length of the attributes: 0, or (length - 12)/4 + 1
//	 4 u16 mode
//	 8 u64 size
//	16 u32 first data block, device, or format of the chunks
//	20 u32 serial number
//	24 u32 owner, 28 u32 group
//	32 u64 time, seconds; 40 u32 nanoseconds
//	44 u32 links
//	48     16 zeros
const (
	inodeSize = 64
	longForm  = 1
	// A file is one chunk of 2^(12+31) bytes that has no data: a hole.
	chunkFormat = 31
	chunkEntry  = 4
	nullChunk   = 0xffffffff
)

// Extended attributes begin with a header of 12 bytes, which are zeros here. Each
// attribute follows as
//
//	0 u8  length of the name without its prefix
//	1 u8  prefix
//	2 u16 length of the value
//	4     name, value, zeros up to a multiple of 4
const (
	xattrHeader = 12
	maxXattrs   = 65534 * 4
	aclAccess   = "system.posix_acl_access"
	aclDefault  = "system.posix_acl_default"
)

// direntSize is the length of a directory entry. The names follow after all entries of a
// block.
//
//	0 u64 number of the inode
//	8 u16 offset of the name in the block; in the first entry: 12 * entries
//	10 u8 type
//	11    zero
const direntSize = 12

// xattrPrefix splits the name of an attribute into prefix and rest.
func xattrPrefix(name string) (index byte, rest string, ok bool) {
	switch name {
	case aclAccess:
		return 2, "", true
	case aclDefault:
		return 3, "", true
	}
	prefix, rest, _ := strings.Cut(name, ".")
	switch prefix {
	case "user":
		index = 1
	case "trusted":
		index = 4
	case "security":
		index = 6
	}
	return index, rest, index != 0 && rest != ""
}

// xattrEntry returns the length of an attribute in the image.
func xattrEntry(rest, value string) int {
	return (4 + len(rest) + len(value) + 3) &^ 3
}

// xattrsSize returns the length of all attributes of a node.
func xattrsSize(xs []Xattr) int {
	if len(xs) == 0 {
		return 0
	}
	size := xattrHeader
	for _, x := range xs {
		_, rest, _ := xattrPrefix(x.Name)
		size += xattrEntry(rest, x.Value)
	}
	return size
}

func compareXattrs(a, b Xattr) int { return strings.Compare(a.Name, b.Name) }

func sortedXattrs(xs []Xattr) []Xattr {
	if slices.IsSortedFunc(xs, compareXattrs) {
		return xs
	}
	xs = slices.Clone(xs)
	slices.SortFunc(xs, compareXattrs)
	return xs
}

// encoder writes an image.
type encoder struct {
	*plan
	w   *bufio.Writer
	at  int64 // bytes written
	buf []byte
	dir []dirent
	// zeros fills gaps. It is a field because an argument of a Writer's method would be
	// allocated anew each time.
	zeros [blockSize]byte
}

func (e *encoder) write(b []byte) error {
	n, err := e.w.Write(b)
	e.at += int64(n)
	return err
}

// skip writes zeros up to a position.
func (e *encoder) skip(to int64) error {
	for e.at < to {
		if err := e.write(e.zeros[:min(blockSize, to-e.at)]); err != nil {
			return err
		}
	}
	return nil
}

func (e *encoder) image(id [16]byte) error {
	if err := e.write(e.super(id)); err != nil {
		return err
	}
	for serial, i := range e.order {
		if err := e.skip(metaBlock*blockSize + int64(e.places[i].slot)*slotSize); err != nil {
			return err
		}
		if err := e.inode(i, uint32(serial+1)); err != nil {
			return err
		}
	}
	for _, i := range e.order {
		if err := e.blocks(i); err != nil {
			return err
		}
	}
	if err := e.skip(int64(e.plan.head) * blockSize); err != nil {
		return err
	}
	return e.w.Flush()
}

// super returns block 0.
func (e *encoder) super(id [16]byte) []byte {
	block := make([]byte, blockSize)
	sb, le := block[superOffset:], binary.LittleEndian
	le.PutUint32(sb, superMagic)
	le.PutUint32(sb[8:], compatChecksum|compatMtime)
	sb[12] = 12
	le.PutUint16(sb[14:], uint16(e.places[0].slot))
	le.PutUint64(sb[16:], uint64(len(e.order)))
	le.PutUint32(sb[36:], e.plan.blocks)
	le.PutUint32(sb[40:], metaBlock)
	copy(sb[superUUID:], id[:])
	if e.contents == nil || e.chunks {
		le.PutUint32(sb[80:], incompatChunked)
	}
	le.PutUint32(sb[4:], ^crc32.Checksum(sb, crc32.MakeTable(crc32.Castagnoli)))
	return block
}

// inode writes the inode of a node and what follows it in the metadata.
func (e *encoder) inode(i int32, serial uint32) error {
	n, pl := &e.nodes[i], &e.places[i]
	b, le := append(e.buf[:0], make([]byte, inodeSize)...), binary.LittleEndian
	le.PutUint16(b, longForm|uint16(pl.layout)<<1)
	if pl.xattrs > 0 {
		le.PutUint16(b[2:], uint16((pl.xattrs-xattrHeader)/4+1))
	}
	le.PutUint16(b[4:], uint16(n.Mode))
	le.PutUint64(b[8:], uint64(pl.size))
	switch t := n.Mode & TypeMask; {
	case pl.layout == chunked:
		le.PutUint32(b[16:], chunkFormat)
	case t == Char || t == Block:
		le.PutUint32(b[16:], n.Minor&0xff|n.Major<<8|n.Minor&^0xff<<12)
	default:
		le.PutUint32(b[16:], pl.block)
	}
	le.PutUint32(b[20:], serial)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(n.Sec))
	le.PutUint32(b[40:], n.Nsec)
	le.PutUint32(b[44:], pl.nlink)
	b = appendXattrs(b, n.Xattrs)
	switch {
	case pl.layout == chunked:
		b = le.AppendUint32(b, nullChunk)
	case pl.layout == inline && n.Mode&TypeMask == Symlink:
		b = append(b, n.Target...)
	}
	e.buf = b
	if err := e.write(b); err != nil {
		return err
	}
	if pl.layout == inline && n.Mode&TypeMask == Dir {
		return e.dirBlocks(i, pl.size/blockSize, pl.size/blockSize+1)
	}
	return nil
}

func appendXattrs(b []byte, xs []Xattr) []byte {
	if len(xs) == 0 {
		return b
	}
	b = append(b, make([]byte, xattrHeader)...)
	for _, x := range sortedXattrs(xs) {
		index, rest, _ := xattrPrefix(x.Name)
		b = append(b, byte(len(rest)), index, byte(len(x.Value)), byte(len(x.Value)>>8))
		b = append(b, rest...)
		b = append(b, x.Value...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return b
}

// blocks writes the data of a node that are not stored behind its inode.
func (e *encoder) blocks(i int32) error {
	n, pl := &e.nodes[i], &e.places[i]
	blocks := e.ownBlocks(i)
	if blocks == 0 {
		return nil
	}
	if err := e.skip(int64(pl.block) * blockSize); err != nil {
		return err
	}
	if n.Mode&TypeMask == Symlink {
		return e.write([]byte(n.Target))
	}
	return e.dirBlocks(i, 0, blocks)
}
