package airgap

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// Source is a registry that images are read from. Its errors are those of [oci.Reader].
type Source interface {
	// GetManifest returns a manifest by tag or digest.
	GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error)
	// ResolveBlob returns a blob's size.
	ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error)
	// OpenBlob opens a blob. The caller closes it. ctx bounds its use.
	OpenBlob(ctx context.Context, repo string, d oci.Digest) (io.ReadCloser, error)
	// Referrers is as in oci.Lister.
	Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) (list []oci.Descriptor, more bool, err error)
}

// LeftOut is an image that is not whole and so is not in the file.
type LeftOut struct {
	Image  string `json:"image"`
	Reason string `json:"reason"`
}

// Write writes images of src into one tar file. If an image is not whole or cannot be
// read, Write continues with the others and lists that image in LeftOut. If no image is
// whole, Write writes nothing and returns an error.
//
// begin returns the writer of the file. If a blob turns out to be damaged while it is
// being written, Write calls begin again and writes the file from its beginning, without
// the images that need that blob.
//
// progress may be nil. It is called often, and never concurrently.
func Write(ctx context.Context, begin func() (io.Writer, error), src Source, images []Image, progress func(Progress)) (Progress, error) {
	bad := map[oci.Digest]error{}
	for {
		x := &export{src: src, show: progress, bad: bad, named: map[Image]bool{}, judged: map[place]*judgement{},
			contents: map[oci.Digest]content{}, signed: map[place]bool{}, left: map[string]bool{}}
		for _, im := range images {
			if err := x.collect(ctx, im); err != nil {
				return x.done, err
			}
		}
		if x.done.ImagesTotal = len(x.index.Manifests); x.done.ImagesTotal == 0 && len(x.done.LeftOut) > 0 {
			l := x.done.LeftOut[0]
			return x.done, fmt.Errorf("none of the images is whole; slipway mirror load fetches what is missing; first, image %s: %s", l.Image, l.Reason)
		}
		w, err := begin()
		if err != nil {
			return x.done, err
		}
		known := len(bad)
		if err := x.write(ctx, w); err != nil || len(bad) == known {
			return x.done, err
		}
	}
}

// export is one attempt of Write.
type export struct {
	src  Source
	show func(Progress)
	done Progress
	bad  map[oci.Digest]error // contents that could not be read, and why

	index    ocispec.Index
	named    map[Image]bool // images that are in the index, or left out
	judged   map[place]*judgement
	signed   map[place]bool // manifests whose referrers were looked for
	left     map[string]bool
	contents map[oci.Digest]content
}

// content is a manifest or a blob to be written.
type content struct {
	oci.Descriptor
	repo     string
	manifest bool
}

// judgement is the result of checking whether a manifest is whole, with everything that
// it needs.
type judgement struct {
	own    []content    // the manifest itself, and its blobs
	inner  []*judgement // those of the manifests it names that are whole
	absent int          // how many contents that it names are not here
	lacks  error        // why it is not whole, or nil
}

// each calls f for the judgement and for all below it. Indexes can name the same manifests,
// so there may be exponentially more ways to a manifest than manifests. Each is visited
// once; seen has those that were.
func (j *judgement) each(seen map[*judgement]bool, f func(*judgement)) {
	if seen[j] {
		return
	}
	seen[j] = true
	f(j)
	for _, inner := range j.inner {
		inner.each(seen, f)
	}
}

func (x *export) step() {
	if x.show != nil {
		p := x.done
		p.LeftOut = nil // they are reported together at the end
		x.show(p)
	}
}

// leave notes that an image is left out because it is not whole.
func (x *export) leave(im Image, why error) {
	if name := im.String(); !x.left[name] {
		x.left[name] = true
		x.done.LeftOut = append(x.done.LeftOut, LeftOut{name, why.Error()})
	}
}

// collect adds an image, and everything that refers to it, if the image is whole.
func (x *export) collect(ctx context.Context, im Image) error {
	if x.named[im] {
		return nil
	}
	x.named[im] = true
	m, err := x.src.GetManifest(ctx, im.Repo, im.Ref)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		x.leave(im, err)
		return nil
	}
	j, err := x.judge(ctx, im.Repo, m, 0)
	if err != nil {
		return err
	}
	if j.lacks != nil {
		x.leave(im, j.lacks)
		return nil
	}
	x.index.Manifests = append(x.index.Manifests, oci.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(m.Bytes)),
		Annotations: map[string]string{ocispec.AnnotationRefName: im.String(), containerdName: im.String()}})
	var manifests []oci.Digest
	j.each(map[*judgement]bool{}, func(j *judgement) {
		x.done.Absent += j.absent
		for _, c := range j.own {
			if c.manifest {
				manifests = append(manifests, c.Digest)
			}
			if _, there := x.contents[c.Digest]; there {
				continue
			}
			x.contents[c.Digest] = c
			if !c.manifest {
				x.done.BytesTotal += c.Size
			}
		}
	})
	x.step()
	for _, d := range manifests {
		if err := x.referrers(ctx, im.Repo, d); err != nil {
			return err
		}
	}
	return nil
}

// judge checks whether a manifest is whole. It returns an error only if ctx has ended.
func (x *export) judge(ctx context.Context, repo string, m *oci.Manifest, depth int) (*judgement, error) {
	at := place{repo, m.Digest}
	if j := x.judged[at]; j != nil {
		return j, nil
	}
	j := &judgement{own: []content{{oci.Descriptor{Digest: m.Digest, Size: int64(len(m.Bytes))}, repo, true}}, lacks: x.bad[m.Digest]}
	p, err := partsOf(m.MediaType, m.Bytes)
	switch {
	case j.lacks != nil:
	case err != nil:
		j.lacks = fmt.Errorf("manifest %s: %w", m.Digest, err)
	case depth > maxDepth:
		j.lacks = fmt.Errorf("manifests are nested more than %d deep", maxDepth)
	default:
		if err := x.children(ctx, repo, p.manifests, j, depth); err != nil {
			return nil, err
		}
		for _, d := range p.blobs {
			if err := x.blob(ctx, repo, d, j); err != nil {
				return nil, err
			}
		}
	}
	x.judged[at] = j
	return j, nil
}

// children adds those manifests of an index that are whole, and leaves the others out.
// The index is whole if at least one of its images is, or if it has no images.
func (x *export) children(ctx context.Context, repo string, list []oci.Descriptor, j *judgement, depth int) error {
	var whole, images int
	var why error
	var left []func()
	for _, d := range list {
		if !isAttestation(d) {
			images++
		}
		m, err := x.src.GetManifest(ctx, repo, string(d.Digest))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if oci.HasCode(err, oci.CodeManifestUnknown) {
			j.absent++
			continue
		}
		child := &judgement{lacks: err}
		if err == nil {
			if child, err = x.judge(ctx, repo, m, depth+1); err != nil {
				return err
			}
		}
		if child.lacks != nil {
			why = child.lacks
			left = append(left, func() { x.leave(Image{repo, string(d.Digest)}, describe(d, child.lacks)) })
			continue
		}
		if !isAttestation(d) {
			whole++
		}
		j.inner = append(j.inner, child)
	}
	if images > 0 && whole == 0 {
		j.lacks = errors.New("none of the images that the index names has been fetched")
		if why != nil {
			j.lacks = fmt.Errorf("none of the images that the index names is whole: %w", why)
		}
		return nil
	}
	for _, leave := range left {
		leave()
	}
	return nil
}

// describe adds the platform of an index's entry to the error that says why the entry is
// not whole.
func describe(d oci.Descriptor, why error) error {
	if d.Platform == nil {
		return why
	}
	return fmt.Errorf("for %s/%s: %w", d.Platform.OS, d.Platform.Architecture, why)
}

// isAttestation reports whether an entry of an index is an attestation, which is not an
// image but says how an image was built.
func isAttestation(d oci.Descriptor) bool {
	return d.Platform != nil && d.Platform.OS == "unknown" && d.Platform.Architecture == "unknown"
}

// blob adds a blob that a manifest needs.
func (x *export) blob(ctx context.Context, repo string, d oci.Descriptor, j *judgement) error {
	there, err := x.src.ResolveBlob(ctx, repo, d.Digest)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case oci.HasCode(err, oci.CodeBlobUnknown) && isForeign(d):
		j.absent++
	case oci.HasCode(err, oci.CodeBlobUnknown):
		j.lacks = fmt.Errorf("blob %s has not been fetched", d.Digest)
	case err != nil:
		j.lacks = fmt.Errorf("blob %s: %w", d.Digest, err)
	case x.bad[d.Digest] != nil:
		j.lacks = fmt.Errorf("blob %s: %w", d.Digest, x.bad[d.Digest])
	default:
		j.own = append(j.own, content{oci.Descriptor{Digest: d.Digest, Size: there.Size}, repo, false})
	}
	return nil
}

// referrersPage is how many referrers one request asks for.
const referrersPage = 1000

// signatureTags are the suffixes of cosign's tags. Cosign keeps what belongs to a
// manifest under a tag that consists of the manifest's digest and such a suffix.
var signatureTags = []string{".sig", ".att", ".sbom"}

// referrers adds what refers to a manifest, by its subject field or by cosign's tags.
func (x *export) referrers(ctx context.Context, repo string, d oci.Digest) error {
	if x.signed[place{repo, d}] {
		return nil
	}
	x.signed[place{repo, d}] = true
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
		if _, err := x.src.GetManifest(ctx, repo, tag); oci.HasCode(err, oci.CodeManifestUnknown) {
			continue
		}
		if err := x.collect(ctx, Image{repo, tag}); err != nil {
			return err
		}
	}
	return nil
}

// write writes what was collected: the small contents first.
func (x *export) write(ctx context.Context, w io.Writer) error {
	known, tw := len(x.bad), tar.NewWriter(w)
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
		if len(x.bad) > known { // the file is begun anew; find out what else is damaged
			tw = tar.NewWriter(io.Discard)
		}
		if err := x.writeContent(ctx, tw, c); err != nil {
			return err
		}
	}
	x.done.Images = x.done.ImagesTotal
	if len(x.bad) > known {
		return nil
	}
	return tw.Close()
}

// inOrder returns what is to be written in order: manifests before blobs, each sorted by
// digest.
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
	// The time is always the same, so that the same images give the same file.
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)}
	if err := tw.WriteHeader(h); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := body(); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// writeContent writes a content. If the content cannot be read, writeContent notes why in
// x.bad, and what was written so far is useless.
func (x *export) writeContent(ctx context.Context, tw *tar.Writer, c content) error {
	body, err := x.open(ctx, c)
	if err != nil {
		return x.spoilt(ctx, c.Digest, err)
	}
	defer body.Close() // Read has already reported any error
	return writeEntry(tw, entryOf(c.Digest), c.Size, func() error {
		v := c.Digest.Verifier()
		r := &reading{r: io.TeeReader(io.LimitReader(body, c.Size), v)}
		n, err := io.Copy(tw, r)
		if !c.manifest {
			x.done.Bytes += n
			x.step()
		}
		switch {
		case r.err != nil:
			return x.spoilt(ctx, c.Digest, r.err)
		case err != nil:
			return err
		case n != c.Size || !v.Verified():
			return x.spoilt(ctx, c.Digest, errors.New("what is stored has another digest"))
		case c.manifest:
			x.done.Manifests++
		default:
			x.done.Blobs++
		}
		return nil
	})
}

// open opens a content.
func (x *export) open(ctx context.Context, c content) (io.ReadCloser, error) {
	if !c.manifest {
		return x.src.OpenBlob(ctx, c.repo, c.Digest)
	}
	m, err := x.src.GetManifest(ctx, c.repo, string(c.Digest))
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(m.Bytes)), nil
}

// spoilt notes that a content cannot be read. It returns an error only if ctx has ended.
func (x *export) spoilt(ctx context.Context, d oci.Digest, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	x.bad[d] = err
	return nil
}

// reading remembers the error of a reader, to distinguish it from errors of the writer.
type reading struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (r *reading) Read(p []byte) (n int, err error) {
	if n, err = r.r.Read(p); err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}
