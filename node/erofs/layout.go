package erofs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// The image consists of blocks of 4,096 bytes. Integers are little endian.
//
//	block 0            1,024 zeros, superblock (128 bytes), zeros
//	block 1 ...        metadata: inodes in slots of 32 bytes, in breadth-first
//	                   order, each followed by its extended attributes
//	                   and a tail of data
//	after the last     data blocks of directories and symbolic links
//	after those        contents of files, if there are any, each once
//
// The inodes of one directory are adjacent, so that listing the directory reads few
// blocks. The root is first and has number 0, because the superblock has only 16 bits for
// its number.
const (
	blockSize = 4096
	slotSize  = 32
	metaBlock = 1 // where the metadata begin
)

// layout says how an inode refers to its data.
type layout uint8

const (
	// plain: the data are in whole blocks, or there are none.
	plain layout = 0
	// inline: the last part is behind the inode, the rest in whole blocks.
	inline layout = 2
	// chunked: behind the inode is a table with the place of each chunk.
	chunked layout = 4
)

// maxInlineDir is the longest last part of a directory, in bytes, that is stored behind
// its inode. An inode with such a tail may not cross a block boundary, so a tail of t
// bytes leaves gaps of t²/8,192 bytes on average. Stored in its own block, the tail
// wastes 4,096 - t bytes. The two are equal at about 3,000.
const maxInlineDir = 3000

// place is what the plan knows about a node that has an inode.
type place struct {
	slot   uint64 // number of the inode, which also is its position
	size   int64  // of the data
	block  uint32 // first data block
	nlink  uint32
	xattrs uint32 // length of the extended attributes
	layout layout
}

// plan is the layout of an image.
type plan struct {
	nodes []Node
	// children holds the entries of all directories. The entries of node i, sorted by
	// name, are children[first[i]:first[i+1]].
	children []int32
	first    []int32
	order    []int32 // the nodes with an inode, in the order of the image
	places   []place
	// contents is nil, or holds the content of each file, or -1. rooms holds the first
	// block of each content, or 0 if it has none.
	contents []int32
	rooms    []uint32
	chunks   bool   // whether there are chunked files
	head     uint32 // blocks in the image, without contents
	blocks   uint32 // in the image
}

// newPlan plans the layout of an image. If contents is not nil, the image has room for
// them.
func newPlan(nodes []Node, contents []int32) (*plan, error) {
	if err := check(nodes); err != nil {
		return nil, err
	}
	p := &plan{nodes: nodes, contents: contents}
	if err := p.sortChildren(); err != nil {
		return nil, err
	}
	p.places = make([]place, len(nodes))
	if len(contents) > 0 {
		p.rooms = make([]uint32, max(slices.Max(contents), -1)+1)
	}
	p.walk()
	return p, p.lay()
}

// sortChildren groups the nodes by directory.
func (p *plan) sortChildren() error {
	p.first = make([]int32, len(p.nodes)+1)
	for i := range p.nodes[1:] {
		p.first[p.nodes[i+1].Parent+1]++
	}
	for i := range p.nodes {
		p.first[i+1] += p.first[i]
	}
	next := slices.Clone(p.first)
	p.children = make([]int32, len(p.nodes)-1)
	for i := range p.nodes[1:] {
		at := &next[p.nodes[i+1].Parent]
		p.children[*at] = int32(i + 1)
		*at++
	}
	byName := func(a, b int32) int { return cmp.Compare(p.nodes[a].Name, p.nodes[b].Name) }
	for i := range p.nodes {
		c := p.children[p.first[i]:p.first[i+1]]
		if !slices.IsSortedFunc(c, byName) {
			slices.SortFunc(c, byName)
		}
		for j := 1; j < len(c); j++ {
			if byName(c[j-1], c[j]) == 0 {
				return &Error{Path(p.nodes, int(c[j])), errors.New("is there twice")}
			}
		}
	}
	return nil
}

// inode returns the node whose inode node i uses.
func (p *plan) inode(i int32) int32 {
	if to := p.nodes[i].Link; to != 0 {
		return to
	}
	return i
}

// walk determines the order of the inodes and counts their names.
func (p *plan) walk() {
	p.order = append(make([]int32, 0, len(p.nodes)), 0)
	p.places[0].nlink = 2 // itself and its "."
	for at := 0; at < len(p.order); at++ {
		dir := p.order[at]
		for _, c := range p.children[p.first[dir]:p.first[dir+1]] {
			c = p.inode(c)
			pl := &p.places[c]
			if pl.nlink == 0 {
				p.order = append(p.order, c)
			}
			pl.nlink++
			if p.nodes[c].Mode&TypeMask == Dir {
				pl.nlink++            // its "."
				p.places[dir].nlink++ // its ".."
			}
		}
	}
}

// lay assigns places to the inodes and the blocks.
func (p *plan) lay() error {
	pos := int64(0) // offset within the metadata, in bytes
	for _, i := range p.order {
		n, pl := &p.nodes[i], &p.places[i]
		pl.xattrs = uint32(xattrsSize(n.Xattrs))
		head := int64(inodeSize) + int64(pl.xattrs)
		tail := p.layData(i, head)
		pos = (pos + slotSize - 1) &^ (slotSize - 1)
		if pl.layout == inline && pos%blockSize+head+tail > blockSize {
			pos = (pos + blockSize - 1) &^ (blockSize - 1)
		}
		pl.slot = uint64(pos / slotSize)
		pos += head + tail
	}
	// fsck.erofs looks for attributes behind every inode, even if it has none. That
	// position must not lie beyond the end of the image.
	next := metaBlock + (pos+xattrHeader+blockSize-1)/blockSize
	for _, i := range p.order {
		if n := p.ownBlocks(i); n > 0 {
			p.places[i].block = uint32(next) // checked below
			next += n
		}
	}
	p.head = uint32(next)
	next, err := p.layContents(next)
	if err != nil {
		return err
	}
	if next > math.MaxUint32 {
		return &Error{".", fmt.Errorf("is the root of a tree that needs %d blocks; %d are possible", next, int64(math.MaxUint32))}
	}
	p.blocks = uint32(next)
	return nil
}

// layContents assigns blocks to the contents, from block next on, each content once, in
// the order of the files. It returns the first block after them.
func (p *plan) layContents(next int64) (int64, error) {
	if p.contents == nil {
		return next, nil
	}
	sizes := make([]int64, len(p.rooms))
	for _, i := range p.order {
		pl, c := &p.places[i], p.content(i)
		if c < 0 || pl.size == 0 {
			continue
		}
		if p.rooms[c] == 0 {
			p.rooms[c], sizes[c] = uint32(next), pl.size // checked by the caller
			next += (pl.size + blockSize - 1) / blockSize
		}
		if sizes[c] != pl.size {
			return 0, &Error{Path(p.nodes, int(i)), fmt.Errorf("has %d bytes, another file of the same content %d", pl.size, sizes[c])}
		}
		pl.block = p.rooms[c]
	}
	return next, nil
}

// content returns the content of a node, or -1 if it has none.
func (p *plan) content(i int32) int32 {
	if p.contents == nil || p.nodes[i].Mode&TypeMask != File {
		return -1
	}
	return p.contents[i]
}

// layData decides where the data of a node go. head is the length of its inode with
// extended attributes. layData returns the length of the data that follow the inode.
func (p *plan) layData(i int32, head int64) (tail int64) {
	n, pl := &p.nodes[i], &p.places[i]
	longest := int64(0)
	switch n.Mode & TypeMask {
	case File:
		pl.size = n.Size
		if n.Size > 0 && p.content(i) < 0 {
			pl.layout, p.chunks = chunked, true
			return chunkEntry
		}
		return 0
	case Symlink:
		pl.size, longest = int64(len(n.Target)), blockSize
	case Dir:
		pl.size, longest = p.dirSize(i), maxInlineDir
	default:
		return 0
	}
	// The kernel requires that the inode of a symbolic link and its tail are in one
	// block. Older kernels require this for directories, too.
	tail = pl.size % blockSize
	if tail > 0 && tail <= longest && head+tail <= blockSize {
		pl.layout = inline
		return tail
	}
	return 0
}

// ownBlocks returns how many blocks behind the metadata a node has, without blocks of
// contents.
func (p *plan) ownBlocks(i int32) int64 {
	if p.nodes[i].Mode&TypeMask == File {
		return 0
	}
	return p.places[i].dataBlocks()
}

// dataBlocks returns how many blocks the data occupy, without the part behind the inode.
func (pl *place) dataBlocks() int64 {
	switch pl.layout {
	case plain:
		return (pl.size + blockSize - 1) / blockSize
	case inline:
		return pl.size / blockSize
	}
	return 0
}
