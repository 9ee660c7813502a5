package serve

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/web"
	"example.org/slipway/web/images"
)

// pageBrowse is what the web page shows of repositories. It reads the catalogue and the
// stored content. Looking at an image does not count as a pull and fetches nothing from
// upstreams.
type pageBrowse struct {
	*catalog.Catalog
	browse.Store
	s *Server
}

var _ web.Browse = (*pageBrowse)(nil)

func (s *Server) webBrowse() *pageBrowse {
	return &pageBrowse{s.root.cat, browse.New(s.root.cat.DB), s}
}

// Content implements web.Browse.
func (b *pageBrowse) Content(ctx context.Context, repo string, d oci.Digest, most int64) ([]byte, error) {
	blob, err := b.Blob(ctx, repo, d)
	switch {
	case err != nil:
		return nil, err
	case blob.Content != nil || blob.Size == 0:
		return blob.Content, nil
	case blob.Size > most:
		return nil, fmt.Errorf("it has %d bytes, and up to %d are shown", blob.Size, most)
	}
	c, err := b.s.root.reg.GetBlobRange(ctx, repo, d, 0, most) // this counts as no pull
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return io.ReadAll(io.LimitReader(c, most))
}

// Attached implements web.Browse.
func (b *pageBrowse) Attached(ctx context.Context, repo string, d oci.Digest, n int) ([]oci.Descriptor, bool, error) {
	return b.s.root.reg.Referrers(ctx, repo, d, "", "", n)
}

// Layer implements web.Browse.
func (b *pageBrowse) Layer(ctx context.Context, repo string, d oci.Digest) (images.LayerState, error) {
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

// Mirrored implements web.Browse.
func (b *pageBrowse) Mirrored(repo string) bool {
	return b.s.root.isMirror != nil && b.s.root.isMirror(repo)
}

// Undeletable implements web.Browse.
func (b *pageBrowse) Undeletable(repo string, tags []string) (string, error) {
	st := &b.s.cfg.Storage
	switch {
	case b.Mirrored(repo):
		return "This repository is a copy of another registry's. Its images are removed at the page of mirrors, or with: slipway mirror prune", nil
	case st.Maintenance.ReadOnly.Enabled:
		return "The registry takes no changes now: storage.maintenance.readonly of its configuration is enabled.", nil
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

// DeleteTag implements web.Browse.
func (b *pageBrowse) DeleteTag(ctx context.Context, repo, tag string) error {
	return b.registry().DeleteTag(ctx, repo, tag)
}

// DeleteManifest implements web.Browse.
func (b *pageBrowse) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	return b.registry().DeleteManifest(ctx, repo, d)
}

// registry returns the registry through which clients delete.
func (b *pageBrowse) registry() oci.Deleter { return b.s.writes.Registry(b.s.root.served()) }
