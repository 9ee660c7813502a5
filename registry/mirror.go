package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/upload"
)

// partial reports whether a repository is a copy; see Options.Partial.
func (r *Registry) partial(repo string) bool { return r.opts.Partial != nil && r.opts.Partial(repo) }

// mayMirror returns an error unless the repository is a copy of another registry's
// repository. Some changes are only for such copies.
func (r *Registry) mayMirror(repo string) error {
	if err := r.storage.Writable(); err != nil {
		return err
	}
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	if !r.partial(repo) {
		return oci.Errorf(oci.CodeUnsupported, "repository %s is not a copy of one in another registry", repo)
	}
	return nil
}

// AdoptBlob turns a file into a blob of a mirrored repository (see Options.Partial). The
// caller has made sure that the size bytes of the file have the digest d, and that nobody
// writes to the file any more. Programs that have the file open can go on reading it. If
// the object store can take the file as it is ([objstore.Adopter]), nothing is copied.
//
// When AdoptBlob returns nil the blob is durable and the file is gone. After an error the
// file may be gone too, and then its bytes have to be fetched again. A content that is
// stored already is replaced, so that a damaged one is repaired. Once AdoptBlob has
// begun, the outcome does not depend on ctx.
func (r *Registry) AdoptBlob(ctx context.Context, repo string, d oci.Digest, size int64, path string) (oci.Descriptor, error) {
	if err := errors.Join(r.mayMirror(repo), r.storage.Room(), oci.CheckDigest(d)); err != nil {
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
		desc, err = r.announce(ctx, repo, d, size, func() (bool, error) { return r.uploads.AdoptFile(ctx, repo, d, size, path) })
	}
	if err != nil {
		return desc, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("remove a file whose bytes are a blob", "digest", d, "err", err)
	}
	return desc, nil
}

// AdoptBytes is like AdoptBlob, for bytes in RAM, for contents of up to a MiB or so. The bytes
// must not be changed before it returns. What several callers adopt at the same time is
// recorded in one transaction, and contents of up to [catalog.InlineMax] bytes need nothing
// else.
func (r *Registry) AdoptBytes(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error) {
	if err := errors.Join(r.mayMirror(repo), r.storage.Room(), oci.CheckDigest(d)); err != nil {
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
		desc, err = r.announce(ctx, repo, d, size, func() (bool, error) { return r.uploads.AdoptBytes(ctx, repo, d, content) })
	}
	if err == nil && size <= ramBlobMax { // clients soon pull again what was just pulled
		r.remember(k, epoch, ramBlob{size: size, object: size > catalog.InlineMax}.head(), content)
	}
	return desc, err
}

func (r *Registry) adoptInline(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error) {
	size := int64(len(content))
	return r.announce(ctx, repo, d, size, func() (bool, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), upload.AdoptWithin)
		defer cancel()
		added, err := r.cat.AdoptBlob(ctx, repo, catalog.Blob{Digest: d, Size: size, Content: content}, "")
		if err != nil {
			err = storage.ClientError("record the blob", err)
		}
		return added, err
	})
}

// announce adopts a blob and sends its event.
func (r *Registry) announce(ctx context.Context, repo string, d oci.Digest, size int64, adopt func() (added bool, err error)) (oci.Descriptor, error) {
	added, err := adopt()
	if err != nil {
		return oci.Descriptor{}, err
	}
	desc := storage.BlobDescriptor(d, size)
	return desc, r.adopted(ctx, repo, desc, added)
}

// adopted announces a blob that a mirrored repository shows from now on.
func (r *Registry) adopted(ctx context.Context, repo string, desc oci.Descriptor, added bool) error {
	if added {
		r.mirrored.Add(desc.Size)
	}
	return r.emit(ctx, Event{Action: ActionPush, Repo: repo, Blob: true, Descriptor: desc, Mirrored: true})
}

// LinkStored makes a mirrored repository show a content as a blob. The store holds the
// content already, whichever repository shows it. The caller must find out whether the
// content may be seen there. Errors: BLOB_UNKNOWN when it is not stored.
func (r *Registry) LinkStored(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	if err := errors.Join(r.mayMirror(repo), oci.CheckDigest(d)); err != nil {
		return oci.Descriptor{}, err
	}
	// Usually the content is not stored. Learning that by a write would mean waiting for
	// other writes, and for the disk.
	if _, err := r.cat.StoredBlob(ctx, d); errors.Is(err, catalog.ErrNotFound) {
		return oci.Descriptor{}, storage.BlobUnknown(repo, d)
	}
	if lost, err := r.storage.Missing(ctx, []oci.Digest{d}); err != nil || len(lost) > 0 {
		return oci.Descriptor{}, orUnknown(err, storage.BlobUnknown(repo, d))
	}
	b, err := r.cat.LinkStored(ctx, repo, d)
	if errors.Is(err, catalog.ErrNotStored) {
		return oci.Descriptor{}, storage.BlobUnknown(repo, d)
	}
	if err != nil {
		return oci.Descriptor{}, storage.ClientError(fmt.Sprintf("show blob %s", d), err)
	}
	desc := storage.BlobDescriptor(d, b.Size)
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
		return 0, false, storage.ClientError(fmt.Sprintf("look up content %s", d), err)
	}
	return b.Size, true, nil
}

// NotePull records that a tag or manifest was pulled now, as GetManifest does by itself.
// It is for pulls that are answered elsewhere. It costs no write.
func (r *Registry) NotePull(repo, ref string) { r.pulled(repo, ref) }
