package volref

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	"example.org/slipway/oci"
)

// UnsupportedError says that an image can never be a volume: the file system cannot hold
// it, or a node would misread it.
type UnsupportedError struct {
	Reason string
}

// Error implements error.
func (e *UnsupportedError) Error() string { return "the image cannot be a volume: " + e.Reason }

// ClonePrefix begins the names of containers' clones. No other volume's name begins with
// it.
const ClonePrefix = "c-"

// maxName is the longest name of a volume in bytes.
const maxName = 100

// errName says what a name may be.
var errName = errors.New("a name of a volume has 1 to 100 of a-z, 0-9, '-', '.' and '_', and begins with a letter")

// CheckName returns an error unless a volume can have the name. A valid name is also a
// path element, and never "." or "..".
func CheckName(id string) error {
	ok := len(id) > 0 && len(id) <= maxName && id[0] >= 'a' && id[0] <= 'z'
	for i := 0; ok && i < len(id); i++ {
		c := id[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_'
	}
	if !ok {
		return fmt.Errorf("volume %.120q: %w", id, errName)
	}
	return nil
}

// layoutVersion is the version of the way in which trees are laid out in a file system.
// It changes with every change of the bytes written for a tree, so that volumes of one
// name always have the same bytes.
const layoutVersion = 1

// VolumeName returns the name of the volume that holds the tree of layers, from the
// bottom up, in a file system. It is the same wherever the volume is built.
func VolumeName(fs string, layers []oci.Digest) string {
	return fmt.Sprintf("%s-%x", fs, nameSum("volume", fs, layers)[:20])
}

// VolumeUUID returns the UUID of a file system. All volumes of a chain have the UUID of
// the bottom layer, because it must not change from layer to layer.
func VolumeUUID(fs string, layers []oci.Digest) [16]byte {
	var id [16]byte
	copy(id[:], nameSum("uuid", fs, layers))
	id[6] = id[6]&0x0f | 0x80 // RFC 9562, version 8: ours to define
	id[8] = id[8]&0x3f | 0x80
	return id
}

// nameSum returns the SHA-256 of a text that stands for layers and for nothing else.
func nameSum(what, fs string, layers []oci.Digest) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "slipway %s %d %s\n", what, layoutVersion, fs)
	for _, d := range layers {
		_, _ = io.WriteString(h, string(d)+"\n") // a hash does not fail
	}
	return h.Sum(nil)
}

// IsClone reports whether a name is the name of a container's clone.
func IsClone(id string) bool { return strings.HasPrefix(id, ClonePrefix) }
