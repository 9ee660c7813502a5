package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/manifest"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// corrected updates RAM after a change of a content's row.
func (r *Registry) corrected(d oci.Digest, s repair.Shown, err error) (bool, error) {
	if errors.Is(err, catalog.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		r.forgetShown(d, s)
	}
	return err == nil, err
}

// heal stores the bytes of a known content again if they have its digest. The bytes of a
// manifest go into the catalogue, whatever its size, like the bytes of a small content.
func (r *Registry) heal(ctx context.Context, d oci.Digest, src io.Reader) (done bool, err error) {
	known, isManifest, err := repair.New(r.cat.DB).Healable(ctx, d)
	if err != nil || !known {
		return false, err
	}
	most := int64(catalog.InlineMax)
	if isManifest {
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
	if err := storage.LockPatiently(ctx, r.collects.objects.TryRLock); err != nil { // the collector deletes nothing meanwhile
		return false, err
	}
	defer r.collects.objects.RUnlock()
	defer r.storage.Locks.Lock(d)()
	if known, _, err = repair.New(r.cat.DB).Healable(ctx, d); err != nil || !known {
		return false, err
	}
	doing, err := r.storage.Replace(ctx, d, n, func() error { return dst.Commit(ctx, storage.BlobKey(d)) }, func() (err error) {
		done, err = r.healedFrom(ctx, catalog.Blob{Digest: d, Size: n, Tag: dst.Tag()})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, err)
	}
	return done, nil
}

// healedFrom records bytes that were stored again, and updates RAM.
func (r *Registry) healedFrom(ctx context.Context, b catalog.Blob) (bool, error) {
	s, err := repair.New(r.cat.DB).Heal(ctx, b)
	return r.corrected(b.Digest, s, err)
}

// relink makes a restored content visible in every repository with a manifest that needs
// it.
func (r *Registry) relink(ctx context.Context, d oci.Digest) error {
	rows, err := repair.New(r.cat.DB).NamedBy(ctx, d)
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

func (r *Registry) showNamed(ctx context.Context, m repair.ManifestRow, d oci.Digest) error {
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
		return nil // fsck reports a manifest that cannot be parsed
	}
	_, err = repair.New(r.cat.DB).LinkNamed(ctx, m, d)
	return err
}
