package plan

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/opencontainers/image-spec/specs-go"

	"example.org/slipway/oci"
	"example.org/slipway/trace/store"
)

// layerType is the media type of the layers that are made. It is not that of an
// archive: a registry that looks into layers need not try.
const layerType = "application/vnd.slipway.replay.layer.v1"

// Annotations of the manifests that are made.
const (
	noteVersion = "org.slipway.replay.version"
	notePadding = "org.slipway.replay.padding"
)

// maxManifest bounds the padding: registries take manifests up to 4 MiB.
const maxManifest = 3 << 20

// image is the configuration of a manifest: it is a valid one, and different for
// each tag.
func (p *Plan) image(k pair, m *manifest) ([]byte, error) {
	img := ocispec.Image{Platform: ocispec.Platform{Architecture: "amd64", OS: "linux"}, RootFS: ocispec.RootFS{Type: "layers"}}
	img.Author = p.names.repo(k.repo()) + " " + p.src.Name(store.Refs, k.ref())
	for _, l := range m.layers {
		r, err := p.table.get(l)
		if err != nil {
			return nil, err
		}
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, oci.Digest(digestName(r.digest)))
	}
	return json.Marshal(img)
}

// document is a version of a manifest: version 0 is the one in place before the
// first request, others are named by the microsecond since 1970 they were put at. It
// has the layers that the registry has by then, and the size of the recorded one if
// that is larger.
func (p *Plan) document(k pair, m *manifest, version int64) ([]byte, error) {
	config, err := p.image(k, m)
	if err != nil {
		return nil, err
	}
	doc := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: oci.SHA256(config), Size: int64(len(config))},
		Layers:    []ocispec.Descriptor{},
		Annotations: map[string]string{
			noteVersion: fmt.Sprintf("%s@%d", p.src.Name(store.Refs, k.ref()), version),
		},
	}
	for _, l := range m.layers {
		if when := p.pairs[pairOf(k.repo(), l)]; when != inPlace && (version == 0 || int64(when) > version/1e6) {
			continue
		}
		r, err := p.table.get(l)
		if err != nil {
			return nil, err
		}
		doc.Layers = append(doc.Layers, ocispec.Descriptor{MediaType: layerType, Digest: oci.Digest(digestName(r.digest)), Size: r.size})
	}
	body, err := json.Marshal(doc)
	const frame = len(`,"":""`) + len(notePadding)
	if missing := min(m.size, maxManifest) - int64(len(body)) - int64(frame); err == nil && missing > 0 {
		doc.Annotations[notePadding] = strings.Repeat("x", int(missing))
		body, err = json.Marshal(doc)
	}
	return body, err
}

// sealManifests computes the digests of the manifests, once those of the layers are
// known.
func (p *Plan) sealManifests() error {
	for k, m := range p.manifests {
		if p.o.Level == L0 {
			m.size = p.o.size(m.size)
			m.digest = p.o.Maker.Digest(p.manifestKey(k, 0), m.size)
			continue
		}
		body, err := p.document(k, m, 0)
		if err != nil {
			return err
		}
		m.digest = sha256.Sum256(body)
	}
	return nil
}
