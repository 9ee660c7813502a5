// Package rootfs reads compressed layers as the file trees they describe: gzip,
// zstd or plain tar in, a stream of [Entry] values out, with every difference
// between archivers settled, every path safe and every size bounded.
package rootfs

// Type is what an entry is.
type Type uint8

// The types of entries. Whiteout and Opaque are what a layer says about the
// layers below it: the path is gone, or nothing below shows through the
// directory. Their other fields but Path are zero.
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

// Xattr is an extended attribute with its whole name, such as user.mime_type or
// security.capability.
type Xattr struct {
	Name, Value string
}

// Entry is one member of a layer.
type Entry struct {
	// Path is where it lies: relative, clean, segments split by '/', never
	// empty, "..", or beginning with "/"; "." is the root itself. It may hold
	// any byte but NUL; names need not be UTF-8. That of a Whiteout is the path
	// that is gone, that of an Opaque the directory.
	Path string
	Type Type
	// Mode is the permission bits with setuid, setgid and sticky as in
	// stat(2): 0o7777 at most.
	Mode     uint32
	UID, GID uint32
	// Sec and Nsec are the time of last change of the content, as in a
	// timespec; 0 <= Nsec < 1e9, and Sec may be negative.
	Sec  int64
	Nsec uint32
	// Size of a File in bytes, holes included.
	Size int64
	// Link is the target: of a Symlink verbatim, of a HardLink in the form of Path.
	Link string
	// Xattrs are sorted by name, each name once.
	Xattrs []Xattr
	// Major and Minor of a device.
	Major, Minor uint32
}
