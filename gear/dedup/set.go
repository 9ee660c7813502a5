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

// Set is the images to analyse. The zero value is an empty set whose images are
// those for linux/amd64.
type Set struct {
	// Platform chooses from images for several, as os/architecture or
	// os/architecture/variant; default linux/amd64.
	Platform string
	// AllPlatforms takes all of them; each is then an image of its own.
	AllPlatforms bool

	images   []image
	problems []Problem
	skipped  int
}

// Problem is an image or layer that cannot be read.
type Problem struct {
	// Where it is: a directory or a repository.
	Where string `json:"where"`
	// Digest of the layer, or of the manifest that cannot be read; empty where
	// not even that is known.
	Digest oci.Digest `json:"digest,omitempty"`
	// Images that are left out for it.
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

// place is where images are: a layout or a repository. Implementations are
// comparable, and their methods may run concurrently.
type place interface {
	fmt.Stringer
	// manifest reads a manifest or index, of at most oci.MaxManifestSize bytes.
	manifest(ctx context.Context, d oci.Descriptor) ([]byte, error)
	// blob opens a blob. The caller closes it.
	blob(ctx context.Context, d oci.Descriptor) (io.ReadCloser, error)
	// look reports whether a blob is there, as far as that costs no round trip.
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

// errNoImage is of a manifest that is something else than an image for the
// platform wanted.
var errNoImage = errors.New("no image")

// addReference adds the image, or with AllPlatforms the images, that a manifest
// or index describes. It returns their number.
func (s *Set) addReference(ctx context.Context, p place, series, version string, d oci.Descriptor) int {
	chosen, err := s.choose(ctx, p, d, 0)
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

// choose reads a manifest or index and returns the images wanted.
func (s *Set) choose(ctx context.Context, p place, d oci.Descriptor, depth int) ([]document, error) {
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
		more, err := s.choose(ctx, p, m, depth+1)
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

// chooseManifest returns a manifest if it is an image for a platform wanted.
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
			doc.Platform = nil // what is no configuration says nothing against the image
		}
	}
	if doc.Platform != nil && doc.Platform.OS != "" && !s.wants(doc.Platform) {
		return nil, errNoImage
	}
	return []document{doc}, nil
}

// wants reports whether images for a platform are wanted. Signatures and
// attestations in an index are for the platform "unknown".
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

// readBlob reads a small blob whole and checks it.
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
