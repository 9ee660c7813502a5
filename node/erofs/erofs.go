// Package erofs writes EROFS images that hold a file tree and no file contents:
// names, modes, owners, times, extended attributes and sizes. A file reads as
// zeros of the right length; whoever mounts the image gives it content by
// other means, as overlayfs does. WriteWithRoom leaves room for contents.
//
// The image is plain EROFS that Linux has mounted since 5.15 (files that are
// chunks), in blocks of 4,096 bytes. The same nodes give the same bytes. What
// EROFS or Linux could not show as given is an error that names the path;
// nothing is left out or bent into shape. Nobody should mount an image whose
// bytes come from elsewhere: what reads them is the kernel. The layout on disk
// is in layout.go and inode.go.
package erofs

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Limits of what an image can hold.
const (
	// MaxSize is the largest size of a file in bytes: 8 TiB, which is one chunk.
	MaxSize = 1 << 43
	// MaxName is the length in bytes of the longest name of an entry, and of the
	// longest name of an extended attribute with its prefix.
	MaxName = 255
	// MaxTarget is the length in bytes of the longest target of a symbolic link.
	MaxTarget = 4095
	// MaxXattr is the length in bytes of the longest value of an extended
	// attribute: one less than Linux allows elsewhere.
	MaxXattr = 65535
)

// The types in [Node.Mode], as in stat(2).
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

// Node is an entry of the tree. Nodes are kept in a list, whose first is the
// root: a directory, of which Parent and Name mean nothing. Their order matters
// only in that a directory comes before what lies in it.
type Node struct {
	// Name is any bytes but '/' and NUL, at most MaxName, and not "." or "..".
	Name string
	// Parent is the place in the list of the directory it lies in.
	Parent int32
	// Link, if not 0, says that this is one more name of the node at that place,
	// which comes earlier, is no directory and no further name itself. All other
	// fields but Name and Parent then mean nothing.
	Link int32
	// Mode is the type and the permission bits with setuid, setgid and sticky,
	// as in stat(2).
	Mode     uint32
	UID, GID uint32
	// Sec and Nsec are the time of last change of the content, as in a timespec.
	Sec  int64
	Nsec uint32
	// Major, below 4,096, and Minor, below 1,048,576, of a device.
	Major, Minor uint32
	// Size of a file in bytes, at most MaxSize.
	Size int64
	// Target of a symbolic link, not empty and at most MaxTarget bytes.
	Target string
	// Xattrs in any order, each name once. Names begin with "user.", "trusted."
	// or "security.", or are those of POSIX access control lists.
	Xattrs []Xattr
}

// Xattr is an extended attribute with its whole name, such as user.mime_type.
type Xattr struct {
	Name, Value string
}

// Options adjust an image. The zero value is good.
type Options struct {
	// UUID of the file system. By default it follows from what is written, so that
	// the same tree has the same one and another tree another. Without one overlayfs
	// would not find the file in the image that a changed file comes from: the
	// names of a hard link that is made in the overlay would become two files.
	UUID [16]byte
}

// Error says which node cannot be in an image, and why.
type Error struct {
	Path string // as in "usr/bin", "." for the root
	Err  error
}

// Error names the path and the reason.
func (e *Error) Error() string { return fmt.Sprintf("%q %v", e.Path, e.Err) }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Write writes the image of a tree to w, from its first byte to its last, and
// returns its length in bytes. It takes some 50 bytes of memory for each node
// and does not change or keep nodes. Errors: *[Error] before the first byte is
// written, and those of w.
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

// Room is where an image has room for the contents of its files.
type Room struct {
	// Head is the length in bytes of what was written, and Size that of the whole
	// image. Both are whole blocks of 4,096 bytes.
	Head, Size int64
	// Offsets are where the contents begin in the image, in bytes; 0 for those of
	// no file, and empty ones. The rest of a content's last block must be zeros.
	Offsets []int64
}

// WriteWithRoom writes the image of a tree that has contents: all but these,
// which belong behind what it writes. contents has a number, from 0 on, for the
// content of each file, which several may share, and -1 for nodes of other types;
// a file of -1 reads as zeros. Numbers should be without gaps. Errors as of
// [Write]; also of files that share a content and differ in size.
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
		id[6] = id[6]&0x0f | 0x80 // RFC 9562, version 8: ours to define
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

// ReadUUID returns the UUID of an image. Errors: those of r, and that it is no
// image.
func ReadUUID(r io.ReaderAt) (id [16]byte, err error) {
	var sb [superUUID + 16]byte
	if _, err := r.ReadAt(sb[:], superOffset); err != nil {
		return id, fmt.Errorf("read superblock: %w", err)
	}
	if binary.LittleEndian.Uint32(sb[:]) != superMagic {
		return id, errors.New("this is no EROFS image")
	}
	return [16]byte(sb[superUUID:]), nil
}
