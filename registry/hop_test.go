package registry_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
)

// hopping is a registry of several replicas. Each call goes to the next replica, once that knows
// what was answered before.
type hopping struct {
	t    testing.TB
	list []*replica
	n    atomic.Int64
}

var _ oci.Registry = (*hopping)(nil)

func (h *hopping) next() *replica {
	r := h.list[int(h.n.Add(1))%len(h.list)]
	// A catalogue that does not listen yet would ask again after a second.
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		ctx, cancel := context.WithTimeout(h.t.Context(), wait)
		err := r.cat.DB.Sync(ctx)
		cancel()
		if err == nil {
			return r
		}
		if wait > time.Minute || h.t.Context().Err() != nil {
			h.t.Errorf("wait for what was changed before: %v", err)
			return r
		}
	}
}

func (h *hopping) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	return h.next().ResolveBlob(ctx, repo, d)
}

func (h *hopping) GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error) {
	return h.next().GetBlob(ctx, repo, d)
}

func (h *hopping) GetBlobRange(ctx context.Context, repo string, d oci.Digest, off, n int64) (oci.Content, error) {
	return h.next().GetBlobRange(ctx, repo, d, off, n)
}

func (h *hopping) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	return h.next().ResolveManifest(ctx, repo, ref)
}

func (h *hopping) GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	return h.next().GetManifest(ctx, repo, ref)
}

func (h *hopping) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	return h.next().PushBlob(ctx, repo, d, size, r)
}

func (h *hopping) MountBlob(ctx context.Context, to, from string, d oci.Digest) (oci.Descriptor, error) {
	return h.next().MountBlob(ctx, to, from, d)
}

func (h *hopping) StartUpload(ctx context.Context, repo string) (oci.UploadStatus, error) {
	return h.next().StartUpload(ctx, repo)
}

func (h *hopping) UploadStatus(ctx context.Context, repo, id string) (oci.UploadStatus, error) {
	return h.next().UploadStatus(ctx, repo, id)
}

func (h *hopping) AppendUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader) (oci.UploadStatus, error) {
	return h.next().AppendUpload(ctx, repo, id, off, size, r)
}

func (h *hopping) CommitUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader, d oci.Digest) (oci.Descriptor, error) {
	return h.next().CommitUpload(ctx, repo, id, off, size, r, d)
}

func (h *hopping) CancelUpload(ctx context.Context, repo, id string) error {
	return h.next().CancelUpload(ctx, repo, id)
}

func (h *hopping) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	return h.next().PutManifest(ctx, repo, m)
}

func (h *hopping) DeleteBlob(ctx context.Context, repo string, d oci.Digest) error {
	return h.next().DeleteBlob(ctx, repo, d)
}

func (h *hopping) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	return h.next().DeleteManifest(ctx, repo, d)
}

func (h *hopping) DeleteTag(ctx context.Context, repo, tag string) error {
	return h.next().DeleteTag(ctx, repo, tag)
}

func (h *hopping) Repositories(ctx context.Context, last string, n int) ([]string, bool, error) {
	return h.next().Repositories(ctx, last, n)
}

func (h *hopping) Tags(ctx context.Context, repo, last string, n int) ([]string, bool, error) {
	return h.next().Tags(ctx, repo, last, n)
}

func (h *hopping) Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) ([]oci.Descriptor, bool, error) {
	return h.next().Referrers(ctx, repo, d, artifactType, last, n)
}
