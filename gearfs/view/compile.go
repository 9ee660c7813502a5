package view

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"example.org/slipway/erofs"
	"example.org/slipway/gear"
	"example.org/slipway/rootfs"
)

// Attributes that steer overlayfs, and those that take their place where an
// image has them: an overlay inside a container sees the latter by the names of
// the former.
const (
	marks        = "trusted.overlay."
	escapedMarks = "trusted.overlay.overlay."
	userMarks    = "user.overlay."

	metacopy = marks + "metacopy"
	redirect = marks + "redirect"

	// redirectLen is the length in bytes of "/ab/cdef...".
	redirectLen = 2 + 2*len(gear.Name{})
)

// ObjectPath is where a content lies in a data-only layer: "ab/cdef...", 2 and
// 62 digits.
func ObjectPath(name gear.Name) string {
	digits := hex.EncodeToString(name[:])
	return digits[:2] + "/" + digits[2:]
}

// tree makes the nodes of a flat index: what overlayfs must find, escaped where
// the image's own attributes would steer it.
func tree(ctx context.Context, x *gear.Index) ([]erofs.Node, error) {
	c := &compiler{
		x:      x,
		nodes:  make([]erofs.Node, 1, len(x.Entries)+1),
		nodeOf: make([]int32, len(x.Entries)),
		path:   []openDir{{name: ""}},
		data:   redirects(x.Files),
	}
	c.nodes[0] = erofs.Node{Mode: erofs.Dir | 0o755}
	for i := range x.Entries {
		if i%4096 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := c.add(i); err != nil {
			return nil, fmt.Errorf("%q %w", x.Entries[i].Path, err)
		}
	}
	return c.nodes, nil
}

// redirects are the two attributes of each content, which all its files share.
func redirects(files []gear.File) []erofs.Xattr {
	text := make([]byte, 0, len(files)*redirectLen)
	for i := range files {
		text = append(text, '/')
		text = hex.AppendEncode(text, files[i].Name[:1])
		text = append(text, '/')
		text = hex.AppendEncode(text, files[i].Name[1:])
	}
	all := string(text)
	xs := make([]erofs.Xattr, 0, 2*len(files))
	for range files {
		xs = append(xs, erofs.Xattr{Name: metacopy}, erofs.Xattr{Name: redirect, Value: all[:redirectLen]})
		all = all[redirectLen:]
	}
	return xs
}

// openDir is a directory on the way to the last entry.
type openDir struct {
	name string // its whole path and a '/', empty for the root
	node int32
}

type compiler struct {
	x      *gear.Index
	nodes  []erofs.Node
	nodeOf []int32       // of each entry
	path   []openDir     // root first
	data   []erofs.Xattr // two for each content
}

// add appends the node of an entry. What comes out of order is found by the
// writer of the image: as a name that is there twice.
func (c *compiler) add(i int) error {
	e := &c.x.Entries[i]
	n, err := c.node(e)
	if err != nil {
		return err
	}
	if e.Path == "." {
		if e.Type != rootfs.Dir {
			return errors.New("is the root but no directory")
		}
		n.Xattrs = append(n.Xattrs, c.nodes[0].Xattrs...)
		c.nodes[0] = n
		return nil
	}
	n.Parent, n.Name = c.parent(e.Path)
	c.nodeOf[i] = int32(len(c.nodes))
	if e.Type == rootfs.Dir {
		c.path = append(c.path, openDir{e.Path + "/", c.nodeOf[i]})
	}
	c.nodes = append(c.nodes, n)
	if isWhiteout(e) {
		c.markWhiteouts(n.Parent)
	}
	return nil
}

// parent finds the directory of a path, and makes those that nothing describes.
func (c *compiler) parent(path string) (dir int32, name string) {
	for !strings.HasPrefix(path, c.path[len(c.path)-1].name) {
		c.path = c.path[:len(c.path)-1]
	}
	top := c.path[len(c.path)-1]
	rest := path[len(top.name):]
	for {
		seg, below, more := strings.Cut(rest, "/")
		if !more {
			return top.node, seg
		}
		c.nodes = append(c.nodes, erofs.Node{Name: seg, Parent: top.node, Mode: erofs.Dir | 0o755})
		top = openDir{path[:len(path)-len(below)], int32(len(c.nodes) - 1)}
		c.path = append(c.path, top)
		rest = below
	}
}

// node is an entry but for its place.
func (c *compiler) node(e *gear.Entry) (erofs.Node, error) {
	if e.Type == rootfs.HardLink {
		t, ok := c.x.Lookup(e.Link)
		if !ok || c.nodeOf[t] == 0 {
			return erofs.Node{}, fmt.Errorf("is a hard link to %q, which is not before it", e.Link)
		}
		return erofs.Node{Link: c.nodeOf[t]}, nil
	}
	n := erofs.Node{
		Mode: e.Mode, UID: e.UID, GID: e.GID, Sec: e.Sec, Nsec: e.Nsec,
		Size: e.Size, Target: e.Link, Major: e.Major, Minor: e.Minor,
		Xattrs: escape(e.Xattrs),
	}
	switch e.Type {
	case rootfs.Dir:
		n.Mode |= erofs.Dir
	case rootfs.File:
		n.Mode |= erofs.File
		if e.File < 0 || int(e.File) >= len(c.x.Files) || c.x.Files[e.File].Size != e.Size {
			return n, errors.New("is a file without content")
		}
		if e.Size > 0 {
			n.Xattrs = join(n.Xattrs, c.data[2*e.File:2*e.File+2:2*e.File+2])
		}
	case rootfs.Symlink:
		n.Mode = erofs.Symlink | 0o777 // Linux knows no other
	case rootfs.CharDevice:
		n.Mode |= erofs.Char
		if isWhiteout(e) {
			n.Mode = erofs.File | e.Mode
			n.Xattrs = join(n.Xattrs, []erofs.Xattr{{Name: escapedMarks + "whiteout"}, {Name: userMarks + "whiteout"}})
		}
	case rootfs.BlockDevice:
		n.Mode |= erofs.Block
	case rootfs.Fifo:
		n.Mode |= erofs.Fifo
	case rootfs.Socket:
		n.Mode |= erofs.Socket
	default:
		return n, errors.New("is a whiteout: the index is not that of a whole tree")
	}
	return n, nil
}

// isWhiteout tells whether an entry is what overlayfs takes for a whiteout. In
// an archive it is a device like any other. It becomes an empty file that an
// overlay inside the container takes for a whiteout, and nobody else.
func isWhiteout(e *gear.Entry) bool {
	return e.Type == rootfs.CharDevice && e.Major == 0 && e.Minor == 0
}

// markWhiteouts gives a directory the attributes that make an overlay inside
// the container look for such files in it, unless the image says otherwise.
func (c *compiler) markWhiteouts(dir int32) {
	n := &c.nodes[dir]
	for _, x := range []erofs.Xattr{
		{Name: escapedMarks + "whiteouts"}, // Linux 6.7
		{Name: escapedMarks + "opaque", Value: "x"},
		{Name: userMarks + "whiteouts"},
		{Name: userMarks + "opaque", Value: "x"},
	} {
		has := false
		for _, old := range n.Xattrs {
			has = has || old.Name == x.Name
		}
		if !has {
			n.Xattrs = join(n.Xattrs, []erofs.Xattr{x})
		}
	}
}

// escape renames the attributes that would steer the overlay.
func escape(xs []rootfs.Xattr) []erofs.Xattr {
	if len(xs) == 0 {
		return nil
	}
	out := make([]erofs.Xattr, len(xs), len(xs)+2)
	for i, x := range xs {
		out[i] = erofs.Xattr{Name: x.Name, Value: x.Value}
		if rest, ok := strings.CutPrefix(x.Name, marks); ok {
			out[i].Name = escapedMarks + rest
		}
	}
	return out
}

// join is append for lists that may be shared.
func join(a, b []erofs.Xattr) []erofs.Xattr {
	if len(a) == 0 {
		return b
	}
	return append(a[:len(a):len(a)], b...)
}
