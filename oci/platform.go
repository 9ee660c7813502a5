package oci

import (
	"fmt"
	"runtime"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// IsIndex reports whether a media type is the type of an index of manifests.
func IsIndex(mediaType string) bool {
	return mediaType == MediaTypeOCIIndex || mediaType == MediaTypeDockerIndex
}

// Platform is the platform that an image runs on.
type Platform struct {
	OS, Architecture string
	// Variant is the variant of the architecture, such as v7. If it is empty, any variant
	// will do, or there is none.
	Variant string
}

// HostPlatform returns Linux on this machine's architecture.
func HostPlatform() Platform { return Platform{OS: "linux", Architecture: runtime.GOARCH} }

// PlatformOf returns the platform that an index gives for one of its manifests, or the
// zero value.
func PlatformOf(p *ocispec.Platform) Platform {
	if p == nil {
		return Platform{}
	}
	return Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}
}

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

// String returns the form that ParsePlatform reads. It is empty for the zero value.
func (p Platform) String() string {
	if p == (Platform{}) {
		return ""
	}
	return strings.TrimSuffix(p.OS+"/"+p.Architecture+"/"+p.Variant, "/")
}

// variant returns the variant. If there is none, it returns the variant that an image
// without a variant is for.
func (p Platform) variant() string {
	switch {
	case p.Variant != "":
		return p.Variant
	case p.Architecture == "arm64":
		return "v8"
	case p.Architecture == "arm":
		return "v7"
	}
	return ""
}

// Matches reports whether an image for have can be used if p is wanted, and whether it is
// for exactly that variant.
func (p Platform) Matches(have Platform) (will, exact bool) {
	exact = p.variant() == have.variant()
	return p.OS == have.OS && p.Architecture == have.Architecture && (p.Variant == "" || exact), exact
}

// Fallback is the 32-bit platform whose programs a machine of p runs as well; the zero
// value if there is none.
func (p Platform) Fallback() Platform {
	older := map[string]string{"amd64": "386", "arm64": "arm"}[p.Architecture]
	if older == "" {
		return Platform{}
	}
	return Platform{OS: p.OS, Architecture: older}
}
