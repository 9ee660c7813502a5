package client

import (
	"fmt"
	"runtime"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Platform is what an image runs on.
type Platform struct {
	OS, Architecture string
	// Variant of the architecture, such as v7; empty: any, or none.
	Variant string
}

// HostPlatform is Linux on this machine's architecture.
func HostPlatform() Platform { return Platform{OS: "linux", Architecture: runtime.GOARCH} }

// ParsePlatform reads os/architecture or os/architecture/variant.
func ParsePlatform(s string) (Platform, error) {
	parts := strings.Split(s, "/")
	for _, p := range parts {
		if p == "" || len(parts) < 2 || len(parts) > 3 {
			return Platform{}, fmt.Errorf("%q is not a platform; write it as linux/amd64 or linux/arm/v7", s)
		}
	}
	p := Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}

// String is the form that ParsePlatform reads.
func (p Platform) String() string {
	if p.Variant == "" {
		return p.OS + "/" + p.Architecture
	}
	return p.OS + "/" + p.Architecture + "/" + p.Variant
}

// usual is the variant that an image without one is for.
func (p Platform) usual() string {
	switch p.Architecture {
	case "arm64":
		return "v8"
	case "arm":
		return "v7"
	}
	return ""
}

// variant is the variant, or the usual one.
func (p Platform) variant() string {
	if p.Variant == "" {
		return p.usual()
	}
	return p.Variant
}

// matches tells whether an image for have will do where p is wanted.
func (p Platform) matches(have Platform) bool {
	return p.OS == have.OS && p.Architecture == have.Architecture && (p.Variant == "" || p.variant() == have.variant())
}

func platformOf(p *ocispec.Platform) Platform {
	if p == nil {
		return Platform{}
	}
	return Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}
}

// Selection says which images of an index are meant. The zero value is the one
// for HostPlatform.
type Selection struct {
	// All are all images, whatever they are for.
	All bool
	// Platforms are one image for each.
	Platforms []Platform
}

// explicit tells whether somebody asked for certain platforms.
func (s *Selection) explicit() bool { return !s.All && len(s.Platforms) > 0 }

// several tells whether several images may come of it.
func (s *Selection) several() bool { return s.All || len(s.Platforms) > 1 }

// pick returns the place of the image for a platform among those of an index, or
// -1. One of the usual variant goes before others.
func pick(want Platform, have []ocispec.Descriptor) int {
	best := -1
	for i := range have {
		p := platformOf(have[i].Platform)
		if !want.matches(p) {
			continue
		}
		if p.variant() == want.variant() {
			return i
		}
		if best < 0 {
			best = i
		}
	}
	return best
}
