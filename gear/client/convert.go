package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// ConvertOptions are the options of [Client.Convert]. The zero value works.
type ConvertOptions struct {
	// Tag is the tag of the Gear image; default the original's tag followed by "-gear".
	Tag string
	// Select says which images of an index are converted. If it may select several, an
	// index is pushed again.
	Select Selection
}

// Converted is what Convert pushed.
type Converted struct {
	Repo   string     `json:"repository"`
	Tag    string     `json:"tag"`
	Digest oci.Digest `json:"digest"`
	// Original is the image that was converted.
	Original oci.Digest `json:"original"`
	// Images has the Gear images, one for each platform.
	Images []Pushed `json:"images"`
}

// GearTag returns the tag of the Gear image of a tagged image.
func GearTag(tag string) string { return tag + "-gear" }

// Convert makes a Gear image of an image and pushes it to the same repository. It waits
// until the registry has converted the layers and accepted the result. The result for the
// same image is always the same, to the digest. Errors: as of Index.
func (c *Client) Convert(ctx context.Context, repo, ref string, o ConvertOptions) (Converted, error) {
	out := Converted{Repo: repo, Tag: o.Tag}
	switch {
	case o.Tag == "" && oci.IsDigest(ref):
		return out, errors.New("an image named by its digest needs a tag for what it is converted to")
	case o.Tag == "":
		out.Tag = GearTag(ref)
	case o.Tag == ref:
		return out, fmt.Errorf("the Gear image would take the tag %s from its original; choose another one", ref)
	}
	if err := oci.CheckTag(out.Tag); err != nil {
		return out, err
	}
	if _, err := c.offered(ctx); err != nil {
		return out, err
	}
	set, err := c.Resolve(ctx, repo, ref, o.Select)
	if err != nil {
		return out, err
	}
	out.Original = set.Manifest.Digest
	asIndex := set.Index && o.Select.several()
	tag := out.Tag
	if asIndex {
		tag = ""
	}
	var list []oci.Descriptor
	for _, img := range set.Images {
		d, p, err := c.convertOne(ctx, img, tag)
		if err != nil {
			return out, fmt.Errorf("convert %s for %s: %w", img.Name(), img.Platform, err)
		}
		d.Platform = img.Desc.Platform
		out.Digest, out.Images, list = d.Digest, append(out.Images, p), append(list, d)
	}
	if !asIndex {
		return out, nil
	}
	d, err := c.pushIndex(ctx, set, out.Tag, list)
	out.Digest = d.Digest
	return out, err
}

func (c *Client) convertOne(ctx context.Context, img *Image, tag string) (oci.Descriptor, Pushed, error) {
	if img.Gear {
		return oci.Descriptor{}, Pushed{}, errors.New("it is a Gear image already")
	}
	x, err := c.Index(ctx, img)
	if err != nil {
		return oci.Descriptor{}, Pushed{}, err
	}
	annotations, err := annotationsOf(img.Manifest)
	if err != nil {
		return oci.Descriptor{}, Pushed{}, err
	}
	return c.pushGear(ctx, img.Repo, tag, gearImage{index: x, config: img.Config, original: img.Manifest.Digest, annotations: annotations, platform: img.Platform})
}

func annotationsOf(m *oci.Manifest) (map[string]string, error) {
	var v struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(m.Bytes, &v); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", m.Digest, err)
	}
	return v.Annotations, nil
}

// pushIndex pushes the index of Gear images.
func (c *Client) pushIndex(ctx context.Context, set *Set, tag string, list []oci.Descriptor) (oci.Descriptor, error) {
	annotations, err := annotationsOf(set.Manifest)
	if err != nil {
		return oci.Descriptor{}, err
	}
	index := ocispec.Index{MediaType: oci.MediaTypeOCIIndex, Manifests: list, Annotations: annotations}
	index.SchemaVersion = 2
	return c.putManifest(ctx, set.Repo, tag, index.MediaType, index)
}
