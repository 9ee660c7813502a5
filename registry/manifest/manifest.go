// Package manifest parses manifests of all kinds, refuses invalid ones, and returns what they name.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/oci"
)

// mediaTypeArtifact is the type of the artifact manifest that image-spec 1.1 dropped before its
// release; some tools still push it.
const mediaTypeArtifact = "application/vnd.oci.artifact.manifest.v1+json"

// Document holds the fields that this registry reads, of all kinds of manifests together.
type Document struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        *oci.Descriptor   `json:"config"`
	Layers        Descriptors       `json:"layers"`
	Blobs         Descriptors       `json:"blobs"`
	Manifests     Descriptors       `json:"manifests"`
	Subject       *oci.Descriptor   `json:"subject"`
	Annotations   map[string]string `json:"annotations"`
}

// These limits keep a small document from taking much memory or keeping the catalogue's writer
// busy.
const (
	// maxDescriptors is the limit for a manifest's list; only one kind of list is allowed.
	maxDescriptors = 10_000
	// maxValues is the maximum number of JSON values in a manifest: 25 for each of 10,000
	// descriptors. A value may take a hundred times its bytes in memory.
	maxValues = 250_000
	// maxDepth is the maximum nesting of objects and arrays. Manifests have five levels. Indenting
	// a document for reading takes space that grows with the square of the depth.
	maxDepth = 64
)

// Descriptors is a list that stops parsing when it gets too long.
type Descriptors []oci.Descriptor

// UnmarshalJSON implements json.Unmarshaler.
func (l *Descriptors) UnmarshalJSON(b []byte) error {
	*l = nil
	dec := json.NewDecoder(bytes.NewReader(b))
	switch t, err := dec.Token(); {
	case err != nil:
		return err
	case t == nil:
		return nil
	case t != json.Delim('['):
		return errors.New("a list of descriptors is not an array")
	}
	list := Descriptors{} // an empty list differs from an absent one
	for dec.More() {
		if len(list) == maxDescriptors {
			return fmt.Errorf("a list has more than %d descriptors, which is the limit", maxDescriptors)
		}
		var d oci.Descriptor
		if err := dec.Decode(&d); err != nil {
			return err
		}
		list = append(list, d)
	}
	*l = list
	return nil
}

// checkShape refuses a JSON document with too many values, or with values nested too deep.
func checkShape(b []byte) error {
	values, depth := oci.JSONShape(b)
	switch {
	case values > maxValues:
		return Invalid("the manifest has more than %d JSON values, which is the limit", maxValues)
	case depth > maxDepth:
		return Invalid("the manifest nests objects and arrays more than %d deep, which is the limit", maxDepth)
	}
	return nil
}

// Invalid returns the error for a refused manifest.
func Invalid(format string, args ...any) error {
	return oci.Errorf(oci.CodeManifestInvalid, format, args...)
}

// Parse parses and checks a manifest. contentType is the request's content type, or empty.
func Parse(b []byte, contentType string) (Document, error) {
	var doc Document
	if err := checkShape(b); err != nil {
		return doc, err
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return doc, Invalid("the manifest cannot be read: %v", err)
	}
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.TrimSpace(mediaType)
	switch {
	case mediaType == "" || mediaType == "application/json" || mediaType == oci.MediaTypeOctetStream:
		mediaType = doc.MediaType
	case doc.MediaType != "" && doc.MediaType != mediaType:
		return doc, Invalid("the Content-Type is %s, the manifest says %s", mediaType, doc.MediaType)
	}
	if mediaType == "" { // OCI manifests need not say what they are
		mediaType = oci.MediaTypeOCIManifest
		if doc.Manifests != nil {
			mediaType = oci.MediaTypeOCIIndex
		}
	}
	doc.MediaType = mediaType
	return doc, doc.check()
}

// check refuses what is not a manifest of its media type. A document that could
// be read as two kinds at once is refused as well (CVE-2021-41190).
func (doc *Document) check() error {
	switch doc.MediaType {
	case oci.MediaTypeOCIManifest, oci.MediaTypeDockerManifest:
		if doc.Manifests != nil || doc.Blobs != nil {
			return Invalid("an image manifest cannot have manifests or blobs beside its layers")
		}
		if doc.Config == nil {
			return Invalid("the image manifest has no config")
		}
	case oci.MediaTypeOCIIndex, oci.MediaTypeDockerIndex:
		if doc.Config != nil || doc.Layers != nil || doc.Blobs != nil {
			return Invalid("an image index cannot have a config, layers or blobs")
		}
	case mediaTypeArtifact:
		if doc.Config != nil || doc.Layers != nil || doc.Manifests != nil {
			return Invalid("an artifact manifest has blobs and nothing else")
		}
		return doc.checkDescriptors()
	case oci.MediaTypeDockerManifestV1, oci.MediaTypeDockerManifestV1S:
		return Invalid("Docker's manifest schema 1 is not supported; push with a client newer than Docker 1.10")
	default:
		return Invalid("manifests of media type %.100q are not supported", doc.MediaType)
	}
	if doc.SchemaVersion != 2 {
		return Invalid("schemaVersion is %d, not 2", doc.SchemaVersion)
	}
	return doc.checkDescriptors()
}

func (doc *Document) checkDescriptors() error {
	check := func(d oci.Descriptor) error {
		if err := oci.CheckDigest(d.Digest); err != nil {
			return Invalid("a descriptor of the manifest is malformed: %v", err)
		}
		if d.Size < 0 {
			return Invalid("descriptor %s has the size %d", d.Digest, d.Size)
		}
		return nil
	}
	for _, list := range [][]oci.Descriptor{doc.Layers, doc.Blobs, doc.Manifests} {
		for _, d := range list {
			if err := check(d); err != nil {
				return err
			}
		}
	}
	for _, d := range []*oci.Descriptor{doc.Config, doc.Subject} {
		if d != nil {
			if err := check(*d); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReferrerType returns the type that the referrers API reports. SPEC: an image manifest without one
// has its config's media type.
func (doc *Document) ReferrerType() string {
	if doc.ArtifactType == "" && doc.Config != nil && doc.MediaType == oci.MediaTypeOCIManifest {
		return doc.Config.MediaType
	}
	return doc.ArtifactType
}

// Foreign reports whether a layer may be elsewhere: clients fetch it from its URLs, or are not
// allowed to distribute it.
func Foreign(d oci.Descriptor) bool {
	return len(d.URLs) > 0 || strings.Contains(d.MediaType, ".nondistributable.") || strings.Contains(d.MediaType, ".foreign.")
}

// Sizes returns the sizes that the manifest gives for the contents that it names.
func (doc *Document) Sizes() (map[oci.Digest]int64, error) {
	list := slices.Concat(doc.Layers, doc.Blobs, doc.Manifests)
	if doc.Config != nil {
		list = append(list, *doc.Config)
	}
	sizes := make(map[oci.Digest]int64, len(list))
	for _, d := range list {
		if size, again := sizes[d.Digest]; again && size != d.Size {
			return nil, Invalid("the manifest names %s with two sizes, %d and %d bytes", d.Digest, size, d.Size)
		}
		sizes[d.Digest] = d.Size
	}
	return sizes, nil
}

// Names holds the contents that a manifest names, grouped by whether they must be present
// for the image to be whole.
type Names struct {
	// Blobs must be shown by the manifest's repository.
	Blobs []oci.Descriptor
	// Manifests are the manifests of an index.
	Manifests []oci.Descriptor
	// Foreign layers may be here or elsewhere.
	Foreign []oci.Descriptor
}

// Names returns what the manifest names.
func (doc *Document) Names() Names {
	n := Names{Manifests: Unique(doc.Manifests)}
	if doc.Config != nil {
		n.Blobs = append(n.Blobs, *doc.Config)
	}
	for _, list := range [][]oci.Descriptor{doc.Layers, doc.Blobs} {
		for _, l := range list {
			if Foreign(l) {
				n.Foreign = append(n.Foreign, l)
			} else {
				n.Blobs = append(n.Blobs, l)
			}
		}
	}
	n.Blobs = Unique(n.Blobs)
	return n
}

// Unique returns the descriptors with each digest once.
func Unique(lists ...[]oci.Descriptor) []oci.Descriptor {
	var out []oci.Descriptor
	seen := map[oci.Digest]bool{}
	for _, list := range lists {
		for _, d := range list {
			if !seen[d.Digest] {
				seen[d.Digest] = true
				out = append(out, d)
			}
		}
	}
	return out
}

// All returns everything that is named, each digest once.
func (n Names) All() []oci.Descriptor { return Unique(n.Blobs, n.Manifests, n.Foreign) }

// Has reports whether a digest is among the descriptors.
func Has(list []oci.Descriptor, d oci.Digest) bool {
	return slices.ContainsFunc(list, func(b oci.Descriptor) bool { return b.Digest == d })
}
