// Package geartree converts a flat Gear index into the nodes of a file system, and says
// which content each file has. The EROFS images of package view and the volumes of
// package block are both built from its trees.
package geartree

import (
	"errors"
	"fmt"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/erofs"
)

// Tree is the flat tree of an image as nodes, each directory before its entries, with the
// content of each file.
type Tree struct {
	// Nodes belongs to the caller, who may change the nodes and their attribute lists.
	// They share only strings with the index.
	Nodes []erofs.Node
	// Files are the contents, as in the index.
	Files []gear.File
	// FileOf holds, for each node, the position in Files of its content. It is -1 if the
	// node is no file or is a further name of an earlier node.
	FileOf []int32
}

// Of returns the tree of an index. The index must describe a whole image
// ([gear.Index.Flat]). A directory that no entry describes gets mode 0755, owner root and
// the epoch as its time. Nothing is escaped. Only the entries that [gear.Mountable] omits
// are omitted. Of does not check that names are unique or that a file system can hold the
// nodes: the writer of the file system checks this. Errors: *[erofs.Error].
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

// openDir is a directory on the path to the last entry.
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

// append appends a node and returns its index.
func (b *builder) append(n erofs.Node, file int32) int32 {
	b.tree.Nodes = append(b.tree.Nodes, n)
	b.tree.FileOf = append(b.tree.FileOf, file)
	return int32(len(b.tree.Nodes) - 1)
}

// undescribed returns a directory for which no layer has an entry.
func undescribed(name string, parent int32) erofs.Node {
	return erofs.Node{Name: name, Parent: parent, Mode: erofs.Dir | 0o755}
}

// add appends the node of an entry. The writer of the tree finds entries that are out of
// order, because their names then occur twice.
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

// parent returns the directory of a path, and creates the directories that no entry
// describes.
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

// node returns the node of an entry, without its place in the tree, and its content.
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
		n.Mode = erofs.Symlink | 0o777 // Linux has no other mode for it
	case rootfs.CharDevice:
		n.Mode |= erofs.Char
	case rootfs.BlockDevice:
		n.Mode |= erofs.Block
	case rootfs.Fifo:
		n.Mode |= erofs.Fifo
	case rootfs.Socket:
		n.Mode |= erofs.Socket
	default:
		return n, -1, errors.New("is a whiteout: the index does not describe a whole tree")
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
