package gear

import (
	"fmt"
	"slices"

	"example.org/slipway/gear/rootfs"
)

// Index returns the layer in canonical form. The Builder cannot be used
// afterwards. Errors: ErrConflict.
func (b *Builder) Index() (*Index, error) {
	order := b.survivors()
	if err := b.lateLinks(order); err != nil {
		return nil, err
	}
	x := &Index{Entries: make([]Entry, 0, len(order))}
	place := make([]int32, len(b.files)) // position of a file in x.Files, plus 1
	names := map[int32]int32{}           // from a node with several names to its first entry, plus 1
	for i := range b.nodes {
		if of := b.nodes[i].of; of >= 0 {
			names[of] = 0
		}
	}
	for k, i := range order {
		n := &b.nodes[i]
		if n.made == 0 {
			b.whiteoutOnly(x, n, k+1 < len(order) && within(b.nodes[order[k+1]].Path, n.Path))
			continue
		}
		of := i
		if n.of >= 0 {
			of = n.of
		}
		first, several := names[of]
		if several && first > 0 {
			p := &x.Entries[first-1]
			x.Entries = append(x.Entries, Entry{rootfs.Entry{Path: n.Path, Type: rootfs.HardLink, Link: p.Path}, p.File})
			continue
		}
		e := b.nodes[of].Entry
		e.Path = n.Path
		if e.File >= 0 {
			if place[e.File] == 0 {
				x.Files = append(x.Files, b.files[e.File])
				place[e.File] = int32(len(x.Files))
			}
			e.File = place[e.File] - 1
		}
		x.Entries = append(x.Entries, e)
		if several {
			names[of] = int32(len(x.Entries))
		}
		if e.Type == rootfs.Dir && (n.opaque > 0 || n.whiteout > 0) {
			x.Entries = append(x.Entries, opaqueOf(n.Path))
		}
	}
	*b = Builder{}
	return x, nil
}

func opaqueOf(path string) Entry {
	return Entry{rootfs.Entry{Path: path, Type: rootfs.Opaque}, -1}
}

// ImpliedDir returns a directory that no entry describes. Runtimes make such directories
// with mode 0755, owned by root. They choose the time; here it is the epoch.
func ImpliedDir(path string) Entry {
	return Entry{rootfs.Entry{Path: path, Type: rootfs.Dir, Mode: 0o755}, -1}
}

// whiteoutOnly adds the mark for a path that the layer only hides. If there are entries
// below the path nevertheless, it is a new directory.
func (b *Builder) whiteoutOnly(x *Index, n *node, parent bool) {
	switch {
	case n.whiteout > 0 && (parent || n.opaque > 0):
		x.Entries = append(x.Entries, ImpliedDir(n.Path), opaqueOf(n.Path))
	case n.whiteout > 0:
		x.Entries = append(x.Entries, Entry{rootfs.Entry{Path: n.Path, Type: rootfs.Whiteout}, -1})
	default:
		x.Entries = append(x.Entries, opaqueOf(n.Path))
	}
}

// survivors returns the nodes that remain at the end, in canonical order.
func (b *Builder) survivors() []int32 {
	order := make([]int32, 0, len(b.at))
	for _, i := range b.at {
		order = append(order, i)
	}
	slices.Sort(order) // archives are nearly in order, which makes the next line fast
	slices.SortFunc(order, func(i, j int32) int { return ComparePaths(b.nodes[i].Path, b.nodes[j].Path) })
	type dir struct {
		path    string
		cleared int32
	}
	var above []dir
	out := order[:0]
	for _, i := range order {
		n := &b.nodes[i]
		for len(above) > 0 && !within(n.Path, above[len(above)-1].path) {
			above = above[:len(above)-1]
		}
		cleared := int32(0)
		if len(above) > 0 {
			cleared = above[len(above)-1].cleared
		}
		if max(n.made, n.whiteout, n.opaque) < cleared {
			delete(b.at, n.Path)
		} else {
			out = append(out, i)
		}
		if n.Path != "." {
			above = append(above, dir{n.Path, max(n.cleared, cleared)})
		}
	}
	return out
}

// lateLinks resolves the hard links whose targets came after them. By now b.at holds only
// survivors.
func (b *Builder) lateLinks(order []int32) error {
	for _, i := range order {
		n := &b.nodes[i]
		if n.made == 0 || n.Type != rootfs.HardLink || n.of >= 0 {
			continue
		}
		link, of := n.Link, int32(-1)
		for hops := 0; of < 0; hops++ {
			if hops > maxLinks || link == n.Path {
				return fmt.Errorf("entry %q: %w: its hard link leads to itself or through too many", n.Path, ErrConflict)
			}
			t, ok := b.at[link]
			if !ok || b.nodes[t].made == 0 {
				break // in a layer below
			}
			switch target := &b.nodes[t]; {
			case target.Type == rootfs.Dir:
				return fmt.Errorf("entry %q: %w: a hard link to the directory %q", n.Path, ErrConflict, link)
			case target.Type != rootfs.HardLink:
				of = t
			case target.of >= 0:
				of = target.of
			default:
				link = target.Link
			}
		}
		n.Link, n.of = link, of
	}
	return nil
}
