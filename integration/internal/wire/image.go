package wire

import (
	"context"
	"encoding/json"
	"fmt"
)

// Descriptor names content inside a manifest. Size is in bytes.
type Descriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Platform     *Platform         `json:"platform,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

// Platform is the platform on which an image in an index runs.
type Platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// Document is a manifest or an index. The media type determines which of the fields are
// set.
type Document struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType,omitempty"`
	ArtifactType  string            `json:"artifactType,omitempty"`
	Config        *Descriptor       `json:"config,omitempty"`
	Layers        []Descriptor      `json:"layers,omitempty"`
	Manifests     []Descriptor      `json:"manifests,omitempty"`
	Subject       *Descriptor       `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// CheckImage downloads everything to which a tag or digest leads, and verifies digests
// and sizes. For an index, this includes every image in it. It returns the manifest.
func (c *Client) CheckImage(ctx context.Context, repo, ref string) (*Manifest, error) {
	m, err := c.GetManifest(ctx, repo, ref)
	if err != nil {
		return nil, err
	}
	var doc Document
	if err := json.Unmarshal(m.Bytes, &doc); err != nil {
		return nil, fmt.Errorf("manifest %s:%s: %w", repo, ref, err)
	}
	for _, d := range doc.Manifests {
		child, err := c.CheckImage(ctx, repo, d.Digest)
		if err != nil {
			return nil, fmt.Errorf("index %s:%s: %w", repo, ref, err)
		}
		if int64(len(child.Bytes)) != d.Size {
			return nil, fmt.Errorf("index %s:%s: %s has %d bytes, the index says %d",
				repo, ref, d.Digest, len(child.Bytes), d.Size)
		}
	}
	blobs := doc.Layers
	if doc.Config != nil {
		blobs = append(blobs, *doc.Config)
	}
	for _, d := range blobs {
		if err := c.CheckBlob(ctx, repo, d.Digest, d.Size); err != nil {
			return nil, fmt.Errorf("image %s:%s: %w", repo, ref, err)
		}
	}
	return m, nil
}
