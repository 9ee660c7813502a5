package client

import (
	"slices"

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

// explicit reports whether somebody asked for certain platforms.
func (s *Selection) explicit() bool { return !s.All && len(s.Platforms) > 0 }

// several reports whether several images may come of it.
func (s *Selection) several() bool { return s.All || len(s.Platforms) > 1 }

// takes reports whether an image for a platform is among those that are meant.
func (s *Selection) takes(have oci.Platform) bool {
	will := func(p oci.Platform) bool { ok, _ := p.Matches(have); return ok }
	host := oci.HostPlatform()
	return s.All || slices.ContainsFunc(s.Platforms, will) || len(s.Platforms) == 0 && (will(host) || will(host.Fallback()))
}

// pick returns the place of the image for a platform among those of an index, or -1. As
// containerd does, it takes the first that does not say what it is for if no other is
// for the platform; where nobody asked for a platform, what the machine runs as well
// goes before that.
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

// pick returns the place of the image for a platform among those of an index, or
// -1. One of the usual variant goes before others.
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
