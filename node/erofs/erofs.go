// Package erofs writes EROFS images that hold a file tree and no file contents: names,
// modes, owners, times, extended attributes and sizes. A file reads as zeros of the right
// length. The caller that mounts the image supplies the contents by other means, for
// example overlayfs. WriteWithRoom leaves room for contents.
//
// The image is plain EROFS with chunk-based files, which Linux mounts since 5.15, in
// blocks of 4,096 bytes. The same nodes give the same bytes. If EROFS or Linux could not
// show a node as given, Write returns an error that names the path. It never leaves
// anything out or alters it. Mount only images that this package wrote: the kernel itself
// parses the bytes. The layout on disk is in layout.go and inode.go.
package erofs

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// These are the limits of an image.
const (
	// MaxSize is the largest size of a file in bytes: 8 TiB, which is one chunk.
	MaxSize = 1 << 43
	// MaxName is the length in bytes of the longest name of an entry, and of the
	// longest name of an extended attribute with its prefix.
	MaxName = 255
	// MaxTarget is the length in bytes of the longest target of a symbolic link.
	MaxTarget = 4095
	// MaxXattr is the length in bytes of the longest value of an extended attribute. It
	// is one less than the limit of Linux elsewhere.
	MaxXattr = 65535
)

// These are the types in [Node.Mode], as in stat(2).
const (
	TypeMask = 0o170000
	Socket   = 0o140000
	Symlink  = 0o120000
	File     = 0o100000
	Block    = 0o060000
	Dir      = 0o040000
	Char     = 0o020000
	Fifo     = 0o010000
)

// Node is an entry of the tree. Nodes are kept in a list. The first is the root: a
// directory whose Parent and Name are ignored. The order is free, except that a directory
// comes before its entries.
type Node struct {
	// Name has at most MaxName bytes, other than '/' and NUL. It is not "." or "..".
	Name string
	// Parent is the index in the list of the node's directory.
	Parent int32
	// Link, if not 0, is the index of an earlier node of which this node is a further
	// name (a hard link). The earlier node must not be a directory, and its Link must be
	// 0. All fields of this node but Name and Parent are then ignored.
	Link int32
	// Mode is the type and the permission bits with setuid, setgid and sticky,
	// as in stat(2).
	Mode     uint32
	UID, GID uint32
	// Sec and Nsec are the time of the last change of the content, as in a timespec.
	Sec  int64
	Nsec uint32
	// Major, below 4,096, and Minor, below 1,048,576, identify a device.
	Major, Minor uint32
	// Size is the size of a file in bytes, at most MaxSize.
	Size int64
	// Target is the target of a symbolic link. It is not empty and has at most MaxTarget
	// bytes.
	Target string
	// Xattrs are in any order, each name once. A name begins with "user.", "trusted." or
	// "security.", or is the name of a POSIX access control list.
	Xattrs []Xattr
}

// Xattr is an extended attribute with its full name, such as user.mime_type.
type Xattr struct {
	Name, Value string
}

// Options adjust an image. The zero value is usable.
type Options struct {
	// UUID is the UUID of the file system. By default it is derived from what is written,
	// so that equal trees have equal UUIDs and different trees different ones. Without a
	// UUID, overlayfs would not find the original of a changed file in the image: the
	// names of a hard link made in the overlay would become two files.
	UUID [16]byte
}

// Error says which node cannot be in an image, and why.
type Error struct {
	Path string // for example "usr/bin"; "." for the root
	Err  error
}

// Error returns the path and the reason.
func (e *Error) Error() string { return fmt.Sprintf("%q %v", e.Path, e.Err) }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Write writes the image of a tree to w, from the first byte to the last, and returns its
// length in bytes. It uses about 50 bytes of memory for each node. It does not change or
// keep nodes. Errors: *[Error], before the first byte is written, and those of w.
func Write(w io.Writer, nodes []Node, opts *Options) (int64, error) {
	if opts == nil {
		opts = &Options{}
	}
	p, err := newPlan(nodes, nil)
	if err != nil {
		return 0, err
	}
	return p.write(w, opts)
}

// Room says where an image has room for the contents of its files.
type Room struct {
	// Head is the length in bytes of what was written, and Size is the length of the
	// whole image. Both are multiples of 4,096 bytes.
	Head, Size int64
	// Offsets holds the offset in the image, in bytes, of each content. The offset is 0
	// for a content that no file has and for an empty content. The rest of a content's
	// last block must be zeros.
	Offsets []int64
}

// WriteWithRoom writes the image of a tree that has contents, but not the contents
// themselves. The caller writes them after the image. contents holds the number of each
// node's content, from 0 on. Several files may share a number. Nodes of other types have
// -1. A file with -1 reads as zeros. Numbers should have no gaps. Errors are those of
// [Write]. It is also an error if files share a content and differ in size.
func WriteWithRoom(w io.Writer, nodes []Node, contents []int32, opts *Options) (*Room, error) {
	if opts == nil {
		opts = &Options{}
	}
	if len(contents) != len(nodes) {
		return nil, fmt.Errorf("a tree of %d nodes with contents of %d", len(nodes), len(contents))
	}
	p, err := newPlan(nodes, contents)
	if err != nil {
		return nil, err
	}
	r := &Room{Size: int64(p.blocks) * blockSize, Offsets: make([]int64, len(p.rooms))}
	for i, block := range p.rooms {
		r.Offsets[i] = int64(block) * blockSize
	}
	r.Head, err = p.write(w, opts)
	return r, err
}

func (p *plan) write(w io.Writer, opts *Options) (int64, error) {
	id := opts.UUID
	if id == ([16]byte{}) {
		sum := sha256.New()
		if _, err := p.encode(sum, id); err != nil {
			return 0, err
		}
		copy(id[:], sum.Sum(nil))
		id[6] = id[6]&0x0f | 0x80 // RFC 9562, version 8: its meaning is ours to define
		id[8] = id[8]&0x3f | 0x80
	}
	return p.encode(w, id)
}

func (p *plan) encode(w io.Writer, id [16]byte) (int64, error) {
	e := &encoder{plan: p, w: bufio.NewWriterSize(w, 128<<10)}
	if err := e.image(id); err != nil {
		return e.at, fmt.Errorf("write image: %w", err)
	}
	return e.at, nil
}

// ReadUUID returns the UUID of an image. It returns the errors of r, and an error if r
// holds no image.
func ReadUUID(r io.ReaderAt) (id [16]byte, err error) {
	var sb [superUUID + 16]byte
	if _, err := r.ReadAt(sb[:], superOffset); err != nil {
		return id, fmt.Errorf("read superblock: %w", err)
	}
	if binary.LittleEndian.Uint32(sb[:]) != superMagic {
		return id, errors.New("this is not an EROFS image")
	}
	return [16]byte(sb[superUUID:]), nil
}
