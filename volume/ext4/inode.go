package ext4

import (
	"encoding/binary"

	"example.org/slipway/gear"
	"example.org/slipway/node/erofs"
)

// This is an inode, of 256 bytes. Fields that are not listed are zero.
//
//	  0 u16 mode
//	  2 u16 owner and 24 u16 group, lower halves; 120 u16 and 122 u16 upper halves
//	  4 u32 size and 108 u32 its upper half
//	  8 u32 last access, 12 u32 last change of the inode, 16 u32 of the content, 144
//	        u32 creation: seconds; 140, 132, 136, 148 u32: nanoseconds << 2 |
//	        upper two bits of the seconds
//	 26 u16 links
//	 28 u32 units of 512 bytes in use and 116 u16 their upper half
//	 32 u32 flags: extents (0x80000)
//	 40 [60] root of the extents, target of a short symbolic link, or device
//	104 u32 block of attributes
//	128 u16 bytes of fields beyond byte 128: 32
//	160     attributes
const (
	inodeSize   = 256
	rootInode   = 2
	firstInode  = 11 // the first inode that is not reserved
	extraSize   = 32
	inodeAttrs  = 128 + extraSize // where attributes begin
	extentsFlag = 0x80000
	// fastTarget is the length of the shortest symbolic link whose target does not fit
	// into the inode.
	fastTarget = 60
)

// inode is an inode in use.
type inode struct {
	node      erofs.Node // its name and parent are not set
	attrs     attrs
	links     uint32
	content   gear.Name // of a file
	size      int64
	data      []run // in the order of the file
	tree      []run // blocks of extents that do not fit into the inode
	attrBlock []run // none or one
	dir       *directory
}

// length returns the length of the inode's data in bytes.
func (in *inode) length() int64 {
	switch in.node.Mode & erofs.TypeMask {
	case erofs.File:
		return in.size
	case erofs.Dir:
		return int64(len(in.dir.blocks)) * blockSize
	case erofs.Symlink:
		return int64(len(in.node.Target))
	}
	return 0
}

// writeInodes writes the block of the inode table that begins with inode first.
func (s *step) writeInodes(first uint32) {
	b := make([]byte, blockSize)
	for i := range uint32(inodesPerBlock) {
		if int(first+i) < len(s.inodes) && s.inodes[first+i] != nil {
			s.inodes[first+i].encode(b[i*inodeSize : (i+1)*inodeSize])
		}
	}
	g, at := int64(first-1)/groupInodes, int64(first-1)%groupInodes
	s.emit(inodeTable(g)+at/inodesPerBlock, b)
}

// encode fills in an inode that holds zeros.
func (in *inode) encode(b []byte) {
	n, le, size := &in.node, binary.LittleEndian, in.length()
	le.PutUint16(b, uint16(n.Mode))
	le.PutUint16(b[2:], uint16(n.UID))
	le.PutUint16(b[24:], uint16(n.GID))
	le.PutUint16(b[120:], uint16(n.UID>>16))
	le.PutUint16(b[122:], uint16(n.GID>>16))
	le.PutUint32(b[4:], uint32(size))
	le.PutUint32(b[108:], uint32(size>>32))
	extra := n.Nsec<<2 | uint32((n.Sec-int64(int32(n.Sec)))>>32)&3
	for _, at := range [][2]int{{8, 140}, {12, 132}, {16, 136}, {144, 148}} {
		le.PutUint32(b[at[0]:], uint32(n.Sec))
		le.PutUint32(b[at[1]:], extra)
	}
	le.PutUint16(b[26:], uint16(in.links))
	units := (blocksOf(in.data) + blocksOf(in.tree) + blocksOf(in.attrBlock)) * (blockSize / 512)
	le.PutUint32(b[28:], uint32(units))
	le.PutUint16(b[116:], uint16(units>>32))
	if len(in.attrBlock) > 0 {
		le.PutUint32(b[104:], in.attrBlock[0].block)
	}
	le.PutUint16(b[128:], extraSize)
	in.encodeData(b)
	if len(in.attrs.inode) > 0 {
		copy(b[inodeAttrs:], in.attrs.inode)
	}
}

// encodeData fills in where the data are.
func (in *inode) encodeData(b []byte) {
	n, le := &in.node, binary.LittleEndian
	switch kind := n.Mode & erofs.TypeMask; {
	case kind == erofs.Char || kind == erofs.Block:
		if n.Major < 256 && n.Minor < 256 {
			le.PutUint32(b[40:], n.Major<<8|n.Minor)
		} else {
			le.PutUint32(b[44:], n.Minor&0xff|n.Major<<8|n.Minor&^0xff<<12)
		}
	case kind == erofs.Symlink && len(n.Target) < fastTarget:
		copy(b[40:], n.Target)
	case kind == erofs.File || kind == erofs.Dir || kind == erofs.Symlink:
		le.PutUint32(b[32:], extentsFlag)
		root, _ := extentTree(in.data, in.tree)
		copy(b[40:], root)
	}
}

// writeBlocks writes the blocks of an inode that belong to the file system itself.
func (s *step) writeBlocks(ino uint32, in *inode) {
	if len(in.attrBlock) > 0 {
		s.emit(int64(in.attrBlock[0].block), in.attrs.block)
	}
	_, blocks := extentTree(in.data, in.tree)
	for _, b := range blocks {
		s.emit(int64(b.at), b.data)
	}
	switch {
	case in.dir != nil:
		at := 0
		for _, r := range in.data {
			for b := range r.n {
				s.emit(int64(r.block+b), in.dir.encode(ino, at))
				at++
			}
		}
	case in.node.Mode&erofs.TypeMask == erofs.Symlink && len(in.data) > 0:
		b := make([]byte, blockSize)
		copy(b, in.node.Target)
		s.emit(int64(in.data[0].block), b)
	}
}
