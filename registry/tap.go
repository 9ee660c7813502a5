package registry

import (
	"bytes"
	"context"
	"io"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
)

// Tap watches blobs while they come in, so that work on a blob can run during its upload
// instead of beginning afterwards.
type Tap interface {
	// Follow is called once the first bytes of a blob that will be an object of the store
	// are there. It returns nil if the blob is of no interest.
	Follow(repo string, head []byte) Follower
}

// Follower follows one upload. Its methods are called one after the other, must not block
// and must not fail the push. Either Published or Dropped is the last call, exactly once,
// at the latest when the registry is closed.
type Follower interface {
	// Write receives the next bytes. It must not keep p.
	Write(p []byte)
	// Published says that the bytes have become the blob d.
	Published(d oci.Digest, size int64)
	// Dropped says that the bytes will not become a blob, or not through this process.
	Dropped()
}

// follow shows the tap the bytes that were added to the upload. u.mu is held.
func (r *Registry) follow(u *upload, p []byte) {
	if u.follower == nil {
		if r.opts.Tap == nil || len(p) == 0 || u.size != int64(len(p)) { // not the first bytes
			return
		}
		if u.follower = r.opts.Tap.Follow(u.repo, p); u.follower == nil {
			return
		}
	}
	u.follower.Write(p)
}

// followed ends the follower of the upload, because the upload has become a blob. u.mu is
// held.
func (u *upload) followed(d oci.Digest) {
	if u.follower != nil {
		u.follower.Published(d, u.size)
		u.follower = nil
	}
}

// unfollow ends the follower of an upload that leaves memory. u.mu is held.
func (u *upload) unfollow() {
	if u.follower != nil {
		u.follower.Dropped()
		u.follower = nil
	}
}

// unfollow ends the followers of all uploads when the registry is closed. Uploads may be
// continued after a restart, but not in this process.
func (us *uploads) unfollow() {
	us.mu.Lock()
	defer us.mu.Unlock()
	for _, u := range us.byID {
		if u.mu.TryLock() { // otherwise the request that could not be ended does it
			u.unfollow()
			u.mu.Unlock()
		}
	}
}

// OpenBlob opens a stored blob at an offset, whichever repository shows the blob. It is
// for work on contents, and never for clients. Errors: catalog.ErrNotFound.
func OpenBlob(ctx context.Context, cat *catalog.Catalog, store objstore.Store, d oci.Digest, off int64) (io.ReadCloser, int64, error) {
	b, err := cat.StoredBlob(ctx, d)
	if err != nil {
		return nil, 0, err
	}
	if b.Content != nil {
		return io.NopCloser(bytes.NewReader(b.Content[min(off, int64(len(b.Content))):])), b.Size, nil
	}
	obj, err := store.Get(ctx, BlobKey(d), off, -1)
	return obj, b.Size, err
}
