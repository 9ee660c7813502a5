package airgap

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"example.org/slipway/oci"
)

// dockerFile is the file in which docker save lists the images of its output. In that
// output the files of layers are not named by digests and mostly not compressed, and
// there are no manifests. Since Docker 25 the output is an image layout as well.
const dockerFile = "manifest.json"

// dockerImage is an entry of dockerFile.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Limits on the output of docker save that is read.
const (
	maxConfig = 4 << 20
	// maxLinks bounds how many links are followed from a name to a file.
	maxLinks = 8
)

// readDocker makes a manifest for each image that manifest.json lists.
func (a *Archive) readDocker() error {
	var list []dockerImage
	if err := a.readJSON(dockerFile, &list); err != nil {
		return err
	}
	layers := map[span]oci.Descriptor{}
	for _, im := range list {
		d, err := a.assemble(im, layers)
		switch {
		case err != nil:
			a.problems = append(a.problems, fmt.Errorf("image %.100q %q: %w", im.Config, im.RepoTags, err))
		case len(im.RepoTags) == 0:
			a.problems = append(a.problems, fmt.Errorf("%s does not say what the image %.100q is called: save it by a name, REGISTRY/REPOSITORY:TAG, and not by its ID", dockerFile, im.Config))
		}
		if err == nil {
			for _, name := range im.RepoTags {
				a.add(name, d)
			}
		}
	}
	return nil
}

// dockerTags returns the names that manifest.json gives to images, by the digests of
// their configs.
func (a *Archive) dockerTags() map[oci.Digest][]string {
	var list []dockerImage
	if a.readJSON(dockerFile, &list) != nil {
		return nil // a layout does not need manifest.json
	}
	tags := make(map[oci.Digest][]string, len(list))
	for _, im := range list {
		if d := digestOf(im.Config); d != "" {
			tags[d] = append(tags[d], im.RepoTags...)
		}
	}
	return tags
}

// configOf returns the digest of a manifest's config. For an index it returns the digest
// for the first image that the file has. It returns "" if there is none, and for those in
// seen, which it has already looked at in vain.
func (a *Archive) configOf(d oci.Descriptor, depth int, seen map[oci.Digest]bool) oci.Digest {
	if !a.has(d.Digest) || depth > maxDepth || seen[d.Digest] {
		return ""
	}
	seen[d.Digest] = true
	content, err := a.manifest(d)
	if err != nil {
		return ""
	}
	var m struct {
		Config    oci.Descriptor
		Manifests []oci.Descriptor
	}
	if json.Unmarshal(content, &m) != nil {
		return ""
	}
	for _, child := range m.Manifests {
		if isAttestation(child) {
			continue
		}
		if c := a.configOf(child, depth+1, seen); c != "" {
			return c
		}
	}
	return m.Config.Digest
}

// assemble makes the manifest of an image. The layers stay in the file as they are.
func (a *Archive) assemble(im dockerImage, layers map[span]oci.Descriptor) (oci.Descriptor, error) {
	at, err := a.find(im.Config)
	if err != nil {
		return oci.Descriptor{}, err
	}
	if at.size > maxConfig {
		return oci.Descriptor{}, fmt.Errorf("its config is larger than %d bytes", maxConfig)
	}
	config, err := a.read(at)
	if err != nil {
		return oci.Descriptor{}, fmt.Errorf("read its config: %w", err)
	}
	var c struct {
		RootFS struct {
			DiffIDs []oci.Digest `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return oci.Descriptor{}, fmt.Errorf("its config is malformed: %w", err)
	}
	if len(c.RootFS.DiffIDs) != len(im.Layers) {
		return oci.Descriptor{}, fmt.Errorf("its config names %d layers and %s %d", len(c.RootFS.DiffIDs), dockerFile, len(im.Layers))
	}
	m := struct {
		SchemaVersion int              `json:"schemaVersion"`
		MediaType     string           `json:"mediaType"`
		Config        oci.Descriptor   `json:"config"`
		Layers        []oci.Descriptor `json:"layers"`
	}{2, oci.MediaTypeDockerManifest, oci.Descriptor{MediaType: "application/vnd.docker.container.image.v1+json", Digest: oci.SHA256(config), Size: at.size}, []oci.Descriptor{}}
	a.contents[m.Config.Digest] = at
	for i, name := range im.Layers {
		l, err := a.layer(name, c.RootFS.DiffIDs[i], layers)
		if err != nil {
			return oci.Descriptor{}, fmt.Errorf("layer %.100q: %w", name, err)
		}
		m.Layers = append(m.Layers, l)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return oci.Descriptor{}, err
	}
	d := oci.Descriptor{MediaType: m.MediaType, Digest: oci.SHA256(b), Size: int64(len(b))}
	a.made[d.Digest] = b
	return d, nil
}

// layer describes a layer whose diff ID is diff. The diff ID of an uncompressed layer is
// its digest.
func (a *Archive) layer(name string, diff oci.Digest, known map[span]oci.Descriptor) (oci.Descriptor, error) {
	if err := oci.CheckDigest(diff); err != nil {
		return oci.Descriptor{}, err
	}
	at, err := a.find(name)
	if err != nil {
		return oci.Descriptor{}, err
	}
	d, seen := known[at]
	if !seen {
		if d, err = a.describe(at, diff); err != nil {
			return oci.Descriptor{}, err
		}
		known[at], a.contents[d.Digest] = d, at
	}
	return d, nil
}

func (a *Archive) describe(at span, diff oci.Digest) (oci.Descriptor, error) {
	const tarType = "application/vnd.docker.image.rootfs.diff.tar"
	sum := digest.Canonical.Digester()
	in := io.TeeReader(io.NewSectionReader(a.r, at.off, at.size), sum.Hash())
	plain, how, err := Unpack(in)
	if err != nil {
		return oci.Descriptor{}, err
	}
	defer plain.Close()
	if how == "" {
		return oci.Descriptor{MediaType: tarType, Digest: diff, Size: at.size}, nil
	}
	if how != packedGzip && how != packedZstd {
		return oci.Descriptor{}, fmt.Errorf("it is compressed with %s, and layers of images with gzip or zstd", how)
	}
	v := diff.Verifier()
	_, err = io.Copy(v, plain)
	if err == nil {
		_, err = io.Copy(io.Discard, in) // the rest, after the compressed data
	}
	if err != nil {
		return oci.Descriptor{}, err
	}
	if !v.Verified() {
		return oci.Descriptor{}, fmt.Errorf("it is not %s", diff)
	}
	return oci.Descriptor{MediaType: tarType + "." + string(how), Digest: sum.Digest(), Size: at.size}, nil
}

// find returns the place of a file in the archive.
func (a *Archive) find(name string) (span, error) {
	for to, n := name, 0; n < maxLinks; n++ {
		if at, ok := a.files[to]; ok {
			return at, nil
		}
		if at, ok := a.contents[digestOf(to)]; ok {
			return at, nil
		}
		next, ok := a.links[to]
		if !ok {
			break
		}
		to = next
	}
	return span{}, fmt.Errorf("the file lacks %.100q", name)
}

// Packing is the compression of a stream; "" means none.
type Packing string

// The packings that Unpack knows.
const (
	packedGzip  Packing = "gzip"
	packedZstd  Packing = "zstd"
	packedBzip2 Packing = "bzip2"
)

// maxWindow bounds the memory that a zstd stream can make the decoder use. It is as much
// as zstd --ultra needs.
const maxWindow = 128 << 20

// Unpack returns the decompressed content of a stream, and the compression of the stream.
// It is an error if the compression is not known here. Errors of r are returned, too.
func Unpack(r io.Reader) (io.ReadCloser, Packing, error) {
	br := bufio.NewReader(r)
	magic, err := br.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		return z, packedGzip, err
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, packedZstd, err
		}
		return z.IOReadCloser(), packedZstd, nil
	case bytes.HasPrefix(magic, []byte("BZh")):
		return io.NopCloser(bzip2.NewReader(br)), packedBzip2, nil
	case bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, "xz", errors.New("it is compressed with xz; unpack it with unxz first")
	}
	return io.NopCloser(br), "", nil
}
