// Package geartree makes the nodes of a file system of a flat Gear index, and
// says which content each file has. What lays trees out begins here: the EROFS
// images of package view, the volumes of package block.
package geartree

import (
	"errors"
	"fmt"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/erofs"
)

// Tree is the flat tree of an image as nodes, each directory before what lies in
// it, and which content each file has.
type Tree struct {
	// Nodes are the caller's to change, with their lists of attributes: they share
	// no more than strings with the index.
	Nodes []erofs.Node
	// Files are the contents, those of the index.
	Files []gear.File
	// FileOf is, for each node, the place in Files of its content; -1 if it is no
	// file or one more name of a node before it.
	FileOf []int32
}

// Of returns the tree of an index, which must be that of a whole one
// ([gear.Index.Flat]). Directories that nothing describes are there with mode
// 0755 of root and the epoch as time. Nothing is escaped, and left out is only what
// [gear.Mountable] leaves out. That names
// differ and that nodes can be in some file system is left to whoever writes
// one. Errors: *[erofs.Error].
func Of(x *gear.Index) (*Tree, error) {
	b := &builder{
		x:      x,
		tree:   &Tree{Files: x.Files, Nodes: make([]erofs.Node, 0, len(x.Entries)+1), FileOf: make([]int32, 0, len(x.Entries)+1)},
		nodeOf: make([]int32, len(x.Entries)),
		path:   []openDir{{name: ""}},
	}
	b.append(undescribed("", 0), -1)
	for i := range x.Entries {
		if err := b.add(i); err != nil {
			return nil, &erofs.Error{Path: x.Entries[i].Path, Err: err}
		}
	}
	return b.tree, nil
}

// openDir is a directory on the way to the last entry.
type openDir struct {
	name string // its whole path and a '/', empty for the root
	node int32
}

type builder struct {
	x      *gear.Index
	tree   *Tree
	nodeOf []int32   // of each entry
	path   []openDir // root first
}

// append appends a node and returns its place.
func (b *builder) append(n erofs.Node, file int32) int32 {
	b.tree.Nodes = append(b.tree.Nodes, n)
	b.tree.FileOf = append(b.tree.FileOf, file)
	return int32(len(b.tree.Nodes) - 1)
}

// undescribed is a directory that no layer has an entry of.
func undescribed(name string, parent int32) erofs.Node {
	return erofs.Node{Name: name, Parent: parent, Mode: erofs.Dir | 0o755}
}

// add appends the node of an entry. What comes out of order is found by whoever
// writes the tree: as a name that is there twice.
func (b *builder) add(i int) error {
	e := &b.x.Entries[i]
	n, file, err := b.node(e)
	if err != nil {
		return err
	}
	if e.Path == "." {
		if e.Type != rootfs.Dir {
			return errors.New("is the root but no directory")
		}
		b.tree.Nodes[0] = n
		return nil
	}
	n.Parent, n.Name = b.parent(e.Path)
	b.nodeOf[i] = b.append(n, file)
	if e.Type == rootfs.Dir {
		b.path = append(b.path, openDir{e.Path + "/", b.nodeOf[i]})
	}
	return nil
}

// parent finds the directory of a path, and makes those that nothing describes.
func (b *builder) parent(path string) (dir int32, name string) {
	for !strings.HasPrefix(path, b.path[len(b.path)-1].name) {
		b.path = b.path[:len(b.path)-1]
	}
	top := b.path[len(b.path)-1]
	rest := path[len(top.name):]
	for {
		seg, below, more := strings.Cut(rest, "/")
		if !more {
			return top.node, seg
		}
		node := b.append(undescribed(seg, top.node), -1)
		top = openDir{path[:len(path)-len(below)], node}
		b.path = append(b.path, top)
		rest = below
	}
}

// node is an entry but for its place, and its content.
func (b *builder) node(e *gear.Entry) (n erofs.Node, file int32, err error) {
	if e.Type == rootfs.HardLink {
		t, ok := b.x.Lookup(e.Link)
		if !ok || b.nodeOf[t] == 0 {
			return n, -1, fmt.Errorf("is a hard link to %q, which is not before it", e.Link)
		}
		return erofs.Node{Link: b.nodeOf[t]}, -1, nil
	}
	xs, major, minor, _ := gear.Mountable(&e.Entry)
	n = erofs.Node{
		Mode: e.Mode, UID: e.UID, GID: e.GID, Sec: e.Sec, Nsec: e.Nsec,
		Size: e.Size, Target: e.Link, Major: major, Minor: minor,
		Xattrs: xattrs(xs),
	}
	switch e.Type {
	case rootfs.Dir:
		n.Mode |= erofs.Dir
	case rootfs.File:
		n.Mode |= erofs.File
		if e.File < 0 || int(e.File) >= len(b.x.Files) || b.x.Files[e.File].Size != e.Size {
			return n, -1, errors.New("is a file without content")
		}
		return n, e.File, nil
	case rootfs.Symlink:
		n.Mode = erofs.Symlink | 0o777 // Linux knows no other
	case rootfs.CharDevice:
		n.Mode |= erofs.Char
	case rootfs.BlockDevice:
		n.Mode |= erofs.Block
	case rootfs.Fifo:
		n.Mode |= erofs.Fifo
	case rootfs.Socket:
		n.Mode |= erofs.Socket
	default:
		return n, -1, errors.New("is a whiteout: the index is not that of a whole tree")
	}
	return n, -1, nil
}

func xattrs(xs []rootfs.Xattr) []erofs.Xattr {
	if len(xs) == 0 {
		return nil
	}
	out := make([]erofs.Xattr, len(xs))
	for i, x := range xs {
		out[i] = erofs.Xattr{Name: x.Name, Value: x.Value}
	}
	return out
}
