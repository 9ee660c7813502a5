package airgap

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// Archive is an open tar file. Its methods, except Rename, may be called concurrently.
type Archive struct {
	r        io.ReaderAt
	contents map[oci.Digest]span
	files    map[string]span       // files that are not named by a digest
	links    map[string]string     // the targets of links, by name
	made     map[oci.Digest][]byte // manifests that are not in the file
	images   []named
	problems []error // why some images cannot be imported
}

// span is the place of a content in the file, in bytes.
type span struct{ off, size int64 }

// named is an entry of the index.
type named struct {
	Image
	desc oci.Descriptor
}

// Open reads the directory of a tar file of size bytes. The file must not change while
// the archive is used. It must be an OCI image layout or the output of docker save, or
// both, and not compressed; see [Unpack]. Contents are checked when they are read.
func Open(r io.ReaderAt, size int64) (*Archive, error) {
	a := &Archive{r: r, contents: map[oci.Digest]span{}, files: map[string]span{}, links: map[string]string{}, made: map[oci.Digest][]byte{}}
	if err := a.readDirectory(io.NewSectionReader(r, 0, size), size); err != nil {
		return nil, err
	}
	_, isLayout := a.files[layoutFile]
	_, isDocker := a.files[dockerFile]
	var err error
	switch {
	case isLayout || !isDocker:
		err = a.readLayout()
	default:
		err = a.readDocker()
	}
	if err == nil && len(a.images) == 0 {
		err = errors.Join(a.problems...)
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// readDirectory finds the places of all contents in the file.
func (a *Archive) readDirectory(sec *io.SectionReader, size int64) error {
	tr := tar.NewReader(sec)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the tar file: %w", err)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink: // older versions of Docker write a layer once and link to it
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
			continue
		case tar.TypeLink:
			a.links[name] = path.Clean(h.Linkname)
			continue
		case tar.TypeReg:
		default:
			continue
		}
		off, err := sec.Seek(0, io.SeekCurrent) // Next has read up to the end of the header
		if err != nil {
			return fmt.Errorf("read the tar file: %w", err)
		}
		if h.Size < 0 || off+h.Size > size {
			return fmt.Errorf("the tar file is cut off in %.100q", h.Name)
		}
		if d := digestOf(name); d != "" {
			a.contents[d] = span{off, h.Size}
		} else {
			a.files[name] = span{off, h.Size}
		}
	}
}

// readLayout reads which images an image layout has.
func (a *Archive) readLayout() error {
	var layout ocispec.ImageLayout
	if err := a.readJSON(layoutFile, &layout); err != nil {
		return err
	}
	if layout.Version != ocispec.ImageLayoutVersion {
		return fmt.Errorf("the layout has version %.20q, known is %s", layout.Version, ocispec.ImageLayoutVersion)
	}
	var index ocispec.Index
	if err := a.readJSON(indexFile, &index); err != nil {
		return err
	}
	tags := a.dockerTags()
	for _, d := range index.Manifests {
		if err := oci.CheckDigest(d.Digest); err != nil {
			return fmt.Errorf("%s: %w", indexFile, err)
		}
		name := d.Annotations[containerdName]
		if name == "" {
			name = d.Annotations[ocispec.AnnotationRefName]
		}
		switch names := tags[a.configOf(d, 0, map[oci.Digest]bool{})]; {
		case isFullName(name):
			a.add(name, d)
		case len(names) > 0: // manifest.json says more than the index does
			for _, name := range names {
				a.add(name, d)
			}
		default:
			a.problems = append(a.problems, fmt.Errorf("%s does not say what the image %s is called: it needs the annotation %s with UPSTREAM/REPOSITORY:TAG", indexFile, d.Digest, ocispec.AnnotationRefName))
		}
	}
	return nil
}

// isFullName reports whether an annotation names a repository. Some tools write only a
// tag.
func isFullName(name string) bool { return strings.ContainsAny(name, "/:@") }

// add adds an image under a name. A problem is noted in a.problems.
func (a *Archive) add(name string, d oci.Descriptor) {
	im, err := parseName(name)
	switch {
	case err != nil:
		err = fmt.Errorf("the name of the image %s: %w", d.Digest, err)
	case oci.IsDigest(im.Ref) && im.Ref != string(d.Digest):
		err = fmt.Errorf("the image %s is named by another digest", d.Digest)
	default:
		err = a.enter(named{im, d})
	}
	if err != nil {
		a.problems = append(a.problems, err)
	}
}

// enter adds an image unless the archive has it already. It is an error if another image
// has the name.
func (a *Archive) enter(n named) error {
	i := slices.IndexFunc(a.images, func(other named) bool { return other.Image == n.Image })
	if i < 0 {
		a.images = append(a.images, n)
	} else if a.images[i].desc.Digest != n.desc.Digest {
		return fmt.Errorf("two images are called %s, %s and %s", n.Image, a.images[i].desc.Digest, n.desc.Digest)
	}
	return nil
}

// parseName reads the name of an image. The registry in the name may have a port.
func parseName(s string) (Image, error) {
	host, rest, ok := strings.Cut(s, "/")
	if !ok || !strings.Contains(host, ":") {
		return ParseImage(s)
	}
	im, err := ParseImage(rest)
	im.Repo = host + "/" + im.Repo
	return im, err
}

// Rename gives the images other repositories. If repo returns an error for an image, that
// image is not imported, and the others are.
func (a *Archive) Rename(repo func(Image) (string, error)) {
	list := a.images
	a.images = nil
	for _, n := range list {
		var err error
		if n.Repo, err = repo(n.Image); err == nil {
			err = a.enter(n) // two different names may be the same now
		}
		if err != nil {
			a.problems = append(a.problems, err)
		}
	}
}

func (a *Archive) readJSON(name string, v any) error {
	at, ok := a.files[name]
	if !ok {
		return fmt.Errorf("the tar file has no %s: it is no OCI image layout, nor what docker save writes", name)
	}
	if at.size > maxIndex {
		return fmt.Errorf("%s is larger than %d bytes", name, maxIndex)
	}
	b, err := a.read(at)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s is malformed: %w", name, err)
	}
	return nil
}

// Images lists the images in the file.
func (a *Archive) Images() []Image {
	list := make([]Image, len(a.images))
	for i, n := range a.images {
		list[i] = n.Image
	}
	return list
}

// read reads a small part of the file.
func (a *Archive) read(at span) ([]byte, error) {
	b := make([]byte, at.size)
	if _, err := a.r.ReadAt(b, at.off); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}

// has reports whether the archive has a manifest.
func (a *Archive) has(d oci.Digest) bool {
	_, there := a.contents[d]
	return there || a.made[d] != nil
}

// manifest reads a manifest and checks it.
func (a *Archive) manifest(d oci.Descriptor) ([]byte, error) {
	if b := a.made[d.Digest]; b != nil {
		return b, nil
	}
	at := a.contents[d.Digest]
	if at.size > oci.MaxManifestSize {
		return nil, fmt.Errorf("the manifest %s is larger than %d bytes", d.Digest, oci.MaxManifestSize)
	}
	b, err := a.read(at)
	if err != nil {
		return nil, fmt.Errorf("read the manifest %s: %w", d.Digest, err)
	}
	v := d.Digest.Verifier()
	if _, _ = v.Write(b); !v.Verified() { // writing to a hash never fails
		return nil, fmt.Errorf("the manifest %s is damaged", d.Digest)
	}
	return b, nil
}
