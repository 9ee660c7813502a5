package registry

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"example.org/slipway/integration/internal/wire"
)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	// Noise is not a file tree, and nothing should take it for one and convert it.
	layerType  = "application/vnd.example.noise"
	binaryType = "application/octet-stream"
)

// imageTag is the tag of every image; each image has its own repository.
const imageTag = "v1"

// blob is content and its digest.
type blob struct {
	digest string
	data   []byte
}

func newBlob(data []byte) blob { return blob{wire.Digest(data), data} }

// image is an image to push, or to expect.
type image struct {
	repo     string
	blobs    []blob // layers, then the configuration
	manifest blob
}

// smallLayers are the sizes of a small image's layers, in bytes.
var smallLayers = [...]int{1 << 10, 1 << 10, 1 << 10, 1 << 10, 1 << 10}

// smallImage returns small image i of a set. The two numbers determine its content, so
// that one run can verify what another run has stored.
func smallImage(set, i int) *image {
	layers := make([]blob, len(smallLayers))
	for n, size := range smallLayers {
		layers[n] = newBlob(noise(uint64(set)<<32|uint64(i), uint64(n), size))
	}
	return newImage(fmt.Sprintf("bench/s%d-i%05d", set, i), layers)
}

// noise returns pseudo-random bytes, which no compression can shorten.
func noise(seed, stream uint64, size int) []byte {
	source := rand.NewPCG(seed, stream)
	b := make([]byte, 0, size+8)
	for len(b) < size {
		b = binary.LittleEndian.AppendUint64(b, source.Uint64())
	}
	return b[:size]
}

// newImage makes an image of layers.
func newImage(repo string, layers []blob) *image {
	type rootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
	config := struct {
		Architecture string            `json:"architecture"`
		OS           string            `json:"os"`
		Config       map[string]string `json:"config"`
		RootFS       rootFS            `json:"rootfs"`
	}{"amd64", "linux", map[string]string{"WorkingDir": "/" + repo}, rootFS{Type: "layers"}}
	doc := wire.Document{SchemaVersion: 2, MediaType: manifestType}
	for _, l := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.digest)
		doc.Layers = append(doc.Layers, wire.Descriptor{MediaType: layerType, Digest: l.digest, Size: int64(len(l.data))})
	}
	c := newBlob(mustJSON(config))
	doc.Config = &wire.Descriptor{MediaType: configType, Digest: c.digest, Size: int64(len(c.data))}
	return &image{repo: repo, blobs: append(layers[:len(layers):len(layers)], c), manifest: newBlob(mustJSON(doc))}
}

// mustJSON marshals values that this program made up itself.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// blobSizes are the sizes of the large blobs, in bytes.
var blobSizes = [...]int{1 << 20, 16 << 20, 128 << 20}

// largeImage returns an image of one layer of the given size in bytes.
func largeImage(size int) *image {
	return newImage(fmt.Sprintf("bench/large-%d", size), []blob{newBlob(noise(1, uint64(size), size))})
}

// another returns an image like im whose layers differ from the layers for every other
// number. It does not generate all their bytes anew.
func (im *image) another(repo string, number uint64) *image {
	layers := make([]blob, len(im.blobs)-1)
	for i, b := range im.blobs[:len(layers)] {
		data := append([]byte(nil), b.data...)
		binary.LittleEndian.PutUint64(data, number)
		layers[i] = newBlob(data)
	}
	return newImage(repo, layers)
}

// tagSet is a repository with many tags, each with its own manifest.
type tagSet struct {
	image *image // holds the blobs that all the manifests name
	n     int
	// digests are the digests of the manifests.
	digests []string
}

func newTagSet(n int) *tagSet {
	im := smallImage(9, n)
	im.repo = fmt.Sprintf("bench/tags-%d", n)
	s := &tagSet{image: im, n: n, digests: make([]string, n)}
	for i := range s.digests {
		s.digests[i] = s.manifest(i).digest
	}
	return s
}

func tagName(i int) string { return fmt.Sprintf("t%07d", i) }

// manifest returns the manifest of a tag.
func (s *tagSet) manifest(i int) blob {
	var doc wire.Document
	if err := json.Unmarshal(s.image.manifest.data, &doc); err != nil {
		panic(err)
	}
	doc.Annotations = map[string]string{"org.opencontainers.image.version": tagName(i)}
	return newBlob(mustJSON(doc))
}

// tree writes content as files that a web server can serve as a registry would.
type tree struct{ root string }

func (t tree) image(im *image) error {
	for _, b := range im.blobs {
		if err := t.write(im.repo, "blobs", b.digest, b.data); err != nil {
			return err
		}
	}
	for _, ref := range []string{imageTag, im.manifest.digest} {
		if err := t.write(im.repo, "manifests", ref, im.manifest.data); err != nil {
			return err
		}
	}
	return nil
}

func (t tree) tags(s *tagSet) error {
	for i := range s.n {
		if err := t.write(s.image.repo, "manifests", tagName(i), s.manifest(i).data); err != nil {
			return err
		}
	}
	return nil
}

// write makes a file that everybody may read, because a web server that root started
// reads files as the user nobody.
func (t tree) write(repo, kind, name string, data []byte) error {
	dir := filepath.Join(t.root, "v2", repo, kind)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), data, 0o644)
}
