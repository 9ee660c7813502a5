package gear

import (
	"errors"
	"strings"
	"time"
)

// ErrNotConverted says that a layer has no index and that nobody has asked for one.
var ErrNotConverted = errors.New("the layer is not converted to Gear")

// PendingError says that a layer has no index.
type PendingError struct {
	// RetryAfter is how long to wait before asking again; 0: the conversion has failed.
	RetryAfter time.Duration
	Reason     string
}

// Error implements error.
func (e *PendingError) Error() string {
	if e.RetryAfter > 0 {
		return "the layer is being converted"
	}
	return "the layer could not be converted: " + e.Reason
}

// IsLayer reports whether a media type is the type of a layer that can be converted: a
// tar that is stored here, and not encrypted.
func IsLayer(mediaType string) bool {
	for _, tar := range []string{"application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar"} {
		if rest, ok := strings.CutPrefix(mediaType, tar); ok {
			switch rest {
			case "", "+gzip", "+zstd", ".gzip", ".zstd":
				return true
			}
		}
	}
	return false
}
