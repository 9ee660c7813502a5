package model

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

const (
	// configModelPack and configDocker begin the media types of the configurations of
	// models: github.com/modelpack/model-spec and github.com/docker/model-runner.
	configModelPack = "application/vnd.cncf.model.config."
	configDocker    = "application/vnd.docker.ai.model.config."
	// filePath is the annotation that gives a layer's path in the model. Both formats
	// have it.
	filePath = "org.cncf.model.filepath"
	// maxWindow is the largest window of zstd, in bytes: the default for layers of
	// images.
	maxWindow = 128 << 20
)

// unnamed holds the names of Docker's files that have no name of their own. If there are
// several files of a type, each gets a number between stem and ending.
var unnamed = map[string]struct{ stem, ending string }{
	"application/vnd.docker.ai.gguf.v3":             {"model", ".gguf"},
	"application/vnd.docker.ai.safetensors":         {"model", ".safetensors"},
	"application/vnd.docker.ai.mmproj":              {"model", ".mmproj"},
	"application/vnd.docker.ai.license":             {"LICENSE", ""},
	"application/vnd.docker.ai.chat.template.jinja": {"template", ".jinja"},
}

// Artifact returns the model in an artifact of ModelPack or of Docker. It reads only the
// manifest, and archives that are compressed. Contents are read during the push. It is an
// error if the artifact is neither of the two, if a layer is of an unknown kind, or if a
// file has no name.
func Artifact(ctx context.Context, reg oci.Reader, repo, ref string) (*Model, error) {
	got, err := reg.GetManifest(ctx, repo, ref)
	if err != nil {
		return nil, err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(got.Bytes, &m); err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", ref, err)
	}
	if kind := m.Config.MediaType; !strings.HasPrefix(kind, configModelPack) && !strings.HasPrefix(kind, configDocker) {
		return nil, fmt.Errorf("%s is not a model of ModelPack or Docker: its configuration is a %q", ref, kind)
	}
	out := &Model{from: map[string]string{ocispec.AnnotationBaseImageDigest: string(got.Digest)}}
	of := map[string]int{} // layers of a media type
	for _, l := range m.Layers {
		of[l.MediaType]++
	}
	nth := map[string]int{}
	for _, l := range m.Layers {
		nth[l.MediaType]++
		if err := out.take(ctx, reg, repo, l, nth[l.MediaType], of[l.MediaType]); err != nil {
			return nil, fmt.Errorf("layer %s of %s: %w", l.Digest, ref, err)
		}
	}
	return out, out.check()
}

// take adds a layer to the model. The layer is number nth among the layers of its media
// type, and of is the number of these layers.
func (m *Model) take(ctx context.Context, reg oci.Reader, repo string, l oci.Descriptor, nth, of int) error {
	layer, isArchive := archiveType(l.MediaType)
	if isArchive {
		a := archive{desc: oci.Descriptor{MediaType: layer, Digest: l.Digest, Size: l.Size}, repo: repo, diffID: l.Digest}
		if layer != ocispec.MediaTypeImageLayer {
			var err error
			if a.diffID, err = unpacked(ctx, reg, repo, a.desc); err != nil {
				return err
			}
		}
		m.archives = append(m.archives, a)
		return nil
	}
	if !strings.HasSuffix(l.MediaType, ".raw") && !strings.HasPrefix(l.MediaType, "application/vnd.docker.ai.") {
		return fmt.Errorf("a %q is neither a file nor an archive", l.MediaType)
	}
	name, err := nameOf(l, nth, of)
	if err != nil {
		return err
	}
	open := func(ctx context.Context) (io.ReadCloser, error) { return reg.GetBlob(ctx, repo, l.Digest) }
	return m.add(file{path: name, size: l.Size, open: open})
}

// nameOf returns the path of a file in the model.
func nameOf(l oci.Descriptor, nth, of int) (string, error) {
	for _, key := range []string{filePath, ocispec.AnnotationTitle} {
		if name := l.Annotations[key]; name != "" {
			return strings.TrimPrefix(name, "./"), nil
		}
	}
	u, ok := unnamed[l.MediaType]
	switch {
	case !ok:
		return "", fmt.Errorf("a file of type %q has no annotation %s", l.MediaType, filePath)
	case of == 1:
		return u.stem + u.ending, nil
	}
	return fmt.Sprintf("%s-%05d-of-%05d%s", u.stem, nth, of, u.ending), nil
}

// archiveType returns the media type of an archive as a layer of an image.
func archiveType(mediaType string) (string, bool) {
	switch {
	case strings.HasSuffix(mediaType, ".tar"):
		return ocispec.MediaTypeImageLayer, true
	case strings.HasSuffix(mediaType, ".tar+gzip"):
		return ocispec.MediaTypeImageLayerGzip, true
	case strings.HasSuffix(mediaType, ".tar+zstd"):
		return ocispec.MediaTypeImageLayerZstd, true
	}
	return "", false
}

// unpacked returns the digest of the archive in a compressed blob.
func unpacked(ctx context.Context, reg oci.Reader, repo string, d oci.Descriptor) (oci.Digest, error) {
	blob, err := reg.GetBlob(ctx, repo, d.Digest)
	if err != nil {
		return "", err
	}
	defer blob.Close()
	var r io.Reader
	if d.MediaType == ocispec.MediaTypeImageLayerGzip {
		r, err = gzip.NewReader(blob)
	} else {
		var z *zstd.Decoder
		if z, err = zstd.NewReader(blob, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow)); err == nil {
			defer z.Close()
			r = z
		}
	}
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", fmt.Errorf("unpack: %w", err)
	}
	return oci.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}
