package upload

import (
	"context"
	"io"
	"os"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// AdoptWithin bounds how long storing adopted content takes.
const AdoptWithin = 10 * time.Minute

// AdoptFile turns a file into a blob of a repository. The file has size bytes and the
// digest d, and the repository mirrors a repository of another registry. The file may be
// gone afterwards. added says that the repository did not have the blob.
func (us *Uploads) AdoptFile(ctx context.Context, repo string, d oci.Digest, size int64, path string) (added bool, err error) {
	return us.adopt(ctx, repo, d, size, func(ctx context.Context, u *upload) (func() error, error) {
		return u.adoptFile(ctx, d, size, path)
	})
}

// AdoptBytes is like AdoptFile, for bytes in RAM.
func (us *Uploads) AdoptBytes(ctx context.Context, repo string, d oci.Digest, content []byte) (added bool, err error) {
	return us.adopt(ctx, repo, d, int64(len(content)), func(ctx context.Context, _ *upload) (func() error, error) {
		return func() error { return us.store.Put(ctx, storage.BlobKey(d), content, false) }, nil
	})
}

// adopt turns an object of the store into a blob. It uses an upload, which names the
// object for recovery. prepare does what can be done before the digest is locked, and
// returns a function that puts the object under its key.
func (us *Uploads) adopt(ctx context.Context, repo string, d oci.Digest, size int64,
	prepare func(context.Context, *upload) (func() error, error)) (added bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), AdoptWithin)
	defer cancel()
	u := us.newUpload(repo)
	u.private, u.want = true, d
	if us.replica.Shared {
		u.claim = &claim{us: us, id: u.id}
	}
	u.mu.Lock()
	if err := us.add(u); err != nil {
		u.mu.Unlock()
		return false, err
	}
	defer u.release()
	added, err = u.publishAdopted(ctx, d, size, prepare)
	if err != nil {
		u.drop(ctx)
		return false, err
	}
	u.finish()
	return added, nil
}

func (u *upload) publishAdopted(ctx context.Context, d oci.Digest, size int64,
	prepare func(context.Context, *upload) (func() error, error)) (added bool, err error) {
	if err := u.intend(ctx, size, d)(); err != nil {
		return false, err
	}
	put, err := prepare(ctx, u)
	if err != nil {
		return false, storage.ClientError("store the blob", err)
	}
	if u.lostClaim() {
		return false, uploadBusy()
	}
	err = u.putObject(ctx, d, size, put, func() error {
		added, err = u.us.cat.AdoptBlob(ctx, u.repo, catalog.Blob{Digest: d, Size: size, Tag: u.tag}, u.id)
		return err
	})
	return added, err
}

// adoptFile returns a function that turns the file at path into the object of d. If the
// store cannot take the file, adoptFile copies it first.
func (u *upload) adoptFile(ctx context.Context, d oci.Digest, size int64, path string) (put func() error, err error) {
	if a, ok := objstore.As[objstore.Adopter](u.us.store); ok {
		return func() error { return a.AdoptFile(ctx, storage.BlobKey(d), path) }, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	if u.obj, err = u.newObject(ctx, size); err != nil {
		return nil, err
	}
	n, err := io.Copy(onlyWriter{u.obj}, io.LimitReader(f, size))
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	return func() error { return u.commitObject(ctx, d) }, nil
}

// onlyWriter hides a writer's other methods.
type onlyWriter struct{ io.Writer }
