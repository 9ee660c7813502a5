package client

import (
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// Selection says which images of an index are meant. The zero value is the one
// for HostPlatform.
type Selection struct {
	// All are all images, whatever they are for.
	All bool
	// Platforms are one image for each.
	Platforms []oci.Platform
}

// explicit tells whether somebody asked for certain platforms.
func (s *Selection) explicit() bool { return !s.All && len(s.Platforms) > 0 }

// several tells whether several images may come of it.
func (s *Selection) several() bool { return s.All || len(s.Platforms) > 1 }

// pick returns the place of the image for a platform among those of an index, or
// -1. One of the usual variant goes before others.
func pick(want oci.Platform, have []ocispec.Descriptor) int {
	best := -1
	for i := range have {
		will, exact := want.Matches(oci.PlatformOf(have[i].Platform))
		if !will {
			continue
		}
		if exact {
			return i
		}
		if best < 0 {
			best = i
		}
	}
	return best
}
