package gear

import (
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/gear/rootfs"
)

// A mounted tree can have only some properties of an entry. Indexes keep more: what other
// systems' archivers write is a part of the layer, but no file system here can hold it,
// and an image must not be refused because of it.
const (
	// maxXattrValue is the maximum size of a value in bytes. EROFS has 16 bits for a
	// length, and Linux allows one byte more.
	maxXattrValue = 65535
	maxXattrName  = 255
	// maxXattrsSize is the maximum number of bytes that all attributes of a file take in
	// an EROFS image: 65,534 words, less 4 KiB for the attributes that control overlayfs.
	maxXattrsSize = 65534*4 - 4096
	// Linux has 12 and 20 bits for the numbers of a device, and mknod(2) drops the other
	// bits.
	majorMask, minorMask = 1<<12 - 1, 1<<20 - 1

	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// Mountable returns the extended attributes and the device number of an entry as a
// mounted tree has them. It also returns a note for each property that it leaves out or
// changes. These are properties that container runtimes ignore when they unpack a layer,
// or that Linux cannot hold.
func Mountable(e *rootfs.Entry) (xattrs []rootfs.Xattr, major, minor uint32, notes []string) {
	xattrs, major, minor = e.Xattrs, e.Major&majorMask, e.Minor&minorMask
	if major != e.Major || minor != e.Minor {
		notes = append(notes, fmt.Sprintf("device %d:%d is %d:%d: Linux has 12 and 20 bits for it", e.Major, e.Minor, major, minor))
	}
	size, all := 0, true
	for i, x := range e.Xattrs {
		why := unmountable(e.Type, x)
		n := (4 + len(x.Name) + len(x.Value) + 3) &^ 3
		if why == "" && size+n > maxXattrsSize {
			why = fmt.Sprintf("a file can have attributes of %d bytes", maxXattrsSize)
		}
		if why != "" {
			if all { // entries share their lists
				xattrs, all = slices.Clone(e.Xattrs[:i]), false
			}
			notes = append(notes, fmt.Sprintf("attribute %.80q is left out: %s", x.Name, why))
			continue
		}
		size += n
		if !all {
			xattrs = append(xattrs, x)
		}
	}
	return xattrs, major, minor, notes
}

// unmountable returns why an entry of a type cannot have an attribute, or "".
func unmountable(t rootfs.Type, x rootfs.Xattr) string {
	prefix, rest, _ := strings.Cut(x.Name, ".")
	acl := x.Name == aclAccess || x.Name == aclDefault
	switch {
	case !acl && (rest == "" || prefix != "user" && prefix != "trusted" && prefix != "security"):
		return "Linux keeps none of that name"
	case len(x.Name) > maxXattrName || strings.IndexByte(x.Name, 0) >= 0:
		return fmt.Sprintf("its name has more than %d bytes, or a NUL", maxXattrName)
	case len(x.Value) > maxXattrValue:
		return fmt.Sprintf("it has %d bytes, and %d are possible", len(x.Value), maxXattrValue)
	case prefix == "user" && t != rootfs.File && t != rootfs.Dir,
		x.Name == aclAccess && t == rootfs.Symlink,
		x.Name == aclDefault && t != rootfs.Dir:
		return "such a file cannot have it"
	}
	return ""
}
