package ext4

import (
	"cmp"
	"encoding/binary"
	"slices"

	"example.org/slipway/node/erofs"
)

// This is a directory entry.
//
//	0 u32 inode, 0 if there is none
//	4 u16 length of the entry: up to the next one, or the end of the block
//	6 u8  length of the name
//	7 u8  type
//	8     name, zeros up to a multiple of 4
const direntSize = 8

func direntLen(name string) int { return (direntSize + len(name) + 3) &^ 3 }

// entry is the node that a name in a directory stands for.
type entry struct {
	ino  uint32
	kind byte
}

// directory holds the entries of a directory. A name stays in its block, so that a change
// of a name changes one block.
type directory struct {
	parent uint32
	names  map[string]entry
	blocks []dirBlock
}

// dirBlock is a block of a directory. Its names do not include "." and "..", which are in
// the first block.
type dirBlock struct {
	names []string
	used  int // bytes
}

// directories makes the entries of all directories the same as in the tree.
func (s *step) directories() {
	s.space.fresh()
	nodes := s.t.Nodes
	children := make([][]int32, len(nodes))
	for i := 1; i < len(nodes); i++ {
		p := nodes[i].Parent
		children[p] = append(children[p], int32(i))
	}
	for i := range nodes {
		n := &nodes[i]
		if n.Link != 0 || n.Mode&erofs.TypeMask != erofs.Dir {
			continue
		}
		in := s.inodes[s.ino[i]]
		if in.dir == nil {
			in.dir = &directory{blocks: []dirBlock{{used: 2 * direntLen("..")}}}
		}
		in.dir.parent = s.ino[n.Parent]
		in.links = 2
		want := make(map[string]entry, len(children[i]))
		for _, c := range children[i] {
			kind := nodes[primary(nodes, int(c))].Mode & erofs.TypeMask
			if kind == erofs.Dir {
				in.links++
			}
			want[nodes[c].Name] = entry{s.ino[c], direntType(kind)}
		}
		if in.links > MaxLinks {
			in.links = 1
		}
		slices.SortFunc(children[i], func(a, b int32) int { return cmp.Compare(nodes[a].Name, nodes[b].Name) })
		in.dir.become(want, nodes, children[i])
		in.data = s.fit(in.data, int64(len(in.dir.blocks)))
		in.tree = s.fit(in.tree, treeBlocks(in.data))
	}
}

// become makes the names the same as in want. nodes gives their order.
func (d *directory) become(want map[string]entry, nodes []erofs.Node, order []int32) {
	for b := range d.blocks {
		bl := &d.blocks[b]
		bl.names = slices.DeleteFunc(bl.names, func(name string) bool {
			_, ok := want[name]
			if !ok {
				bl.used -= direntLen(name)
			}
			return !ok
		})
	}
	b := 0
	for _, i := range order {
		name := nodes[i].Name
		if _, ok := d.names[name]; ok {
			continue
		}
		for ; b < len(d.blocks) && d.blocks[b].used+direntLen(name) > blockSize; b++ {
		}
		if b == len(d.blocks) {
			d.blocks = append(d.blocks, dirBlock{})
		}
		d.blocks[b].names = append(d.blocks[b].names, name)
		d.blocks[b].used += direntLen(name)
	}
	d.names = want
}

// encode returns a block of the directory. self is the directory's inode.
func (d *directory) encode(self uint32, at int) []byte {
	b := make([]byte, 0, blockSize)
	last := 0 // where the last entry begins
	add := func(name string, e entry) {
		last = len(b)
		le := binary.LittleEndian
		b = le.AppendUint32(b, e.ino)
		b = le.AppendUint16(b, uint16(direntLen(name)))
		b = append(b, byte(len(name)), e.kind)
		b = append(b, name...)
		b = b[:last+direntLen(name)]
	}
	if at == 0 {
		add(".", entry{self, typeDir})
		add("..", entry{d.parent, typeDir})
	}
	for _, name := range d.blocks[at].names {
		add(name, d.names[name])
	}
	if len(b) == 0 {
		b = b[:direntSize] // one entry without a name
	}
	b = b[:blockSize]
	binary.LittleEndian.PutUint16(b[last+4:], uint16(blockSize-last))
	return b
}

const typeDir = 2

func direntType(kind uint32) byte {
	switch kind {
	case erofs.File:
		return 1
	case erofs.Dir:
		return typeDir
	case erofs.Char:
		return 3
	case erofs.Block:
		return 4
	case erofs.Fifo:
		return 5
	case erofs.Socket:
		return 6
	default: // a symbolic link, because check refuses all other types
		return 7
	}
}
