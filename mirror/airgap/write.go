package airgap

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// Source is what images are taken from. Errors are those of [oci.Reader].
type Source interface {
	// GetManifest returns a manifest by tag or digest.
	GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error)
	// ResolveBlob returns a blob's size.
	ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error)
	// OpenBlob opens a blob, which the caller closes. ctx bounds its use.
	OpenBlob(ctx context.Context, repo string, d oci.Digest) (io.ReadCloser, error)
	// Referrers as oci.Lister has it.
	Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) (list []oci.Descriptor, more bool, err error)
}

// MissingError says that an image is not whole at the source.
type MissingError struct {
	Image   Image
	Missing oci.Digest
}

// Error implements error.
func (e *MissingError) Error() string {
	return fmt.Sprintf("image %s is not whole: %s has not been fetched", e.Image, e.Missing)
}

// Write writes images of src as one tar file. progress may be nil; it is called
// often, and never twice at the same time. Errors: MANIFEST_UNKNOWN, *MissingError,
// before anything is written, and those of src and w.
func Write(ctx context.Context, w io.Writer, src Source, images []Image, progress func(Progress)) (Progress, error) {
	x := &export{src: src, show: progress, named: map[Image]bool{}, contents: map[oci.Digest]content{}, signed: map[Image]bool{}}
	for _, im := range images {
		if err := x.collect(ctx, im); err != nil {
			return x.done, err
		}
	}
	x.done.ImagesTotal = len(x.index.Manifests)
	return x.done, x.write(ctx, w)
}

// export is one call of Write.
type export struct {
	src  Source
	show func(Progress)
	done Progress

	index    ocispec.Index
	named    map[Image]bool // that are in the index
	signed   map[Image]bool // manifests whose referrers were looked for
	contents map[oci.Digest]content
}

// content is a manifest or a blob to be written.
type content struct {
	oci.Descriptor
	repo     string
	manifest bool
}

func (x *export) step() {
	if x.show != nil {
		x.show(x.done)
	}
}

// collect adds an image with what refers to it.
func (x *export) collect(ctx context.Context, im Image) error {
	if x.named[im] {
		return nil
	}
	m, err := x.src.GetManifest(ctx, im.Repo, im.Ref)
	if err != nil {
		return fmt.Errorf("image %s: %w", im, err)
	}
	x.named[im] = true
	d := oci.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(m.Bytes)),
		Annotations: map[string]string{ocispec.AnnotationRefName: im.String(), containerdName: im.String()}}
	x.index.Manifests = append(x.index.Manifests, d)
	return x.manifest(ctx, im, m, 0)
}

// manifest adds a manifest of an image, with what it needs.
func (x *export) manifest(ctx context.Context, im Image, m *oci.Manifest, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("image %s: manifests are nested more than %d deep", im, maxDepth)
	}
	p, err := partsOf(m.MediaType, m.Bytes)
	if err != nil {
		return fmt.Errorf("image %s: %w", im, err)
	}
	x.contents[m.Digest] = content{oci.Descriptor{Digest: m.Digest, Size: int64(len(m.Bytes))}, im.Repo, true}
	for _, d := range p.manifests {
		child, err := x.src.GetManifest(ctx, im.Repo, string(d.Digest))
		if oci.HasCode(err, oci.CodeManifestUnknown) {
			x.done.Absent++
			continue
		}
		if err != nil {
			return fmt.Errorf("image %s: %w", im, err)
		}
		if err := x.manifest(ctx, im, child, depth+1); err != nil {
			return err
		}
	}
	for _, d := range p.blobs {
		if err := x.blob(ctx, im, d); err != nil {
			return err
		}
	}
	x.step()
	return x.referrers(ctx, im.Repo, m.Digest)
}

func (x *export) blob(ctx context.Context, im Image, d oci.Descriptor) error {
	if _, ok := x.contents[d.Digest]; ok {
		return nil
	}
	there, err := x.src.ResolveBlob(ctx, im.Repo, d.Digest)
	switch {
	case oci.HasCode(err, oci.CodeBlobUnknown) && isForeign(d):
		x.done.Absent++
		return nil
	case oci.HasCode(err, oci.CodeBlobUnknown):
		return &MissingError{im, d.Digest}
	case err != nil:
		return fmt.Errorf("image %s: %w", im, err)
	}
	x.contents[d.Digest] = content{oci.Descriptor{Digest: d.Digest, Size: there.Size}, im.Repo, false}
	x.done.BytesTotal += there.Size
	return nil
}

// referrersPage is how many referrers are asked for at once.
const referrersPage = 1000

// signatureTags are the endings of the tags at which cosign keeps what belongs to a
// manifest, behind its digest.
var signatureTags = []string{".sig", ".att", ".sbom"}

// referrers adds what refers to a manifest, by its subject or by cosign's tags.
func (x *export) referrers(ctx context.Context, repo string, d oci.Digest) error {
	if x.signed[Image{repo, string(d)}] {
		return nil
	}
	x.signed[Image{repo, string(d)}] = true
	for last, more := "", true; more; {
		var list []oci.Descriptor
		var err error
		if list, more, err = x.src.Referrers(ctx, repo, d, "", last, referrersPage); err != nil {
			return fmt.Errorf("referrers of %s in %s: %w", d, repo, err)
		}
		for _, r := range list {
			if err := x.collect(ctx, Image{repo, string(r.Digest)}); err != nil {
				return err
			}
			last = string(r.Digest)
		}
		more = more && len(list) > 0
	}
	for _, end := range signatureTags {
		tag := strings.Replace(string(d), ":", "-", 1) + end
		_, err := x.src.GetManifest(ctx, repo, tag)
		if oci.HasCode(err, oci.CodeManifestUnknown) {
			continue
		}
		if err == nil {
			err = x.collect(ctx, Image{repo, tag})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// write writes what was collected, the small first.
func (x *export) write(ctx context.Context, w io.Writer) error {
	tw := tar.NewWriter(w)
	x.index.SchemaVersion, x.index.MediaType = 2, ocispec.MediaTypeImageIndex
	if x.index.Manifests == nil {
		x.index.Manifests = []oci.Descriptor{}
	}
	index, err := json.Marshal(x.index)
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	layout, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	for _, f := range []struct {
		name string
		body []byte
	}{{layoutFile, layout}, {indexFile, index}} {
		if err := writeEntry(tw, f.name, int64(len(f.body)), func() error { _, err := tw.Write(f.body); return err }); err != nil {
			return err
		}
	}
	for _, c := range x.inOrder() {
		if err := x.writeContent(ctx, tw, c); err != nil {
			return err
		}
	}
	x.done.Images = x.done.ImagesTotal
	return tw.Close()
}

// inOrder sorts what is to be written: manifests before blobs, each by digest.
func (x *export) inOrder() []content {
	list := make([]content, 0, len(x.contents))
	for _, c := range x.contents {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b content) int {
		if a.manifest != b.manifest {
			if a.manifest {
				return -1
			}
			return 1
		}
		return strings.Compare(string(a.Digest), string(b.Digest))
	})
	return list
}

func writeEntry(tw *tar.Writer, name string, size int64, body func() error) error {
	// The time is always the same, so that the file is.
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)}
	if err := tw.WriteHeader(h); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := body(); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (x *export) writeContent(ctx context.Context, tw *tar.Writer, c content) error {
	return writeEntry(tw, entryOf(c.Digest), c.Size, func() error {
		if c.manifest {
			m, err := x.src.GetManifest(ctx, c.repo, string(c.Digest))
			if err != nil {
				return err
			}
			_, err = tw.Write(m.Bytes)
			x.done.Manifests++
			return err
		}
		body, err := x.src.OpenBlob(ctx, c.repo, c.Digest)
		if err != nil {
			return err
		}
		defer body.Close() // a reader has nothing to say at its end that Read has not said
		v := c.Digest.Verifier()
		n, err := io.Copy(io.MultiWriter(tw, v, counter{x}), body)
		if err != nil {
			return err
		}
		if n != c.Size || !v.Verified() {
			return fmt.Errorf("the source gave other bytes than %s stands for", c.Digest)
		}
		x.done.Blobs++
		return nil
	})
}

// counter counts bytes of blobs.
type counter struct{ x *export }

func (c counter) Write(p []byte) (int, error) {
	c.x.done.Bytes += int64(len(p))
	c.x.step()
	return len(p), nil
}
