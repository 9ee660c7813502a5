package images

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
	"unsafe"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
)

// fileTree holds the files of an image, with sums. Only cost, profiles and shares ever
// change.
type fileTree struct {
	key    string
	layers []oci.Digest
	x      *gear.Index
	// first is the place of the first entry that is not the root. end is, for each entry,
	// the place after the last entry below it. layer is the layer that an entry comes
	// from, or -1.
	first int
	end   []int32
	layer []int16
	// bytes and files are sums over the entries before each entry. Hard links do not
	// count.
	bytes []int64
	files []int32
	// largest holds the places of the largest files.
	largest []int32
	// perLayer holds how many bytes and files of the tree come from each layer.
	perLayer []fileSum
	// cost is about how many bytes of memory the tree takes, with its profiles. While the
	// tree is kept, the mutex of trees guards it.
	cost int64

	mu       sync.Mutex
	profiles map[string]*profile  // by repository and manifest
	shares   map[string]*shareSum // by repository and image; the repository "" stands for all
}

// fileSum is a number of files and the sum of their bytes.
type fileSum struct {
	Files int
	Bytes int64
}

const (
	largestFiles = 10
	// maxKept is how many profiles and shares a tree keeps: one for each repository in
	// which it is viewed.
	maxKept = 16
	// checkEvery is how many entries are processed between two checks whether anybody
	// still waits for the page.
	checkEvery = 4096
)

// indexBytes returns how many bytes of memory an index takes: its tables, and the texts
// and chunks that the tables refer to. Texts and chunks were read in a few pieces, and
// each piece lives as long as any part of it is used.
func indexBytes(x *gear.Index) (tables, texts int64) {
	tables = int64(cap(x.Entries))*int64(unsafe.Sizeof(gear.Entry{})) + int64(cap(x.Files))*int64(unsafe.Sizeof(gear.File{}))
	had := map[*rootfs.Xattr]bool{} // entries with equal attributes share them
	for i := range x.Entries {
		e := &x.Entries[i]
		texts += int64(len(e.Path) + len(e.Link))
		if len(e.Xattrs) == 0 || had[&e.Xattrs[0]] {
			continue
		}
		had[&e.Xattrs[0]] = true
		for _, a := range e.Xattrs {
			texts += int64(unsafe.Sizeof(a)) + int64(len(a.Name)+len(a.Value))
		}
	}
	for i := range x.Files {
		texts += int64(len(x.Files[i].Chunks)) * int64(len(gear.Name{}))
	}
	return tables, texts
}

// newFileTree merges layers into a tree. The lowest layer comes first.
func newFileTree(key string, layers []*gear.Index) (*fileTree, error) {
	x, err := gear.Flatten(layers...)
	if err != nil {
		return nil, err
	}
	n := len(x.Entries)
	if n > maxTreeEntries {
		return nil, fmt.Errorf("%w: it has %d entries, with directories that no layer describes", gear.ErrTooLarge, n)
	}
	t := &fileTree{key: key, x: x, end: make([]int32, n), layer: make([]int16, n), bytes: make([]int64, n+1), files: make([]int32, n+1),
		perLayer: make([]fileSum, len(layers)), profiles: map[string]*profile{}, shares: map[string]*shareSum{}}
	t.origins(layers)
	tables, _ := indexBytes(x)
	t.cost = tables + int64(n)*(4+2+8+4)
	had := map[*gear.Index]bool{}
	for _, l := range layers {
		if !had[l] {
			had[l] = true
			_, texts := indexBytes(l) // also the texts of hidden entries, as long as any entry shows
			t.cost += texts
		}
	}
	var open []int32 // the directories that contain the entry
	for i := range x.Entries {
		e := &x.Entries[i]
		t.end[i] = int32(i + 1)
		t.bytes[i+1], t.files[i+1] = t.bytes[i], t.files[i]
		if e.Type == rootfs.File {
			t.bytes[i+1] += e.Size
			t.files[i+1]++
			t.note(int32(i), e.Size)
		}
		if e.Path == "." {
			t.first = i + 1
			continue
		}
		for len(open) > 0 && !below(e.Path, x.Entries[open[len(open)-1]].Path) {
			t.end[open[len(open)-1]] = int32(i)
			open = open[:len(open)-1]
		}
		if e.Type == rootfs.Dir {
			open = append(open, int32(i))
		}
	}
	for _, d := range open {
		t.end[d] = int32(n)
	}
	return t, nil
}

// below reports whether a path lies in a directory that is not the root.
func below(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// origins finds the layer that each entry comes from: the topmost layer that has its
// path.
func (t *fileTree) origins(layers []*gear.Index) {
	for i := range t.layer {
		t.layer[i] = -1
	}
	for l, x := range layers {
		at := 0
		for k := range x.Entries {
			e := &x.Entries[k]
			if e.Type == rootfs.Whiteout || e.Type == rootfs.Opaque {
				continue
			}
			// Both are in the same order. Most entries of the tree are skipped for a
			// small layer.
			step := 1
			for at < len(t.x.Entries) && gear.ComparePaths(t.x.Entries[min(at+step, len(t.x.Entries))-1].Path, e.Path) < 0 {
				at, step = min(at+step, len(t.x.Entries)), step*2
			}
			rest := t.x.Entries[at:min(at+step, len(t.x.Entries))]
			at += sort.Search(len(rest), func(i int) bool { return gear.ComparePaths(rest[i].Path, e.Path) >= 0 })
			if at < len(t.x.Entries) && t.x.Entries[at].Path == e.Path {
				t.layer[at] = int16(l)
			}
		}
	}
	for i := range t.x.Entries {
		if e := &t.x.Entries[i]; e.Type == rootfs.File && t.layer[i] >= 0 {
			s := &t.perLayer[t.layer[i]]
			s.Files++
			s.Bytes += e.Size
		}
	}
}

// note records a file if it is among the largest.
func (t *fileTree) note(i int32, size int64) {
	l := t.largest
	if len(l) == largestFiles && t.x.Entries[l[len(l)-1]].Size >= size {
		return
	}
	at := sort.Search(len(l), func(k int) bool { return t.x.Entries[l[k]].Size < size })
	t.largest = slices.Insert(l, at, i)[:min(len(l)+1, largestFiles)]
}

// dir returns the range of the entries below a directory. "" is the root.
func (t *fileTree) dir(path string) (from, to int, ok bool) {
	if path == "" {
		return t.first, len(t.x.Entries), true
	}
	i, ok := t.x.Lookup(path)
	if !ok || t.x.Entries[i].Type != rootfs.Dir || path == "." {
		return 0, 0, false
	}
	return i + 1, int(t.end[i]), true
}

// children returns the places of the entries directly in a range.
func (t *fileTree) children(from, to int) []int32 {
	var out []int32
	for i := from; i < to; i = int(t.end[i]) {
		out = append(out, int32(i))
	}
	return out
}

// sum counts the files of an entry and below it.
func (t *fileTree) sum(i int32) fileSum { return t.between(int(i), int(t.end[i])) }

func (t *fileTree) between(from, to int) fileSum {
	return fileSum{int(t.files[to] - t.files[from]), t.bytes[to] - t.bytes[from]}
}

// bySize sorts places by the size of their entries, the largest first.
func (t *fileTree) bySize(places []int32) {
	slices.SortStableFunc(places, func(a, b int32) int { return cmp.Compare(t.sum(b).Bytes, t.sum(a).Bytes) })
}

// search returns the places of the entries whose names contain a text. If the text has a
// slash, it searches paths instead of names. Case does not matter.
func (t *fileTree) search(ctx context.Context, text string) ([]int32, error) {
	text = strings.ToLower(text)
	whole := strings.Contains(text, "/")
	var out []int32
	for i := t.first; i < len(t.x.Entries); i++ {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		name := t.x.Entries[i].Path
		if !whole {
			name = name[strings.LastIndexByte(name, '/')+1:]
		}
		if strings.Contains(strings.ToLower(name), text) {
			out = append(out, int32(i))
		}
	}
	return out, nil
}

// profile says which files of a tree containers open.
type profile struct {
	at     time.Time
	opened []bool // by index in x.Files
	// files and bytes are sums over the entries before each entry, like the sums of the
	// tree.
	files []int32
	bytes []int64
	// Contents and Bytes count the opened contents of the whole tree. AllContents and
	// AllBytes count all of its contents. Each content counts once.
	Contents, AllContents int
	Bytes, AllBytes       int64
}

// newProfile finds the files of a tree that containers open first. It returns nil if the
// tree has none of them.
func (t *fileTree) newProfile(names []gear.Name) *profile {
	if len(names) == 0 { // as for most images; the rest takes 13 bytes for each entry
		return nil
	}
	had := make(map[gear.Name]bool, len(names))
	for _, n := range names {
		had[n] = true
	}
	p := &profile{opened: make([]bool, len(t.x.Files))}
	for i := range t.x.Files {
		f := &t.x.Files[i]
		p.AllContents++
		p.AllBytes += f.Size
		if had[f.Name] {
			p.opened[i] = true
			p.Contents++
			p.Bytes += f.Size
		}
	}
	if p.Contents == 0 {
		return nil
	}
	p.files, p.bytes = make([]int32, len(t.x.Entries)+1), make([]int64, len(t.x.Entries)+1)
	for i := range t.x.Entries {
		e := &t.x.Entries[i]
		p.files[i+1], p.bytes[i+1] = p.files[i], p.bytes[i]
		if e.Type == rootfs.File && e.File >= 0 && p.opened[e.File] {
			p.files[i+1]++
			p.bytes[i+1] += e.Size
		}
	}
	return p
}

// between sums the opened files of a range.
func (p *profile) between(from, to int) fileSum {
	if p == nil {
		return fileSum{}
	}
	return fileSum{int(p.files[to] - p.files[from]), p.bytes[to] - p.bytes[from]}
}

// cost returns how many bytes of memory the profile takes.
func (p *profile) cost() int64 {
	if p == nil {
		return 0
	}
	return int64(len(p.opened) + 4*len(p.files) + 8*len(p.bytes))
}

// keep keeps a profile, and returns by how many bytes the memory of all profiles grew.
func (t *fileTree) keep(key string, p *profile) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	grown := p.cost()
	if old := t.profiles[key]; old != nil {
		grown -= old.cost()
	} else if len(t.profiles) >= maxKept {
		for _, old := range t.profiles {
			grown -= old.cost()
		}
		clear(t.profiles)
	}
	t.profiles[key] = p
	return grown
}
