package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
)

// Pushed is a Gear image, or another image, that was pushed.
type Pushed struct {
	Repo     string     `json:"repository"`
	Tag      string     `json:"tag,omitempty"`
	Digest   oci.Digest `json:"digest"`
	Platform string     `json:"platform,omitempty"`
	// Entries is the number of entries in the whole tree, Files the number of files with
	// content, and Bytes their size. Each path counts. All are 0 for an image that is not
	// a Gear image.
	Entries int   `json:"entries,omitempty"`
	Files   int   `json:"files,omitempty"`
	Bytes   int64 `json:"bytes,omitempty"`
	// LayerBytes is the size of the layer that was made.
	LayerBytes int64 `json:"layer_bytes"`
}

// putBlob pushes a small blob unless it is there.
func (c *Client) putBlob(ctx context.Context, repo, mediaType string, b []byte) (oci.Descriptor, error) {
	d := oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256(b), Size: int64(len(b))}
	if _, err := c.reg.ResolveBlob(ctx, repo, d.Digest); err == nil {
		return d, nil
	} else if !oci.HasCode(err, oci.CodeBlobUnknown) {
		return d, fmt.Errorf("look for blob %s in %s: %w", d.Digest, repo, err)
	}
	if _, err := c.reg.PushBlob(ctx, repo, d.Digest, d.Size, bytes.NewReader(b)); err != nil {
		return d, fmt.Errorf("push blob %s to %s: %w", d.Digest, repo, err)
	}
	return d, nil
}

// gearImage is a Gear image that is to be pushed.
type gearImage struct {
	index *gear.Index
	// config is the configuration of the original. original is its manifest, or "" if
	// there is no original.
	config   []byte
	original oci.Digest
	// change, when set, changes the finished configuration.
	change      func(config []byte) ([]byte, error)
	annotations map[string]string
	platform    oci.Platform
}

// pushGear pushes a Gear image, under a tag unless tag is empty, and waits until the
// registry has accepted its index. The same image has the same digest.
func (c *Client) pushGear(ctx context.Context, repo, tag string, g gearImage) (oci.Descriptor, Pushed, error) {
	fail := func(err error) (oci.Descriptor, Pushed, error) {
		return oci.Descriptor{}, Pushed{}, fmt.Errorf("make a Gear image: %w", err)
	}
	layer, err := gear.ImageLayer(g.index)
	if err != nil {
		return fail(err)
	}
	config, err := gear.ImageConfig(g.config, g.original, oci.SHA256(layer))
	if err == nil && g.change != nil {
		config, err = g.change(config)
	}
	if err != nil {
		return fail(err)
	}
	ld, err := c.putBlob(ctx, repo, gear.ImageLayerType, layer)
	if err != nil {
		return fail(err)
	}
	cd, err := c.putBlob(ctx, repo, ociConfig, config)
	if err != nil {
		return fail(err)
	}
	m := ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest, Config: cd, Layers: []oci.Descriptor{ld}, Annotations: g.annotations}
	m.SchemaVersion = 2
	desc, err := c.putManifest(ctx, repo, tag, m.MediaType, m)
	if err != nil {
		return fail(err)
	}
	s := statsOf(g.index)
	p := Pushed{Repo: repo, Tag: tag, Digest: desc.Digest, Platform: g.platform.String(), Entries: len(g.index.Entries),
		Files: s.Files, Bytes: s.Bytes, LayerBytes: ld.Size}
	r, _, err := c.awaitLayer(ctx, repo, ld.Digest, c.opts.Clock())
	if err != nil {
		return desc, p, fmt.Errorf("the Gear image %s is pushed, but the registry does not take it in: %w", desc.Digest, err)
	}
	return desc, p, r.Close()
}

// putManifest pushes a manifest. v is marshaled to JSON.
func (c *Client) putManifest(ctx context.Context, repo, tag, mediaType string, m any) (oci.Descriptor, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return oci.Descriptor{}, err
	}
	put := oci.PutManifest{Bytes: b, MediaType: mediaType}
	if tag != "" {
		put.Tags = []string{tag}
	}
	if _, err := c.reg.PutManifest(ctx, repo, put); err != nil {
		return oci.Descriptor{}, fmt.Errorf("push the manifest to %s: %w", repo, err)
	}
	return oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256(b), Size: int64(len(b))}, nil
}

// baseAnnotations returns the annotations that name the base image, as the image
// specification defines them.
func (c *Client) baseAnnotations(base *Image) map[string]string {
	out := map[string]string{ocispec.AnnotationBaseImageDigest: string(base.Manifest.Digest)}
	if !oci.IsDigest(base.Ref) {
		out[ocispec.AnnotationBaseImageName] = c.host() + "/" + base.Name()
	}
	return out
}

// object is a JSON object of which only some members are known.
type object map[string]json.RawMessage

func (o object) set(name string, value any) error {
	b, err := json.Marshal(value)
	if err == nil {
		o[name] = b
	}
	return err
}

// edit changes some members of a JSON object.
func edit(b []byte, change func(object) error) ([]byte, error) {
	o := object{}
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, err
	}
	if o == nil {
		return nil, fmt.Errorf("%q is no object", b)
	}
	o = maps.Clone(o)
	if err := change(o); err != nil {
		return nil, err
	}
	return json.Marshal(o)
}
