package registry

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// PushBlob implements oci.Writer.
func (r *Registry) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, body io.Reader) (oci.Descriptor, error) {
	if r.replica != nil {
		return r.pushWhole(ctx, repo, d, size, body)
	}
	st, err := r.StartUpload(ctx, repo)
	if err != nil {
		return oci.Descriptor{}, err
	}
	desc, err := r.CommitUpload(ctx, repo, st.ID, 0, size, body, d)
	if err != nil && !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
		// The caller has no id to continue with.
		if cancelErr := r.CancelUpload(ctx, repo, st.ID); cancelErr != nil && !oci.HasCode(cancelErr, oci.CodeBlobUploadUnknown) {
			r.log.Warn("free an upload", "upload", st.ID, "repo", repo, "err", cancelErr)
		}
	}
	return desc, err
}

// CommitUpload implements oci.Writer.
func (r *Registry) CommitUpload(ctx context.Context, repo, id string, off, size int64, body io.Reader, d oci.Digest) (oci.Descriptor, error) {
	if err := oci.CheckDigest(d); err != nil {
		return oci.Descriptor{}, err
	}
	u, err := r.uploads.acquire(ctx, repo, id)
	if err != nil {
		return oci.Descriptor{}, err
	}
	defer r.release(u)
	return r.commit(ctx, u, off, size, body, d)
}

// commit receives the last bytes of an upload and makes the upload a blob. u.mu is held.
func (r *Registry) commit(ctx context.Context, u *upload, off, size int64, body io.Reader, d oci.Digest) (oci.Descriptor, error) {
	if err := u.checkOffset(off); err != nil {
		return oci.Descriptor{}, err
	}
	if u.only != "" && u.only != d {
		r.drop(ctx, u)
		return oci.Descriptor{}, oci.Errorf(oci.CodeDigestInvalid, "the upload was begun as %s and cannot become %s", u.only, d)
	}
	intent := r.intend(ctx, u, size, d)
	u.want = d
	err := r.receive(ctx, u, off, size, body, d)
	u.want = ""
	if intentErr := intent(); err == nil {
		err = intentErr
	}
	switch {
	case err == nil:
	case isStorageFull(err) || isUnknown(err):
		r.drop(ctx, u)
		return oci.Descriptor{}, err
	case u.private: // the caller has no id to continue with
		r.drop(ctx, u)
		return oci.Descriptor{}, err
	default: // the client may continue where the upload broke off
		if parkErr := r.park(ctx, u); parkErr != nil {
			r.log.Warn("keep an upload that broke off", "upload", u.id, "err", parkErr)
		}
		return oci.Descriptor{}, err
	}
	desc, err := r.publish(ctx, u, d)
	if err != nil {
		r.drop(ctx, u)
		return oci.Descriptor{}, err
	}
	u.followed(d)
	r.finish(u)
	return desc, r.emit(ctx, Event{Action: ActionPush, Repo: u.repo, Blob: true, Descriptor: desc})
}

// intend records that the upload is about to be published as d, if it will be an object
// in the store. It does so while the body still comes in, and also checks that the store
// is available. If a crash happens between writing the object and recording it, recovery
// therefore knows of the object. The returned function waits for the record.
func (r *Registry) intend(ctx context.Context, u *upload, size int64, d oci.Digest) (wait func() error) {
	if u.state == "" && size >= 0 && u.size+size <= catalog.InlineMax {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	row, err := u.row(d)
	if err != nil {
		done <- err
	} else {
		r.uploads.mu.Lock()
		u.saved = true // from here on drop must remove the row
		r.uploads.mu.Unlock()
		r.background.Add(1)
		go func() {
			defer r.background.Done()
			ctx := context.WithoutCancel(ctx)
			err := r.storeHere(ctx)
			if err == nil {
				err = r.recordIntent(ctx, u, row)
			}
			done <- err
		}()
	}
	return func() error {
		if err := <-done; err != nil {
			return ClientError("record what is being published", err)
		}
		return nil
	}
}

// finish forgets an upload that has become a blob, or whose whole state is in its row.
func (r *Registry) finish(u *upload) {
	u.gone = true
	u.unfollow()
	r.uploads.mu.Lock()
	r.uploads.remove(u)
	r.uploads.mu.Unlock()
}

// publish checks the upload's digest and makes it a blob of its repository.
// u.mu is held. On error the caller drops the upload.
func (r *Registry) publish(ctx context.Context, u *upload, d oci.Digest) (oci.Descriptor, error) {
	// From here on the outcome must not depend on the client's patience.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	if u.lostClaim() {
		return oci.Descriptor{}, uploadBusy()
	}
	if u.hash == nil {
		u.setHash(algorithm(d))
	}
	if u.alg != algorithm(d) && u.obj == nil && u.state == "" {
		u.setHash(algorithm(d))
		u.hash.Write(u.buf)
	}
	if u.alg != algorithm(d) {
		return r.publishVerified(ctx, u, d)
	}
	if got := oci.Digest(u.alg + ":" + hex.EncodeToString(u.hash.Sum(nil))); got != d {
		return oci.Descriptor{}, digestMismatch(d, got, u.size)
	}
	return r.record(ctx, u, d)
}

func digestMismatch(want, got oci.Digest, size int64) error {
	return oci.Errorf(oci.CodeDigestInvalid, "the %d bytes received have digest %s, not %s", size, got, want)
}

func (u *upload) savedID() string {
	if u.saved {
		return u.id
	}
	return ""
}

// record makes the upload a durable blob. Its digest is known to be right.
func (r *Registry) record(ctx context.Context, u *upload, d oci.Digest) (oci.Descriptor, error) {
	desc := blobDescriptor(d, u.size)
	r.uploads.mu.Lock()
	rowID := u.savedID()
	r.uploads.mu.Unlock()
	if u.obj == nil && u.state == "" {
		content := u.buf
		if content == nil {
			content = []byte{}
		}
		return desc, r.recordSmall(ctx, u.repo, d, content, rowID)
	}
	// The content may be stored already. It was received and checked all the same,
	// because knowing a digest must not be enough to be given the content. It also
	// replaces what is stored, which may be lost or damaged without anybody having
	// noticed.
	if err := r.openObject(ctx, u, 0, false); err != nil {
		return desc, ClientError("continue the upload", err)
	}
	return desc, r.putObject(ctx, u, d, u.size, func() error {
		return u.commitObject(ctx, d)
	}, func() error {
		_, err := r.recordBlob(ctx, u.repo, catalog.Blob{Digest: d, Size: u.size, Tag: u.tag}, rowID)
		return err
	})
}

// commitObject makes the upload's open object the object of a content.
func (u *upload) commitObject(ctx context.Context, d oci.Digest) error {
	err := u.obj.Commit(ctx, BlobKey(d))
	u.tag = u.obj.Tag()
	u.obj, u.state = nil, ""
	return err
}

// recordSmall records a blob whose bytes go into the catalogue. If the store has the
// bytes, as in an adopted storage, recordSmall replaces that object.
func (r *Registry) recordSmall(ctx context.Context, repo string, d oci.Digest, content []byte, rowID string) error {
	b := catalog.Blob{Digest: d, Size: int64(len(content)), Content: content}
	object, err := r.recordBlob(ctx, repo, b, rowID)
	if err != nil {
		return ClientError("record the blob", err)
	}
	if object {
		defer r.digests.lock(d)()
		err = r.store.Put(ctx, BlobKey(d), content, false)
		r.trust.drop(d)
	}
	r.ram.Drop(blobKey(repo, d))
	if err != nil {
		return ClientError("store the blob", err)
	}
	return nil
}

// recordBlob makes a stored content a blob of a repository. Content that was absent
// reappears in every repository with a manifest that needs it. object reports whether the
// catalogue has the content as an object of the store.
func (r *Registry) recordBlob(ctx context.Context, repo string, b catalog.Blob, rowID string) (object bool, err error) {
	rec, err := r.cat.PutBlob(ctx, repo, b, rowID)
	if err != nil {
		return false, err
	}
	if rec.Named {
		if err := r.relink(ctx, b.Digest); err != nil {
			r.log.Warn("show a content that came back where images need it; slipway fsck --repair does", "digest", b.Digest, "err", err)
		}
	}
	return rec.Object, nil
}

// storeVerified puts verified bytes into the store as the object of d, makes sure that
// they are there, and records the object. The lock of d is held. doing names the
// operation in errors.
func (r *Registry) storeVerified(ctx context.Context, d oci.Digest, size int64, put, record func() error) (doing string, err error) {
	if err = put(); err == nil {
		err = r.proveStored(ctx, d, size)
	}
	if err != nil {
		return "store the blob", err
	}
	return "record the blob", record()
}

// putObject puts the object of d into the store and records it. The upload's intent is
// durable already. u.mu is held.
func (r *Registry) putObject(ctx context.Context, u *upload, d oci.Digest, size int64, put, record func() error) error {
	unlock := sync.OnceFunc(r.digests.lock(d))
	defer unlock()
	doing, err := r.storeVerified(ctx, d, size, put, record)
	if err == nil {
		r.ram.Drop(blobKey(u.repo, d)) // its size may change
		return nil
	}
	if r.replica != nil {
		unlock()
		r.unpublishShared(ctx, u, d, err)
	} else {
		r.unpublish(ctx, u, d)
	}
	return ClientError(doing, err)
}

// unpublish removes an object that may be in the store but is not in the catalogue. If
// that is not possible now, the upload's row, which names the digest, is left for
// recovery.
func (r *Registry) unpublish(ctx context.Context, u *upload, d oci.Digest) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	wanted, err := r.cat.Garbage.Wanted(ctx, d) // fsck restores what an image lacks
	if err == nil && !wanted {
		err = r.store.Delete(ctx, BlobKey(d))
	}
	if err != nil {
		r.keepRow(u)
		r.log.Warn("take back a blob that could not be recorded; the next start will", "digest", d, "err", err)
	}
}

// keepRow makes drop leave the upload's row alone.
func (r *Registry) keepRow(u *upload) {
	r.uploads.mu.Lock()
	u.saved = false
	r.uploads.mu.Unlock()
}

// publishVerified publishes an upload whose client sent chunks before it announced a
// digest other than sha256. The sum must then be computed from the store. Until the bytes
// are known to be right they lie under a separate key.
func (r *Registry) publishVerified(ctx context.Context, u *upload, d oci.Digest) (oci.Descriptor, error) {
	if err := r.openObject(ctx, u, 0, false); err != nil {
		return oci.Descriptor{}, ClientError("continue the upload", err)
	}
	key := verifyKey(u.id)
	err := u.obj.Commit(ctx, key)
	u.obj, u.state = nil, ""
	if err == nil {
		err = r.copyVerified(ctx, u, key, d)
	}
	// The copy is deleted before the upload's row, from which recovery knows of the copy.
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if delErr := r.store.Delete(cleanup, key); delErr != nil {
		r.keepRow(u)
		err = errors.Join(err, fmt.Errorf("remove the checked copy: %w", delErr))
	}
	if err != nil {
		return oci.Descriptor{}, ClientError("check the upload", err)
	}
	return r.record(ctx, u, d)
}

// copyVerified makes the upload a copy of the object under key, if that object has the
// digest d.
func (r *Registry) copyVerified(ctx context.Context, u *upload, key string, d oci.Digest) error {
	src, err := r.store.Get(ctx, key, 0, -1)
	if err != nil {
		return fmt.Errorf("read the upload back: %w", err)
	}
	defer src.Close()
	u.want, u.alg = d, algorithm(d)
	dst, err := r.newObject(ctx, u, u.size)
	if err != nil {
		return fmt.Errorf("copy the upload: %w", err)
	}
	u.obj = dst // dropped with the upload if anything below fails
	sum := newHash(algorithm(d))
	if _, err := io.Copy(io.MultiWriter(dst, sum), io.LimitReader(src, u.size)); err != nil {
		return fmt.Errorf("copy the upload: %w", err)
	}
	if got := oci.Digest(algorithm(d) + ":" + hex.EncodeToString(sum.Sum(nil))); got != d {
		return digestMismatch(d, got, u.size)
	}
	return nil
}

// MountBlob implements oci.Writer.
func (r *Registry) MountBlob(ctx context.Context, to, from string, d oci.Digest) (oci.Descriptor, error) {
	if err := r.writable(); err != nil {
		return oci.Descriptor{}, err
	}
	for _, name := range []string{to, from} {
		if err := oci.CheckName(name); err != nil {
			return oci.Descriptor{}, err
		}
	}
	if err := r.room(); err != nil {
		return oci.Descriptor{}, err
	}
	if lost, err := r.missing(ctx, []oci.Digest{d}); err != nil || len(lost) > 0 {
		return oci.Descriptor{}, orUnknown(err, blobUnknown(from, d))
	}
	b, err := r.cat.MountBlob(ctx, to, from, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return oci.Descriptor{}, blobUnknown(from, d)
	}
	if err != nil {
		return oci.Descriptor{}, ClientError(fmt.Sprintf("mount blob %s", d), err)
	}
	desc := blobDescriptor(d, b.Size)
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
		return blobUnknown(repo, d)
	case errors.Is(err, catalog.ErrReferenced):
		return oci.Errorf(oci.CodeDenied, "a manifest of %s needs blob %s; delete the manifest first", repo, d)
	case err != nil:
		return ClientError(fmt.Sprintf("delete blob %s", d), err)
	}
	r.ram.Drop(blobKey(repo, d))
	return r.emit(ctx, Event{Action: ActionDelete, Repo: repo, Blob: true, Descriptor: oci.Descriptor{Digest: d}})
}
