// Package ext4 lays out a sequence of trees as an ext4 file system, so that a chain of
// volumes holds them: each plan writes what its tree changes and leaves the rest to the
// volume below. It only computes; it does not read or write anything.
//
// What is the same in the next tree stays where it is: directories by their path, files
// by any of their names, and moved files by their content. New blocks go to a place that
// no earlier tree has used, beginning at a boundary of 4 MiB: first directories and the
// like, then contents. So storage that copies whole objects when a clone first writes to
// them has little to copy. Blocks that a tree no longer uses are free when a clone is
// mounted read-write.
//
// The file system has blocks of 4,096 bytes, inodes of 256, extents, no journal, no
// copies of the superblock, and no lost+found, which e2fsck creates where it needs one.
// Linux has been able to mount it since 3.16. Without a journal, a clone that was mounted
// read-write and not unmounted must be checked before it is used again. All times of a
// node are the time of its last change. The layout on disk is in layout.go, inode.go,
// extent.go, attr.go and dir.go.
package ext4

import (
	"crypto/sha256"
	"fmt"
	"math"

	"example.org/slipway/gear"
	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
	"example.org/slipway/volume/block"
)

// These are the limits of a file system, in addition to those of package erofs.
const (
	// MaxLinks is how many names a file may have. Directories may hold any number of
	// directories. From MaxLinks on, Linux shows 1 as their number of links.
	MaxLinks = 65000
	// MinTime and MaxTime bound the times, in seconds since 1970: from December 1901 to
	// April 2310. Beyond them, e2fsck and Linux interpret times differently.
	MinTime = math.MinInt32
	MaxTime = 3<<32 - 1<<31 - 1
	// Free is the least number of free bytes of a device, for what will be written to
	// clones of it.
	Free = 8 << 30
)

// Image is the file system after the trees applied so far. It takes some 400 bytes of
// memory for each node. It is not safe for concurrent use.
type Image struct {
	id     [16]byte
	inodes []*inode // by number, nil where none is; up to the greatest used so far
	space  space
	groups int64 // size of the device
	// sums holds the hashes of the file system's own blocks. A block without an entry
	// holds zeros or does not belong to the file system itself.
	sums map[uint32][sha256.Size]byte
}

// New returns the Image of a device of zeros. id is the UUID that the file system gets.
func New(id [16]byte) *Image {
	return &Image{
		id:     id,
		inodes: make([]*inode, firstInode),
		space:  newSpace(),
		sums:   map[uint32][sha256.Size]byte{},
	}
}

// Next brings the file system to tree t and returns what must be written for that. The same
// trees in the same order, with the same id, give the same plans. It does not keep or change t.
// It returns *[erofs.Error] for what an ext4 file system cannot hold, and for trees of more
// than 16 TiB. After an error the image is unchanged, except if the contents of the tree fit
// and its directories do not: then the image cannot be used any more.
func (m *Image) Next(t *geartree.Tree) (*block.Plan, error) {
	s := &step{Image: m, t: t, plan: &block.Plan{}}
	if err := s.check(); err != nil {
		return nil, err
	}
	s.match()
	if err := s.checkRoom(); err != nil {
		return nil, err
	}
	s.retire()
	s.assign()
	s.directories()
	s.attributes()
	s.contents()
	if err := s.resize(); err != nil {
		return nil, err
	}
	s.write()
	return s.plan, nil
}

// step is the transition from one tree to the next.
type step struct {
	*Image
	t     *geartree.Tree
	attrs []attrs  // of each node, as the inode will have them
	names []int32  // how many each node has, other than directories
	ino   []uint32 // the inode of each node
	free  []uint32 // inodes of what is gone, ascending
	dirty []written
	plan  *block.Plan
}

// check returns an error if the file system cannot hold the tree, before anything is
// changed.
func (s *step) check() error {
	nodes := s.t.Nodes
	if err := erofs.Check(nodes); err != nil {
		return err
	}
	s.names = make([]int32, len(nodes))
	for i := range nodes {
		s.names[primary(nodes, i)]++
	}
	s.attrs = make([]attrs, len(nodes))
	for i := range nodes {
		if nodes[i].Link != 0 {
			continue
		}
		if err := s.checkNode(i); err != nil {
			return &erofs.Error{Path: erofs.Path(nodes, i), Err: err}
		}
	}
	return nil
}

func (s *step) checkNode(i int) (err error) {
	n := &s.t.Nodes[i]
	kind := n.Mode & erofs.TypeMask
	switch {
	case n.Sec < MinTime || n.Sec > MaxTime:
		return fmt.Errorf("was last changed %d s after 1970; ext4 has times from %d to %d", n.Sec, int64(MinTime), int64(MaxTime))
	case kind != erofs.Dir && s.names[i] > MaxLinks:
		return fmt.Errorf("has %d names; ext4 has at most %d", s.names[i], MaxLinks)
	case kind == erofs.File && s.t.FileOf[i] < 0:
		return fmt.Errorf("is a file of %d bytes without content", n.Size)
	}
	s.attrs[i], err = layAttrs(n.Xattrs)
	return err
}

// primary returns the node that has the inode of node i.
func primary(nodes []erofs.Node, i int) int32 {
	if to := nodes[i].Link; to != 0 {
		return to
	}
	return int32(i)
}

// retire frees inodes that no node uses any more.
func (s *step) retire() {
	kept := make([]bool, len(s.inodes))
	for _, ino := range s.ino {
		kept[ino] = true
	}
	for ino := uint32(firstInode); int(ino) < len(s.inodes); ino++ {
		in := s.inodes[ino]
		if in == nil || kept[ino] {
			continue
		}
		s.release(in.data)
		s.release(in.tree)
		s.release(in.attrBlock)
		s.inodes[ino] = nil
		s.free = append(s.free, ino)
	}
}

// release frees blocks for good: no later tree uses them.
func (s *step) release(runs []run) {
	for _, r := range runs {
		s.space.mark(r, false)
		for b := r.block; b < r.block+r.n; b++ {
			delete(s.sums, b)
		}
	}
}

// assign gives inodes to new nodes, and sets the properties of all inodes. Directories
// have adjacent inodes, because later trees change their times the most.
func (s *step) assign() {
	nodes := s.t.Nodes
	for _, dirs := range []bool{true, false} {
		for i := range nodes {
			if nodes[i].Link == 0 && s.ino[i] == 0 && (nodes[i].Mode&erofs.TypeMask == erofs.Dir) == dirs {
				s.ino[i] = s.number()
			}
		}
	}
	for i := range nodes {
		if nodes[i].Link != 0 {
			continue
		}
		in := s.inodes[s.ino[i]]
		if in == nil {
			in = &inode{}
			s.inodes[s.ino[i]] = in
		}
		in.node = nodes[i]
		in.node.Name, in.node.Parent = "", 0
		in.attrs = s.attrs[i]
		in.links = uint32(s.names[i])
	}
	for i := range nodes {
		s.ino[i] = s.ino[primary(nodes, i)]
	}
}

// number returns a free inode: an inode that this tree freed, whose block is written
// anyway, or else a new one.
func (s *step) number() uint32 {
	if len(s.free) > 0 {
		ino := s.free[0]
		s.free = s.free[1:]
		return ino
	}
	s.inodes = append(s.inodes, nil)
	return uint32(len(s.inodes) - 1)
}

// attributes allocates the blocks for attributes and for the targets of symbolic links,
// which belong to the file system itself.
func (s *step) attributes() {
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		if n.Link != 0 {
			continue
		}
		in := s.inodes[s.ino[i]]
		in.attrBlock = s.fit(in.attrBlock, min(1, int64(len(in.attrs.block))))
		if n.Mode&erofs.TypeMask == erofs.Symlink {
			need := int64(0)
			if len(n.Target) >= fastTarget {
				need = 1
			}
			in.data = s.fit(in.data, need)
		}
	}
}

// fit makes runs n blocks long. It adds new blocks, or frees the last ones.
func (s *step) fit(runs []run, n int64) []run {
	have := blocksOf(runs)
	if n > have {
		return join(runs, s.space.alloc(n-have))
	}
	for have > n {
		last := &runs[len(runs)-1]
		drop := uint32(min(have-n, int64(last.n)))
		last.n -= drop
		have -= int64(drop)
		s.release([]run{{last.block + last.n, drop}})
		if last.n == 0 {
			runs = runs[:len(runs)-1]
		}
	}
	return runs
}

// contents places the contents of files that are not placed yet.
func (s *step) contents() {
	s.space.fresh()
	for i, file := range s.t.FileOf {
		if file < 0 {
			continue
		}
		f := &s.t.Files[file]
		in := s.inodes[s.ino[i]]
		if in.holds(f) {
			continue
		}
		s.release(in.data)
		in.content, in.size = f.Name, f.Size
		in.data = s.space.alloc((f.Size + blockSize - 1) / blockSize)
		in.tree = s.fit(in.tree, treeBlocks(in.data))
		if f.Size > 0 {
			s.plan.Files = append(s.plan.Files, block.Placed{File: *f, Extents: extents(in.data)})
		}
	}
}

// extents returns runs as extents in bytes.
func extents(runs []run) []block.Extent {
	out := make([]block.Extent, len(runs))
	for i, r := range runs {
		out[i] = block.Extent{Off: int64(r.block) * blockSize, Len: int64(r.n) * blockSize}
	}
	return out
}

// holds reports whether an inode has a content.
func (in *inode) holds(f *gear.File) bool { return in.content == f.Name && in.size == f.Size }
