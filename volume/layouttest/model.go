// Package layouttest holds what tests of layouts share: trees that change, plans written to files,
// and what a mounted file system must show.
package layouttest

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
)

// Model is a tree that a test changes step by step. Paths have the form "usr/bin", and "" is the
// root. A test must only request possible changes.
type Model struct{ Root *Item }

// Item is an inode of a Model.
type Item struct {
	erofs.Node
	// Content is the content of a file.
	Content gear.File
	entries map[string]*Item
}

// New returns a tree with only a root.
func New() *Model {
	return &Model{&Item{Node: erofs.Node{Mode: erofs.Dir | 0o755}, entries: map[string]*Item{}}}
}

// At returns the item at a path, or nil.
func (m *Model) At(path string) *Item {
	it := m.Root
	for path != "" && it != nil {
		var name string
		name, path, _ = strings.Cut(path, "/")
		it = it.entries[name]
	}
	return it
}

// Put puts an item at a path and returns it. It makes missing directories, also in the place of
// files. An item that is already somewhere else gets one more name.
func (m *Model) Put(path string, it *Item) *Item {
	dir, name := m.Root, path
	for {
		first, rest, more := strings.Cut(name, "/")
		if !more {
			break
		}
		if next := dir.entries[first]; next == nil || next.entries == nil {
			dir.entries[first] = Dir(0o755)
		}
		dir, name = dir.entries[first], rest
	}
	dir.entries[name] = it
	return it
}

// Remove removes a path and everything below it.
func (m *Model) Remove(path string) {
	dir, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, name = path[:i], path[i+1:]
	}
	delete(m.At(dir).entries, name)
}

// Dir returns an empty directory.
func Dir(mode uint32) *Item {
	return &Item{Node: erofs.Node{Mode: erofs.Dir | mode}, entries: map[string]*Item{}}
}

// File returns a file of size bytes. The bytes differ for each id.
func File(id uint64, size int64) *Item {
	return &Item{Node: erofs.Node{Mode: erofs.File | 0o644, Size: size}, Content: Content(id, size)}
}

// Node returns an item that is neither a file nor a directory.
func Node(n erofs.Node) *Item { return &Item{Node: n} }

// Content returns a content that Fill can fill in.
func Content(id uint64, size int64) gear.File {
	f := gear.File{Size: size}
	binary.LittleEndian.PutUint64(f.Name[:], id)
	binary.LittleEndian.PutUint64(f.Name[8:], uint64(size))
	return f
}

// Contents of more than sparse bytes are zeros except for the first stamp bytes of each stride and
// the last bytes.
const (
	sparse = 1 << 20
	stamp  = 4096
	stride = 64 << 20
)

// stretchesOf calls at for each stretch of a content that is not zeros.
func stretchesOf(f gear.File, at func(off int64, b []byte)) {
	if f.Size == 0 {
		return
	}
	if f.Size <= sparse {
		at(0, fill(f, 0, f.Size))
		return
	}
	for off := int64(0); off < f.Size; off += stride {
		at(off, fill(f, off, min(stamp, f.Size-off)))
	}
	last := (f.Size - 1) / stamp * stamp
	if last%stride != 0 {
		at(last, fill(f, last, f.Size-last))
	}
}

func fill(f gear.File, off, n int64) []byte {
	seed := [32]byte(f.Name)
	binary.LittleEndian.PutUint64(seed[16:], uint64(off))
	b := make([]byte, n)
	rand.NewChaCha8(seed).Read(b)
	return b
}

// Tree returns the current tree with its names in byte order.
func (m *Model) Tree() *geartree.Tree {
	t := &geartree.Tree{}
	places, files := map[*Item]int32{}, map[gear.Name]int32{}
	var add func(name string, parent int32, it *Item)
	add = func(name string, parent int32, it *Item) {
		n, file := it.Node, int32(-1)
		if first, ok := places[it]; ok {
			n = erofs.Node{Link: first}
		} else {
			places[it] = int32(len(t.Nodes))
			n.Xattrs = slices.Clone(n.Xattrs)
			if n.Mode&erofs.TypeMask == erofs.File {
				var ok bool
				if file, ok = files[it.Content.Name]; !ok {
					file = int32(len(t.Files))
					files[it.Content.Name] = file
					t.Files = append(t.Files, it.Content)
				}
			}
		}
		n.Name, n.Parent = name, parent
		self := int32(len(t.Nodes))
		t.Nodes, t.FileOf = append(t.Nodes, n), append(t.FileOf, file)
		if n.Link == 0 {
			for _, name := range slices.Sorted(maps.Keys(it.entries)) {
				add(name, self, it.entries[name])
			}
		}
	}
	add("", 0, m.Root)
	return t
}
