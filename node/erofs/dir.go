package erofs

import "encoding/binary"

// dirent is an entry of a directory, including "." and "..".
type dirent struct {
	name string
	node int32 // the node that has the inode
}

// dirents appends the entries of a directory in the byte order of their names, by which
// the kernel searches. "." and ".." are sorted like other names: a name such as "-" comes
// before them.
func (p *plan) dirents(dst []dirent, dir int32) []dirent {
	dots := []dirent{{".", dir}, {"..", p.nodes[dir].Parent}}
	if dir == 0 {
		dots[1].node = 0
	}
	for _, c := range p.children[p.first[dir]:p.first[dir+1]] {
		for len(dots) > 0 && dots[0].name < p.nodes[c].Name {
			dst, dots = append(dst, dots[0]), dots[1:]
		}
		dst = append(dst, dirent{p.nodes[c].Name, p.inode(c)})
	}
	return append(dst, dots...)
}

// dirSize returns the length of a directory: whole blocks, and the used part of the last
// one. No entry spans two blocks.
func (p *plan) dirSize(dir int32) int64 {
	blocks, used := int64(0), 0
	add := func(name string) {
		if used+direntSize+len(name) > blockSize {
			blocks++
			used = 0
		}
		used += direntSize + len(name)
	}
	// This counts like dirents, without building a list.
	dots := []string{".", ".."}
	for _, c := range p.children[p.first[dir]:p.first[dir+1]] {
		for len(dots) > 0 && dots[0] < p.nodes[c].Name {
			add(dots[0])
			dots = dots[1:]
		}
		add(p.nodes[c].Name)
	}
	for _, name := range dots {
		add(name)
	}
	return blocks*blockSize + int64(used)
}

// dirBlocks writes the blocks [from, to) of a directory. All but the directory's last
// block have full length.
func (e *encoder) dirBlocks(dir int32, from, to int64) error {
	e.dir = e.dirents(e.dir[:0], dir)
	rest := e.dir
	for block := int64(0); len(rest) > 0 && block < to; block++ {
		n, used := 0, 0
		for n < len(rest) && used+direntSize+len(rest[n].name) <= blockSize {
			used += direntSize + len(rest[n].name)
			n++
		}
		if block >= from {
			if err := e.dirBlock(rest[:n], n < len(rest)); err != nil {
				return err
			}
		}
		rest = rest[n:]
	}
	return nil
}

// dirBlock writes one block. If full is set, it pads the block with zeros.
func (e *encoder) dirBlock(entries []dirent, full bool) error {
	b, le := e.buf[:0], binary.LittleEndian
	off := direntSize * len(entries)
	for _, d := range entries {
		b = le.AppendUint64(b, e.places[d.node].slot)
		b = le.AppendUint16(b, uint16(off))
		b = append(b, direntType(e.nodes[d.node].Mode), 0)
		off += len(d.name)
	}
	for _, d := range entries {
		b = append(b, d.name...)
	}
	if full && len(b) < blockSize {
		b = append(b, make([]byte, blockSize-len(b))...)
	}
	e.buf = b
	return e.write(b)
}

func direntType(mode uint32) byte {
	switch mode & TypeMask {
	case File:
		return 1
	case Dir:
		return 2
	case Char:
		return 3
	case Block:
		return 4
	case Fifo:
		return 5
	case Socket:
		return 6
	default: // a symbolic link: check has refused everything else
		return 7
	}
}
