package view

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
)

// These are the prefixes of attributes that control overlayfs, and of the attributes that
// replace them if an image has them. An overlay inside a container sees the replacements
// under the original names.
const (
	marks        = "trusted.overlay."
	escapedMarks = "trusted.overlay.overlay."
	userMarks    = "user.overlay."

	metacopy = marks + "metacopy"
	redirect = marks + "redirect"

	// redirectLen is the length in bytes of a path "/ab/cdef...".
	redirectLen = 2 + 2*len(gear.Name{})
)

// ObjectPath returns the path of a content in a data-only layer: "ab/cdef...", 2 and 62
// digits.
func ObjectPath(name gear.Name) string {
	digits := hex.EncodeToString(name[:])
	return digits[:2] + "/" + digits[2:]
}

// tree returns the nodes of a flat index, with the attributes that overlayfs needs. It
// escapes the image's own attributes that would control overlayfs.
func tree(ctx context.Context, x *gear.Index) ([]erofs.Node, error) {
	t, err := geartree.Of(x)
	if err != nil {
		return nil, err
	}
	data := redirects(x.Files)
	for i := range t.Nodes {
		if i%4096 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		n := &t.Nodes[i]
		n.Xattrs = escape(n.Xattrs)
		if file := t.FileOf[i]; file >= 0 && n.Size > 0 {
			n.Xattrs = join(n.Xattrs, data[2*file:2*file+2:2*file+2])
		}
		if isWhiteout(n) {
			n.Mode = erofs.File | n.Mode&^erofs.TypeMask
			mark(n, erofs.Xattr{Name: escapedMarks + "whiteout"}, erofs.Xattr{Name: userMarks + "whiteout"})
			markWhiteouts(&t.Nodes[n.Parent])
		}
	}
	return t.Nodes, nil
}

// Fits returns why a flat index cannot be compiled and mounted, or nil.
func Fits(ctx context.Context, x *gear.Index) error {
	nodes, err := tree(ctx, x)
	if err != nil {
		return err
	}
	return erofs.Check(nodes)
}

// redirects returns the two attributes of each content. All files with the content share
// them.
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

// isWhiteout reports whether overlayfs would take a node for a whiteout. In an archive
// such a node is an ordinary device. It becomes an empty file that only an overlay inside
// the container takes for a whiteout.
func isWhiteout(n *erofs.Node) bool {
	return n.Link == 0 && n.Mode&erofs.TypeMask == erofs.Char && n.Major == 0 && n.Minor == 0
}

// markWhiteouts gives a directory the attributes that make an overlay inside the
// container look for such empty files in the directory. It does not replace attributes of
// the image.
func markWhiteouts(n *erofs.Node) {
	mark(n,
		erofs.Xattr{Name: escapedMarks + "whiteouts"}, // Linux 6.7
		erofs.Xattr{Name: escapedMarks + "opaque", Value: "x"},
		erofs.Xattr{Name: userMarks + "whiteouts"},
		erofs.Xattr{Name: userMarks + "opaque", Value: "x"})
}

// mark adds the attributes that a node does not have yet.
func mark(n *erofs.Node, xs ...erofs.Xattr) {
	for _, x := range xs {
		if !slices.ContainsFunc(n.Xattrs, func(old erofs.Xattr) bool { return old.Name == x.Name }) {
			n.Xattrs = join(n.Xattrs, []erofs.Xattr{x})
		}
	}
}

// escape renames the attributes that would control the overlay. It omits an attribute
// whose new name is too long, because no overlay uses an attribute with such a name.
func escape(xs []erofs.Xattr) []erofs.Xattr {
	for i, x := range xs {
		if rest, ok := strings.CutPrefix(x.Name, marks); ok {
			xs[i].Name = escapedMarks + rest
		}
	}
	return slices.DeleteFunc(xs, func(x erofs.Xattr) bool { return len(x.Name) > erofs.MaxName })
}

// join is like append, for slices that may be shared.
func join(a, b []erofs.Xattr) []erofs.Xattr {
	if len(a) == 0 {
		return b
	}
	return append(a[:len(a):len(a)], b...)
}
