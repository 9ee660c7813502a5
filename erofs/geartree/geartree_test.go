package geartree_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/erofs"
	"example.org/slipway/erofs/geartree"
	"example.org/slipway/gear"
	"example.org/slipway/rootfs"
)

func entry(path string, kind rootfs.Type, file int32) gear.Entry {
	return gear.Entry{Entry: rootfs.Entry{Path: path, Type: kind, Mode: 0o644}, File: file}
}

// index is a flat one with one of everything.
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
