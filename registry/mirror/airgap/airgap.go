// Package airgap carries images to where there is no network: [Write] puts images
// of a registry into one tar file, [Open] reads such a file, and [Archive.Import]
// puts what is in it into another registry.
//
// The file is an image layout of the OCI image specification, uncompressed, whose
// index names each image in full, upstream and repository included, as the
// annotation org.opencontainers.image.ref.name. So it can be read by other tools,
// too, and what other tools write can be imported if it names its images in full: other
// layouts, and what docker save writes.
//
// Manifests stay byte for byte as they are. An index whose platforms are not all
// there is written with those that are. An image that is not whole is left out,
// and named. Whatever refers to a manifest (signatures,
// SBOMs) goes with it. The same images give the same file.
package airgap

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
)

// Image names an image of a registry.
type Image struct {
	// Repo is the repository.
	Repo string
	// Ref is a tag or a digest.
	Ref string
}

// String is REPOSITORY:TAG or REPOSITORY@DIGEST.
func (i Image) String() string {
	if oci.IsDigest(i.Ref) {
		return i.Repo + "@" + i.Ref
	}
	return i.Repo + ":" + i.Ref
}

// ParseImage reads what String writes, as mirror.ParseReference does.
func ParseImage(s string) (Image, error) {
	repo, ref, err := mirror.ParseReference(s)
	return Image{repo, ref}, err
}

// Progress is how far an export or an import has come.
type Progress struct {
	// Images are done, of ImagesTotal. What refers to an image counts as one, too.
	Images      int `json:"images"`
	ImagesTotal int `json:"images_total"`
	// Manifests and Blobs were written.
	Manifests int `json:"manifests"`
	Blobs     int `json:"blobs"`
	// Present blobs were at the destination before.
	Present int `json:"present"`
	// Absent are manifests of platforms that an index names and the source lacks, and
	// layers that are kept elsewhere.
	Absent int `json:"absent"`
	// Bytes of blobs are written, or were present, of BytesTotal.
	Bytes      int64 `json:"bytes"`
	BytesTotal int64 `json:"bytes_total"`
	// LeftOut are images that are not whole, at the end.
	LeftOut []LeftOut `json:"left_out,omitempty"`
}

// Names and limits of an image layout.
const (
	layoutFile = ocispec.ImageLayoutFile
	indexFile  = ocispec.ImageIndexFile
	blobsDir   = ocispec.ImageBlobsDir + "/"
	// containerdName is the annotation by which containerd names images.
	containerdName = "io.containerd.image.name"
	// maxIndex is the largest index.json in bytes: some 100,000 images.
	maxIndex = 64 << 20
	// maxDepth is how deep indexes are nested at most.
	maxDepth = 8
)

// entryOf is the name in the file of a content.
func entryOf(d oci.Digest) string { return blobsDir + d.Algorithm().String() + "/" + d.Encoded() }

// digestOf is the digest that the name of an entry tells, or "".
func digestOf(entry string) oci.Digest {
	alg, sum, ok := strings.Cut(strings.TrimPrefix(entry, blobsDir), "/")
	d := digest.NewDigestFromEncoded(digest.Algorithm(alg), sum)
	if !ok || !strings.HasPrefix(entry, blobsDir) || !oci.ValidDigest(d) {
		return ""
	}
	return d
}

// parts are what a manifest names.
type parts struct {
	manifests, blobs []oci.Descriptor
}

// partsOf returns what a manifest needs, each once.
func partsOf(mediaType string, content []byte) (parts, error) {
	var p parts
	if !oci.IsIndex(mediaType) && mediaType != oci.MediaTypeOCIManifest && mediaType != oci.MediaTypeDockerManifest && mediaType != artifactType {
		return p, nil // its own business
	}
	var m struct {
		Manifests []oci.Descriptor `json:"manifests"`
		Config    *oci.Descriptor  `json:"config"`
		Layers    []oci.Descriptor `json:"layers"`
		Blobs     []oci.Descriptor `json:"blobs"`
	}
	if err := json.Unmarshal(content, &m); err != nil {
		return p, fmt.Errorf("the manifest is malformed: %w", err)
	}
	list := slices.Concat(m.Manifests, m.Layers, m.Blobs)
	if m.Config != nil {
		list = append(list, *m.Config)
	}
	seen := make(map[oci.Digest]bool, len(list))
	for _, d := range list {
		if err := oci.CheckDigest(d.Digest); err != nil {
			return p, err
		}
		switch {
		case seen[d.Digest]:
		case oci.IsIndex(mediaType) && isManifest(d.MediaType):
			p.manifests = append(p.manifests, d)
		default:
			p.blobs = append(p.blobs, d)
		}
		seen[d.Digest] = true
	}
	return p, nil
}

// artifactType is the artifact manifest that OCI has withdrawn.
const artifactType = "application/vnd.oci.artifact.manifest.v1+json"

func isManifest(mediaType string) bool {
	return oci.IsIndex(mediaType) || mediaType == oci.MediaTypeOCIManifest || mediaType == oci.MediaTypeDockerManifest || mediaType == artifactType
}

// isForeign reports whether a layer may lie elsewhere.
func isForeign(d oci.Descriptor) bool {
	return len(d.URLs) > 0 || strings.Contains(d.MediaType, "nondistributable") || strings.Contains(d.MediaType, "rootfs.foreign")
}
