package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	// imageUser owns the data and runs the server. Images without a shell customarily use
	// this number for an unprivileged user.
	imageUser = 65532
	dataDir   = "var/lib/slipway"
)

// accounts gives the user's number a name, because programs look it up.
const (
	passwd = "root:x:0:0:root:/:/sbin/nologin\nslipway:x:65532:65532:slipway:/var/lib/slipway:/sbin/nologin\n"
	group  = "root:x:0:\nslipway:x:65532:\n"
)

// layout is an OCI image layout under construction.
type layout struct{ files tree }

// blob adds a blob and returns its descriptor.
func (l *layout) blob(mediaType string, data []byte) v1.Descriptor {
	d := digest.FromBytes(data)
	l.files.file("blobs/sha256/"+d.Encoded(), 0o644, data)
	return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

// document adds a JSON document.
func (l *layout) document(mediaType string, v any) (v1.Descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return l.blob(mediaType, data), nil
}

// image makes the container image: an archive of an OCI layout with one index for all
// architectures. The name of the image contains the version.
func (r *release) image() error {
	base, err := r.baseTree()
	if err != nil {
		return err
	}
	var l layout
	common, err := l.layer(base, r)
	if err != nil {
		return err
	}
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Annotations: r.labels()}
	for _, arch := range r.arches {
		m, err := r.platform(&l, arch, common)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		index.Manifests = append(index.Manifests, m)
	}
	top, err := l.document(v1.MediaTypeImageIndex, index)
	if err != nil {
		return err
	}
	// podman load uses the first annotation as the name. docker load and ctr image import
	// use the second.
	name := "localhost/slipway:" + r.version
	top.Annotations = map[string]string{v1.AnnotationRefName: name, "io.containerd.image.name": name}
	entry, err := json.Marshal(v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{top}})
	if err != nil {
		return err
	}
	l.files.file(v1.ImageIndexFile, 0o644, entry)
	l.files.file(v1.ImageLayoutFile, 0o644, []byte(`{"imageLayoutVersion":"`+v1.ImageLayoutVersion+`"}`))
	archive, err := l.files.tar(r.epoch)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("slipway-%s-image.tar", r.version), archive)
}

// layerBlob is a layer in the layout and the digest of its archive.
type layerBlob struct {
	v1.Descriptor
	diffID digest.Digest
}

func (l *layout) layer(t tree, r *release) (layerBlob, error) {
	archive, err := t.tar(r.epoch)
	if err != nil {
		return layerBlob{}, err
	}
	z, err := r.zipped(archive)
	if err != nil {
		return layerBlob{}, err
	}
	return layerBlob{l.blob(v1.MediaTypeImageLayerGzip, z), digest.FromBytes(archive)}, nil
}

// platform adds the image of one architecture.
func (r *release) platform(l *layout, arch string, common layerBlob) (v1.Descriptor, error) {
	var t tree
	if err := t.copied("slipway", 0o755, r.binary(arch)); err != nil {
		return v1.Descriptor{}, err
	}
	program, err := l.layer(t, r)
	if err != nil {
		return v1.Descriptor{}, err
	}
	config, err := l.document(v1.MediaTypeImageConfig, r.config(arch, common, program))
	if err != nil {
		return v1.Descriptor{}, err
	}
	m, err := l.document(v1.MediaTypeImageManifest, v1.Manifest{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   v1.MediaTypeImageManifest,
		Config:      config,
		Layers:      []v1.Descriptor{common.Descriptor, program.Descriptor},
		Annotations: r.labels(),
	})
	m.Platform = &v1.Platform{OS: "linux", Architecture: arch}
	return m, err
}

// config returns the configuration with which the image is run. Unless there is an
// account, or the key that permits running without one, the server refuses to listen at
// the address in the command, and says what to do. So nobody opens a registry to the
// world by an omission.
func (r *release) config(arch string, layers ...layerBlob) v1.Image {
	c := v1.Image{
		Created:  &r.epoch,
		Platform: v1.Platform{OS: "linux", Architecture: arch},
		Config: v1.ImageConfig{
			User:         fmt.Sprintf("%d:%d", imageUser, imageUser),
			ExposedPorts: map[string]struct{}{"5000/tcp": {}},
			Env:          []string{"PATH=/", "HOME=/" + dataDir},
			Entrypoint:   []string{"/slipway"},
			Cmd:          []string{"serve", "--root", "/" + dataDir, "--addr", ":5000"},
			Volumes:      map[string]struct{}{"/" + dataDir: {}},
			WorkingDir:   "/" + dataDir,
			Labels:       r.labels(),
			StopSignal:   "SIGTERM",
		},
		RootFS: v1.RootFS{Type: "layers"},
	}
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.diffID)
		c.History = append(c.History, v1.History{Created: &r.epoch, CreatedBy: "scripts/package image"})
	}
	return c
}

func (r *release) labels() map[string]string {
	l := map[string]string{
		v1.AnnotationTitle:       "Slipway",
		v1.AnnotationDescription: "Container registry, and containers that start before their image is there",
		v1.AnnotationVersion:     r.version,
		v1.AnnotationLicenses:    "Apache-2.0",
		v1.AnnotationCreated:     r.epoch.Format("2006-01-02T15:04:05Z07:00"),
	}
	if r.revision != "" {
		l[v1.AnnotationRevision] = r.revision
	}
	return l
}

// baseTree returns what every architecture has besides the program.
func (r *release) baseTree() (tree, error) {
	var t tree
	t.file("etc/passwd", 0o644, []byte(passwd))
	t.file("etc/group", 0o644, []byte(group))
	t.file("etc/ssl/certs/ca-certificates.crt", 0o644, authorities())
	t = append(t,
		node{path: "tmp", dir: true, mode: 0o1777},
		node{path: "etc/slipway", dir: true, mode: 0o755},
		node{path: dataDir, dir: true, mode: 0o700, uid: imageUser, gid: imageUser},
	)
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return nil, err
	}
	t.file("usr/share/doc/slipway/LICENSE", 0o644, license)
	return t, r.licences(&t, "usr/share/doc/slipway/licences.txt")
}

// authorities returns the certificate authorities that Mozilla trusts without conditions,
// as the Go project publishes them. They come from a version in go.mod and not from the
// machine. PEM cannot express conditions, such as that a certificate must be older than a
// date.
func authorities() []byte {
	var buf bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		buf.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
	}
	return buf.Bytes()
}
