package prefetch

import (
	"context"
	"io"

	"example.org/slipway/oci"
)

// Registry returns a registry that the prefetcher watches. The prefetcher learns from
// what clients do with it.
func (p *Prefetcher) Registry(inner oci.Registry) oci.Registry { return &watched{inner, p} }

// watched passes all calls on, and reports successful calls to the prefetcher.
type watched struct {
	oci.Registry
	p *Prefetcher
}

// GetManifest implements oci.Reader.
func (w *watched) GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	m, err := w.Registry.GetManifest(ctx, repo, ref)
	if err == nil {
		w.p.GetManifest(ctx, repo, m.Digest, m.Bytes)
	}
	return m, err
}

// GetBlob implements oci.Reader.
func (w *watched) GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error) {
	c, err := w.Registry.GetBlob(ctx, repo, d)
	if err == nil {
		w.p.GetBlob(ctx, repo, d, c.Descriptor().Size)
	}
	return c, err
}

// GetBlobRange implements oci.Reader. Only the range at the beginning counts, so that a
// blob read in ten ranges counts as one request.
func (w *watched) GetBlobRange(ctx context.Context, repo string, d oci.Digest, off, n int64) (oci.Content, error) {
	c, err := w.Registry.GetBlobRange(ctx, repo, d, off, n)
	if err == nil && off == 0 {
		w.p.GetBlob(ctx, repo, d, c.Descriptor().Size)
	}
	return c, err
}

// PushBlob implements oci.Writer.
func (w *watched) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	desc, err := w.Registry.PushBlob(ctx, repo, d, size, r)
	if err == nil {
		w.p.PutBlob(ctx, repo, desc.Digest, desc.Size)
	}
	return desc, err
}

// CommitUpload implements oci.Writer.
func (w *watched) CommitUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader, d oci.Digest) (oci.Descriptor, error) {
	desc, err := w.Registry.CommitUpload(ctx, repo, id, off, size, r, d)
	if err == nil {
		w.p.PutBlob(ctx, repo, desc.Digest, desc.Size)
	}
	return desc, err
}

// PutManifest implements oci.Writer.
func (w *watched) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	res, err := w.Registry.PutManifest(ctx, repo, m)
	if err == nil {
		w.p.PutManifest(ctx, repo, res.Digest, m.Bytes)
	}
	return res, err
}
