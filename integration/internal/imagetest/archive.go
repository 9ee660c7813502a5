package imagetest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/integration/internal/wire"
)

// TypeLayerZstd is the media type of a layer compressed with zstd.
const TypeLayerZstd = "application/vnd.oci.image.layer.v1.tar+zstd"

// Archive builds a layer for which [NewLayer] is not enough: its entries can be anything that a tar
// archive can hold. The zero value is empty.
type Archive struct {
	raw   bytes.Buffer
	count int64
	times map[string]time.Time // by path
}

// Add appends an entry whose content is data. Unless h sets them, its mode is 0644, or
// 0755 for a directory, and its time differs from the times of other entries. A hard link
// has the time of its target.
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

// Hardlink appends another name for the file target.
func (a *Archive) Hardlink(name, target string) *Archive {
	return a.Add(tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, nil)
}

// Raw appends the output of another archiver without its end marker. The archive must end in
// exactly two blocks of zeros, as tar --blocking-factor=1 writes them.
func (a *Archive) Raw(archive []byte) *Archive {
	content, ok := bytes.CutSuffix(archive, make([]byte, 1024))
	if !ok {
		panic("imagetest: an archive without an end")
	}
	a.raw.Write(content)
	return a
}

// Programs appends programs of this machine, by the names that they get in the archive, with
// the libraries that they need. It appends the directories that are missing above them.
func (a *Archive) Programs(programs map[string]string) error {
	files := maps.Clone(programs)
	library := regexp.MustCompile(`/\S+\.so\S*`)
	for _, program := range slices.Sorted(maps.Values(programs)) {
		out, err := exec.Command("ldd", program).Output()
		if err != nil {
			return fmt.Errorf("libraries of %s: %w", program, err)
		}
		for _, lib := range library.FindAllString(string(out), -1) {
			files[strings.TrimPrefix(lib, "/")] = lib
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for i, r := range name { // a directory without an entry gets the time of unpacking
			if d := name[:i]; r == '/' && a.times[path.Clean("/"+d)].IsZero() {
				a.Dir(d + "/")
			}
		}
		data, err := os.ReadFile(files[name])
		if err != nil {
			return err
		}
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755}, data)
	}
	return nil
}

// Layer returns the layer.
func (a *Archive) Layer() Layer {
	b := append(bytes.Clone(a.raw.Bytes()), make([]byte, 1024)...)
	return Layer{Tar: b, Gzip: compress(b)}
}

// Compression says how a layer's blob is compressed.
type Compression int

// These are the forms that runtimes read. GzipMembers and ZstdFrames hold several members
// or frames one after the other. The members and frames do not end at boundaries of
// entries.
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

// Compose returns an image of layers for a platform. run is the "config" of its
// configuration. The compressions apply to the layers in turn, and start over if there
// are fewer compressions than layers. Without compressions, layers are compressed with
// gzip.
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
