// Package imagetest makes images, indexes, artifacts and charts for tests. It needs no network and
// produces the same bytes every time.
//
// A [Bundle] holds content in memory: manifests and blobs by digest. It can be written as an OCI
// image layout or as the archive that `docker save` writes. Every client can read at least one of
// the two.
package imagetest

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/wire"
)

// These are media types of the OCI image specification.
const (
	TypeManifest = "application/vnd.oci.image.manifest.v1+json"
	TypeIndex    = "application/vnd.oci.image.index.v1+json"
	TypeConfig   = "application/vnd.oci.image.config.v1+json"
	TypeLayerTar = "application/vnd.oci.image.layer.v1.tar"
	TypeLayerGz  = "application/vnd.oci.image.layer.v1.tar+gzip"
	TypeEmpty    = "application/vnd.oci.empty.v1+json"
)

// Blob is content with its descriptor.
type Blob struct {
	wire.Descriptor
	Data []byte
}

// NewBlob returns data with its descriptor.
func NewBlob(mediaType string, data []byte) Blob {
	return Blob{wire.Descriptor{MediaType: mediaType, Digest: wire.Digest(data), Size: int64(len(data))}, data}
}

// Bundle is a manifest or index with everything it leads to.
type Bundle struct {
	// Top is the manifest that a tag will name.
	Top Blob
	// Manifests are the other manifests, children before parents. Blobs are
	// configurations and layers. Content that occurs twice is listed twice.
	Manifests, Blobs []Blob
}

// Push pushes the bundle with plain requests, and tags it.
func (b *Bundle) Push(ctx context.Context, c *wire.Client, repo, tag string) error {
	for _, x := range b.Blobs {
		if _, err := c.PushBlob(ctx, repo, x.Data); err != nil {
			return err
		}
	}
	for _, m := range b.Manifests {
		if _, err := c.PutManifest(ctx, repo, m.Digest, m.MediaType, m.Data); err != nil {
			return err
		}
	}
	_, err := c.PutManifest(ctx, repo, tag, b.Top.MediaType, b.Top.Data)
	return err
}

// Image is a runnable image.
type Image struct {
	Bundle
	// Output is what a container of the image prints.
	Output string

	config Blob
	layers []Layer
}

type imageConfig struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Cmd []string `json:"Cmd,omitempty"`
		Env []string `json:"Env,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []map[string]string `json:"history"`
}

// NewImage returns an image of the layers that runs /hello.
func NewImage(arch string, layers ...Layer) *Image {
	var c imageConfig
	c.Architecture, c.OS = arch, "linux"
	c.Config.Cmd = []string{"/hello"}
	c.Config.Env = []string{"PATH=/"}
	c.RootFS.Type = "layers"
	im := &Image{layers: layers}
	doc := wire.Document{SchemaVersion: 2, MediaType: TypeManifest}
	for i, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.DiffID())
		c.History = append(c.History, map[string]string{"created_by": fmt.Sprintf("layer %d", i)})
		b := NewBlob(TypeLayerGz, l.Gzip)
		doc.Layers = append(doc.Layers, b.Descriptor)
		im.Blobs = append(im.Blobs, b)
	}
	im.config = NewBlob(TypeConfig, marshal(c))
	doc.Config = &im.config.Descriptor
	im.Blobs = append(im.Blobs, im.config)
	im.Top = NewBlob(TypeManifest, marshal(doc))
	return im
}

// Layers returns the layers, the lowest first.
func (im *Image) Layers() []Layer { return im.layers }

// Hello returns a runnable image of three layers: the program, two files, and
// a layer that deletes one of the files and adds another.
func Hello(t testing.TB) *Image {
	t.Helper()
	im := NewImage(runtime.GOARCH,
		NewLayer(File{Name: "hello", Mode: 0o755, Data: HelloProgram(t)}),
		NewLayer(File{Name: "data/"}, File{Name: "data/a", Data: []byte("1")}, File{Name: "data/gone", Data: []byte("x")}),
		NewLayer(File{Name: "data/"}, File{Name: "data/.wh.gone"}, File{Name: "data/b", Data: []byte("2")}))
	im.Output = "slipway-ok a=1 b=2"
	return im
}

// Repetitive returns a runnable image in which one layer occurs twice and the
// empty layer twice.
func Repetitive(t testing.TB) *Image {
	t.Helper()
	files := NewLayer(File{Name: "data/"}, File{Name: "data/a", Data: []byte("twice")})
	im := NewImage(runtime.GOARCH,
		NewLayer(),
		NewLayer(File{Name: "hello", Mode: 0o755, Data: HelloProgram(t)}),
		files, NewLayer(), files)
	im.Output = "slipway-ok a=twice"
	return im
}

// MultiArch returns an index of two images, for amd64 and arm64. The image for this
// machine is im. The other image has the same data and no program.
func MultiArch(im *Image) *Bundle {
	b := &Bundle{}
	doc := wire.Document{SchemaVersion: 2, MediaType: TypeIndex}
	for _, arch := range []string{"amd64", "arm64"} {
		child := im
		if arch != runtime.GOARCH {
			child = NewImage(arch, NewLayer(File{Name: "arch", Data: []byte(arch)}))
		}
		d := child.Top.Descriptor
		d.Platform = &wire.Platform{Architecture: arch, OS: "linux"}
		doc.Manifests = append(doc.Manifests, d)
		b.Manifests = append(b.Manifests, child.Top)
		b.Blobs = append(b.Blobs, child.Blobs...)
	}
	b.Top = NewBlob(TypeIndex, marshal(doc))
	return b
}

// Artifact returns a manifest of the artifact type with one blob. It refers to subject unless
// subject is nil.
func Artifact(artifactType, blobType string, data []byte, subject *wire.Descriptor, annotations map[string]string) *Bundle {
	config := NewBlob(TypeEmpty, []byte("{}"))
	layer := NewBlob(blobType, data)
	layer.Annotations = annotations
	return &Bundle{
		Top: NewBlob(TypeManifest, marshal(wire.Document{
			SchemaVersion: 2, MediaType: TypeManifest, ArtifactType: artifactType,
			Config: &config.Descriptor, Layers: []wire.Descriptor{layer.Descriptor}, Subject: subject,
		})),
		Blobs: []Blob{config, layer},
	}
}

// Signature returns what cosign stores beside an image, and the tag that it uses: sha256-<hex>.sig.
// The signature itself is made up.
func Signature(image wire.Descriptor) (*Bundle, string) {
	payload := fmt.Sprintf(`{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},`+
		`"type":"cosign container image signature"},"optional":null}`, image.Digest)
	b := Artifact("", "application/vnd.dev.cosign.simplesigning.v1+json", []byte(payload), nil,
		map[string]string{"dev.cosignproject.cosign/signature": "MEUCIQDfictitious"})
	return b, strings.ReplaceAll(image.Digest, ":", "-") + ".sig"
}

// WriteLayout writes the bundle as an OCI image layout in a new directory, with
// tag as its reference name.
func (b *Bundle) WriteLayout(t testing.TB, dir, tag string) {
	t.Helper()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, x := range append(append([]Blob{b.Top}, b.Manifests...), b.Blobs...) {
		writeFile(t, filepath.Join(blobs, strings.TrimPrefix(x.Digest, "sha256:")), x.Data)
	}
	writeIndex(t, dir, b.Top.Descriptor, tag)
}

// writeIndex writes the two files that turn a directory of blobs into a layout.
func writeIndex(t testing.TB, dir string, top wire.Descriptor, tag string) {
	t.Helper()
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag}
	writeFile(t, filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`))
	writeFile(t, filepath.Join(dir, "index.json"),
		marshal(wire.Document{SchemaVersion: 2, Manifests: []wire.Descriptor{top}}))
}

// WriteDockerArchive writes the image as `docker save` does, under the name
// ref ("host/repository:tag"). Docker reads no other form without a registry.
func (im *Image) WriteDockerArchive(t testing.TB, path, ref string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	add := func(name string, data []byte) {
		must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}))
		if _, err := w.Write(data); err != nil {
			t.Fatalf("write %s: %v", path, err)
		}
	}
	config := strings.TrimPrefix(im.config.Digest, "sha256:") + ".json"
	add(config, im.config.Data)
	var names []string
	written := map[string]bool{}
	for _, l := range im.layers {
		name := strings.TrimPrefix(l.DiffID(), "sha256:") + "/layer.tar"
		names = append(names, name)
		if !written[name] {
			add(name, l.Tar)
			written[name] = true
		}
	}
	add("manifest.json", marshal([]map[string]any{{"Config": config, "RepoTags": []string{ref}, "Layers": names}}))
	if err := w.Close(); err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
}

// WriteChart writes a Helm chart package, NAME-VERSION.tgz, into dir and
// returns its path.
func WriteChart(t testing.TB, dir, name, version string) string {
	t.Helper()
	chart := NewLayer(
		File{Name: name + "/Chart.yaml", Data: fmt.Appendf(nil, "apiVersion: v2\nname: %s\nversion: %s\ndescription: a chart\n", name, version)},
		File{Name: name + "/values.yaml", Data: []byte("replicas: 1\n")},
		File{Name: name + "/templates/configmap.yaml", Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\n")})
	path := filepath.Join(dir, name+"-"+version+".tgz")
	writeFile(t, path, chart.Gzip)
	return path
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	must(err)
	return b
}

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
