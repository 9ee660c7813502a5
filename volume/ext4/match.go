package ext4

import (
	"example.org/slipway/gear"
	"example.org/slipway/node/erofs"
)

// match finds the inodes that stay. It sets the inode of each node that had one in the
// previous tree, and 0 for the others.
func (s *step) match() {
	s.ino = make([]uint32, len(s.t.Nodes))
	claimed := make([]bool, len(s.inodes))
	s.matchDirs()
	// A name that was a link to another file, and is now a separate file, must not take
	// the other file's inode. So names that keep their content come first.
	s.matchNames(claimed, true)
	s.matchNames(claimed, false)
	s.matchContents(claimed)
}

// matchDirs matches directories by path.
func (s *step) matchDirs() {
	s.ino[0] = rootInode
	for i := 1; i < len(s.t.Nodes); i++ {
		n := &s.t.Nodes[i]
		if n.Link != 0 || n.Mode&erofs.TypeMask != erofs.Dir {
			continue
		}
		ino := s.before(i)
		if ino != 0 && s.inodes[ino].dir != nil {
			s.ino[i] = ino
		}
	}
}

// before returns the inode that the previous tree has under a node's path, or 0 if there
// is none. Directories must have been matched.
func (s *step) before(i int) uint32 {
	n := &s.t.Nodes[i]
	dir := s.ino[n.Parent]
	if dir == 0 || s.inodes[dir] == nil {
		return 0
	}
	return s.inodes[dir].dir.names[n.Name].ino
}

// matchNames matches nodes other than directories by name. If same is set, it requires
// the same content, else only the same type.
func (s *step) matchNames(claimed []bool, same bool) {
	nodes := s.t.Nodes
	for i := 1; i < len(nodes); i++ {
		p := primary(nodes, i)
		if s.ino[p] != 0 || nodes[p].Mode&erofs.TypeMask == erofs.Dir {
			continue
		}
		ino := s.before(i)
		if ino == 0 || claimed[ino] {
			continue
		}
		in := s.inodes[ino]
		if in.node.Mode&erofs.TypeMask != nodes[p].Mode&erofs.TypeMask {
			continue
		}
		if file := s.t.FileOf[p]; same && file >= 0 && !in.holds(&s.t.Files[file]) {
			continue
		}
		s.ino[p], claimed[ino] = ino, true
	}
}

// matchContents matches files that have no inode yet with removed files of the same
// content: they were moved.
func (s *step) matchContents(claimed []bool) {
	gone := map[gear.Name][]uint32{}
	for ino := firstInode; ino < len(s.inodes); ino++ {
		in := s.inodes[ino]
		if in != nil && !claimed[ino] && in.size > 0 && in.node.Mode&erofs.TypeMask == erofs.File {
			gone[in.content] = append(gone[in.content], uint32(ino))
		}
	}
	if len(gone) == 0 {
		return
	}
	for i, file := range s.t.FileOf {
		if file < 0 || s.ino[i] != 0 || s.t.Files[file].Size == 0 {
			continue
		}
		name := s.t.Files[file].Name
		if inos := gone[name]; len(inos) > 0 {
			s.ino[i], gone[name] = inos[0], inos[1:]
		}
	}
}
