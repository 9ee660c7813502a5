package page

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/signatures"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/serve/gate"
	"example.org/slipway/web"
	"example.org/slipway/web/images"
)

// shownImages is what the web page shows of repositories. It reads the catalogue and the
// stored content. Looking at an image does not count as a pull and fetches nothing from
// upstreams.
type shownImages struct {
	*catalog.Catalog
	browse.Store
	o        *Options
	verifier *signatures.Verifier
}

var _ web.Browse = (*shownImages)(nil)

func newShownImages(o *Options) (*shownImages, error) {
	v, err := dataroot.SignatureKeys(o.Config)
	return &shownImages{o.Root.Catalog, browse.New(o.Root.Catalog.DB), o, v}, err
}

// Content implements web.Browse.
func (b *shownImages) Content(ctx context.Context, repo string, d oci.Digest, most int64) ([]byte, error) {
	blob, err := b.Blob(ctx, repo, d)
	switch {
	case err != nil:
		return nil, err
	case blob.Content != nil || blob.Size == 0:
		return blob.Content, nil
	case blob.Size > most:
		return nil, fmt.Errorf("it has %d bytes, and up to %d are shown", blob.Size, most)
	}
	c, err := b.o.Root.Registry.GetBlobRange(ctx, repo, d, 0, most) // this counts as no pull
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return io.ReadAll(io.LimitReader(c, most))
}

// Attached implements web.Browse.
func (b *shownImages) Attached(ctx context.Context, repo string, d oci.Digest, n int) ([]oci.Descriptor, bool, error) {
	return b.o.Root.Registry.Referrers(ctx, repo, d, "", "", n)
}

// Layer implements web.Browse.
func (b *shownImages) Layer(ctx context.Context, repo string, d oci.Digest) (images.LayerState, error) {
	var l images.LayerState
	if _, err := b.Blob(ctx, repo, d); err != nil {
		if errors.Is(err, catalog.ErrNotFound) {
			err = nil
		}
		return l, err // nothing about other repositories is revealed
	}
	l.Here = true
	g, err := gearfacts.NewLayers(b.DB).Layer(ctx, d)
	if err == nil {
		l.Converted, l.Files, l.Bytes = true, g.Files, g.Bytes
		return l, nil
	}
	if !errors.Is(err, catalog.ErrNotFound) {
		return l, err
	}
	j, err := gearfacts.NewLayers(b.DB).Job(ctx, d)
	if err == nil {
		l.Waiting, l.Failure = true, j.Failure
	}
	if errors.Is(err, catalog.ErrNotFound) {
		err = nil
	}
	return l, err
}

// Signatures implements web.Browse.
func (b *shownImages) Signatures(ctx context.Context, repo string, d oci.Digest) ([]signatures.Signature, error) {
	return b.verifier.Image(ctx, b, repo, d)
}

// Mirrored implements web.Browse.
func (b *shownImages) Mirrored(repo string) bool {
	return b.o.Root.IsMirror != nil && b.o.Root.IsMirror(repo)
}

// Undeletable implements web.Browse.
func (b *shownImages) Undeletable(repo string, tags []string) (string, error) {
	st := &b.o.Config.Storage
	switch {
	case b.Mirrored(repo):
		return "This repository is a copy of another registry's. Its images are removed at the page of mirrors, or with: slipway mirror prune", nil
	case b.Unchangeable() != "":
		return b.Unchangeable(), nil
	case !st.Delete.Enabled:
		return "The registry deletes nothing for clients: storage.delete.enabled of its configuration is false.", nil
	}
	immutable, err := st.Immutable()
	if err != nil || immutable == nil {
		return "", err
	}
	for _, t := range tags {
		if immutable(repo, t) {
			return "The tag " + t + " is immutable: storage.immutable_tags of the registry's configuration keeps it.", nil
		}
	}
	return "", nil
}

// Unchangeable implements web.Browse.
func (b *shownImages) Unchangeable() string {
	if b.o.Config.Storage.Maintenance.ReadOnly.Enabled {
		return "The registry takes no changes now: storage.maintenance.readonly of its configuration is enabled."
	}
	return ""
}

// DeleteRepository implements web.Browse.
func (b *shownImages) DeleteRepository(ctx context.Context, repo string) (int, error) {
	return gate.Do(b.o.Writes, func() (int, error) { return b.o.Root.History.DeleteRepository(ctx, repo) })
}

// TagHistory implements web.Browse.
func (b *shownImages) TagHistory(ctx context.Context, repo, tag string, n int) ([]oci.TagChange, error) {
	return b.o.Root.History.TagHistory(ctx, repo, tag, n)
}

// Deleted implements web.Browse.
func (b *shownImages) Deleted(ctx context.Context, repo string, n int) ([]oci.DeletedManifest, error) {
	return b.o.Root.History.Deleted(ctx, repo, n)
}

// Restore implements web.Browse.
func (b *shownImages) Restore(ctx context.Context, repo string, d oci.Digest, tag string) (oci.PutResult, error) {
	return gate.Do(b.o.Writes, func() (oci.PutResult, error) { return b.o.Root.History.Restore(ctx, repo, d, tag) })
}

// RestoreAll implements web.Browse.
func (b *shownImages) RestoreAll(ctx context.Context, repo string) (int, error) {
	return gate.Do(b.o.Writes, func() (int, error) { return b.o.Root.History.RestoreAll(ctx, repo) })
}

// DeleteTag implements web.Browse.
func (b *shownImages) DeleteTag(ctx context.Context, repo, tag string) error {
	return b.registry().DeleteTag(ctx, repo, tag)
}

// DeleteManifest implements web.Browse.
func (b *shownImages) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	return b.registry().DeleteManifest(ctx, repo, d)
}

// registry returns the registry through which clients delete.
func (b *shownImages) registry() oci.Deleter { return b.o.Writes.Registry(b.o.Root.Served()) }
