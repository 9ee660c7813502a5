package volref

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	"example.org/slipway/oci"
)

// UnsupportedError says that an image cannot be a volume, now and later: the file
// system cannot hold it, or a node would read it as something else.
type UnsupportedError struct {
	Reason string
}

// Error implements error.
func (e *UnsupportedError) Error() string { return "the image cannot be a volume: " + e.Reason }

// ClonePrefix begins the names of containers' clones. No other volume has it.
const ClonePrefix = "c-"

// maxName is the longest name of a volume in bytes.
const maxName = 100

// errName says what a name is.
var errName = errors.New("a name of a volume has 1 to 100 of a-z, 0-9, '-', '.' and '_', and begins with a letter")

// CheckName tells whether a name can be a volume's. What can is a path element,
// too, and is none of "." and "..".
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

// layoutVersion is that of the layouts of trees as file systems. A change to what
// is written for a tree is another version, so that volumes of one name always
// have the same bytes.
const layoutVersion = 1

// VolumeName is the name of the volume with the tree of layers, from the bottom
// up, in a file system: the same wherever it is built.
func VolumeName(fs string, layers []oci.Digest) string {
	return fmt.Sprintf("%s-%x", fs, nameSum("volume", fs, layers)[:20])
}

// VolumeUUID is the identity of a file system. A chain has one, of its bottom
// layer: it must not change from layer to layer.
func VolumeUUID(fs string, layers []oci.Digest) [16]byte {
	var id [16]byte
	copy(id[:], nameSum("uuid", fs, layers))
	id[6] = id[6]&0x0f | 0x80 // RFC 9562, version 8: ours to define
	id[8] = id[8]&0x3f | 0x80
	return id
}

// nameSum is the SHA-256 of a text that stands for layers and nothing else.
func nameSum(what, fs string, layers []oci.Digest) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "slipway %s %d %s\n", what, layoutVersion, fs)
	for _, d := range layers {
		_, _ = io.WriteString(h, string(d)+"\n") // a hash does not fail
	}
	return h.Sum(nil)
}

// IsClone tells whether a name is that of a container's clone.
func IsClone(id string) bool { return strings.HasPrefix(id, ClonePrefix) }
