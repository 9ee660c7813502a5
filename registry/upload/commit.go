package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// Push stores a blob that comes in one request.
func (us *Uploads) Push(ctx context.Context, repo string, d oci.Digest, size int64, body io.Reader) (oci.Descriptor, error) {
	if us.replica.Shared {
		return us.pushWhole(ctx, repo, d, size, body)
	}
	st, err := us.Start(ctx, repo)
	if err != nil {
		return oci.Descriptor{}, err
	}
	desc, err := us.Commit(ctx, repo, st.ID, 0, size, body, d)
	if err != nil && !isUnknown(err) {
		// The caller has no id to continue with.
		if cancelErr := us.Cancel(ctx, repo, st.ID); cancelErr != nil && !isUnknown(cancelErr) {
			us.log.Warn("free an upload", "upload", st.ID, "repo", repo, "err", cancelErr)
		}
	}
	return desc, err
}

// Commit receives the last bytes of an upload and turns the upload into the blob d.
func (us *Uploads) Commit(ctx context.Context, repo, id string, off, size int64, body io.Reader, d oci.Digest) (oci.Descriptor, error) {
	if err := oci.CheckDigest(d); err != nil {
		return oci.Descriptor{}, err
	}
	u, err := us.acquire(ctx, repo, id)
	if err != nil {
		return oci.Descriptor{}, err
	}
	defer u.release()
	return u.commit(ctx, off, size, body, d)
}

// commit receives the last bytes of an upload and turns the upload into a blob. u.mu is
// held.
func (u *upload) commit(ctx context.Context, off, size int64, body io.Reader, d oci.Digest) (oci.Descriptor, error) {
	if err := u.checkOffset(off); err != nil {
		return oci.Descriptor{}, err
	}
	if u.only != "" && u.only != d {
		u.drop(ctx)
		return oci.Descriptor{}, oci.Errorf(oci.CodeDigestInvalid, "the upload was begun as %s and cannot become %s", u.only, d)
	}
	intent := u.intend(ctx, size, d)
	u.want = d
	err := u.receive(ctx, off, size, body, d)
	u.want = ""
	if intentErr := intent(); err == nil {
		err = intentErr
	}
	switch {
	case err == nil:
	case isStorageFull(err) || isUnknown(err):
		u.drop(ctx)
		return oci.Descriptor{}, err
	case u.private: // the caller has no id to continue with
		u.drop(ctx)
		return oci.Descriptor{}, err
	default: // the client may continue where the upload broke off
		if parkErr := u.park(ctx); parkErr != nil {
			u.us.log.Warn("keep an upload that broke off", "upload", u.id, "err", parkErr)
		}
		return oci.Descriptor{}, err
	}
	desc, err := u.publish(ctx, d)
	if err != nil {
		u.drop(ctx)
		return oci.Descriptor{}, err
	}
	u.followed(d)
	u.finish()
	return desc, u.us.opts.Pushed(ctx, u.repo, desc)
}

// intend records that the upload is about to be published as d, if it will be an object
// in the store. It does so while the body still comes in, and also checks that the store
// is available. If a crash happens between writing the object and recording it, recovery
// therefore knows of the object. The returned function waits for the record.
func (u *upload) intend(ctx context.Context, size int64, d oci.Digest) (wait func() error) {
	if u.state == "" && size >= 0 && u.size+size <= catalog.InlineMax {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	row, err := u.row(d)
	if err != nil {
		done <- err
	} else {
		u.us.mu.Lock()
		u.saved = true // from here on drop must remove the row
		u.us.mu.Unlock()
		u.us.background.Add(1)
		go func() {
			defer u.us.background.Done()
			ctx := context.WithoutCancel(ctx)
			err := u.us.storage.Here(ctx)
			if err == nil {
				err = u.recordIntent(ctx, row)
			}
			done <- err
		}()
	}
	return func() error {
		if err := <-done; err != nil {
			return storage.ClientError("record what is being published", err)
		}
		return nil
	}
}

// finish forgets an upload that has become a blob, or whose whole state is in its row.
func (u *upload) finish() {
	u.gone = true
	u.unfollow()
	u.us.mu.Lock()
	u.us.remove(u)
	u.us.mu.Unlock()
}

// publish checks the upload's digest and makes it a blob of its repository.
// u.mu is held. On error the caller drops the upload.
func (u *upload) publish(ctx context.Context, d oci.Digest) (oci.Descriptor, error) {
	// From here on the outcome must not depend on the client's patience.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	if u.lostClaim() {
		return oci.Descriptor{}, uploadBusy()
	}
	if u.hash == nil {
		u.setHash(verify.Algorithm(d))
	}
	if u.alg != verify.Algorithm(d) && u.obj == nil && u.state == "" {
		u.setHash(verify.Algorithm(d))
		u.hash.Write(u.buf)
	}
	if u.alg != verify.Algorithm(d) {
		return u.publishVerified(ctx, d)
	}
	if got := verify.Sum(d, u.hash); got != d {
		return oci.Descriptor{}, storage.DigestMismatch(d, got, u.size)
	}
	return u.record(ctx, d)
}

func (u *upload) savedID() string {
	if u.saved {
		return u.id
	}
	return ""
}

// record turns the upload into a durable blob. Its digest is known to be right.
func (u *upload) record(ctx context.Context, d oci.Digest) (oci.Descriptor, error) {
	desc := storage.BlobDescriptor(d, u.size)
	u.us.mu.Lock()
	rowID := u.savedID()
	u.us.mu.Unlock()
	if u.obj == nil && u.state == "" {
		content := u.buf
		if content == nil {
			content = []byte{}
		}
		return desc, u.us.recordSmall(ctx, u.repo, d, content, rowID)
	}
	// The content may be stored already. It was received and checked all the same,
	// because knowing a digest must not be enough to be given the content. It also
	// replaces what is stored, which may be lost or damaged without anybody having
	// noticed.
	if err := u.openObject(ctx, 0, false); err != nil {
		return desc, storage.ClientError("continue the upload", err)
	}
	return desc, u.putObject(ctx, d, u.size, func() error {
		return u.commitObject(ctx, d)
	}, func() error {
		_, err := u.us.recordBlob(ctx, u.repo, catalog.Blob{Digest: d, Size: u.size, Tag: u.tag}, rowID)
		return err
	})
}

// commitObject commits the upload's open object as the object of a content.
func (u *upload) commitObject(ctx context.Context, d oci.Digest) error {
	err := u.obj.Commit(ctx, storage.BlobKey(d))
	u.tag = u.obj.Tag()
	u.obj, u.state = nil, ""
	return err
}

// recordSmall records a blob whose bytes go into the catalogue. If the store has the
// bytes, as in an adopted storage, recordSmall replaces that object.
func (us *Uploads) recordSmall(ctx context.Context, repo string, d oci.Digest, content []byte, rowID string) error {
	b := catalog.Blob{Digest: d, Size: int64(len(content)), Content: content}
	object, err := us.recordBlob(ctx, repo, b, rowID)
	if err != nil {
		return storage.ClientError("record the blob", err)
	}
	if object {
		err = us.storage.Overwrite(ctx, d, content)
	}
	us.opts.Forget(repo, d)
	if err != nil {
		return storage.ClientError("store the blob", err)
	}
	return nil
}

// recordBlob makes a repository show a stored content as a blob. Content that was absent
// reappears in every repository with a manifest that needs it. object reports whether the
// catalogue has the content as an object of the store.
func (us *Uploads) recordBlob(ctx context.Context, repo string, b catalog.Blob, rowID string) (object bool, err error) {
	rec, err := us.cat.PutBlob(ctx, repo, b, rowID)
	if err != nil {
		return false, err
	}
	if rec.Named {
		if err := us.opts.Relink(ctx, b.Digest); err != nil {
			us.log.Warn("show a content that came back where images need it; slipway fsck --repair does", "digest", b.Digest, "err", err)
		}
	}
	return rec.Object, nil
}

// putObject puts the object of d into the store and records it. The upload's intent is
// durable already. u.mu is held.
func (u *upload) putObject(ctx context.Context, d oci.Digest, size int64, put, record func() error) error {
	unlock := sync.OnceFunc(u.us.storage.Locks.Lock(d))
	defer unlock()
	doing, err := u.us.storage.Replace(ctx, d, size, put, record)
	if err == nil {
		u.us.opts.Forget(u.repo, d) // its size may change
		return nil
	}
	if u.us.replica.Shared {
		unlock()
		u.unpublishShared(ctx, d, err)
	} else {
		u.unpublish(ctx, d)
	}
	return storage.ClientError(doing, err)
}

// unpublish removes an object that may be in the store but is not in the catalogue. If
// that is not possible now, the upload's row, which names the digest, is left for
// recovery.
func (u *upload) unpublish(ctx context.Context, d oci.Digest) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	wanted, err := u.us.cat.Garbage.Wanted(ctx, d) // fsck restores what an image lacks
	if err == nil && !wanted {
		err = u.us.store.Delete(ctx, storage.BlobKey(d))
	}
	if err != nil {
		u.keepRow()
		u.us.log.Warn("take back a blob that could not be recorded; the next start will", "digest", d, "err", err)
	}
}

// keepRow makes drop leave the upload's row alone.
func (u *upload) keepRow() {
	u.us.mu.Lock()
	u.saved = false
	u.us.mu.Unlock()
}

// publishVerified publishes an upload whose client sent chunks before it announced a
// digest other than sha256. The sum must then be computed from the store. Until the bytes
// are known to be right they lie under a separate key.
func (u *upload) publishVerified(ctx context.Context, d oci.Digest) (oci.Descriptor, error) {
	if err := u.openObject(ctx, 0, false); err != nil {
		return oci.Descriptor{}, storage.ClientError("continue the upload", err)
	}
	key := verifyKey(u.id)
	err := u.obj.Commit(ctx, key)
	u.obj, u.state = nil, ""
	if err == nil {
		err = u.copyVerified(ctx, key, d)
	}
	// The copy is deleted before the upload's row, from which recovery knows of the copy.
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if delErr := u.us.store.Delete(cleanup, key); delErr != nil {
		u.keepRow()
		err = errors.Join(err, fmt.Errorf("remove the checked copy: %w", delErr))
	}
	if err != nil {
		return oci.Descriptor{}, storage.ClientError("check the upload", err)
	}
	return u.record(ctx, d)
}

// copyVerified turns the upload into a copy of the object under key, if that object has
// the digest d.
func (u *upload) copyVerified(ctx context.Context, key string, d oci.Digest) error {
	src, err := u.us.store.Get(ctx, key, 0, -1)
	if err != nil {
		return fmt.Errorf("read the upload back: %w", err)
	}
	defer src.Close()
	u.want, u.alg = d, verify.Algorithm(d)
	dst, err := u.newObject(ctx, u.size)
	if err != nil {
		return fmt.Errorf("copy the upload: %w", err)
	}
	u.obj = dst // dropped with the upload if anything below fails
	sum := verify.NewHash(d)
	if _, err := io.Copy(io.MultiWriter(dst, sum), io.LimitReader(src, u.size)); err != nil {
		return fmt.Errorf("copy the upload: %w", err)
	}
	if got := verify.Sum(d, sum); got != d {
		return storage.DigestMismatch(d, got, u.size)
	}
	return nil
}
