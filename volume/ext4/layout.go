package ext4

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"example.org/slipway/node/erofs"
	"example.org/slipway/volume/block"
)

// This is the layout of the device, in blocks of 4,096 bytes. Integers are little endian.
// A group is 32,768 blocks (128 MiB), which one bitmap covers, and 8,192 inodes; sixteen
// groups (2 GiB) form a set, whose bitmaps and tables lie together. A device always
// consists of whole sets, so that a larger device has more sets and nothing else moves.
//
//	block 0            1,024 zeros, superblock (1,024 bytes), zeros
//	blocks 1 to 1,023  descriptors of groups, as many as there are; the rest is
//	                   free, and used by no plan, so that they can become more
//	block 1,024 ...    of the first sixteen: their 16 bitmaps of blocks, their 16
//	                   bitmaps of inodes, their 16 tables of inodes
//
// Every other set begins with its bitmaps and tables.
const (
	blockSize      = 4096
	groupBlocks    = 8 * blockSize
	flexGroups     = 16
	flexBlocks     = flexGroups * groupBlocks
	groupInodes    = 8192
	inodesPerBlock = blockSize / inodeSize
	tableBlocks    = groupInodes / inodesPerBlock
	objectBlocks   = 1024 // the size of an object of the storage, 4 MiB
	descSize       = 32
	firstMeta      = 1024
	maxGroups      = (firstMeta - 1) * blockSize / descSize / flexGroups * flexGroups
	maxBlocks      = maxGroups * groupBlocks
)

// metaStart and metaEnd bound the bitmaps and tables of a set of sixteen groups.
func metaStart(flex int64) int64 {
	if flex == 0 {
		return firstMeta
	}
	return flex * flexBlocks
}

func metaEnd(flex int64) int64 { return metaStart(flex) + flexGroups*(2+tableBlocks) }

// blockBitmap, inodeBitmap and inodeTable return where a group has its bitmaps and its table.
func blockBitmap(g int64) int64 { return metaStart(g/flexGroups) + g%flexGroups }
func inodeBitmap(g int64) int64 { return blockBitmap(g) + flexGroups }
func inodeTable(g int64) int64 {
	return metaStart(g/flexGroups) + 2*flexGroups + g%flexGroups*tableBlocks
}

// resize makes the device large enough for the tree, and for what will be written to
// clones. The device never shrinks.
func (s *step) resize() error {
	blocks := roundUp(s.space.next+Free/blockSize, flexBlocks)
	inodes := roundUp(roundUp(int64(len(s.inodes)), groupInodes)/groupInodes, flexGroups)
	groups := max(s.groups, blocks/groupBlocks, inodes)
	if groups > maxGroups {
		return tooLarge()
	}
	s.groups = groups
	s.space.mark(run{0, 1 + uint32(s.descriptorBlocks())}, true)
	for g := int64(0); g < groups; g += flexGroups {
		s.space.group(g)
	}
	s.space.group(groups - 1) // e2fsck wants the last one to have a bitmap
	s.plan.Size = groups * groupBlocks * blockSize
	return nil
}

// checkRoom returns an error if the largest device has no room for the new contents,
// before anything is changed.
func (s *step) checkRoom() error {
	blocks := s.space.next + Free/blockSize
	for i, file := range s.t.FileOf {
		if file < 0 || s.ino[i] != 0 && s.inodes[s.ino[i]].holds(&s.t.Files[file]) {
			continue
		}
		blocks += (s.t.Files[file].Size + blockSize - 1) / blockSize
		if blocks > maxBlocks {
			return tooLarge()
		}
	}
	return nil
}

func tooLarge() error {
	return &erofs.Error{Path: ".", Err: fmt.Errorf("is the root of a tree that needs, over those below it, a device of more than %d bytes", int64(maxBlocks)*blockSize)}
}

func (m *Image) descriptorBlocks() int64 {
	return roundUp(m.groups*descSize, blockSize) / blockSize
}

// written is a block that the plan writes.
type written struct {
	at   uint32
	data []byte
}

// emit writes a block if it has changed. It keeps data.
func (s *step) emit(at int64, data []byte) {
	b := uint32(at)
	sum := sha256.Sum256(data)
	old, ok := s.sums[b]
	if !ok {
		old = zeroBlock
	}
	if sum != old {
		s.sums[b] = sum
		s.dirty = append(s.dirty, written{b, data})
	}
}

var zeroBlock = sha256.Sum256(make([]byte, blockSize))

// write computes the file system's own blocks, and puts the changed blocks into the plan.
func (s *step) write() {
	for ino := uint32(1); int(ino) < len(s.inodes); ino += inodesPerBlock {
		s.writeInodes(ino)
	}
	for ino, in := range s.inodes {
		if in != nil {
			s.writeBlocks(uint32(ino), in)
		}
	}
	s.writeGroups()
	slices.SortFunc(s.dirty, func(a, b written) int { return int(int64(a.at) - int64(b.at)) })
	s.plan.Meta = stretches(s.dirty)
}

// stretches joins adjacent blocks, up to 1 MiB.
func stretches(blocks []written) []block.Bytes {
	var out []block.Bytes
	for len(blocks) > 0 {
		n := 1
		for n < len(blocks) && n < 256 && blocks[n].at == blocks[0].at+uint32(n) {
			n++
		}
		data := blocks[0].data
		if n > 1 {
			data = make([]byte, 0, n*blockSize)
			for _, b := range blocks[:n] {
				data = append(data, b.data...)
			}
		}
		out = append(out, block.Bytes{Off: int64(blocks[0].at) * blockSize, Data: data})
		blocks = blocks[n:]
	}
	return out
}

// writeGroups writes bitmaps, descriptors and the superblock.
func (s *step) writeGroups() {
	descs := make([]byte, s.descriptorBlocks()*blockSize)
	var free totals
	for g := range s.groups {
		d := descs[g*descSize : (g+1)*descSize]
		free.add(s.writeGroup(g, d))
	}
	for b := int64(0); b < s.descriptorBlocks(); b++ {
		s.emit(1+b, descs[b*blockSize:(b+1)*blockSize])
	}
	s.emit(0, s.super(free))
}

// totals counts what is free in a group, or in all groups.
type totals struct{ blocks, inodes int64 }

func (t *totals) add(o totals) {
	t.blocks += o.blocks
	t.inodes += o.inodes
}

// This is the descriptor of a group.
//
//	 0 u32 bitmap of blocks, 4 u32 of inodes, 8 u32 table of inodes
//	12 u16 free blocks, 14 u16 free inodes, 16 u16 directories
//	18 u16 flags: no bitmap of inodes (1), no bitmap of blocks (2), the table is
//	       zeros where it is not used (4)
//	28 u16 inodes at the end that were never used
//	30 u16 CRC-16 of UUID, number of the group as u32, and bytes 0 to 29
const (
	noInodeBitmap = 1
	noBlockBitmap = 2
	tableZeroed   = 4
)

// writeGroup writes the bitmaps of a group and fills in its descriptor.
func (s *step) writeGroup(g int64, d []byte) totals {
	free := totals{groupBlocks, groupInodes}
	flags := uint16(noInodeBitmap | noBlockBitmap | tableZeroed)
	if bm := s.space.groups[g]; bm != nil {
		flags &^= noBlockBitmap
		free.blocks -= int64(bm.used)
		s.emit(blockBitmap(g), slices.Clone(bm.bits[:]))
	}
	dirs, unused := 0, int64(groupInodes)
	if first := g*groupInodes + 1; first < int64(len(s.inodes)) {
		flags &^= noInodeBitmap
		bits := make([]byte, blockSize)
		for i := int64(0); i < groupInodes && first+i < int64(len(s.inodes)); i++ {
			in := s.inodes[first+i]
			if in == nil && first+i >= firstInode {
				continue
			}
			bits[i/8] |= 1 << (i % 8)
			free.inodes--
			unused = groupInodes - 1 - i
			if in != nil && in.dir != nil {
				dirs++
			}
		}
		for i := groupInodes / 8; i < blockSize; i++ {
			bits[i] = 0xff // there are no such inodes
		}
		s.emit(inodeBitmap(g), bits)
	}
	le := binary.LittleEndian
	le.PutUint32(d, uint32(blockBitmap(g)))
	le.PutUint32(d[4:], uint32(inodeBitmap(g)))
	le.PutUint32(d[8:], uint32(inodeTable(g)))
	le.PutUint16(d[12:], uint16(free.blocks))
	le.PutUint16(d[14:], uint16(free.inodes))
	le.PutUint16(d[16:], uint16(dirs))
	le.PutUint16(d[18:], flags)
	le.PutUint16(d[28:], uint16(unused))
	crc := crc16(0xffff, s.id[:])
	crc = crc16(crc, le.AppendUint32(nil, uint32(g)))
	le.PutUint16(d[30:], crc16(crc, d[:30]))
	return free
}

// crc16 returns the CRC-16 with the reflected polynomial 0xA001.
func crc16(crc uint16, b []byte) uint16 {
	for _, c := range b {
		crc ^= uint16(c)
		for range 8 {
			crc = crc>>1 ^ 0xA001*(crc&1)
		}
	}
	return crc
}

// This is the superblock, at byte 1,024. Fields that are not listed are zero. Times are
// zero, too: nothing is known of any.
//
//	  0 u32 inodes, 4 u32 blocks, 12 u32 free blocks, 16 u32 free inodes
//	 24 u32 block size and 28 u32 cluster size as powers of two, less 10
//	 32 u32 blocks, 36 u32 clusters and 40 u32 inodes of a group
//	 54 u16 mounts before a check: any number
//	 56 u16 magic, 58 u16 clean (1), 60 u16 on errors: become read-only (2)
//	 76 u32 revision, 84 u32 first inode, 88 u16 size of inodes
//	 92 u32 features that writers may ignore: attributes (8), no or two copies of
//	        the superblock, those of groups at 588 (0x200)
//	 96 u32 features that readers must know: types in directories (2), extents
//	        (0x40), bitmaps and tables anywhere (0x200)
//	100 u32 features that writers must know: large files (2), huge files (8),
//	        checksums of descriptors (0x10), any number of directories in one
//	        (0x20), fields beyond byte 128 of inodes (0x40)
//	104 [16] UUID
//	256 u32 options: attributes (4), access control lists (8)
//	348 u16 and 350 u16 bytes of fields beyond byte 128 of inodes
//	352 u32 flags: names hash as signed (1)
//	372 u8  groups that have bitmaps and tables together, as a power of two
const (
	superOffset = 1024
	superMagic  = 0xEF53
)

// super returns block 0.
func (s *step) super(free totals) []byte {
	b := make([]byte, blockSize)
	sb, le := b[superOffset:], binary.LittleEndian
	for _, f := range []struct {
		at    int
		value int64
	}{
		{0, s.groups * groupInodes}, {4, s.groups * groupBlocks}, {12, free.blocks}, {16, free.inodes},
		{24, 2}, {28, 2}, {32, groupBlocks}, {36, groupBlocks}, {40, groupInodes},
		{52, 0xffff << 16}, {56, superMagic | 1<<16}, {60, 2},
		{76, 1}, {84, firstInode}, {88, inodeSize},
		{92, 0x208}, {96, 0x242}, {100, 0x7a},
		{256, 4 | 8}, {348, extraSize | extraSize<<16}, {352, 1}, {372, 4},
	} {
		le.PutUint32(sb[f.at:], uint32(f.value))
	}
	copy(sb[104:], s.id[:])
	return b
}
