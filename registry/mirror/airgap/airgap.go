// Package airgap carries images to places without a network. [Write] writes images of a
// registry into one tar file. [Open] reads such a file. [Archive.Import] puts the images
// of the file into another registry.
//
// The file is an uncompressed image layout of the OCI image specification. Its index
// gives each image's full name, with the upstream and the repository, in the annotation
// org.opencontainers.image.ref.name. So other tools can read the file, too. Files that
// other tools write can be imported if they give the images' full names: other layouts,
// and the output of docker save.
//
// Manifests stay byte for byte as they are. If some platforms of an index are missing,
// the index is written with the platforms that are there. An image that is not whole is
// left out, and the report names it. Whatever refers to a manifest (signatures, SBOMs) is
// written with the manifest. The same images give the same file.
package airgap

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// Image names an image of a registry.
type Image struct {
	// Repo is the name of the repository.
	Repo string
	// Ref is a tag or a digest.
	Ref string
}

// String returns REPOSITORY:TAG or REPOSITORY@DIGEST.
func (i Image) String() string {
	if oci.IsDigest(i.Ref) {
		return i.Repo + "@" + i.Ref
	}
	return i.Repo + ":" + i.Ref
}

// ParseImage parses the form that String returns, in the same way as
// oci.ParseReference.
func ParseImage(s string) (Image, error) {
	repo, ref, err := oci.ParseReference(s)
	return Image{repo, ref}, err
}

// Progress says how far an export or an import has come.
type Progress struct {
	// Images is the number of images that are done, out of ImagesTotal. An artifact that
	// refers to an image counts as an image, too.
	Images      int `json:"images"`
	ImagesTotal int `json:"images_total"`
	// Manifests and Blobs count what was written.
	Manifests int `json:"manifests"`
	Blobs     int `json:"blobs"`
	// Present is the number of blobs that were at the destination before.
	Present int `json:"present"`
	// Absent counts the manifests of platforms that an index names and the source lacks,
	// and the layers that are kept elsewhere.
	Absent int `json:"absent"`
	// Bytes is the number of bytes of blobs that are written or were already present, out
	// of BytesTotal.
	Bytes      int64 `json:"bytes"`
	BytesTotal int64 `json:"bytes_total"`
	// LeftOut lists, at the end, the images that are not whole.
	LeftOut []LeftOut `json:"left_out,omitempty"`
}

// Names and limits of an image layout.
const (
	layoutFile = ocispec.ImageLayoutFile
	indexFile  = ocispec.ImageIndexFile
	blobsDir   = ocispec.ImageBlobsDir + "/"
	// containerdName is the annotation by which containerd names images.
	containerdName = "io.containerd.image.name"
	// maxIndex bounds index.json in bytes: some 100,000 images.
	maxIndex = 64 << 20
	// maxDepth bounds the nesting of indexes.
	maxDepth = 8
)

// entryOf returns the name of a content's entry in the file.
func entryOf(d oci.Digest) string { return blobsDir + d.Algorithm().String() + "/" + d.Encoded() }

// digestOf returns the digest that the name of an entry stands for, or "".
func digestOf(entry string) oci.Digest {
	alg, sum, ok := strings.Cut(strings.TrimPrefix(entry, blobsDir), "/")
	d := digest.NewDigestFromEncoded(digest.Algorithm(alg), sum)
	if !ok || !strings.HasPrefix(entry, blobsDir) || !oci.ValidDigest(d) {
		return ""
	}
	return d
}

// parts are the contents that a manifest names.
type parts struct {
	manifests, blobs []oci.Descriptor
}

// partsOf returns the contents that a manifest needs, each once.
func partsOf(mediaType string, content []byte) (parts, error) {
	var p parts
	if !oci.IsIndex(mediaType) && mediaType != oci.MediaTypeOCIManifest && mediaType != oci.MediaTypeDockerManifest && mediaType != artifactType {
		return p, nil // what other types need is not known
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

// artifactType is the media type of the artifact manifest, which OCI has withdrawn.
const artifactType = "application/vnd.oci.artifact.manifest.v1+json"

func isManifest(mediaType string) bool {
	return oci.IsIndex(mediaType) || mediaType == oci.MediaTypeOCIManifest || mediaType == oci.MediaTypeDockerManifest || mediaType == artifactType
}

// isForeign reports whether a layer may be kept somewhere other than in the registry.
func isForeign(d oci.Descriptor) bool {
	return len(d.URLs) > 0 || strings.Contains(d.MediaType, "nondistributable") || strings.Contains(d.MediaType, "rootfs.foreign")
}
