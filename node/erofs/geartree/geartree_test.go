package geartree_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
)

func entry(path string, kind rootfs.Type, file int32) gear.Entry {
	return gear.Entry{Entry: rootfs.Entry{Path: path, Type: kind, Mode: 0o644}, File: file}
}

// index returns a flat index with one entry of each kind.
func index() *gear.Index {
	x := &gear.Index{Files: []gear.File{gear.Empty(), {Name: gear.Name{1}, Size: 3}}}
	add := func(e gear.Entry, change func(e *gear.Entry)) {
		if change != nil {
			change(&e)
		}
		x.Entries = append(x.Entries, e)
	}
	add(entry(".", rootfs.Dir, -1), func(e *gear.Entry) { e.Mode, e.UID = 0o711, 5 })
	add(entry("a/b/empty", rootfs.File, 0), nil)
	add(entry("a/b/file", rootfs.File, 1), func(e *gear.Entry) {
		e.Size, e.Sec, e.Nsec = 3, -4, 9
		e.Xattrs = []rootfs.Xattr{{Name: "user.a", Value: "1"}}
	})
	add(entry("a/b2/link", rootfs.HardLink, 1), func(e *gear.Entry) { e.Mode, e.Link = 0, "a/b/file" })
	add(entry("c", rootfs.CharDevice, -1), func(e *gear.Entry) { e.Major, e.Minor = 1, 3 })
	add(entry("d", rootfs.Dir, -1), nil)
	add(entry("d/b", rootfs.BlockDevice, -1), nil)
	add(entry("d/p", rootfs.Fifo, -1), nil)
	add(entry("d/s", rootfs.Socket, -1), nil)
	add(entry("l", rootfs.Symlink, -1), func(e *gear.Entry) { e.Mode, e.Link = 0, "../x" })
	return x
}

func TestOf(t *testing.T) {
	x := index()
	tree, err := geartree.Of(x)
	if err != nil {
		t.Fatal(err)
	}
	want := []erofs.Node{
		{Mode: erofs.Dir | 0o711, UID: 5},
		{Name: "a", Mode: erofs.Dir | 0o755},
		{Name: "b", Parent: 1, Mode: erofs.Dir | 0o755},
		{Name: "empty", Parent: 2, Mode: erofs.File | 0o644},
		{Name: "file", Parent: 2, Mode: erofs.File | 0o644, Size: 3, Sec: -4, Nsec: 9, Xattrs: []erofs.Xattr{{Name: "user.a", Value: "1"}}},
		{Name: "b2", Parent: 1, Mode: erofs.Dir | 0o755},
		{Name: "link", Parent: 5, Link: 4},
		{Name: "c", Mode: erofs.Char | 0o644, Major: 1, Minor: 3},
		{Name: "d", Mode: erofs.Dir | 0o644},
		{Name: "b", Parent: 8, Mode: erofs.Block | 0o644},
		{Name: "p", Parent: 8, Mode: erofs.Fifo | 0o644},
		{Name: "s", Parent: 8, Mode: erofs.Socket | 0o644},
		{Name: "l", Mode: erofs.Symlink | 0o777, Target: "../x"},
	}
	if diff := cmp.Diff(want, tree.Nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int32{-1, -1, -1, 0, 1, -1, -1, -1, -1, -1, -1, -1, -1}, tree.FileOf); diff != "" {
		t.Errorf("contents (-want +got):\n%s", diff)
	}
	if err := erofs.Check(tree.Nodes); err != nil {
		t.Error(err)
	}
	tree.Nodes[4].Xattrs[0].Name = "user.other"
	if x.Entries[2].Xattrs[0].Name != "user.a" {
		t.Error("the attributes are shared with the index")
	}
}

func TestOfErrors(t *testing.T) {
	for name, test := range map[string]struct {
		change func(x *gear.Index)
		want   string
	}{
		"whiteout": {func(x *gear.Index) { x.Entries[5].Type = rootfs.Whiteout }, `"d" is a whiteout`},
		"opaque":   {func(x *gear.Index) { x.Entries[5].Type = rootfs.Opaque }, `"d" is a whiteout`},
		"link":     {func(x *gear.Index) { x.Entries[3].Link = "nowhere" }, `"a/b2/link" is a hard link to "nowhere"`},
		"content":  {func(x *gear.Index) { x.Entries[2].File = 2 }, `"a/b/file" is a file without content`},
		"size":     {func(x *gear.Index) { x.Entries[2].Size = 4 }, `"a/b/file" is a file without content`},
		"root":     {func(x *gear.Index) { x.Entries[0].Type = rootfs.Fifo }, `"." is the root`},
		"type":     {func(x *gear.Index) { x.Entries[4].Type = 99 }, `"c" is a whiteout`},
	} {
		x := index()
		test.change(x)
		_, err := geartree.Of(x)
		var e *erofs.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}

// TestOddEntries gives entries of every type the attributes and devices that other systems'
// archivers write. An image can hold every tree with everything that a file can have. There is a
// note for each attribute that it cannot hold.
func TestOddEntries(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 5))
	prefixes := []string{"user.", "trusted.", "security.", "system.", "com.apple.", "btrfs.", "LIBARCHIVE.xattr.user.", "", "user", "trusted.overlay."}
	rests := []string{"x", "", "nfs4_acl", "posix_acl_access", "posix_acl_default", "posix_acl", "a.b", "overlay.opaque", strings.Repeat("n", 240), strings.Repeat("n", 250), "\xff"}
	sizes := []int{0, 1, 100, 65535, 65536, 70000}
	types := []rootfs.Type{rootfs.Dir, rootfs.File, rootfs.Symlink, rootfs.CharDevice, rootfs.BlockDevice, rootfs.Fifo, rootfs.Socket}
	kept := 0
	for n := range 3000 {
		e := entry("x", types[rnd.IntN(len(types))], -1)
		switch e.Type {
		case rootfs.File:
			e.File = 0
		case rootfs.Symlink:
			e.Mode, e.Link = 0, "to"
		case rootfs.CharDevice, rootfs.BlockDevice:
			e.Major, e.Minor = rnd.Uint32()>>rnd.IntN(32), rnd.Uint32()>>rnd.IntN(32)
		}
		names := map[string]bool{}
		for range rnd.IntN(8) {
			names[prefixes[rnd.IntN(len(prefixes))]+rests[rnd.IntN(len(rests))]] = true
		}
		delete(names, "")
		for _, name := range slices.Sorted(maps.Keys(names)) {
			e.Xattrs = append(e.Xattrs, rootfs.Xattr{Name: name, Value: strings.Repeat("v", sizes[rnd.IntN(len(sizes))])})
		}
		before := slices.Clone(e.Xattrs)
		x := &gear.Index{Entries: []gear.Entry{e}, Files: []gear.File{gear.Empty()}}
		tree, err := geartree.Of(x)
		if err != nil {
			t.Fatalf("tree %d, %+v: %v", n, e, err)
		}
		if err := erofs.Check(tree.Nodes); err != nil {
			t.Fatalf("tree %d of an entry of type %d: %v", n, e.Type, err)
		}
		if !slices.Equal(before, e.Xattrs) {
			t.Fatal("the entry's list was changed; entries share it")
		}
		_, _, _, notes := gear.Mountable(&e.Entry)
		lost := len(e.Xattrs) - len(tree.Nodes[1].Xattrs)
		if e.Major>>12 > 0 || e.Minor>>20 > 0 {
			lost++
		}
		if len(notes) != lost {
			t.Fatalf("%d things are left out or changed, with the notes %q", lost, notes)
		}
		for _, x := range e.Xattrs {
			plain := e.Type == rootfs.File || e.Type == rootfs.Dir
			can := plain && (x.Name == "user.x" || x.Name == "system.posix_acl_access") || x.Name == "trusted.x" || x.Name == "security.a.b"
			if can && len(x.Value) <= 100 {
				if !slices.Contains(tree.Nodes[1].Xattrs, erofs.Xattr{Name: x.Name, Value: x.Value}) {
					t.Fatalf("type %d lacks %s", e.Type, x.Name)
				}
				kept++
			}
		}
	}
	if kept < 100 {
		t.Errorf("only %d attributes that can be kept were tried", kept)
	}
}
