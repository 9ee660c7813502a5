package gear

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/gear/rootfs"
)

// ErrConflict is returned, wrapped, for a layer that no runtime could unpack: for
// example, a path leads through something that is not a directory, or a hard link leads
// to itself or to a directory.
var ErrConflict = errors.New("layer contradicts itself")

const (
	// maxLinks is how many symbolic links a path may lead through. Linux has the same
	// limit.
	maxLinks = 40
	// stepsFree and stepsEach bound how many names of directories may be looked up behind
	// symbolic links in a layer: stepsFree, and stepsEach for each entry so far. Without
	// a bound a layer of a few megabytes could cost hours.
	stepsFree = 1 << 20
	stepsEach = 16
)

// Builder makes the index of a layer from its entries in the order of the archive. The
// result is the tree that unpacking would leave. A later entry replaces an earlier one,
// and two directories merge. An entry that is not a directory removes what was below its
// path. Symbolic links among the parents of a path are followed if the layer itself made
// them. A hard link to a file that the layer has made so far is another name for that
// file, whatever happens to the file's first name.
//
// Whiteouts affect only the layers below, wherever they are in the archive. A directory
// that replaces a whiteout is opaque.
type Builder struct {
	limits Limits
	nodes  []node
	at     map[string]int32 // the latest node of each path
	files  []File           // in order of first appearance
	fileAt map[Name]int32

	// dir is a directory whose path is known to lead through no symbolic link. It is the
	// last directory that was checked, because the next entry is most often in the same
	// directory.
	dir   string
	walk  []level // for use by resolveDir
	steps int     // names looked up behind symbolic links so far
}

// node is what an entry of the archive made. A node that was replaced stays, because it
// may have other names.
type node struct {
	Entry // File is an index into Builder.files
	// of is the node that this node is another name of, or -1.
	of int32
	// made, whiteout, opaque and cleared are times, counted in entries from 1; 0 means never.
	// Anything made at a path before a directory above it was cleared is gone.
	made, whiteout, opaque, cleared int32
}

// NewBuilder begins a layer. limits bounds the entries added; nil means the defaults.
func NewBuilder(limits *Limits) *Builder {
	return &Builder{limits: limits.orDefault(), at: map[string]int32{}, fileAt: map[Name]int32{}, dir: "."}
}

// Add adds an entry. f is the content of a regular file and is ignored for other entries.
// Errors: ErrConflict, ErrInvalid, ErrTooLarge.
func (b *Builder) Add(e rootfs.Entry, f File) error {
	if err := b.add(e, f); err != nil {
		return fmt.Errorf("entry %q: %w", e.Path, err)
	}
	return nil
}

func (b *Builder) add(e rootfs.Entry, f File) error {
	if len(b.nodes) >= b.limits.Entries {
		return fmt.Errorf("%w: more than %d entries; split the layer or raise gear.max_entries", ErrTooLarge, b.limits.Entries)
	}
	if err := checkAdded(&e, f); err != nil {
		return err
	}
	if e.Path != "." {
		p := e.Path
		dir, err := b.resolveDir(parent(p))
		if err != nil {
			return err
		}
		if dir != parent(p) {
			e.Path = JoinPath(dir, p[strings.LastIndexByte(p, '/')+1:])
			if err := validPath(e.Path); err != nil {
				return fmt.Errorf("%w: symbolic links lead to %q: %w", ErrConflict, e.Path, err)
			}
		}
	}
	if e.Type == rootfs.Whiteout || e.Type == rootfs.Opaque {
		return b.addWhiteout(e)
	}
	n := node{Entry: Entry{Entry: e, File: -1}, of: -1, made: b.now()}
	var old *node
	if i, ok := b.live(e.Path); ok {
		old = &b.nodes[i]
		n.whiteout, n.opaque, n.cleared = old.whiteout, old.opaque, old.cleared
		if old.made > 0 && old.Type == rootfs.Dir && e.Type == rootfs.Dir {
			n.Xattrs = mergeXattrs(old.Xattrs, e.Xattrs)
		}
	}
	switch e.Type {
	case rootfs.File:
		n.File = b.file(f)
	case rootfs.HardLink:
		if err := b.link(&n); err != nil {
			return err
		}
	}
	if e.Type != rootfs.Dir {
		n.cleared, n.opaque = n.made, 0
	}
	b.put(n)
	return nil
}

// checkAdded checks that the caller kept its promises.
func checkAdded(e *rootfs.Entry, f File) error {
	kind, err := e.Type, validPath(e.Path)
	if err == nil && kind == rootfs.HardLink {
		if err = validPath(e.Link); err == nil && e.Link == "." {
			err = errors.New("a hard link to the root")
		}
		// Unlike a hard link of an index, a hard link of an archive has metadata.
		file := *e
		file.Type, file.Link = rootfs.File, ""
		e = &file
	}
	if err == nil {
		err = checkFields(e)
	}
	if err == nil && kind == rootfs.File && (f.Size != e.Size || int64(len(f.Chunks)) != chunksOf(f.Size)) {
		err = fmt.Errorf("has %d bytes, its content %d and %d chunks", e.Size, f.Size, len(f.Chunks))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// now returns the time of the entry being added.
func (b *Builder) now() int32 { return int32(len(b.nodes)) + 1 }

// put makes n the node at its path.
func (b *Builder) put(n node) {
	if n.Type != rootfs.Dir && (n.Path == b.dir || within(b.dir, n.Path)) {
		b.dir = "."
	}
	b.at[n.Path] = int32(len(b.nodes))
	b.nodes = append(b.nodes, n)
}

func (b *Builder) addWhiteout(e rootfs.Entry) error {
	n := node{Entry: Entry{Entry: rootfs.Entry{Path: e.Path}, File: -1}, of: -1}
	i, ok := b.live(e.Path)
	if ok {
		n = b.nodes[i]
		if e.Type == rootfs.Opaque && n.made > 0 && n.Type != rootfs.Dir {
			return fmt.Errorf("%w: it is not a directory", ErrConflict)
		}
	}
	if e.Type == rootfs.Whiteout {
		n.whiteout = b.now()
	} else {
		n.opaque = b.now()
	}
	if !ok {
		b.put(n)
		return nil
	}
	b.nodes[i] = n // it stays valid for its other names
	b.nodes = append(b.nodes, node{of: -1})
	return nil
}

// live returns the latest node of a path, unless it was removed with a directory above
// it. The node may be only a whiteout; its field made is then 0.
func (b *Builder) live(path string) (int32, bool) {
	i, ok := b.at[path]
	if !ok {
		return 0, false
	}
	n := &b.nodes[i]
	last := max(n.made, n.whiteout, n.opaque)
	for dir := parent(path); dir != "."; dir = parent(dir) {
		if d, ok := b.at[dir]; ok && b.nodes[d].cleared > last {
			return 0, false
		}
	}
	return i, true
}

// level is a directory on the way to another one. Anything made in it before the time cleared
// is gone.
type level struct {
	path    string
	cleared int32
}

// resolveDir follows the symbolic links in the path of a directory.
func (b *Builder) resolveDir(dir string) (string, error) {
	if dir == "." || dir == b.dir {
		return dir, nil
	}
	above := append(b.walk[:0], level{path: "."})
	defer func() { b.walk = above }()
	links := 0
	for rest, more := dir, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		if links > 0 {
			b.steps++
		}
		if b.steps > stepsFree+stepsEach*len(b.nodes) || len(above) > maxDepth {
			return "", fmt.Errorf("%w: symbolic links lead through too many directories", ErrConflict)
		}
		up := above[len(above)-1]
		if name == ".." && len(above) > 1 {
			above = above[:len(above)-1]
		}
		if name == "" || name == "." || name == ".." {
			continue
		}
		next := level{cleared: up.cleared}
		if links > 0 {
			next.path = JoinPath(up.path, name)
		} else if next.path = dir; more {
			next.path = dir[:len(dir)-len(rest)-1]
		}
		target, ok := b.descend(&next)
		if !ok {
			above = append(above, next)
			continue
		}
		if target.Type != rootfs.Symlink {
			return "", fmt.Errorf("%w: %q is not a directory", ErrConflict, next.path)
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%w: more than %d symbolic links lead there", ErrConflict, maxLinks)
		}
		if strings.HasPrefix(target.Link, "/") {
			above = above[:1]
		}
		if rest = target.Link + "/" + rest; !more {
			rest, more = target.Link, true
		}
	}
	if links == 0 {
		b.dir = dir
		return dir, nil
	}
	return above[len(above)-1].path, nil
}

// descend reports whether something other than a directory is at a path, and returns its
// node. Otherwise it updates the time of l.
func (b *Builder) descend(l *level) (*node, bool) {
	i, ok := b.at[l.path]
	if !ok {
		return nil, false
	}
	n := &b.nodes[i]
	gone := max(n.made, n.whiteout, n.opaque) < l.cleared
	l.cleared = max(l.cleared, n.cleared)
	if gone || n.made == 0 || n.Type == rootfs.Dir {
		return nil, false
	}
	if n.of >= 0 {
		n = &b.nodes[n.of]
	}
	return n, true
}

// link finds the file that a hard link names.
func (b *Builder) link(n *node) error {
	dir, err := b.resolveDir(parent(n.Link))
	if err != nil {
		return err
	}
	target := JoinPath(dir, n.Link[strings.LastIndexByte(n.Link, '/')+1:])
	if err := validPath(target); err != nil {
		return fmt.Errorf("%w: symbolic links lead to %q: %w", ErrConflict, target, err)
	}
	from := rootfs.Entry{Mode: n.Mode, UID: n.UID, GID: n.GID, Sec: n.Sec, Nsec: n.Nsec, Xattrs: n.Xattrs}
	n.Entry = Entry{Entry: rootfs.Entry{Path: n.Path, Type: rootfs.HardLink, Link: target}, File: -1}
	if target == n.Path {
		return fmt.Errorf("%w: a hard link to itself", ErrConflict)
	}
	i, ok := b.live(target)
	if !ok || b.nodes[i].made == 0 {
		return nil // the target may come later, or be in a layer below
	}
	t := &b.nodes[i]
	switch {
	case t.Type == rootfs.Dir:
		return fmt.Errorf("%w: a hard link to the directory %q", ErrConflict, target)
	case t.Type == rootfs.HardLink && t.of < 0:
		n.Link = t.Link // the target is a name of a file that is not in this layer
		if n.Link == n.Path {
			return fmt.Errorf("%w: a hard link to itself", ErrConflict)
		}
		return nil
	case t.Type == rootfs.HardLink:
		n.of = t.of
	default:
		n.of = i
	}
	// A runtime that changes the new name changes the file.
	t = &b.nodes[n.of]
	t.Mode, t.UID, t.GID, t.Sec, t.Nsec = from.Mode, from.UID, from.GID, from.Sec, from.Nsec
	t.Xattrs = mergeXattrs(t.Xattrs, from.Xattrs)
	return nil
}

// file returns the index of a content in b.files.
func (b *Builder) file(f File) int32 {
	i, ok := b.fileAt[f.Name]
	if !ok {
		i = int32(len(b.files))
		b.fileAt[f.Name] = i
		b.files = append(b.files, f)
	}
	return i
}

// mergeXattrs returns the attributes of old and set. An attribute of set replaces an
// attribute of old with the same name.
func mergeXattrs(old, set []rootfs.Xattr) []rootfs.Xattr {
	switch {
	case len(old) == 0:
		return set
	case len(set) == 0:
		return old
	}
	out := make([]rootfs.Xattr, 0, len(old)+len(set))
	for len(old) > 0 && len(set) > 0 {
		switch c := strings.Compare(old[0].Name, set[0].Name); {
		case c < 0:
			out, old = append(out, old[0]), old[1:]
		default:
			if c == 0 {
				old = old[1:]
			}
			out, set = append(out, set[0]), set[1:]
		}
	}
	return slices.Concat(out, old, set)
}

// Knows reports whether an added file has this content.
func (b *Builder) Knows(n Name) bool {
	_, ok := b.fileAt[n]
	return ok
}
