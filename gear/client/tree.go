package client

import (
	"iter"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// Node is an entry of a tree listing.
type Node struct {
	Path string `json:"path"`
	// Type is "directory", "file", "symlink", "hardlink", "chardev", "blockdev",
	// "fifo" or "socket".
	Type string `json:"type"`
	Mode uint32 `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	// Size is the size in bytes. For a directory it is the size of all files below it.
	Size int64  `json:"size"`
	Link string `json:"link,omitempty"`
	// Depth is the number of directories between the root and the entry.
	Depth int `json:"-"`
}

// Tree lists a whole tree in order: directories come before their contents.
func Tree(x *gear.Index) iter.Seq[Node] {
	below := map[string]int64{}
	for i := range x.Entries {
		e := &x.Entries[i]
		if e.Type != rootfs.File {
			continue
		}
		below["."] += e.Size
		for at := 0; ; at++ {
			n := strings.IndexByte(e.Path[at:], '/')
			if n < 0 {
				break
			}
			at += n
			below[e.Path[:at]] += e.Size
		}
	}
	return func(yield func(Node) bool) {
		for i := range x.Entries {
			e := &x.Entries[i]
			n := Node{e.Path, typeName(e.Type), e.Mode, e.UID, e.GID, e.Size, e.Link, strings.Count(e.Path, "/")}
			if e.Path != "." {
				n.Depth++
			}
			if e.Type == rootfs.Dir {
				n.Size = below[e.Path]
			}
			if !yield(n) {
				return
			}
		}
	}
}

func typeName(t rootfs.Type) string {
	switch t {
	case rootfs.Dir:
		return "directory"
	case rootfs.File:
		return "file"
	case rootfs.Symlink:
		return "symlink"
	case rootfs.HardLink:
		return "hardlink"
	case rootfs.CharDevice:
		return "chardev"
	case rootfs.BlockDevice:
		return "blockdev"
	case rootfs.Fifo:
		return "fifo"
	case rootfs.Socket:
		return "socket"
	}
	return "mark" // only layers have marks; a whole tree has none
}
