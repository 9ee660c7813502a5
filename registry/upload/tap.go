package upload

import (
	"example.org/slipway/oci"
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
func (u *upload) follow(p []byte) {
	if u.follower == nil {
		if u.us.opts.Tap == nil || len(p) == 0 || u.size != int64(len(p)) { // not the first bytes
			return
		}
		if u.follower = u.us.opts.Tap.Follow(u.repo, p); u.follower == nil {
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
func (us *Uploads) unfollow() {
	us.mu.Lock()
	defer us.mu.Unlock()
	for _, u := range us.byID {
		if u.mu.TryLock() { // otherwise the request that could not be ended does it
			u.unfollow()
			u.mu.Unlock()
		}
	}
}
