package airgap

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// Archive is an open tar file. Its methods may run concurrently.
type Archive struct {
	r        io.ReaderAt
	contents map[oci.Digest]span
	images   []named
}

// span is where in the file a content lies, in bytes.
type span struct{ off, size int64 }

// named is an entry of the index.
type named struct {
	Image
	desc oci.Descriptor
}

// errGzip says that the file is compressed.
var errGzip = errors.New("the file is compressed; unpack it with gunzip first, since its parts are read in no order")

// Open reads the directory of a tar file of size bytes, which must stay as it is
// while the archive is used. What its contents are is checked when they are read.
func Open(r io.ReaderAt, size int64) (*Archive, error) {
	var magic [2]byte
	if _, err := r.ReadAt(magic[:], 0); err == nil && magic == [2]byte{0x1f, 0x8b} {
		return nil, errGzip
	}
	a := &Archive{r: r, contents: map[oci.Digest]span{}}
	sec := io.NewSectionReader(r, 0, size)
	tr := tar.NewReader(sec)
	small := map[string]span{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the tar file: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		off, err := sec.Seek(0, io.SeekCurrent) // a tar.Reader reads no further than headers
		if err != nil {
			return nil, fmt.Errorf("read the tar file: %w", err)
		}
		at := span{off, h.Size}
		if h.Size < 0 || off+h.Size > size {
			return nil, fmt.Errorf("the tar file is cut off in %.100q", h.Name)
		}
		switch name := path.Clean(h.Name); name {
		case layoutFile, indexFile:
			small[name] = at
		default:
			if d := digestOf(name); d != "" {
				a.contents[d] = at
			}
		}
	}
	return a, a.readIndex(small)
}

// readIndex reads what images there are.
func (a *Archive) readIndex(small map[string]span) error {
	var layout ocispec.ImageLayout
	if err := a.readJSON(small, layoutFile, &layout); err != nil {
		return err
	}
	if layout.Version != ocispec.ImageLayoutVersion {
		return fmt.Errorf("the layout has version %.20q, known is %s", layout.Version, ocispec.ImageLayoutVersion)
	}
	var index ocispec.Index
	if err := a.readJSON(small, indexFile, &index); err != nil {
		return err
	}
	for _, d := range index.Manifests {
		if err := oci.CheckDigest(d.Digest); err != nil {
			return fmt.Errorf("%s: %w", indexFile, err)
		}
		name := d.Annotations[containerdName]
		if name == "" {
			name = d.Annotations[ocispec.AnnotationRefName]
		}
		if name == "" {
			return fmt.Errorf("%s does not say what the image %s is called: it needs the annotation %s with UPSTREAM/REPOSITORY:TAG", indexFile, d.Digest, ocispec.AnnotationRefName)
		}
		im, err := ParseImage(name)
		if err != nil {
			return fmt.Errorf("%s: the name of the image %s: %w", indexFile, d.Digest, err)
		}
		if oci.IsDigest(im.Ref) && im.Ref != string(d.Digest) {
			return fmt.Errorf("%s: the image %s is named by another digest", indexFile, d.Digest)
		}
		a.images = append(a.images, named{im, d})
	}
	return nil
}

func (a *Archive) readJSON(small map[string]span, name string, v any) error {
	at, ok := small[name]
	if !ok {
		return fmt.Errorf("the tar file has no %s: it is no OCI image layout", name)
	}
	if at.size > maxIndex {
		return fmt.Errorf("%s is larger than %d bytes", name, maxIndex)
	}
	b := make([]byte, at.size)
	if _, err := a.r.ReadAt(b, at.off); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s is malformed: %w", name, err)
	}
	return nil
}

// Images lists what is in the file.
func (a *Archive) Images() []Image {
	list := make([]Image, len(a.images))
	for i, n := range a.images {
		list[i] = n.Image
	}
	return list
}

// manifest reads a manifest and checks it.
func (a *Archive) manifest(d oci.Descriptor) ([]byte, error) {
	at := a.contents[d.Digest]
	if at.size > oci.MaxManifestSize {
		return nil, fmt.Errorf("the manifest %s is larger than %d bytes", d.Digest, oci.MaxManifestSize)
	}
	b := make([]byte, at.size)
	if _, err := a.r.ReadAt(b, at.off); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the manifest %s: %w", d.Digest, err)
	}
	v := d.Digest.Verifier()
	if _, _ = v.Write(b); !v.Verified() { // a hash takes everything
		return nil, fmt.Errorf("the manifest %s is damaged", d.Digest)
	}
	return b, nil
}
