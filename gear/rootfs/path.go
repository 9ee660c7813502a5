package rootfs

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// These are the limits of Linux in bytes. PATH_MAX counts a closing NUL. It also bounds
// the depth of a tree: 2,048 directories.
const (
	maxPath    = 4095
	maxSegment = 255
)

const (
	whiteoutPrefix = ".wh."
	// aufsPrefix begins the names of AUFS's own files, such as .wh..wh.plnk. Only
	// opaqueName has a meaning in an image.
	aufsPrefix = ".wh..wh."
	opaqueName = ".wh..wh..opq"
)

var (
	errNUL      = errors.New("name holds a NUL byte")
	errEscapes  = errors.New("name leaves the root directory")
	errWhiteout = errors.New("malformed whiteout name")
)

// CleanPath converts the name of a member or the target of a hard link to the form of
// [Entry].Path: relative to the root, with "." and ".." resolved lexically as container
// runtimes do. It drops a leading '/'. The empty name becomes the root, ".". For an Entry
// read by [Reader], CleanPath(Path) == Path.
//
// A name that leads out of the root ("../x", "/../x", "a/../../x") is an error, as in
// Docker. containerd would confine it, but no archiver writes such names. It is also an
// error if a name has a NUL byte, more than 4,095 bytes, or a segment of more than 255
// bytes.
func CleanPath(name string) (string, error) {
	p, err := resolve(name)
	if err != nil {
		return "", err
	}
	return p, checkShape(p)
}

// resolve is like CleanPath, without the bounds on what can be stored.
func resolve(name string) (string, error) {
	if strings.IndexByte(name, 0) >= 0 {
		return "", errNUL
	}
	p := path.Clean(strings.TrimLeft(name, "/"))
	if p == ".." || strings.HasPrefix(p, "../") {
		return "", errEscapes
	}
	return p, nil
}

func checkShape(p string) error {
	if len(p) > maxPath {
		return fmt.Errorf("name of %d bytes; Linux allows %d", len(p), maxPath)
	}
	for seg := range strings.SplitSeq(p, "/") {
		if len(seg) > maxSegment {
			return fmt.Errorf("name with a segment of %d bytes; Linux allows %d", len(seg), maxSegment)
		}
	}
	return nil
}

// parsePath cleans the name of a member and reads what the name says about the layers
// below. It returns Whiteout or Opaque with the path concerned, or 0 and the path of an
// ordinary entry. The path "" means that the member belongs to AUFS and is to be ignored.
func parsePath(name string) (string, Type, error) {
	p, err := resolve(name)
	if err != nil {
		return "", 0, err
	}
	if !strings.Contains(p, whiteoutPrefix) {
		return p, 0, checkShape(p)
	}
	dir, base := path.Split(p)
	kind := Type(0)
	switch rest, isWhiteout := strings.CutPrefix(base, whiteoutPrefix); {
	case base == opaqueName:
		p, kind = path.Clean(dir), Opaque
	case strings.HasPrefix(base, aufsPrefix):
		return "", 0, nil
	case isWhiteout && (rest == "" || rest == "." || rest == ".."):
		return "", 0, errWhiteout
	case isWhiteout:
		p, kind = dir+rest, Whiteout
	}
	for seg := range strings.SplitSeq(dir, "/") {
		if strings.HasPrefix(seg, aufsPrefix) {
			return "", 0, nil
		}
		if strings.HasPrefix(seg, whiteoutPrefix) {
			return "", 0, fmt.Errorf("directory %q is a whiteout", seg)
		}
	}
	return p, kind, checkShape(p)
}
