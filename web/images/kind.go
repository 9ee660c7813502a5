package images

import (
	"encoding/json"
	"strings"

	"example.org/slipway/oci"
)

// manifest is what pages read of a manifest, whether of an index or an image. Its content
// is untrusted, because the user who pushed it chose it.
type manifest struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType"`
	Config       *oci.Descriptor   `json:"config"`
	Layers       []oci.Descriptor  `json:"layers"`
	Manifests    []oci.Descriptor  `json:"manifests"`
	Subject      *oci.Descriptor   `json:"subject"`
	Annotations  map[string]string `json:"annotations"`
}

// readManifest reads a manifest. If it cannot be read, the result is empty.
func readManifest(content []byte) manifest {
	var m manifest
	if json.Unmarshal(content, &m) != nil {
		return manifest{}
	}
	return m
}

// Kind says in words what a manifest is. Image reports that containers can run it or, if
// it is an Index, its parts.
type Kind struct {
	Name         string
	Image, Index bool
	Chart        bool
	// Platforms are the platforms of an index. MorePlatforms is how many are not listed.
	Platforms     []string
	MorePlatforms int
}

// These are the media types of manifests that are not images.
const (
	typeHelmConfig = "application/vnd.cncf.helm.config.v1+json"
	typeOCIConfig  = "application/vnd.oci.image.config.v1+json"
	typeDockerConf = "application/vnd.docker.container.image.v1+json"
	typeEmpty      = "application/vnd.oci.empty.v1+json"
)

// maxPlatforms is how many platforms a row names.
const maxPlatforms = 8

// KindOf returns the kind of a manifest with the given content.
func KindOf(mediaType, artifactType string, content []byte) Kind {
	return kindOf(mediaType, artifactType, readManifest(content))
}

func kindOf(mediaType, artifactType string, m manifest) Kind {
	switch mediaType {
	case oci.MediaTypeOCIIndex, oci.MediaTypeDockerIndex:
		return indexKind(m)
	case oci.MediaTypeDockerManifestV1, oci.MediaTypeDockerManifestV1S:
		return Kind{Name: "image of an old form (schema 1)"}
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
			return Kind{Name: k, Chart: k == "Helm chart"}
		}
	}
	if m.Config != nil && (m.Config.MediaType == typeOCIConfig || m.Config.MediaType == typeDockerConf) &&
		(m.ArtifactType == "" || m.ArtifactType == m.Config.MediaType) {
		return Kind{Name: "image", Image: true}
	}
	return Kind{Name: "artifact"}
}

func indexKind(m manifest) Kind {
	k := Kind{Name: "index", Image: true, Index: true}
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

// entryPlatform returns the platform of an entry of an index. It is empty if the entry
// has none, as entries of attestations do.
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

// attachment returns which well-known kind of attachment a media type is, or "" if it is
// none.
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
	case has("sarif", "trivy", "vulnerab", "grype"):
		return "vulnerability report"
	case has("in-toto", "dsse", "provenance", "attestation"):
		return "attestation"
	case has("wasm"):
		return "WebAssembly module"
	}
	return ""
}
