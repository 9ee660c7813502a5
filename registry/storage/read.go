package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
)

// BlobUnknown returns the error for a blob that a repository does not have.
func BlobUnknown(repo string, d oci.Digest) error {
	if err := oci.CheckName(repo); err != nil { // checked only here, so that hits need no check
		return err
	}
	return oci.Errorf(oci.CodeBlobUnknown, "repository %s has no blob %s", repo, d)
}

// BlobLost returns the error for a blob that the catalogue knows and the store has lost
// or damaged.
func BlobLost(repo string, d oci.Digest) error {
	return oci.Errorf(oci.CodeBlobUnknown, "blob %s of repository %s is missing from the storage, or damaged; push it again, or restore it from a backup", d, repo)
}

// BlobDescriptor describes a blob.
func BlobDescriptor(d oci.Digest, size int64) oci.Descriptor {
	return oci.Descriptor{MediaType: oci.MediaTypeOctetStream, Digest: d, Size: size}
}

// Await waits for a channel to be closed.
func Await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Open opens n bytes of a blob of a repository at an offset. size and suspect are what the
// catalogue says about the blob. Errors are those for the client.
func (s *Storage) Open(ctx context.Context, repo string, d oci.Digest, size int64, suspect bool, off, n int64) (oci.Content, error) {
	if suspect {
		if err := s.recheck(ctx, d, size); err != nil {
			return nil, s.Lost(ctx, repo, d, err)
		}
	}
	obj, err := s.store.Get(ctx, BlobKey(d), off, n)
	if err != nil {
		return nil, s.Lost(ctx, repo, d, err)
	}
	if got := obj.Info().Size; got != size {
		obj.Close()
		s.opts.Forget(repo, d) // RAM may be older than the row
		return nil, s.Lost(ctx, repo, d, wrongSize(got, size))
	}
	if off == 0 && n == size {
		c, err := s.openWhole(ctx, d, obj)
		if err != nil {
			return nil, s.Lost(ctx, repo, d, err)
		}
		return c, nil
	}
	if err := s.rangeInOrder(ctx, repo, d, obj.Info()); err != nil {
		obj.Close()
		return nil, err
	}
	return &storeContent{Object: obj, s: s, digest: d}, nil
}

// rangeInOrder makes sure that the open object of which a client reads a range has the
// digest. The bytes of a range alone do not show whether they are right. So the client
// waits until the whole object is compared with its digest, or learns that it should try
// again.
func (s *Storage) rangeInOrder(ctx context.Context, repo string, d oci.Digest, info objstore.Info) error {
	here, err := s.inOrder(ctx, d, info)
	switch {
	case errors.Is(err, errChecking):
		return unavailable("the blob is being compared with its digest, because nobody has read it since the start", defaultRetry, "read a range of blob "+string(d), err)
	case err != nil:
		return err
	case !here:
		return BlobLost(repo, d)
	case !s.distant && !info.Proven && !s.hashedBefore(d, info):
		return ClientError("read a range of blob "+string(d), &objstore.BusyError{Err: errReplaced})
	}
	return nil
}

// Lost reports a blob that the catalogue knows and the store cannot deliver, unless the
// blob was deleted since the catalogue was asked.
func (s *Storage) Lost(ctx context.Context, repo string, d oci.Digest, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if objstore.IsBusy(err) || impairment(err) != "" {
		return ClientError(fmt.Sprintf("read blob %s", d), err)
	}
	if away := s.UnlessAway(ctx); away != nil {
		return away
	}
	if _, gone := s.cat.Blob(ctx, repo, d); errors.Is(gone, catalog.ErrNotFound) {
		return BlobUnknown(repo, d)
	}
	if IsDamage(err) {
		if away := s.Doubt(ctx, d, err); away != nil {
			return away
		}
		return BlobLost(repo, d)
	}
	s.log.Error("blob cannot be read; run slipway fsck", "digest", d, "err", err)
	return &oci.Error{Code: oci.CodeUnknown, Message: fmt.Sprintf("blob %s cannot be read from the store", d), Err: err}
}

// Read reads the whole object of a content and compares it with its digest.
func (s *Storage) Read(ctx context.Context, d oci.Digest, size int64) ([]byte, error) {
	obj, err := s.store.Get(ctx, BlobKey(d), 0, -1)
	if err != nil {
		return nil, err
	}
	defer obj.Close()
	b := make([]byte, size)
	if obj.Info().Size != size {
		return nil, wrongSize(obj.Info().Size, size)
	}
	if _, err = io.ReadFull(obj, b); err != nil {
		return nil, err
	}
	if d.Algorithm().FromBytes(b) != d {
		return nil, WrongBytes(d)
	}
	s.saw(d, obj.Info(), true)
	return b, nil
}

// storeContent is a blob, or a part of a blob, that lies in the object store.
type storeContent struct {
	objstore.Object
	s      *Storage
	digest oci.Digest
}

func (c *storeContent) Descriptor() oci.Descriptor { return BlobDescriptor(c.digest, c.Info().Size) }

func (c *storeContent) Read(p []byte) (int, error) {
	n, err := c.Object.Read(p)
	c.s.readFailed(c.digest, c.Info().Size, err)
	return n, err
}

func (c *storeContent) WriteTo(w io.Writer) (int64, error) {
	n, err := c.Object.WriteTo(w)
	c.s.readFailed(c.digest, c.Info().Size, err)
	return n, err
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

// DigestMismatch returns the error for a body that does not have the digest of the request.
func DigestMismatch(want, got oci.Digest, size int64) error {
	return oci.Errorf(oci.CodeDigestInvalid, "the %d bytes received have digest %s, not %s", size, got, want)
}

// Replace puts verified bytes into the store as the object of d, makes sure that
// they are there, and records the object. The lock of d is held. doing names the
// operation in errors.
func (s *Storage) Replace(ctx context.Context, d oci.Digest, size int64, put, record func() error) (doing string, err error) {
	if err = put(); err == nil {
		err = s.proveStored(ctx, d, size)
	}
	if err != nil {
		return "store the blob", err
	}
	return "record the blob", record()
}

// LockPatiently takes a lock that may be held for minutes. It gives up when ctx ends.
func LockPatiently(ctx context.Context, try func() bool) error {
	if err := ctx.Err(); err != nil || try() {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !try() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// Writable returns UNSUPPORTED while the registry is read-only, and UNAVAILABLE while its
// object store is away.
func (s *Storage) Writable() error {
	if s.opts.ReadOnly {
		return &oci.Error{Code: oci.CodeUnsupported, Message: "the registry is read-only (storage.maintenance.readonly)"}
	}
	if away := s.Away(); away != nil {
		return storeAway(away)
	}
	return nil
}

// Overwrite replaces the object of a content by the given bytes of it.
func (s *Storage) Overwrite(ctx context.Context, d oci.Digest, content []byte) error {
	defer s.Locks.Lock(d)()
	err := s.store.Put(ctx, BlobKey(d), content, false)
	s.trust.drop(d)
	return err
}
