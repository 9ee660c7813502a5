package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
)

// adoptWithin bounds how long storing adopted content takes.
const adoptWithin = 10 * time.Minute

// partial reports whether a repository is a copy; see Options.Partial.
func (r *Registry) partial(repo string) bool { return r.opts.Partial != nil && r.opts.Partial(repo) }

// mayMirror returns an error unless the repository is a copy of another registry's
// repository. Some changes are only for such copies.
func (r *Registry) mayMirror(repo string) error {
	if err := r.writable(); err != nil {
		return err
	}
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	if !r.partial(repo) {
		return oci.Errorf(oci.CodeUnsupported, "repository %s is no copy of one in another registry", repo)
	}
	return nil
}

// AdoptBlob makes a file a blob of a mirrored repository (see Options.Partial). The
// caller has made sure that the size bytes of the file have the digest d, and that nobody
// writes to the file any more. Programs that have the file open can go on reading it. If
// the object store can take the file as it is ([objstore.Adopter]), nothing is copied.
//
// When AdoptBlob returns nil the blob is durable and the file is gone. After an error the
// file may be gone too, and then its bytes have to be fetched again. A content that is
// stored already is replaced, so that a damaged one is repaired. Once AdoptBlob has
// begun, the outcome does not depend on ctx.
func (r *Registry) AdoptBlob(ctx context.Context, repo string, d oci.Digest, size int64, path string) (oci.Descriptor, error) {
	if err := errors.Join(r.mayMirror(repo), r.room(), oci.CheckDigest(d)); err != nil {
		return oci.Descriptor{}, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return oci.Descriptor{}, fmt.Errorf("look at the file that is to be blob %s: %w", d, err)
	}
	if !info.Mode().IsRegular() || info.Size() != size {
		return oci.Descriptor{}, fmt.Errorf("what is to be blob %s is no file of %d bytes", d, size)
	}
	var desc oci.Descriptor
	if size <= catalog.InlineMax {
		var content []byte
		if content, err = os.ReadFile(path); err == nil && int64(len(content)) != size {
			err = fmt.Errorf("the file that is to be blob %s has changed", d)
		}
		if err == nil {
			desc, err = r.AdoptBytes(ctx, repo, d, content)
		}
	} else {
		desc, err = r.adoptObject(ctx, repo, d, size, func(ctx context.Context, u *upload) (func() error, error) {
			return r.adoptFile(ctx, u, d, size, path)
		})
	}
	if err != nil {
		return desc, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("remove a file whose bytes are a blob", "digest", d, "err", err)
	}
	return desc, nil
}

// AdoptBytes is AdoptBlob for bytes in RAM, for contents of up to a MiB or so. The bytes
// must not be changed before it returns. What several callers adopt at the same time is
// recorded in one transaction, and contents of up to [catalog.InlineMax] bytes need
// nothing else.
func (r *Registry) AdoptBytes(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error) {
	if err := errors.Join(r.mayMirror(repo), r.room(), oci.CheckDigest(d)); err != nil {
		return oci.Descriptor{}, err
	}
	if content == nil {
		content = []byte{}
	}
	size := int64(len(content))
	k := blobKey(repo, d)
	epoch := r.ram.Epoch(k)
	var desc oci.Descriptor
	var err error
	if size <= catalog.InlineMax {
		desc, err = r.adoptInline(ctx, repo, d, content)
	} else {
		desc, err = r.adoptObject(ctx, repo, d, size, func(ctx context.Context, _ *upload) (func() error, error) {
			return func() error { return r.store.Put(ctx, BlobKey(d), content, false) }, nil
		})
	}
	if err == nil && size <= ramBlobMax { // clients soon pull again what was just pulled
		r.remember(k, epoch, ramBlob{size: size, object: size > catalog.InlineMax}.head(), content)
	}
	return desc, err
}

func (r *Registry) adoptInline(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), adoptWithin)
	defer cancel()
	desc := blobDescriptor(d, int64(len(content)))
	added, err := r.cat.AdoptBlob(ctx, repo, catalog.Blob{Digest: d, Size: desc.Size, Content: content}, "")
	if err != nil {
		return oci.Descriptor{}, ClientError("record the blob", err)
	}
	return desc, r.adopted(ctx, repo, desc, added)
}

// adopted announces a blob that a mirrored repository shows from now on.
func (r *Registry) adopted(ctx context.Context, repo string, desc oci.Descriptor, added bool) error {
	if added {
		r.mirrored.Add(desc.Size)
	}
	return r.emit(ctx, Event{Action: ActionPush, Repo: repo, Blob: true, Descriptor: desc, Mirrored: true})
}

// adoptObject makes an object of the store a blob. It uses an upload, which names the
// object for recovery. prepare does what can be done before the digest is locked, and
// returns a function that puts the object under its key.
func (r *Registry) adoptObject(ctx context.Context, repo string, d oci.Digest, size int64,
	prepare func(context.Context, *upload) (func() error, error)) (oci.Descriptor, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), adoptWithin)
	defer cancel()
	desc := blobDescriptor(d, size)
	u := r.newUpload(repo)
	u.private, u.want = true, d
	if r.replica != nil {
		u.claim = &claim{r: r, id: u.id}
	}
	u.mu.Lock()
	if err := r.uploads.add(u); err != nil {
		u.mu.Unlock()
		return oci.Descriptor{}, err
	}
	defer r.release(u)
	added, err := r.publishAdopted(ctx, u, d, size, prepare)
	if err != nil {
		r.drop(ctx, u)
		return oci.Descriptor{}, err
	}
	r.finish(u)
	return desc, r.adopted(ctx, repo, desc, added)
}

func (r *Registry) publishAdopted(ctx context.Context, u *upload, d oci.Digest, size int64,
	prepare func(context.Context, *upload) (func() error, error)) (added bool, err error) {
	if err := r.intend(ctx, u, size, d)(); err != nil {
		return false, err
	}
	put, err := prepare(ctx, u)
	if err != nil {
		return false, ClientError("store the blob", err)
	}
	if u.lostClaim() {
		return false, uploadBusy()
	}
	err = r.putObject(ctx, u, d, size, put, func() error {
		added, err = r.cat.AdoptBlob(ctx, u.repo, catalog.Blob{Digest: d, Size: size, Tag: u.tag}, u.id)
		return err
	})
	return added, err
}

// adoptFile returns a function that makes the file at path the object of d. If the store
// cannot take the file, adoptFile copies it first.
func (r *Registry) adoptFile(ctx context.Context, u *upload, d oci.Digest, size int64, path string) (put func() error, err error) {
	if a, ok := objstore.As[objstore.Adopter](r.store); ok {
		return func() error { return a.AdoptFile(ctx, BlobKey(d), path) }, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	if u.obj, err = r.newObject(ctx, u, size); err != nil {
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

// LinkStored makes a content that the store holds, whichever repository shows it, a blob
// of a mirrored repository. The caller must find out whether the content may be seen
// there. Errors: BLOB_UNKNOWN when it is not stored.
func (r *Registry) LinkStored(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	if err := errors.Join(r.mayMirror(repo), oci.CheckDigest(d)); err != nil {
		return oci.Descriptor{}, err
	}
	// Usually the content is not stored. Learning that by a write would mean waiting for
	// other writes, and for the disk.
	if _, err := r.cat.StoredBlob(ctx, d); errors.Is(err, catalog.ErrNotFound) {
		return oci.Descriptor{}, blobUnknown(repo, d)
	}
	if lost, err := r.missing(ctx, []oci.Digest{d}); err != nil || len(lost) > 0 {
		return oci.Descriptor{}, orUnknown(err, blobUnknown(repo, d))
	}
	b, err := r.cat.LinkStored(ctx, repo, d)
	if errors.Is(err, catalog.ErrNotStored) {
		return oci.Descriptor{}, blobUnknown(repo, d)
	}
	if err != nil {
		return oci.Descriptor{}, ClientError(fmt.Sprintf("show blob %s", d), err)
	}
	desc := blobDescriptor(d, b.Size)
	return desc, r.adopted(ctx, repo, desc, false)
}

// Stored reports whether the store holds a content, whichever repository shows it, and
// returns its size in bytes. It does not say who may see the content.
func (r *Registry) Stored(ctx context.Context, d oci.Digest) (size int64, ok bool, err error) {
	b, err := r.cat.StoredBlob(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, ClientError(fmt.Sprintf("look up content %s", d), err)
	}
	return b.Size, true, nil
}

// NotePull records that a tag or manifest was pulled now, as GetManifest does by itself.
// It is for pulls that are answered elsewhere. It costs no write.
func (r *Registry) NotePull(repo, ref string) { r.pulled(repo, ref) }
