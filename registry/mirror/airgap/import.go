package airgap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
)

// Destination is a registry that images are put into.
type Destination interface {
	// ResolveBlob is as in oci.Reader; the other methods are as in oci.Writer.
	ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error)
	MountBlob(ctx context.Context, to, from string, d oci.Digest) (oci.Descriptor, error)
	PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error)
	PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error)
}

// parallel is how many blobs of a manifest are read at once.
const parallel = 4

// Import puts all images into dst. It does not send what dst already has, so repeating an
// interrupted import continues it. If one image cannot be put, Import continues with the
// others and joins the errors. progress may be nil. It is called often, and never
// concurrently.
func (a *Archive) Import(ctx context.Context, dst Destination, progress func(Progress)) (Progress, error) {
	x := &importing{a: a, dst: dst, show: progress, lacking: map[place]error{}, done: map[place]bool{}, held: map[oci.Digest]string{}}
	x.progress.ImagesTotal = len(a.images) + len(a.problems)
	for _, at := range a.contents {
		x.progress.BytesTotal += at.size
	}
	errs := slices.Clone(a.problems)
	for _, im := range a.images {
		err := oci.CheckName(im.Repo)
		if err == nil {
			err = x.manifest(ctx, im.Repo, im.desc, im.Ref, 0)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("image %s: %w", im.Image, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		x.step(func(p *Progress) { p.Images++ })
	}
	return x.progress, errors.Join(errs...)
}

// importing is the state of one call of Import.
type importing struct {
	a    *Archive
	dst  Destination
	show func(Progress)
	// lacking are the manifests that cannot be put because something that they need is
	// absent. Many indexes may name the same manifest; it is tried once.
	lacking map[place]error

	mu       sync.Mutex // guards what follows
	progress Progress
	done     map[place]bool        // contents that are at the destination
	held     map[oci.Digest]string // a repository of the destination that has the blob
}

// place is a content in a repository.
type place struct {
	repo   string
	digest oci.Digest
}

func (x *importing) step(change func(*Progress)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change(&x.progress)
	if x.show != nil {
		x.show(x.progress)
	}
}

func (x *importing) isDone(p place) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.done[p]
}

func (x *importing) setDone(p place) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.done[p] = true
}

// manifest puts a manifest and everything that it needs. ref is a tag or the manifest's
// digest.
func (x *importing) manifest(ctx context.Context, repo string, d oci.Descriptor, ref string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("manifests are nested more than %d deep", maxDepth)
	}
	at, tagged := place{repo, d.Digest}, !oci.IsDigest(ref)
	if x.isDone(at) && !tagged {
		return nil
	}
	if err := x.lacking[at]; err != nil {
		return err
	}
	err := x.put(ctx, repo, d, ref, depth)
	var absent *absentError
	switch {
	case errors.As(err, &absent):
		x.lacking[at] = err
	case err == nil:
		x.setDone(at)
		x.step(func(p *Progress) { p.Manifests++ })
	}
	return err
}

// put does the work of manifest.
func (x *importing) put(ctx context.Context, repo string, d oci.Descriptor, ref string, depth int) error {
	if !x.a.has(d.Digest) {
		return fmt.Errorf("the file lacks the manifest %s", d.Digest)
	}
	content, err := x.a.manifest(d)
	if err != nil {
		return err
	}
	p, err := partsOf(d.MediaType, content)
	if err != nil {
		return fmt.Errorf("%s: %w", d.Digest, err)
	}
	if err := x.children(ctx, repo, p.manifests, depth); err != nil {
		return err
	}
	if err := x.blobs(ctx, repo, p.blobs); err != nil {
		return err
	}
	put := oci.PutManifest{Bytes: content, MediaType: d.MediaType, Digest: d.Digest}
	if !oci.IsDigest(ref) {
		put.Tags = []string{ref}
	}
	_, err = x.dst.PutManifest(ctx, repo, put)
	return err
}

// children puts those manifests of an index that the file has, with everything that they
// need. Some tools save an index together with the manifests of other platforms, but
// without the layers of those platforms.
func (x *importing) children(ctx context.Context, repo string, list []oci.Descriptor, depth int) error {
	var whole, images int
	why := errors.New("the file has none of the images that the index names")
	for _, d := range list {
		if !isAttestation(d) {
			images++
		}
		err := error(&absentError{"the manifest", d.Digest})
		if x.a.has(d.Digest) {
			err = x.manifest(ctx, repo, d, string(d.Digest), depth+1)
		}
		var absent *absentError
		switch {
		case errors.As(err, &absent):
			why = err
			x.step(func(p *Progress) { p.Absent++ })
		case err != nil:
			return err
		case !isAttestation(d):
			whole++
		}
	}
	if images > 0 && whole == 0 {
		return why
	}
	return nil
}

// absentError says that a content is neither in the file nor at the destination.
type absentError struct {
	what   string
	digest oci.Digest
}

// Error implements error.
func (e *absentError) Error() string {
	return fmt.Sprintf("%s %s is neither in the file nor at the destination", e.what, e.digest)
}

// need checks, before any blob is sent, that all blobs are in the file or at the
// destination.
func (x *importing) need(ctx context.Context, repo string, list []oci.Descriptor) error {
	for _, d := range list {
		if _, here := x.a.contents[d.Digest]; here || isForeign(d) {
			continue
		}
		_, err := x.dst.ResolveBlob(ctx, repo, d.Digest)
		if oci.HasCode(err, oci.CodeBlobUnknown) {
			return &absentError{"blob", d.Digest}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *importing) blobs(ctx context.Context, repo string, list []oci.Descriptor) error {
	if err := x.need(ctx, repo, list); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, d := range list {
		g.Go(func() error {
			if err := x.blob(ctx, repo, d); err != nil {
				return fmt.Errorf("blob %s: %w", d.Digest, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (x *importing) blob(ctx context.Context, repo string, d oci.Descriptor) error {
	if x.isDone(place{repo, d.Digest}) {
		return nil
	}
	at, here := x.a.contents[d.Digest]
	_, err := x.dst.ResolveBlob(ctx, repo, d.Digest)
	switch {
	case err == nil:
		x.step(func(p *Progress) { p.Present, p.Bytes = p.Present+1, p.Bytes+at.size })
	case !oci.HasCode(err, oci.CodeBlobUnknown):
		return err
	case !here && isForeign(d):
		x.step(func(p *Progress) { p.Absent++ })
		return nil
	case !here:
		return &absentError{"blob", d.Digest}
	case x.mount(ctx, repo, d.Digest):
		x.step(func(p *Progress) { p.Present++ })
	default:
		r := &progressReader{r: io.NewSectionReader(x.a.r, at.off, at.size), x: x}
		if _, err := x.dst.PushBlob(ctx, repo, d.Digest, at.size, r); err != nil {
			return err
		}
		x.step(func(p *Progress) { p.Blobs++ })
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.done[place{repo, d.Digest}], x.held[d.Digest] = true, repo
	return nil
}

// mount mounts a blob from another repository of the destination that got the blob
// earlier. It returns false if that does not work, for whatever reason, and the blob is
// then sent.
func (x *importing) mount(ctx context.Context, repo string, d oci.Digest) bool {
	x.mu.Lock()
	from := x.held[d]
	x.mu.Unlock()
	if from == "" || from == repo {
		return false
	}
	_, err := x.dst.MountBlob(ctx, repo, from, d)
	return err == nil
}

// progressReader counts what is read.
type progressReader struct {
	r io.Reader
	x *importing
}

func (r *progressReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.x.step(func(p *Progress) { p.Bytes += int64(n) })
	return n, err
}
