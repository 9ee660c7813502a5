package dedup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// Set is the set of images to analyse. The zero value is an empty set for images for
// linux/amd64.
type Set struct {
	// Platform selects images by platform, as os/architecture or os/architecture/variant;
	// default linux/amd64.
	Platform string
	// AllPlatforms selects the images for all platforms. Each counts as a separate image.
	AllPlatforms bool

	images   []image
	problems []Problem
	skipped  int
}

// Problem is an image or layer that cannot be read.
type Problem struct {
	// Where is a directory or a repository.
	Where string `json:"where"`
	// Digest is the digest of the layer or manifest that cannot be read. It is empty if
	// not even the digest is known.
	Digest oci.Digest `json:"digest,omitempty"`
	// Images has the images that are left out because of the problem.
	Images []string `json:"images"`
	// Err is what is wrong.
	Err string `json:"error"`
}

// String returns the problem as one line.
func (p Problem) String() string {
	text := p.Where
	if p.Digest != "" {
		text += ": " + string(p.Digest)
	}
	return text + ": " + p.Err + "; left out: " + strings.Join(p.Images, ", ")
}

// image is an image of the set.
type image struct {
	series, version string
	layers          []oci.Descriptor
	place           place
}

func (i image) String() string { return i.series + "/" + i.version }

// place is a place that has images: a layout or a repository. Implementations are
// comparable, and their methods may run concurrently.
type place interface {
	fmt.Stringer
	// manifest reads a manifest or index, of at most oci.MaxManifestSize bytes.
	manifest(ctx context.Context, d oci.Descriptor) ([]byte, error)
	// blob opens a blob. The caller closes it.
	blob(ctx context.Context, d oci.Descriptor) (io.ReadCloser, error)
	// look reports whether a blob is there, if it can find out without a round trip.
	look(d oci.Descriptor) error
}

// document is an image manifest or an index.
type document struct {
	specs.Versioned
	MediaType string             `json:"mediaType"`
	Config    oci.Descriptor     `json:"config"`
	Layers    []oci.Descriptor   `json:"layers"`
	Manifests *[]oci.Descriptor  `json:"manifests"`
	Platform  *ocispec.Platform  `json:"-"`
	FSLayers  *[]json.RawMessage `json:"fsLayers"`
	desc      oci.Descriptor
}

// errNoImage says that a manifest is not an image for a selected platform.
var errNoImage = errors.New("no image")

// addReference adds the image that a manifest or index describes, or with AllPlatforms
// the images. It returns their number.
func (s *Set) addReference(ctx context.Context, p place, series, version string, d oci.Descriptor) int {
	chosen, err := s.choose(ctx, p, d, 0, map[oci.Digest]bool{})
	switch {
	case errors.Is(err, errNoImage):
		s.skipped++
		return 0
	case err != nil:
		s.problems = append(s.problems, Problem{Where: p.String(), Digest: d.Digest, Images: []string{series + "/" + version}, Err: err.Error()})
		return 0
	}
	for _, c := range chosen {
		v := version
		if len(chosen) > 1 {
			v += " " + platformName(c.Platform)
		}
		s.images = append(s.images, image{series, v, c.Layers, p})
	}
	return len(chosen)
}

// choose reads a manifest or index and returns the selected images. Indexes can name the
// same indexes, so that there are exponentially more ways than indexes: each is read once,
// and is in seen from then on.
func (s *Set) choose(ctx context.Context, p place, d oci.Descriptor, depth int, seen map[oci.Digest]bool) ([]document, error) {
	const maxDepth = 4 // of indexes in indexes
	if depth > maxDepth {
		return nil, fmt.Errorf("%s lies in more than %d indexes", d.Digest, maxDepth)
	}
	b, err := p.manifest(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", d.Digest, err)
	}
	var doc document
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", d.Digest, err)
	}
	doc.desc = d
	if doc.FSLayers != nil {
		return nil, fmt.Errorf("manifest %s has Docker's schema 1, which is not supported", d.Digest)
	}
	if doc.Manifests == nil {
		return s.chooseManifest(ctx, p, doc)
	}
	var found []document
	for _, m := range *doc.Manifests {
		if m.Platform != nil && !s.wants(m.Platform) {
			continue
		}
		if oci.IsIndex(m.MediaType) {
			if seen[m.Digest] {
				continue
			}
			seen[m.Digest] = true
		}
		more, err := s.choose(ctx, p, m, depth+1, seen)
		if errors.Is(err, errNoImage) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !s.AllPlatforms {
			return more, nil
		}
		found = append(found, more...)
	}
	if len(found) == 0 {
		return nil, errNoImage
	}
	return found, nil
}

// chooseManifest returns a manifest if it is an image for a selected platform.
func (s *Set) chooseManifest(ctx context.Context, p place, doc document) ([]document, error) {
	switch doc.Config.MediaType {
	case ocispec.MediaTypeImageConfig, "application/vnd.docker.container.image.v1+json", oci.MediaTypeOctetStream:
	default:
		return nil, errNoImage
	}
	for _, l := range doc.Layers {
		if !strings.Contains(l.MediaType, "tar") {
			return nil, errNoImage
		}
	}
	doc.Platform = doc.desc.Platform
	if doc.Platform == nil {
		b, err := readBlob(ctx, p, doc.Config)
		if err != nil {
			return nil, fmt.Errorf("read configuration %s: %w", doc.Config.Digest, err)
		}
		if json.Unmarshal(b, &doc.Platform) != nil {
			doc.Platform = nil // a blob that is not a configuration does not exclude the image
		}
	}
	if doc.Platform != nil && doc.Platform.OS != "" && !s.wants(doc.Platform) {
		return nil, errNoImage
	}
	return []document{doc}, nil
}

// wants reports whether images for a platform are selected. Signatures and attestations
// in an index are for the platform "unknown".
func (s *Set) wants(p *ocispec.Platform) bool {
	if p.OS == "unknown" || p.Architecture == "unknown" {
		return false
	}
	if s.AllPlatforms {
		return true
	}
	want := s.Platform
	if want == "" {
		want = "linux/amd64"
	}
	name := platformName(p)
	return name == want || strings.HasPrefix(name, want+"/")
}

func platformName(p *ocispec.Platform) string {
	if p == nil {
		return "unknown"
	}
	name := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		name += "/" + p.Variant
	}
	return name
}

// readBlob reads a whole small blob and checks it.
func readBlob(ctx context.Context, p place, d oci.Descriptor) ([]byte, error) {
	r, err := p.blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readChecked(r, d)
}

func readChecked(r io.Reader, d oci.Descriptor) ([]byte, error) {
	if err := oci.CheckDigest(d.Digest); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, oci.MaxManifestSize+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > oci.MaxManifestSize:
		return nil, fmt.Errorf("more than %d bytes", oci.MaxManifestSize)
	}
	if sum := d.Digest.Algorithm().FromBytes(b); sum != d.Digest {
		return nil, fmt.Errorf("damaged: the digest is %s", sum)
	}
	return bytes.TrimSpace(b), nil
}
