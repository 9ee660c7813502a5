package ext4

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/node/erofs"
)

// Extended attributes lie in the 96 bytes behind the fields of the inode, and in one
// block. Both begin with a header. In the inode it is only the magic. In the block it is
//
//	0 u32 magic, 4 u32 inodes that have this block, 8 u32 blocks, 12 u32 hash
//
// and 16 zeros. The entries follow, and then 4 zeros. The values are at the end.
//
//	 0 u8  length of the name without its prefix, 1 u8 prefix
//	 2 u16 where the value is: from the first entry in an inode, from the
//	       beginning of the block in a block; 0 if it is empty
//	 8 u32 length of the value
//	12 u32 hash of name and value; 0 in an inode
//	16     name, zeros up to a multiple of 4
const (
	attrMagic  = 0xEA020000
	attrEntry  = 16
	attrHeader = 32
	inodeRoom  = inodeSize - inodeAttrs - 4 // behind the magic
	blockRoom  = blockSize - attrHeader
	attrEnd    = 4
)

// attrs holds the attributes of an inode as they are stored. A part without attributes is nil.
// inode begins at inodeAttrs.
type attrs struct{ inode, block []byte }

// attr is an attribute as it is stored.
type attr struct {
	prefix     byte
	name, rest string
	value      string
}

func (a *attr) size() int { return attrEntry + (len(a.rest)+3)&^3 + (len(a.value)+3)&^3 }

// layAttrs decides which attributes go into the inode and which into the block: all into
// the inode if they fit; else all into the block; else the longest that fit into the
// inode, and the rest into the block.
func layAttrs(xs []erofs.Xattr) (attrs, error) {
	if len(xs) == 0 {
		return attrs{}, nil
	}
	all := make([]attr, len(xs))
	total := attrEnd
	for i, x := range xs {
		a, err := newAttr(x)
		if err != nil {
			return attrs{}, err
		}
		all[i] = a
		total += a.size()
	}
	slices.SortFunc(all, compareAttrs)
	switch {
	case total <= inodeRoom:
		return attrs{inode: encodeInodeAttrs(all)}, nil
	case total <= blockRoom:
		return attrs{block: encodeBlockAttrs(all)}, nil
	}
	bySize := slices.Clone(all)
	slices.SortStableFunc(bySize, func(a, b attr) int { return cmp.Compare(b.size(), a.size()) })
	inside := map[string]bool{}
	for room, i := inodeRoom-attrEnd, 0; i < len(bySize); i++ {
		if size := bySize[i].size(); size <= room {
			inside[bySize[i].name] = true
			room -= size
			total -= size
		}
	}
	if total > blockRoom {
		return attrs{}, fmt.Errorf("has attributes that need %d bytes more than ext4 has for them, %d in the inode and %d in a block", total-blockRoom, inodeRoom, blockRoom)
	}
	out := slices.DeleteFunc(slices.Clone(all), func(a attr) bool { return inside[a.name] })
	in := slices.DeleteFunc(all, func(a attr) bool { return !inside[a.name] })
	return attrs{encodeInodeAttrs(in), encodeBlockAttrs(out)}, nil
}

// compareAttrs orders attributes as the kernel expects them in a block.
func compareAttrs(a, b attr) int {
	return cmp.Or(cmp.Compare(a.prefix, b.prefix), cmp.Compare(len(a.rest), len(b.rest)), strings.Compare(a.rest, b.rest))
}

func newAttr(x erofs.Xattr) (attr, error) {
	a := attr{name: x.Name, value: x.Value}
	var prefix string
	prefix, a.rest, _ = strings.Cut(x.Name, ".")
	switch {
	case x.Name == aclAccess, x.Name == aclDefault:
		a.prefix, a.rest = 2, ""
		if x.Name == aclDefault {
			a.prefix = 3
		}
		value, err := storedACL(x.Value)
		if err != nil {
			return a, fmt.Errorf("has attribute %q, %w", x.Name, err)
		}
		a.value = value
	case prefix == "user":
		a.prefix = 1
	case prefix == "trusted":
		a.prefix = 4
	case prefix == "security":
		a.prefix = 6
	default:
		return a, fmt.Errorf("has attribute %q, which ext4 cannot hold", x.Name)
	}
	return a, nil
}

func encodeInodeAttrs(list []attr) []byte {
	if len(list) == 0 {
		return nil
	}
	b := make([]byte, inodeSize-inodeAttrs)
	binary.LittleEndian.PutUint32(b, attrMagic)
	encodeAttrs(b[4:], 0, list, nil)
	return b
}

func encodeBlockAttrs(list []attr) []byte {
	if len(list) == 0 {
		return nil
	}
	b, le := make([]byte, blockSize), binary.LittleEndian
	le.PutUint32(b, attrMagic)
	le.PutUint32(b[4:], 1)
	le.PutUint32(b[8:], 1)
	hash := uint32(0)
	encodeAttrs(b, attrHeader, list, func(h uint32) { hash = hash<<16 ^ hash>>16 ^ h })
	le.PutUint32(b[12:], hash)
	return b
}

// encodeAttrs writes entries from at on and values from the end of b down. If hashed is
// set, entries get their hash, and hashed is called with each.
func encodeAttrs(b []byte, at int, list []attr, hashed func(uint32)) {
	le, end := binary.LittleEndian, len(b)
	for _, a := range list {
		e := b[at:]
		e[0], e[1] = byte(len(a.rest)), a.prefix
		if len(a.value) > 0 {
			end -= (len(a.value) + 3) &^ 3
			copy(b[end:], a.value)
			le.PutUint16(e[2:], uint16(end))
		}
		le.PutUint32(e[8:], uint32(len(a.value)))
		if hashed != nil {
			h := attrHash(a.rest, b[end:end+(len(a.value)+3)&^3])
			le.PutUint32(e[12:], h)
			hashed(h)
		}
		copy(e[attrEntry:], a.rest)
		at += attrEntry + (len(a.rest)+3)&^3
	}
}

// attrHash returns the hash of a name and a value. The value is padded with zeros to a
// multiple of 4.
func attrHash(name string, value []byte) uint32 {
	h := uint32(0)
	for i := range len(name) {
		h = h<<5 ^ h>>27 ^ uint32(name[i])
	}
	for ; len(value) > 0; value = value[4:] {
		h = h<<16 ^ h>>16 ^ binary.LittleEndian.Uint32(value)
	}
	return h
}

const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// storedACL converts an access control list from the form of getxattr(2) to the form that
// ext4 stores: version 1 instead of 2, and ids only for named users and groups.
func storedACL(v string) (string, error) {
	le := binary.LittleEndian
	if len(v) < 4+8 || (len(v)-4)%8 != 0 || le.Uint32([]byte(v)) != 2 {
		return "", errors.New("which is not an access control list of version 2 with entries")
	}
	out := le.AppendUint32(nil, 1)
	for e := []byte(v[4:]); len(e) > 0; e = e[8:] {
		switch tag := le.Uint16(e); tag {
		case 0x02, 0x08: // a user, a group
			out = append(out, e[:8]...)
		case 0x01, 0x04, 0x10, 0x20: // owner, its group, mask, others
			out = append(out, e[:4]...)
		default:
			return "", fmt.Errorf("which has an entry of unknown kind %#x", tag)
		}
	}
	return string(out), nil
}
