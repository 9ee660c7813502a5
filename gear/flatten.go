package gear

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/gear/rootfs"
)

// Flatten merges layers, the lowest first, into the tree that an overlay of them shows.
// Whiteouts and opaque directories hide what is below them and are not in the result.
// Directories that no entry describes are added, with the properties that the nearest
// layer below gives them, or else mode 0755, root as owner and the epoch as time. Names
// of one file remain names of one file across layers. If the first name is hidden, the
// next name becomes the file. The root is described if a layer describes it.
//
// The layers must be in canonical form, as Decode and Builder return them. Flatten
// returns ErrConflict for a hard link to something that no layer below has, and
// ErrInvalid for layers that contradict each other about a file.
//
// The time it takes is proportional to the number of entries and to the number of layers
// that hold each directory. It needs memory for the result and for the names of its
// files.
func Flatten(layers ...*Index) (*Index, error) {
	m := &merger{layers: layers, pos: make([]int, len(layers)), places: make([][]int32, len(layers))}
	entries, files := 0, 0
	for i, x := range layers {
		entries, files = entries+len(x.Entries), files+len(x.Files)
		m.places[i] = make([]int32, len(x.Files))
	}
	m.names = make(map[Name]int32, files) // growing it would take as much again
	m.out = &Index{Entries: make([]Entry, 0, entries+entries/16), Files: make([]File, 0, files)}
	// Without this limit, a small layer with deep paths and no entries for their
	// directories could give a large result.
	m.most = 4*entries + 4096
	m.resolveLinks()
	active := m.root()
	if err := m.dir("", active); err != nil {
		return nil, fmt.Errorf("flatten: %w", err)
	}
	if m.odd != nil {
		return nil, fmt.Errorf("flatten: %w", m.odd)
	}
	return m.out, nil
}

// inodeRef refers to the entry of a layer that stands for a file.
type inodeRef struct{ layer, entry int32 }

type merger struct {
	layers []*Index
	pos    []int     // index of the next entry of each layer
	places [][]int32 // for each file of each layer: its position in the result, plus 1
	names  map[Name]int32
	out    *Index
	most   int   // maximum number of entries in the result
	odd    error // about files on which layers contradict each other
	stack  []int // holds lists of layers, one on top of the other

	linkTo map[inodeRef]inodeRef // the file that each hard link is a name of
	first  map[inodeRef]int32    // for a file with several names: its first entry in the result, plus 1
}

// root adds the root to the result and returns the layers that are visible below it.
func (m *merger) root() []int {
	described := false
	bottom := 0
	for i := len(m.layers) - 1; i >= 0; i-- {
		for _, e := range m.layers[i].Entries {
			if e.Path != "." {
				break
			}
			m.pos[i]++
			switch {
			case e.Type == rootfs.Opaque:
				bottom = max(bottom, i)
			case !described:
				described = true
				m.out.Entries = append(m.out.Entries, e)
			}
		}
	}
	for i := bottom; i < len(m.layers); i++ {
		m.stack = append(m.stack, i)
	}
	return m.stack
}

// dir merges what is below a directory in the layers of active, the lowest first. "" is
// the root. Before the call, the position of each layer is at the first entry below the
// directory, and afterwards behind the last one.
func (m *merger) dir(path string, active []int) error {
	base := 0
	if path != "" {
		base = len(path) + 1
	}
	for {
		name, child := "", ""
		n := 0
		for _, i := range active {
			x := m.layers[i]
			if m.pos[i] >= len(x.Entries) {
				continue
			}
			p := x.Entries[m.pos[i]].Path
			if path != "" && !within(p, path) {
				continue
			}
			active[n] = i // the other layers have nothing more here
			n++
			end := len(p)
			if k := strings.IndexByte(p[base:], '/'); k >= 0 {
				end = base + k
			}
			if child == "" || p[base:end] < name {
				name, child = p[base:end], p[:end]
			}
		}
		active = active[:n]
		if n == 0 {
			return nil
		}
		if err := m.node(child, active); err != nil {
			return err
		}
	}
}

// found is what the layers say about one path, collected from the top.
type found struct {
	layer, entry int  // what describes it
	described    bool // whether anything does
	dir          bool // it is a directory
	closed       bool // lower layers are hidden below the path
	done         bool // lower layers no longer matter
}

// node merges one path and what is below it.
func (m *merger) node(path string, active []int) error {
	var f found
	base := len(m.stack)
	for k := len(active) - 1; k >= 0; k-- {
		i := active[k]
		x := m.layers[i]
		at := x.Entries[m.pos[i]].Path
		if at != path && !within(at, path) {
			continue
		}
		open := !f.done && !f.closed
		if f.done {
			m.skip(i, path)
			continue
		}
		m.look(&f, i, path)
		if open && f.dir && m.pos[i] < len(x.Entries) && within(x.Entries[m.pos[i]].Path, path) {
			m.stack = append(m.stack, i)
		} else {
			m.skip(i, path)
		}
	}
	below := m.stack[base:]
	slices.Reverse(below)
	if f.described {
		if err := m.emit(path, inodeRef{int32(f.layer), int32(f.entry)}); err != nil {
			return err
		}
	} else if f.dir {
		m.out.Entries = append(m.out.Entries, ImpliedDir(path))
	}
	if len(m.out.Entries) > m.most {
		return fmt.Errorf("%w: it has more than %d entries, most of them directories nothing describes", ErrTooLarge, m.most)
	}
	if !f.dir {
		return nil
	}
	err := m.dir(path, below)
	m.stack = m.stack[:base]
	return err
}

// look takes into account what layer i says about a path, and moves past it.
func (m *merger) look(f *found, i int, path string) {
	x := m.layers[i]
	e := &x.Entries[m.pos[i]]
	switch {
	case e.Path != path: // a directory that is implied by a path in it
		f.dir = true
		return
	case e.Type == rootfs.Whiteout:
		f.done = true
	case e.Type == rootfs.Dir:
		f.dir = true
		if !f.described {
			f.described, f.layer, f.entry = true, i, m.pos[i]
		}
	case e.Type == rootfs.Opaque:
		f.dir, f.closed = true, true
	default:
		f.done = true
		if !f.dir {
			f.described, f.layer, f.entry = true, i, m.pos[i]
		}
	}
	m.pos[i]++
	if m.pos[i] < len(x.Entries) && x.Entries[m.pos[i]].Path == path { // the Opaque of a directory
		f.closed = true
		m.pos[i]++
	}
	f.done = f.done || f.closed && f.described
}

// skip moves layer i past a path and everything below it.
func (m *merger) skip(i int, path string) {
	x := m.layers[i]
	for m.pos[i] < len(x.Entries) && (x.Entries[m.pos[i]].Path == path || within(x.Entries[m.pos[i]].Path, path)) {
		m.pos[i]++
	}
}

// emit appends an entry of a layer to the result.
func (m *merger) emit(path string, from inodeRef) error {
	e := &m.layers[from.layer].Entries[from.entry]
	if e.Type == rootfs.HardLink {
		to, ok := m.linkTo[from]
		if !ok {
			return fmt.Errorf("%w: %q is a hard link to %q, which no layer below has", ErrConflict, path, e.Link)
		}
		from = to
		e = &m.layers[from.layer].Entries[from.entry]
	}
	first, several := m.first[from]
	if several && first > 0 {
		p := &m.out.Entries[first-1]
		m.out.Entries = append(m.out.Entries, Entry{rootfs.Entry{Path: path, Type: rootfs.HardLink, Link: p.Path}, p.File})
		return nil
	}
	out := *e
	out.Path = path
	if e.File >= 0 {
		out.File = m.file(from.layer, e.File)
	}
	m.out.Entries = append(m.out.Entries, out)
	if several {
		m.first[from] = int32(len(m.out.Entries))
	}
	return nil
}

// file returns the position in the result of a file of a layer.
func (m *merger) file(layer, file int32) int32 {
	place := &m.places[layer][file]
	if *place == 0 {
		f := &m.layers[layer].Files[file]
		i, ok := m.names[f.Name]
		if ok {
			if first := &m.out.Files[i]; first.Size != f.Size || !slices.Equal(first.Chunks, f.Chunks) {
				m.odd = cmp.Or(m.odd, fmt.Errorf("%w: layers say different things of the size or the chunks of file %x", ErrInvalid, f.Name))
			}
		} else {
			i = int32(len(m.out.Files))
			m.names[f.Name] = i
			m.out.Files = append(m.out.Files, *f)
		}
		*place = i + 1
	}
	return *place - 1
}

// resolveLinks finds the files that hard links name. It goes from the lowest layer up, so
// that a link to a link below is resolved already.
func (m *merger) resolveLinks() {
	m.linkTo, m.first = map[inodeRef]inodeRef{}, map[inodeRef]int32{}
	for i, x := range m.layers {
		for k := range x.Entries {
			e := &x.Entries[k]
			if e.Type != rootfs.HardLink {
				continue
			}
			var to inodeRef
			if t, ok := x.target(e.Link); ok {
				to = inodeRef{int32(i), int32(t)}
			} else if to, ok = m.find(i, e.Link); !ok {
				continue // it becomes an error if the link is visible
			}
			m.linkTo[inodeRef{int32(i), int32(k)}] = to
			m.first[to] = 0
		}
	}
}

// find returns the file that the layers below layer n together show at a path.
func (m *merger) find(n int, path string) (inodeRef, bool) {
	for i := n - 1; i >= 0; i-- {
		x := m.layers[i]
		k, ok := x.Lookup(path)
		if ok {
			at := inodeRef{int32(i), int32(k)}
			switch x.Entries[k].Type {
			case rootfs.Dir, rootfs.Opaque, rootfs.Whiteout:
				return inodeRef{}, false
			case rootfs.HardLink:
				at, ok = m.linkTo[at]
			}
			return at, ok
		}
		if k < len(x.Entries) && within(x.Entries[k].Path, path) || x.hides(path) {
			return inodeRef{}, false
		}
	}
	return inodeRef{}, false
}

// hides reports whether the entries above a path hide it in lower layers.
func (x *Index) hides(path string) bool {
	for dir := path; dir != "."; {
		dir = parent(dir)
		k, ok := x.Lookup(dir)
		if !ok {
			continue
		}
		if x.Entries[k].Type != rootfs.Dir || k+1 < len(x.Entries) && x.Entries[k+1].Path == dir {
			return true // an Opaque, a whiteout or something that is not a directory
		}
	}
	return false
}
