package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
)

// Image is an image for one platform.
type Image struct {
	Repo string
	// Ref is the tag or digest by which the image was requested.
	Ref      string
	Platform oci.Platform
	Manifest *oci.Manifest
	// Desc is the image's entry in the index that lists it. Without an index, it
	// describes Manifest.
	Desc   oci.Descriptor
	Layers []oci.Descriptor
	// Config is the configuration as it is stored. ConfigDesc describes it.
	Config     []byte
	ConfigDesc oci.Descriptor
	// DiffIDs are the diff IDs of the layers in the configuration.
	DiffIDs []oci.Digest
	// Gear says whether it is a Gear image. If so, Original is the manifest it was made
	// of, if that is known.
	Gear     bool
	Original oci.Digest
}

// Name returns the image's name as people write it.
func (img *Image) Name() string {
	sep := ":"
	if oci.IsDigest(img.Ref) {
		sep = "@"
	}
	return img.Repo + sep + img.Ref
}

// Set is what a reference names: one image, or the selected images of an index.
type Set struct {
	Repo, Ref string
	// Manifest is the manifest that the reference itself names.
	Manifest *oci.Manifest
	// Index says whether Manifest is an index.
	Index  bool
	Images []*Image
}

const (
	// maxConfig is the size in bytes of the largest configuration that is read. The
	// largest configurations in public registries have some 100 KB.
	maxConfig = 8 << 20
	// maxNested is how deep indexes in indexes are followed.
	maxNested = 3

	dockerConfig = "application/vnd.docker.container.image.v1+json"
	ociConfig    = "application/vnd.oci.image.config.v1+json"
)

// Resolve finds out what a tag or digest names. Errors: MANIFEST_UNKNOWN. If sel selects
// a platform that is not available, the error lists the available platforms.
func (c *Client) Resolve(ctx context.Context, repo, ref string, sel Selection) (*Set, error) {
	m, err := c.reg.GetManifest(ctx, repo, ref)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", (&Image{Repo: repo, Ref: ref}).Name(), err)
	}
	set := &Set{Repo: repo, Ref: ref, Manifest: m}
	if !oci.IsIndex(m.MediaType) {
		img, err := c.open(ctx, repo, ref, m, m.Descriptor)
		if err != nil {
			return nil, err
		}
		if sel.explicit() && !sel.takes(img.Platform) {
			return nil, fmt.Errorf("%s is for %s only", img.Name(), img.Platform)
		}
		set.Images = []*Image{img}
		return set, nil
	}
	set.Index = true
	list, err := c.members(ctx, repo, m, 0, map[oci.Digest]bool{})
	if err != nil {
		return nil, err
	}
	if list, err = sel.choose(list); err != nil {
		return nil, fmt.Errorf("%s: %w", (&Image{Repo: repo, Ref: ref}).Name(), err)
	}
	for _, d := range list {
		m, err := c.reg.GetManifest(ctx, repo, string(d.Digest))
		if err != nil {
			return nil, fmt.Errorf("get the image for %s of %s:%s: %w", oci.PlatformOf(d.Platform), repo, ref, err)
		}
		img, err := c.open(ctx, repo, ref, m, d)
		if err != nil {
			return nil, err
		}
		if d.Platform == nil && !sel.takes(img.Platform) {
			return nil, fmt.Errorf("%s has only an image for %s", img.Name(), img.Platform)
		}
		set.Images = append(set.Images, img)
	}
	return set, nil
}

// One is like Resolve, for one platform. If p is nil, it is this machine's platform.
func (c *Client) One(ctx context.Context, repo, ref string, p *oci.Platform) (*Image, error) {
	var sel Selection
	if p != nil {
		sel.Platforms = []oci.Platform{*p}
	}
	set, err := c.Resolve(ctx, repo, ref, sel)
	if err != nil {
		return nil, err
	}
	return set.Images[0], nil
}

// choose returns the selected images of an index.
func (s *Selection) choose(list []oci.Descriptor) ([]oci.Descriptor, error) {
	if len(list) == 0 {
		return nil, errors.New("it is an index without images")
	}
	if s.All {
		return list, nil
	}
	want := s.Platforms
	if len(want) == 0 {
		want = []oci.Platform{oci.HostPlatform()}
	}
	var out []oci.Descriptor
	for _, p := range want {
		i := s.pick(p, list)
		if i < 0 {
			var have []string
			for j := range list {
				have = append(have, oci.PlatformOf(list[j].Platform).String())
			}
			return nil, fmt.Errorf("it has no image for %s, only for %s; choose with --platform", p, strings.Join(have, ", "))
		}
		if !slices.ContainsFunc(out, func(d oci.Descriptor) bool { return d.Digest == list[i].Digest }) {
			out = append(out, list[i])
		}
	}
	return out, nil
}

// members returns the images of an index and of the indexes in it. Entries that are not
// images, such as attestations, have the platform unknown/unknown by convention. Indexes can
// name the same indexes, so that there are exponentially more ways than indexes: each is
// read once, and is in seen from then on.
func (c *Client) members(ctx context.Context, repo string, m *oci.Manifest, depth int, seen map[oci.Digest]bool) ([]oci.Descriptor, error) {
	var index struct {
		Manifests []oci.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(m.Bytes, &index); err != nil {
		return nil, fmt.Errorf("index %s of %s: %w", m.Digest, repo, err)
	}
	var out []oci.Descriptor
	for _, d := range index.Manifests {
		switch {
		case oci.IsIndex(d.MediaType):
			if seen[d.Digest] {
				continue
			}
			seen[d.Digest] = true
			if depth == maxNested {
				return nil, fmt.Errorf("index %s of %s: more than %d indexes lie in each other", m.Digest, repo, maxNested)
			}
			inner, err := c.reg.GetManifest(ctx, repo, string(d.Digest))
			if err != nil {
				return nil, fmt.Errorf("index %s of %s: %w", d.Digest, repo, err)
			}
			list, err := c.members(ctx, repo, inner, depth+1, seen)
			if err != nil {
				return nil, err
			}
			out = append(out, list...)
		case isImage(d.MediaType) && (d.Platform == nil || d.Platform.OS != "unknown"):
			out = append(out, d)
		}
	}
	return out, nil
}

func isImage(mediaType string) bool {
	return mediaType == oci.MediaTypeOCIManifest || mediaType == oci.MediaTypeDockerManifest
}

// imageManifest has the fields that are read of a manifest.
type imageManifest struct {
	Config      oci.Descriptor    `json:"config"`
	Layers      []oci.Descriptor  `json:"layers"`
	Annotations map[string]string `json:"annotations"`
}

// imageConfig has the fields that are read of a configuration.
type imageConfig struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant"`
	RootFS       struct {
		DiffIDs []oci.Digest `json:"diff_ids"`
	} `json:"rootfs"`
	Config struct {
		Labels map[string]string
	} `json:"config"`
}

// open reads the configuration of an image.
func (c *Client) open(ctx context.Context, repo, ref string, m *oci.Manifest, desc oci.Descriptor) (*Image, error) {
	img := &Image{Repo: repo, Ref: ref, Manifest: m, Desc: desc}
	var im imageManifest
	if !isImage(m.MediaType) {
		return nil, fmt.Errorf("%s is no image but a %s", img.Name(), m.MediaType)
	}
	if err := json.Unmarshal(m.Bytes, &im); err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", img.Name(), err)
	}
	if im.Config.MediaType != ociConfig && im.Config.MediaType != dockerConfig {
		return nil, fmt.Errorf("%s is no container image: its configuration is a %s", img.Name(), im.Config.MediaType)
	}
	img.ConfigDesc, img.Layers = im.Config, im.Layers
	var err error
	if img.Config, err = c.blob(ctx, repo, im.Config, maxConfig); err != nil {
		return nil, fmt.Errorf("get the configuration of %s: %w", img.Name(), err)
	}
	var cfg imageConfig
	if err := json.Unmarshal(img.Config, &cfg); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", img.Name(), err)
	}
	img.DiffIDs = cfg.RootFS.DiffIDs
	img.Platform = oci.Platform{OS: cfg.OS, Architecture: cfg.Architecture, Variant: cfg.Variant}
	if desc.Platform != nil { // the platform by which it was chosen
		img.Platform = oci.PlatformOf(desc.Platform)
	}
	switch err := gear.IsImageConfig(img.Config); {
	case errors.Is(err, gear.ErrVersion):
		return nil, fmt.Errorf("%s is a Gear image of another version: %w; use a newer program", img.Name(), err)
	case err == nil:
		if len(img.Layers) != 1 {
			return nil, fmt.Errorf("%s: %w: it has %d layers", img.Name(), gear.ErrNotGear, len(img.Layers))
		}
		img.Gear, img.Original = true, oci.Digest(cfg.Config.Labels[gear.LabelOriginal])
	}
	return img, nil
}

// blob reads a blob of at most limit bytes; the client checks its digest.
func (c *Client) blob(ctx context.Context, repo string, d oci.Descriptor, limit int64) ([]byte, error) {
	if d.Size > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", d.Digest, d.Size, limit)
	}
	r, err := c.reg.GetBlob(ctx, repo, d.Digest)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", d.Digest, limit)
	}
	return b, err
}
