package web

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
	"unsafe"

	"example.org/slipway/catalog"
	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/rootfs"
)

// fileTree is the files of an image, with sums. All but overlay and shares never change.
type fileTree struct {
	key    string
	layers []oci.Digest
	x      *gear.Index
	// first is the place of the first entry that is not the root; end of each entry that
	// behind the last one below it; layer the layer it comes from, or -1.
	first int
	end   []int32
	layer []int16
	// bytes and files are sums over the entries before each, hard links counting nothing.
	bytes []int64
	files []int32
	// largest are the places of the largest files.
	largest []int32
	// perLayer are the bytes and files that each layer has in the tree.
	perLayer []fileSum
	// cost is about how many bytes it takes.
	cost int64

	mu      sync.Mutex
	overlay map[string]*overlay  // by repository and manifest
	shares  map[string]*shareSum // likewise; of all repositories under ""
}

// fileSum is a number of files with their bytes.
type fileSum struct {
	Files int
	Bytes int64
}

// shareSum is what the layers share with others, of a moment.
type shareSum struct {
	at time.Time
	// counted is closed when the rest is set.
	counted chan struct{}
	catalog.GearShare
	err error
}

// failed tells that it was counted in vain.
func (s *shareSum) failed() bool {
	select {
	case <-s.counted:
		return s.err != nil
	default:
		return false
	}
}

const (
	largestFiles = 10
	// maxKept is how many profiles and shares a tree keeps: one for each repository that
	// is looked at.
	maxKept = 16
)

// newFileTree puts the tree of layers together, the lowest first.
func newFileTree(key string, layers []*gear.Index) (*fileTree, error) {
	x, err := gear.Flatten(layers...)
	if err != nil {
		return nil, err
	}
	n := len(x.Entries)
	t := &fileTree{key: key, x: x, end: make([]int32, n), layer: make([]int16, n), bytes: make([]int64, n+1), files: make([]int32, n+1),
		perLayer: make([]fileSum, len(layers)), overlay: map[string]*overlay{}, shares: map[string]*shareSum{}}
	t.origins(layers)
	var open []int32 // the directories that the entry lies in
	t.cost = int64(n) * int64(unsafe.Sizeof(gear.Entry{})+4+2+8+4)
	for i := range x.Entries {
		e := &x.Entries[i]
		t.cost += int64(len(e.Path) + len(e.Link))
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
	for i := range x.Files {
		t.cost += int64(unsafe.Sizeof(gear.File{})) + int64(len(x.Files[i].Chunks))*32
	}
	return t, nil
}

// below tells whether a path lies in a directory that is not the root.
func below(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// origins finds the layer that describes each entry: the topmost that has its path.
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
			// Both are in the same order; of a small layer most are skipped.
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

// note keeps a file if it is among the largest.
func (t *fileTree) note(i int32, size int64) {
	l := t.largest
	if len(l) == largestFiles && t.x.Entries[l[len(l)-1]].Size >= size {
		return
	}
	at := sort.Search(len(l), func(k int) bool { return t.x.Entries[l[k]].Size < size })
	t.largest = slices.Insert(l, at, i)[:min(len(l)+1, largestFiles)]
}

// dir returns the range of the entries below a directory, "" being the root.
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

// children are the places of what lies directly in a range.
func (t *fileTree) children(from, to int) []int32 {
	var out []int32
	for i := from; i < to; i = int(t.end[i]) {
		out = append(out, int32(i))
	}
	return out
}

// sum is the files of an entry and below it.
func (t *fileTree) sum(i int32) fileSum { return t.between(int(i), int(t.end[i])) }

func (t *fileTree) between(from, to int) fileSum {
	return fileSum{int(t.files[to] - t.files[from]), t.bytes[to] - t.bytes[from]}
}

// bySize orders places by the size of what is there, the largest first.
func (t *fileTree) bySize(places []int32) {
	slices.SortStableFunc(places, func(a, b int32) int { return cmp.Compare(t.sum(b).Bytes, t.sum(a).Bytes) })
}

// search returns the places of the entries whose names, or paths if text has a slash,
// hold a text, whatever the case of its letters.
func (t *fileTree) search(text string) []int32 {
	text = strings.ToLower(text)
	whole := strings.Contains(text, "/")
	var out []int32
	for i := t.first; i < len(t.x.Entries); i++ {
		name := t.x.Entries[i].Path
		if !whole {
			name = name[strings.LastIndexByte(name, '/')+1:]
		}
		if strings.Contains(strings.ToLower(name), text) {
			out = append(out, int32(i))
		}
	}
	return out
}

// overlay is what containers open, over a tree.
type overlay struct {
	at     time.Time
	opened []bool // of x.Files
	// files and bytes are sums over the entries before each, as those of the tree.
	files []int32
	bytes []int64
	// Contents and Bytes are those of the whole tree that are opened, AllContents and AllBytes all; each
	// content once.
	Contents, AllContents int
	Bytes, AllBytes       int64
}

// newOverlay lays a profile over a tree; nil if nothing of it is in the tree.
func (t *fileTree) newOverlay(names []gear.Name) *overlay {
	had := make(map[gear.Name]bool, len(names))
	for _, n := range names {
		had[n] = true
	}
	o := &overlay{opened: make([]bool, len(t.x.Files)), files: make([]int32, len(t.x.Entries)+1), bytes: make([]int64, len(t.x.Entries)+1)}
	for i := range t.x.Files {
		f := &t.x.Files[i]
		o.AllContents++
		o.AllBytes += f.Size
		if had[f.Name] {
			o.opened[i] = true
			o.Contents++
			o.Bytes += f.Size
		}
	}
	if o.Contents == 0 {
		return nil
	}
	for i := range t.x.Entries {
		e := &t.x.Entries[i]
		o.files[i+1], o.bytes[i+1] = o.files[i], o.bytes[i]
		if e.Type == rootfs.File && e.File >= 0 && o.opened[e.File] {
			o.files[i+1]++
			o.bytes[i+1] += e.Size
		}
	}
	return o
}

// between is what is opened of a range.
func (o *overlay) between(from, to int) fileSum {
	if o == nil {
		return fileSum{}
	}
	return fileSum{int(o.files[to] - o.files[from]), o.bytes[to] - o.bytes[from]}
}
