// Package rootfs reads compressed layers as the file trees that they describe. It takes
// gzip, zstd or plain tar, and returns a stream of [Entry] values. It settles all
// differences between archivers, makes every path safe and bounds every size.
package rootfs

// Type is the type of an entry.
type Type uint8

// These are the types of entries. Whiteout and Opaque say something about the layers
// below: the path is removed, or nothing below shows through the directory. Their fields
// other than Path are zero.
const (
	Dir Type = iota + 1
	File
	Symlink
	HardLink
	CharDevice
	BlockDevice
	Fifo
	Socket
	Whiteout
	Opaque
)

// Xattr is an extended attribute with its full name, such as user.mime_type or
// security.capability.
type Xattr struct {
	Name, Value string
}

// Entry is one member of a layer.
type Entry struct {
	// Path is the path of the entry. It is relative and clean, with segments separated by
	// '/'. It is never empty or "..", and never begins with "/". "." is the root itself.
	// It may hold any byte except NUL; names need not be UTF-8. The path of a Whiteout is
	// the removed path, and the path of an Opaque is the directory.
	Path string
	Type Type
	// Mode has the permission bits with setuid, setgid and sticky as in stat(2): at most
	// 0o7777.
	Mode     uint32
	UID, GID uint32
	// Sec and Nsec are the time of the last change of the content, as in a timespec. 0 <=
	// Nsec < 1e9, and Sec may be negative.
	Sec  int64
	Nsec uint32
	// Size is the size of a File in bytes, including holes.
	Size int64
	// Link is the target. For a Symlink it is verbatim, and for a HardLink it has the
	// form of Path.
	Link string
	// Xattrs is sorted by name, and has each name once.
	Xattrs []Xattr
	// Major and Minor are the numbers of a device.
	Major, Minor uint32
}
