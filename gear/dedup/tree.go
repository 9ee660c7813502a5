package dedup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear/rootfs"
)

// recording is the list of a layer's entries in compressed form. It takes about 15 bytes
// for each entry, so that all layers of a large registry fit into memory.
type recording []byte

// entry is one entry of a recording. link is set for links, and id for files.
type entry struct {
	kind rootfs.Type
	path string
	link string
	id   uint32
}

type recorder struct{ b []byte }

// add records an entry: its type, its path with length, and its link with length or its
// number.
func (r *recorder) add(e *rootfs.Entry, id uint32) {
	r.b = append(r.b, byte(e.Type))
	r.text(e.Path)
	switch e.Type {
	case rootfs.Symlink, rootfs.HardLink:
		r.text(e.Link)
	case rootfs.File:
		r.b = binary.AppendUvarint(r.b, uint64(id))
	}
}

func (r *recorder) text(s string) {
	r.b = binary.AppendUvarint(r.b, uint64(len(s)))
	r.b = append(r.b, s...)
}

func (r *recorder) finish(enc *zstd.Encoder) recording { return enc.EncodeAll(r.b, nil) }

var errRecording = errors.New("the record of a layer is damaged")

// entries returns what was recorded.
func (r recording) entries(dec *zstd.Decoder) ([]entry, error) {
	b, err := dec.DecodeAll(r, nil)
	if err != nil {
		return nil, fmt.Errorf("read the record of a layer: %w", err)
	}
	var list []entry
	for rest := string(b); rest != ""; {
		e := entry{kind: rootfs.Type(rest[0])}
		ok := false
		if e.path, rest, ok = cutText(rest[1:]); !ok {
			return nil, errRecording
		}
		switch e.kind {
		case rootfs.Symlink, rootfs.HardLink:
			if e.link, rest, ok = cutText(rest); !ok {
				return nil, errRecording
			}
		case rootfs.File:
			var id uint64
			if id, rest, ok = cutNumber(rest); !ok {
				return nil, errRecording
			}
			e.id = uint32(id)
		}
		list = append(list, e)
	}
	return list, nil
}

func cutText(s string) (text, rest string, ok bool) {
	n, rest, ok := cutNumber(s)
	if !ok || n > uint64(len(rest)) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}

func cutNumber(s string) (n uint64, rest string, ok bool) {
	for i := 0; i < len(s) && i < binary.MaxVarintLen64; i++ {
		n |= uint64(s[i]&0x7f) << (7 * i)
		if s[i] < 0x80 {
			return n, s[i+1:], true
		}
	}
	return 0, "", false
}

// tree is an image's file tree.
type tree struct{ root *node }

// node is a file with its number, a symbolic link, a directory, or something else. Only
// directories have children.
type node struct {
	kind     rootfs.Type
	id       uint32
	link     string
	children map[string]*node
}

func newDir() *node { return &node{kind: rootfs.Dir, children: map[string]*node{}} }

func newTree() *tree { return &tree{root: newDir()} }

// apply puts a layer on top of the tree. It first removes what the layer removes. SPEC:
// image-spec layer.md, "Whiteouts": they apply to lower layers only.
func (t *tree) apply(list []entry) {
	for _, e := range list {
		switch e.kind {
		case rootfs.Whiteout:
			dir, base := splitPath(e.path)
			if d := t.walk(dir, false, true); d != nil {
				delete(d.children, base)
			}
		case rootfs.Opaque:
			if d := t.walk(e.path, false, true); d != nil {
				clear(d.children)
			}
		}
	}
	for _, e := range list {
		switch e.kind {
		case rootfs.Whiteout, rootfs.Opaque:
		case rootfs.Dir:
			t.put(e.path, newDir())
		case rootfs.HardLink:
			if target := t.walk(e.link, false, false); target != nil && target.kind != rootfs.Dir {
				t.put(e.path, &node{kind: target.kind, id: target.id, link: target.link})
			}
		default:
			t.put(e.path, &node{kind: e.kind, id: e.id, link: e.link})
		}
	}
}

// put sets the node at a path. A directory that exists already keeps its children.
func (t *tree) put(path string, n *node) {
	dir, base := splitPath(path)
	if base == "." {
		return
	}
	d := t.walk(dir, true, true)
	if d == nil {
		return // below a symbolic link that is part of a loop
	}
	if old := d.children[base]; old != nil && old.kind == rootfs.Dir && n.kind == rootfs.Dir {
		return
	}
	d.children[base] = n
}

func splitPath(path string) (dir, base string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// walk finds a path in the way that a process finds it whose root is the tree. It follows
// symbolic links, and the last one only if follow is set. If create is set, it makes
// missing directories. It returns nil for a path that does not exist.
func (t *tree) walk(path string, create, follow bool) *node {
	const maxLinks = 40 // as Linux
	at := []*node{t.root}
	for links := 0; path != ""; {
		var base string
		base, path, _ = strings.Cut(path, "/")
		switch base {
		case "", ".":
			continue
		case "..":
			at = at[:max(len(at)-1, 1)]
			continue
		}
		dir := at[len(at)-1]
		n := dir.children[base]
		if n != nil && n.kind == rootfs.Symlink && (follow || path != "") {
			if links++; links > maxLinks {
				return nil
			}
			if strings.HasPrefix(n.link, "/") {
				at = at[:1]
			}
			path = n.link + "/" + path
			continue
		}
		if create && (n == nil || n.kind != rootfs.Dir) {
			n = newDir()
			dir.children[base] = n
		}
		if n == nil || n.kind != rootfs.Dir && path != "" {
			return nil
		}
		at = append(at, n)
	}
	return at[len(at)-1]
}

// eachFile calls fn with the number of the file at each path.
func (n *node) eachFile(fn func(id uint32)) {
	if n.kind == rootfs.File {
		fn(n.id)
	}
	for _, c := range n.children {
		c.eachFile(fn)
	}
}
