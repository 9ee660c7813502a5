package export

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// exportPlan is an index sorted into the steps of an export. Its entries point into the index.
type exportPlan struct {
	// dirs holds all directories, parents before their children.
	dirs []*gear.Entry
	// contents holds the regular files that have content, grouped by content, in the
	// order of first appearance, in which they are stored.
	contents []content
	// nodes holds symbolic links, devices, fifos, sockets and empty files.
	nodes []*gear.Entry
	// links holds the hard links; none of them points to another.
	links []*gear.Entry

	files          int
	bytes, toFetch int64
}

// content is what one or more regular files hold.
type content struct {
	file    *gear.File
	entries []*gear.Entry
}

// planExport checks an index and sorts it. It trusts nothing: an index may come from
// elsewhere, and a name in it must not lead out of the tree.
func planExport(x *gear.Index) (*exportPlan, error) {
	p := &exportPlan{}
	byPath := make(map[string]*gear.Entry, len(x.Entries))
	byFile := make([]int, len(x.Files)) // position in contents, plus 1
	for i := range x.Entries {
		e := &x.Entries[i]
		if err := checkPath(e.Path); err != nil {
			return nil, err
		}
		if byPath[e.Path] != nil {
			return nil, fmt.Errorf("%q is in the index twice", e.Path)
		}
		byPath[e.Path] = e
		switch e.Type {
		case rootfs.Dir:
			p.dirs = append(p.dirs, e)
		case rootfs.File:
			if err := p.addFile(x, e, byFile); err != nil {
				return nil, fmt.Errorf("file %q: %w", e.Path, err)
			}
		case rootfs.HardLink:
			p.links = append(p.links, e)
		case rootfs.Symlink, rootfs.CharDevice, rootfs.BlockDevice, rootfs.Fifo, rootfs.Socket:
			p.nodes = append(p.nodes, e)
		case rootfs.Whiteout, rootfs.Opaque:
			return nil, fmt.Errorf("%q is a whiteout: the index is of a layer, not of a flattened tree", e.Path)
		default:
			return nil, fmt.Errorf("%q has the unknown type %d", e.Path, e.Type)
		}
	}
	if err := p.addParents(x, byPath); err != nil {
		return nil, err
	}
	for _, e := range p.links {
		if t := byPath[e.Link]; t == nil || !gear.Linkable(t.Type) {
			return nil, fmt.Errorf("hard link %q to %q, which is not there, a directory or a link itself", e.Path, e.Link)
		}
	}
	return p, nil
}

// checkPath returns an error unless a path has the form that rootfs.Entry promises.
func checkPath(path string) error {
	clean, err := rootfs.CleanPath(path)
	if err != nil {
		return fmt.Errorf("path %q: %w", path, err)
	}
	if clean != path {
		return fmt.Errorf("path %q is not clean", path)
	}
	return nil
}

func (p *exportPlan) addFile(x *gear.Index, e *gear.Entry, byFile []int) error {
	if e.File < 0 || int(e.File) >= len(x.Files) {
		return fmt.Errorf("content %d is not in the table of %d", e.File, len(x.Files))
	}
	f := &x.Files[e.File]
	if f.Size < 0 || f.Size != e.Size {
		return fmt.Errorf("has %d bytes, its content %d", e.Size, f.Size)
	}
	if len(f.Chunks) > 0 && int64(len(f.Chunks)) != (f.Size+gear.ChunkSize-1)/gear.ChunkSize {
		return fmt.Errorf("content of %d bytes has %d chunks", f.Size, len(f.Chunks))
	}
	p.files++
	p.bytes += f.Size
	if f.Size == 0 {
		if f.Name != gear.Empty().Name {
			return errors.New("is empty, but not its name")
		}
		p.nodes = append(p.nodes, e)
		return nil
	}
	if byFile[e.File] == 0 {
		p.toFetch += f.Size
		p.contents = append(p.contents, content{file: f})
		byFile[e.File] = len(p.contents)
	}
	c := &p.contents[byFile[e.File]-1]
	c.entries = append(c.entries, e)
	return nil
}

// addParents adds the directories that are needed but not named, and sorts all directories.
func (p *exportPlan) addParents(x *gear.Index, byPath map[string]*gear.Entry) error {
	implied := map[string]bool{}
	for i := range x.Entries {
		path := x.Entries[i].Path
		for {
			cut := strings.LastIndexByte(path, '/')
			if cut < 0 {
				break
			}
			path = path[:cut]
			if e := byPath[path]; e != nil {
				if e.Type != rootfs.Dir {
					return fmt.Errorf("%q lies in %q, which is not a directory", x.Entries[i].Path, path)
				}
				break // the directory's own parents are checked in another iteration
			}
			if implied[path] {
				break
			}
			implied[path] = true
			d := gear.ImpliedDir(path)
			p.dirs = append(p.dirs, &d)
		}
	}
	if root := byPath["."]; root != nil && root.Type != rootfs.Dir {
		return errors.New("the root is not a directory")
	}
	slices.SortFunc(p.dirs, func(a, b *gear.Entry) int { return gear.ComparePaths(a.Path, b.Path) })
	return nil
}

// batches splits the contents into batches, one for each Fetch.
func (p *exportPlan) batches() [][]content {
	var out [][]content
	start, size := 0, int64(0)
	for i, c := range p.contents {
		if i > start && (size+c.file.Size > batchBytes || i-start == batchFiles) {
			out = append(out, p.contents[start:i])
			start, size = i, 0
		}
		size += c.file.Size
	}
	if start < len(p.contents) {
		out = append(out, p.contents[start:])
	}
	return out
}
