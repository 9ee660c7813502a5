package plan

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/opencontainers/image-spec/specs-go"

	"example.org/slipway/oci"
	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/trace/store"
)

// blobType is the media type of the layers that are made, and of the blob that stands in
// for a configuration. It tells a registry that looks into layers or configurations that
// there is nothing to see. It is short, so that a manifest is no longer than the recorded
// one.
const blobType = "application/octet-stream"

// noteVersion is the annotation that makes versions differ, and that fills a manifest up.
const noteVersion = "v"

// maxManifest bounds the padding: registries take manifests up to 4 MiB.
const maxManifest = 3 << 20

// image returns the configuration of a manifest that has none among its layers. It is a
// valid one, and different for each manifest.
func (p *Plan) image(k pair, m *manifest) ([]byte, error) {
	img := ocispec.Image{Platform: ocispec.Platform{Architecture: "amd64", OS: "linux"}, RootFS: ocispec.RootFS{Type: "layers"}}
	if !isDigested(k) {
		img.Author = p.names.repo(k.repo()) + " "
	}
	img.Author += p.src.Name(store.Refs, k.ref())
	for _, l := range m.layers {
		r, err := p.table.get(l)
		if err != nil {
			return nil, err
		}
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, oci.Digest(digestName(r.digest)))
	}
	return json.Marshal(img)
}

// document returns a version of a manifest and its media type. Version 0 is in place
// before the first request; other versions are named by the microsecond since 1970 at
// which they were put. A version has the layers that the registry has at that time. It
// has the recorded size, unless its content needs more.
func (p *Plan) document(k pair, m *manifest, version int64) (mediaType string, body []byte, err error) {
	if len(m.children) > 0 {
		return p.index(k, m)
	}
	doc := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{}}
	if m.config == store.None {
		config, err := p.image(k, m)
		if err != nil {
			return "", nil, err
		}
		doc.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: oci.SHA256(config), Size: int64(len(config))}
	}
	for _, l := range m.layers {
		if !isDigested(k) && !p.hasLayer(k, l, version) {
			continue
		}
		r, err := p.table.get(l)
		if err != nil {
			return "", nil, err
		}
		d := ocispec.Descriptor{MediaType: blobType, Digest: oci.Digest(digestName(r.digest)), Size: r.size}
		if l == m.config {
			doc.Config = d
		} else {
			doc.Layers = append(doc.Layers, d)
		}
	}
	body, err = p.fill(m, p.version(k, version), func(note map[string]string, typed bool) ([]byte, error) {
		if doc.Annotations = note; !typed {
			doc.MediaType = ""
		}
		return json.Marshal(doc)
	})
	return ocispec.MediaTypeImageManifest, body, err
}

// hasLayer reports whether a repository has a layer when a version of a manifest is put.
func (p *Plan) hasLayer(k pair, layer store.Symbol, version int64) bool {
	when := p.pairs[pairOf(k.repo(), layer)]
	return when == inPlace || version != 0 && int64(when) <= version/1e6
}

// index returns a manifest that names others.
func (p *Plan) index(k pair, m *manifest) (mediaType string, body []byte, err error) {
	doc := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, c := range m.children {
		child, err := p.seal(c)
		if err != nil {
			return "", nil, err
		}
		doc.Manifests = append(doc.Manifests, child)
	}
	body, err = p.fill(m, p.version(k, 0), func(note map[string]string, typed bool) ([]byte, error) {
		if doc.Annotations = note; !typed {
			doc.MediaType = ""
		}
		return json.Marshal(doc)
	})
	return ocispec.MediaTypeImageIndex, body, err
}

// version returns the name of a version of a manifest. A manifest with a digest has only
// one.
func (p *Plan) version(k pair, version int64) string {
	return fmt.Sprintf("%010x", content.Key(fmt.Sprintf("%s@%d", p.src.Name(store.Refs, k.ref()), version))>>24)
}

// fill makes a document as long as the recorded one: it leaves out what can be left out, and
// fills up a note.
func (p *Plan) fill(m *manifest, version string, encode func(note map[string]string, typed bool) ([]byte, error)) ([]byte, error) {
	size := min(m.size, maxManifest)
	if size <= 0 {
		return encode(map[string]string{noteVersion: version}, true)
	}
	for _, typed := range []bool{true, false} {
		body, err := encode(map[string]string{noteVersion: version}, typed)
		if missing := size - int64(len(body)); err == nil && missing > 0 {
			return encode(map[string]string{noteVersion: version + strings.Repeat("x", int(missing))}, typed)
		}
		if err != nil || int64(len(body)) == size {
			return body, err
		}
	}
	return encode(nil, false)
}

// sealManifests computes the digests of the manifests. The digests of the layers must be
// known.
func (p *Plan) sealManifests() error {
	for k, m := range p.manifests {
		if p.o.Level == L0 {
			m.size = p.o.size(m.size)
			m.digest = p.o.Maker.Digest(p.manifestKey(k, 0), m.size)
			continue
		}
		if _, err := p.seal(k); err != nil {
			return err
		}
	}
	return nil
}

// seal computes the digest of a manifest. The manifests that an index names were put before it,
// so no index leads back to itself.
func (p *Plan) seal(k pair) (ocispec.Descriptor, error) {
	m := p.manifests[k]
	mediaType, body, err := p.document(k, m, 0)
	m.digest = sha256.Sum256(body)
	return ocispec.Descriptor{MediaType: mediaType, Digest: oci.Digest(digestName(m.digest)), Size: int64(len(body))}, err
}
