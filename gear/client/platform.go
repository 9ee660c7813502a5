package client

import (
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// Selection says which images of an index are selected. The zero value selects the image
// for HostPlatform.
type Selection struct {
	// All selects all images, whatever platform they are for.
	All bool
	// Platforms selects one image for each platform.
	Platforms []oci.Platform
}

// explicit reports whether certain platforms were requested.
func (s *Selection) explicit() bool { return !s.All && len(s.Platforms) > 0 }

// several reports whether the selection may have several images.
func (s *Selection) several() bool { return s.All || len(s.Platforms) > 1 }

// takes reports whether an image for a platform is selected.
func (s *Selection) takes(have oci.Platform) bool {
	will := func(p oci.Platform) bool { ok, _ := p.Matches(have); return ok }
	host := oci.HostPlatform()
	return s.All || slices.ContainsFunc(s.Platforms, will) || len(s.Platforms) == 0 && (will(host) || will(host.Fallback()))
}

// pick returns the position of the image for a platform in an index, or -1. If no image
// is for the platform, pick takes the first one that does not name a platform, as
// containerd does. If no platform was requested, pick prefers an image for another
// platform that the machine can run to an image that does not name a platform.
func (s *Selection) pick(want oci.Platform, have []ocispec.Descriptor) int {
	i := pick(want, have)
	if older := want.Fallback(); i < 0 && !s.explicit() && older.OS != "" {
		i = pick(older, have)
	}
	if i < 0 {
		i = slices.IndexFunc(have, func(d ocispec.Descriptor) bool { return d.Platform == nil })
	}
	return i
}

// pick returns the position of the image for a platform in an index, or -1. It prefers an
// image of the usual variant.
func pick(want oci.Platform, have []ocispec.Descriptor) int {
	best := -1
	for i := range have {
		will, exact := want.Matches(oci.PlatformOf(have[i].Platform))
		if !will || have[i].Platform == nil {
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
