package web

import (
	"encoding/json"
	"strings"

	"example.org/slipway/oci"
)

// manifest is what pages read of a manifest, index or image. Whoever pushed it decides
// what is in it.
type manifest struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType"`
	Config       *oci.Descriptor   `json:"config"`
	Layers       []oci.Descriptor  `json:"layers"`
	Manifests    []oci.Descriptor  `json:"manifests"`
	Subject      *oci.Descriptor   `json:"subject"`
	Annotations  map[string]string `json:"annotations"`
}

// readManifest reads a manifest; of one that cannot be read nothing is known.
func readManifest(content []byte) manifest {
	var m manifest
	if json.Unmarshal(content, &m) != nil {
		return manifest{}
	}
	return m
}

// kind is what a manifest is, in words. Image tells that containers can be made of it, or
// of its parts if it is an Index.
type kind struct {
	Name         string
	Image, Index bool
	Chart        bool
	// Platforms of an index; MorePlatforms are not listed.
	Platforms     []string
	MorePlatforms int
}

// Media types of what is not an image.
const (
	typeHelmConfig = "application/vnd.cncf.helm.config.v1+json"
	typeOCIConfig  = "application/vnd.oci.image.config.v1+json"
	typeDockerConf = "application/vnd.docker.container.image.v1+json"
	typeEmpty      = "application/vnd.oci.empty.v1+json"
)

// maxPlatforms is how many platforms a row names.
const maxPlatforms = 8

// kindOf tells what a manifest is.
func kindOf(mediaType, artifactType string, m manifest) kind {
	switch mediaType {
	case oci.MediaTypeOCIIndex, oci.MediaTypeDockerIndex:
		return indexKind(m)
	case oci.MediaTypeDockerManifestV1, oci.MediaTypeDockerManifestV1S:
		return kind{Name: "image of an old form (schema 1)"}
	}
	types := []string{artifactType, m.ArtifactType}
	if m.Config != nil {
		types = append(types, m.Config.MediaType)
	}
	for i := range min(len(m.Layers), 4) {
		types = append(types, m.Layers[i].MediaType)
	}
	for _, t := range types {
		if k := attachment(t); k != "" {
			return kind{Name: k, Chart: k == "Helm chart"}
		}
	}
	if m.Config != nil && (m.Config.MediaType == typeOCIConfig || m.Config.MediaType == typeDockerConf) &&
		(m.ArtifactType == "" || m.ArtifactType == m.Config.MediaType) {
		return kind{Name: "image", Image: true}
	}
	return kind{Name: "artifact"}
}

func indexKind(m manifest) kind {
	k := kind{Name: "index", Image: true, Index: true}
	seen := map[string]bool{}
	for _, d := range m.Manifests {
		p := entryPlatform(&d)
		switch {
		case p == "" || seen[p]:
		case len(k.Platforms) == maxPlatforms:
			k.MorePlatforms++
		default:
			k.Platforms = append(k.Platforms, p)
		}
		seen[p] = true
	}
	return k
}

// entryPlatform names the platform of an entry of an index: empty without one, as that of
// attestations.
func entryPlatform(d *oci.Descriptor) string {
	p := d.Platform
	if p == nil || p.OS == "unknown" || p.OS == "" && p.Architecture == "" {
		return ""
	}
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	if p.OSVersion != "" {
		s += " " + p.OSVersion
	}
	return s
}

// attachment tells of a media type what well-known thing it is of; empty if none.
func attachment(mediaType string) string {
	t := strings.ToLower(mediaType)
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(t, p) {
				return true
			}
		}
		return false
	}
	switch {
	case t == typeHelmConfig:
		return "Helm chart"
	case has("simplesigning", "notary", "cosign.artifact.sig", "sigstore.bundle", "signature"):
		return "signature"
	case has("spdx", "cyclonedx", "syft", "sbom"):
		return "SBOM"
	case has("in-toto", "dsse", "provenance", "attestation"):
		return "attestation"
	case has("wasm"):
		return "WebAssembly module"
	}
	return ""
}
