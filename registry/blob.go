package registry

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
)

// StartUpload implements oci.Writer.
func (r *Registry) StartUpload(ctx context.Context, repo string) (oci.UploadStatus, error) {
	return r.uploads.Start(ctx, repo)
}

// UploadStatus implements oci.Writer.
func (r *Registry) UploadStatus(ctx context.Context, repo, id string) (oci.UploadStatus, error) {
	return r.uploads.Status(ctx, repo, id)
}

// AppendUpload implements oci.Writer.
func (r *Registry) AppendUpload(ctx context.Context, repo, id string, off, size int64, body io.Reader) (oci.UploadStatus, error) {
	return r.uploads.Append(ctx, repo, id, off, size, body)
}

// CommitUpload implements oci.Writer.
func (r *Registry) CommitUpload(ctx context.Context, repo, id string, off, size int64, body io.Reader, d oci.Digest) (oci.Descriptor, error) {
	return r.uploads.Commit(ctx, repo, id, off, size, body, d)
}

// CancelUpload implements oci.Writer.
func (r *Registry) CancelUpload(ctx context.Context, repo, id string) error {
	return r.uploads.Cancel(ctx, repo, id)
}

// PushBlob implements oci.Writer.
func (r *Registry) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, body io.Reader) (oci.Descriptor, error) {
	return r.uploads.Push(ctx, repo, d, size, body)
}

// MountBlob implements oci.Writer.
func (r *Registry) MountBlob(ctx context.Context, to, from string, d oci.Digest) (oci.Descriptor, error) {
	if err := r.storage.Writable(); err != nil {
		return oci.Descriptor{}, err
	}
	for _, name := range []string{to, from} {
		if err := oci.CheckName(name); err != nil {
			return oci.Descriptor{}, err
		}
	}
	if err := r.storage.Room(); err != nil {
		return oci.Descriptor{}, err
	}
	if lost, err := r.storage.Missing(ctx, []oci.Digest{d}); err != nil || len(lost) > 0 {
		return oci.Descriptor{}, orUnknown(err, storage.BlobUnknown(from, d))
	}
	b, err := r.cat.MountBlob(ctx, to, from, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return oci.Descriptor{}, storage.BlobUnknown(from, d)
	}
	if err != nil {
		return oci.Descriptor{}, storage.ClientError(fmt.Sprintf("mount blob %s", d), err)
	}
	desc := storage.BlobDescriptor(d, b.Size)
	return desc, r.emit(ctx, Event{Action: ActionMount, Repo: to, Blob: true, FromRepo: from, Descriptor: desc})
}

// DeleteBlob implements oci.Deleter.
func (r *Registry) DeleteBlob(ctx context.Context, repo string, d oci.Digest) error {
	if err := r.deletable(); err != nil {
		return err
	}
	err := r.cat.DeleteBlob(ctx, repo, d)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return storage.BlobUnknown(repo, d)
	case errors.Is(err, catalog.ErrReferenced):
		return oci.Errorf(oci.CodeDenied, "a manifest of %s needs blob %s; delete the manifest first", repo, d)
	case err != nil:
		return storage.ClientError(fmt.Sprintf("delete blob %s", d), err)
	}
	r.ram.Drop(blobKey(repo, d))
	return r.emit(ctx, Event{Action: ActionDelete, Repo: repo, Blob: true, Descriptor: oci.Descriptor{Digest: d}})
}
