package layouttest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"example.org/slipway/node/erofs"
)

// ACL is an access control list: rw for the owner, user 1000 reads, mask r.
const ACL = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xe8\x03\x00\x00" +
	"\x04\x00\x00\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"

// Capability is the capability of a file that may open raw sockets.
const Capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// paths returns all paths except the root, and the paths of directories including the root.
func (m *Model) paths() (all, dirs []string) {
	dirs = []string{""}
	var walk func(path string, it *Item)
	walk = func(path string, it *Item) {
		for _, name := range slices.Sorted(maps.Keys(it.entries)) {
			p, c := path+name, it.entries[name]
			all = append(all, p)
			if c.entries != nil {
				dirs = append(dirs, p)
				walk(p+"/", c)
			}
		}
	}
	walk("", m.Root)
	return all, dirs
}

// Change makes n random changes of all kinds that a layer can make.
func (m *Model) Change(rnd *rand.Rand, n int) {
	for range n {
		all, dirs := m.paths()
		dir := dirs[rnd.IntN(len(dirs))]
		if dir != "" {
			dir += "/"
		}
		fresh := dir + randomName(rnd)
		if len(all) == 0 {
			m.Put(fresh, randomItem(rnd))
			continue
		}
		old := all[rnd.IntN(len(all))]
		it := m.At(old)
		switch k := rnd.IntN(20); {
		case k < 9:
			m.Put(fresh, randomItem(rnd))
		case k == 9 && rnd.IntN(3) > 0:
			m.Remove(old)
		case k == 10: // a file becomes a directory, and the like
			m.Put(old, randomItem(rnd))
		case k < 13 && it.entries == nil: // another name
			if it.Mode&erofs.TypeMask != erofs.Dir {
				m.Put(fresh, it)
			}
		case k < 15 && !within(fresh, old): // moved
			m.Remove(old)
			m.Put(fresh, it)
		case k < 17 && it.Mode&erofs.TypeMask == erofs.File: // changed in place
			it.Content = Content(rnd.Uint64N(100), randomSize(rnd))
			it.Size = it.Content.Size
		default:
			properties(rnd, it)
		}
	}
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func randomName(rnd *rand.Rand) string {
	if rnd.IntN(8) == 0 {
		return strings.Repeat(string(rune('a'+rnd.IntN(3))), 1+rnd.IntN(255))
	}
	return fmt.Sprintf("%c%x", "-!.\xffn"[rnd.IntN(5)], rnd.IntN(200))
}

func randomSize(rnd *rand.Rand) int64 {
	return []int64{0, 1, 4095, 4096, 4097, rnd.Int64N(100_000), rnd.Int64N(20_000), 1<<20 + rnd.Int64N(10<<20)}[rnd.IntN(8)]
}

func randomItem(rnd *rand.Rand) *Item {
	var it *Item
	switch rnd.IntN(12) {
	case 0, 1, 2:
		it = Dir(0)
	case 3:
		it = Node(erofs.Node{Mode: erofs.Symlink, Target: strings.Repeat("t", []int{1, 59, 60, 61, 4095, 1 + rnd.IntN(100)}[rnd.IntN(6)])})
	case 4:
		it = Node(erofs.Node{Mode: []uint32{erofs.Char, erofs.Block}[rnd.IntN(2)], Major: uint32(1 + rnd.IntN(4095)), Minor: uint32(rnd.IntN(1 << 20))})
	case 5:
		it = Node(erofs.Node{Mode: []uint32{erofs.Fifo, erofs.Socket}[rnd.IntN(2)]})
	default:
		it = File(rnd.Uint64N(100), randomSize(rnd))
	}
	properties(rnd, it)
	return it
}

// properties gives an item random properties that its type may have.
func properties(rnd *rand.Rand, it *Item) {
	kind := it.Mode & erofs.TypeMask
	it.Mode = kind | uint32(rnd.IntN(0o10000))
	if kind == erofs.Symlink {
		it.Mode = kind | 0o777
	}
	it.UID, it.GID = []uint32{0, 1000, 65536, 1<<32 - 2}[rnd.IntN(4)], []uint32{0, 7, 70000}[rnd.IntN(3)]
	it.Sec, it.Nsec = rnd.Int64N(3<<32)-1<<31, uint32(rnd.IntN(1e9))
	it.Xattrs = nil
	names := []string{"trusted.t", "security.selinux", "trusted." + strings.Repeat("l", 240)}
	switch kind {
	case erofs.Dir:
		names = append(names, "user.u", "system.posix_acl_default")
	case erofs.File:
		names = append(names, "user.u", "user.\xff\xfe", "security.capability")
	}
	for _, name := range names {
		if rnd.IntN(5) > 0 {
			continue
		}
		value := strings.Repeat("v", []int{0, 1, 4, 13, 60, 900, rnd.IntN(100)}[rnd.IntN(7)])
		switch name {
		case "system.posix_acl_default":
			value = ACL
		case "security.capability":
			value = Capability
		}
		it.Xattrs = append(it.Xattrs, erofs.Xattr{Name: name, Value: value})
	}
}
