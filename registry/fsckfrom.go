package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"example.org/slipway/registry/manifest"
	"example.org/slipway/registry/verify"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
)

// Source has good copies of contents: a backup, or another registry. Its bytes are
// verified by whoever reads them.
type Source interface {
	// Content opens a content that the given images need. Whoever gets it closes it.
	// Errors: ErrNoCopy.
	Content(ctx context.Context, d oci.Digest, images []catalog.Use) (io.ReadCloser, error)
}

// ErrNoCopy is returned by a [Source] that does not have a content.
var ErrNoCopy = errors.New("the source does not have the content")

// Source returns a registry, such as a backup, as a source. It gives a content
// whichever repository shows it.
func (r *Registry) Source() Source { return ownSource{r} }

type ownSource struct{ r *Registry }

func (s ownSource) Content(ctx context.Context, d oci.Digest, _ []catalog.Use) (io.ReadCloser, error) {
	b, err := s.r.cat.StoredBlob(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, ErrNoCopy
	}
	if err != nil {
		return nil, err
	}
	if b.Content != nil {
		return io.NopCloser(bytes.NewReader(b.Content)), nil
	}
	obj, err := s.r.store.Get(ctx, BlobKey(d), 0, -1)
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, ErrNoCopy
	}
	return obj, err
}

// RegistrySource returns another registry as a source. With repo, every content is
// looked for there; otherwise in the repositories that have the same names as those
// that need it.
func RegistrySource(r oci.Reader, repo string) Source { return registrySource{r, repo} }

type registrySource struct {
	r    oci.Reader
	repo string
}

func (s registrySource) Content(ctx context.Context, d oci.Digest, images []catalog.Use) (io.ReadCloser, error) {
	repos := []string{s.repo}
	if s.repo == "" {
		repos = repos[:0]
		for _, u := range images {
			if len(repos) == 0 || repos[len(repos)-1] != u.Repo {
				repos = append(repos, u.Repo) // they are in order
			}
		}
	}
	for _, repo := range repos {
		blob, err := s.r.GetBlob(ctx, repo, d)
		if err == nil {
			return blob, nil
		}
		if !oci.HasCode(err, oci.CodeBlobUnknown) && !oci.HasCode(err, oci.CodeNameUnknown) {
			return nil, err
		}
		m, err := s.r.GetManifest(ctx, repo, string(d))
		if err == nil {
			return io.NopCloser(bytes.NewReader(m.Bytes)), nil
		}
		if !oci.HasCode(err, oci.CodeManifestUnknown) && !oci.HasCode(err, oci.CodeNameUnknown) {
			return nil, err
		}
	}
	return nil, ErrNoCopy
}

// bring repairs a problem with a content by taking the content from the source, and
// notes that. done is false where the problem remains.
func (f *fsck) bring(ctx context.Context, p Problem, d oci.Digest) (done bool, err error) {
	if done, err = f.fromSource(ctx, d); !done || err != nil {
		return false, err
	}
	if p.Hurts, err = f.hurts(ctx, d); err != nil {
		return true, err
	}
	p.Repaired = true
	p.Detail += "; its bytes came from the source"
	f.note(p)
	return true, nil
}

// fromSource repairs a content with bytes of the source, before anything is given up.
// done is false where there is no source, or where it has no good copy.
func (f *fsck) fromSource(ctx context.Context, d oci.Digest) (done bool, err error) {
	if !f.o.Repair || f.o.From == nil || !oci.ValidDigest(d) {
		return false, nil
	}
	images, err := f.r.cat.Uses(ctx, d, maxHurts)
	if err != nil {
		return false, err
	}
	src, err := f.o.From.Content(ctx, d, images)
	if errors.Is(err, ErrNoCopy) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("fetch %s from the source: %w", d, err)
	}
	defer src.Close()
	done, err = f.r.heal(ctx, d, src)
	if oci.HasCode(err, oci.CodeDigestInvalid) { // the source's copy is damaged
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("heal %s: %w", d, err)
	}
	return done, nil
}

// heal stores the bytes of a known content again, if they have its digest. Manifests
// are found among the small contents, as everywhere.
func (r *Registry) heal(ctx context.Context, d oci.Digest, src io.Reader) (done bool, err error) {
	known, manifest, err := r.cat.Healable(ctx, d)
	if err != nil || !known {
		return false, err
	}
	most := int64(catalog.InlineMax)
	if manifest {
		most = max(most, r.opts.MaxManifestBytes)
	}
	head, err := io.ReadAll(io.LimitReader(src, most+1))
	if err != nil {
		return false, err
	}
	if int64(len(head)) <= most {
		if d.Algorithm().FromBytes(head) != d {
			return false, nil
		}
		return r.healedFrom(ctx, catalog.Blob{Digest: d, Size: int64(len(head)), Content: head})
	}
	dst, err := r.store.NewUpload(ctx, -1)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dst.Cancel(ctx)) }()
	n, match, err := verify.Copy(ctx, dst, io.MultiReader(bytes.NewReader(head), src), d, func(int) {})
	if err != nil || !match {
		return false, err
	}
	if err := lockPatiently(ctx, r.collects.objects.TryRLock); err != nil { // the collector deletes nothing meanwhile
		return false, err
	}
	defer r.collects.objects.RUnlock()
	defer r.digests.lock(d)()
	if known, _, err = r.cat.Healable(ctx, d); err != nil || !known {
		return false, err
	}
	doing, err := r.storeVerified(ctx, d, n, func() error { return dst.Commit(ctx, BlobKey(d)) }, func() (err error) {
		done, err = r.healedFrom(ctx, catalog.Blob{Digest: d, Size: n, Tag: dst.Tag()})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, err)
	}
	return done, nil
}

// healedFrom records bytes that were stored again, and makes RAM follow.
func (r *Registry) healedFrom(ctx context.Context, b catalog.Blob) (bool, error) {
	s, err := r.cat.Heal(ctx, b)
	return r.corrected(b.Digest, s, err)
}

// Recheck looks at the bytes of contents, or with quick at their sizes, and records
// those that are damaged as missing, so that whoever pushes them next is asked for their
// bytes. It returns these. What is not here, or damaged, stays set aside as after a
// repair by Fsck.
func (r *Registry) Recheck(ctx context.Context, contents []oci.Digest, quick bool) (damaged []oci.Digest, err error) {
	if err := errors.Join(r.writable(), r.CheckStore(ctx)); err != nil {
		return nil, err
	}
	f := &fsck{r: r, o: FsckOptions{Repair: true, Quick: quick, GiveUpMany: true}, start: r.now(), began: time.Now()}
	f.rep.Counts, f.rep.Repaired = map[ProblemKind]int{}, map[ProblemKind]int{}
	if r.replica != nil {
		held, release, err := r.aloneSoon(ctx, leaseCollect, "check of contents")
		if err != nil {
			return nil, fmt.Errorf("wait for a collection to end: %w", err)
		}
		defer release()
		ctx = held
	}
	for _, d := range contents {
		c, err := r.cat.StoredContent(ctx, d)
		if errors.Is(err, catalog.ErrNotFound) {
			continue
		}
		if err == nil {
			err = f.checkContent(ctx, c)
		}
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", d, because(ctx, err))
		}
	}
	for _, p := range f.rep.Problems {
		if p.Repaired && p.Kind != ProblemSize {
			damaged = append(damaged, p.Digest)
		}
	}
	return damaged, nil
}

// relink makes a content that came back visible in every repository with a manifest
// that needs it.
func (r *Registry) relink(ctx context.Context, d oci.Digest) error {
	rows, err := r.cat.NamedBy(ctx, d)
	if err != nil {
		return err
	}
	for _, m := range rows {
		if err := r.showNamed(ctx, m, d); err != nil {
			return fmt.Errorf("show %s in %s: %w", d, m.Repo, err)
		}
	}
	return nil
}

func (r *Registry) showNamed(ctx context.Context, m catalog.ManifestRow, d oci.Digest) error {
	if r.partial(m.Repo) {
		return nil
	}
	b, err := r.cat.StoredBlob(ctx, m.Digest)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	doc, err := manifest.Parse(b.Content, m.MediaType)
	if err != nil || !manifest.Has(doc.Names().Blobs, d) {
		return nil // fsck reports a manifest that is none
	}
	_, err = r.cat.LinkNamed(ctx, m, d)
	return err
}
