package imagetest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"path"
	"time"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/integration/internal/wire"
)

// TypeLayerZstd is the media type of a layer compressed with zstd.
const TypeLayerZstd = "application/vnd.oci.image.layer.v1.tar+zstd"

// Archive builds a layer that needs more than [NewLayer] has: an entry is any
// that a tar archive can hold. The zero value is empty.
type Archive struct {
	raw   bytes.Buffer
	count int64
	times map[string]time.Time // by path
}

// Add appends an entry. Its size is that of data, its mode 0644, or 0755 for a
// directory, and its time one of its own, or for a hard link that of the target,
// unless they are set.
func (a *Archive) Add(h tar.Header, data []byte) *Archive {
	a.count++
	h.Size = int64(len(data))
	if h.Mode == 0 {
		h.Mode = 0o644
		if h.Typeflag == tar.TypeDir {
			h.Mode = 0o755
		}
	}
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(1_600_000_000+a.count, 0)
		if at, ok := a.times[path.Clean("/"+h.Linkname)]; ok && h.Typeflag == tar.TypeLink {
			h.ModTime = at
		}
	}
	if a.times == nil {
		a.times = map[string]time.Time{}
	}
	a.times[path.Clean("/"+h.Name)] = h.ModTime
	w := tar.NewWriter(&a.raw)
	must(w.WriteHeader(&h))
	_, err := w.Write(data)
	must(err)
	must(w.Flush())
	return a
}

// Dir appends a directory.
func (a *Archive) Dir(name string) *Archive {
	return a.Add(tar.Header{Typeflag: tar.TypeDir, Name: name}, nil)
}

// File appends a regular file.
func (a *Archive) File(name, data string) *Archive {
	return a.Add(tar.Header{Typeflag: tar.TypeReg, Name: name}, []byte(data))
}

// Symlink appends a symbolic link.
func (a *Archive) Symlink(name, target string) *Archive {
	return a.Add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

// Hardlink appends another name of the file target.
func (a *Archive) Hardlink(name, target string) *Archive {
	return a.Add(tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, nil)
}

// Raw appends what another archiver has written, without its end marker: two
// blocks of zeros at its very end, as tar --blocking-factor=1 leaves it.
func (a *Archive) Raw(archive []byte) *Archive {
	content, ok := bytes.CutSuffix(archive, make([]byte, 1024))
	if !ok {
		panic("imagetest: an archive without an end")
	}
	a.raw.Write(content)
	return a
}

// Layer returns the layer.
func (a *Archive) Layer() Layer {
	b := append(bytes.Clone(a.raw.Bytes()), make([]byte, 1024)...)
	return Layer{Tar: b, Gzip: compress(b)}
}

// Compression is a form of a layer's blob.
type Compression int

// The forms that runtimes read. GzipMembers and ZstdFrames are several one
// after the other, cut at no boundary of an entry.
const (
	Gzip Compression = iota
	GzipMembers
	Plain
	ZstdFrames
)

// Blob returns the layer compressed.
func (l Layer) Blob(c Compression) Blob {
	cut := len(l.Tar) / 3
	switch c {
	case Gzip:
		return NewBlob(TypeLayerGz, l.Gzip)
	case GzipMembers:
		return NewBlob(TypeLayerGz, append(compress(l.Tar[:cut]), compress(l.Tar[cut:])...))
	case Plain:
		return NewBlob(TypeLayerTar, l.Tar)
	case ZstdFrames:
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		must(err)
		defer w.Close()
		return NewBlob(TypeLayerZstd, w.EncodeAll(l.Tar[cut:], w.EncodeAll(l.Tar[:cut], nil)))
	}
	panic(fmt.Sprintf("imagetest: compression %d", c))
}

// Compose returns an image of layers for a platform. Run is its configuration's
// "config". The compressions are those of the layers, from the first again when
// there are fewer; none means gzip.
func Compose(arch string, run map[string]any, layers []Layer, compressions ...Compression) *Bundle {
	if len(compressions) == 0 {
		compressions = []Compression{Gzip}
	}
	b := &Bundle{}
	doc := wire.Document{SchemaVersion: 2, MediaType: TypeManifest}
	diffIDs := []string{}
	for i, l := range layers {
		blob := l.Blob(compressions[i%len(compressions)])
		diffIDs = append(diffIDs, l.DiffID())
		doc.Layers = append(doc.Layers, blob.Descriptor)
		b.Blobs = append(b.Blobs, blob)
	}
	config := NewBlob(TypeConfig, marshal(map[string]any{
		"architecture": arch, "os": "linux", "config": run,
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	}))
	doc.Config = &config.Descriptor
	b.Blobs = append(b.Blobs, config)
	b.Top = NewBlob(TypeManifest, marshal(doc))
	return b
}

// Index returns an index of the images, by architecture.
func Index(images map[string]*Bundle, order ...string) *Bundle {
	b := &Bundle{}
	doc := wire.Document{SchemaVersion: 2, MediaType: TypeIndex}
	for _, arch := range order {
		d := images[arch].Top.Descriptor
		d.Platform = &wire.Platform{Architecture: arch, OS: "linux"}
		doc.Manifests = append(doc.Manifests, d)
		b.Manifests = append(b.Manifests, images[arch].Top)
		b.Blobs = append(b.Blobs, images[arch].Blobs...)
	}
	b.Top = NewBlob(TypeIndex, marshal(doc))
	return b
}
