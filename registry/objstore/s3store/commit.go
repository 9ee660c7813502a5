package s3store

import (
	"context"
	"errors"
	"fmt"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"example.org/slipway/registry/objstore"
)

const (
	// copies is how many parts the server copies at once for one Commit.
	copies = 4
	// copyPart is the size of the parts in which a large object is copied, in bytes.
	copyPart = 1 << 30
)

// Commit turns the upload into an object. See [objstore.Upload].
func (u *upload) Commit(ctx context.Context, key string) error {
	if u.lost != nil {
		return u.lost
	}
	err := u.s.beginKey(ctx, key)
	if err == nil && u.key != "" && u.key != key {
		err = fmt.Errorf("upload of object %s cannot be committed as %s", u.key, key)
	}
	if err == nil {
		err = u.commit(ctx, key)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("commit object %s: %w", key, err), u.drop(ctx))
	}
	if len(u.ids) > 0 {
		// The object is there. The sweep takes what is left behind.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
		defer cancel()
		_ = u.s.removeUpload(clean, u.ids...)
	}
	u.end()
	return nil
}

func (u *upload) commit(ctx context.Context, key string) error {
	switch {
	case len(u.parts) == 0:
		if u.uploadID != "" { // resumed before its first part
			_ = u.s.abortMultipart(ctx, u.key, u.uploadID)
			u.uploadID = ""
		}
		return u.putWhole(ctx, key)
	case u.key != "":
		return u.commitKeyed(ctx)
	}
	return u.commitStaged(ctx, key)
}

// putWhole writes an upload that is in RAM as a whole.
func (u *upload) putWhole(ctx context.Context, key string) error {
	return u.s.repeat(ctx, func(ctx context.Context) error {
		return u.s.call(ctx, "put object", func(ctx context.Context) (err error) {
			u.tag, err = u.s.putObject(ctx, u.s.root+key, u.cur.reader(), u.cur.size, u.s.putOptions())
			return err
		})
	})
}

// commitKeyed completes the multipart upload whose parts were sent as they came.
func (u *upload) commitKeyed(ctx context.Context) error {
	if u.cur.size > 0 {
		if err := u.flush(ctx); err != nil {
			return err
		}
	}
	if err := u.settle(ctx); err != nil {
		return err
	}
	parts := make([]minio.CompletePart, len(u.parts))
	for i, p := range u.parts {
		parts[i] = minio.CompletePart{PartNumber: p.number, ETag: p.ETag}
	}
	return u.complete(ctx, parts)
}

// complete makes the upload's object from its parts.
func (u *upload) complete(ctx context.Context, parts []minio.CompletePart) (err error) {
	if u.tag, err = u.s.complete(ctx, u.key, u.uploadID, parts, u.size); err == nil {
		u.uploadID = ""
	}
	return err
}

// Tag implements [objstore.Upload].
func (u *upload) Tag() string { return u.tag }

// commitStaged makes one object from the stored parts, which the server copies, and the
// bytes in RAM.
func (u *upload) commitStaged(ctx context.Context, key string) error {
	if err := u.settle(ctx); err != nil {
		return err
	}
	if err := checkParts(len(u.parts)); err != nil && u.cur.size > 0 {
		return err
	}
	if err := u.beginMultipart(ctx, key); err != nil {
		return err
	}
	u.key = key // drop aborts it there
	list := make([]minio.CompletePart, len(u.parts), len(u.parts)+1)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(copies)
	for i, p := range u.parts {
		g.Go(func() (err error) {
			from := u.s.root + uploadDir + u.id + "/" + p.Name
			list[i], err = u.s.copyRange(gctx, from, key, u.uploadID, p.number, 0, p.Size)
			return err
		})
	}
	if u.cur.size > 0 {
		last := &part{number: len(u.parts) + 1, buf: u.cur}
		g.Go(func() error {
			return u.s.repeat(gctx, func(ctx context.Context) error { return u.putPart(ctx, last) })
		})
		if err := g.Wait(); err != nil {
			return err
		}
		list = append(list, minio.CompletePart{PartNumber: last.number, ETag: last.ETag})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return u.complete(ctx, list)
}

// beginMultipart begins the multipart upload of key.
func (u *upload) beginMultipart(ctx context.Context, key string) error {
	id, err := u.s.newMultipart(ctx, key)
	if err == nil {
		u.uploadID = id
		u.hold(id)
	}
	return err
}

// newMultipart begins a multipart upload. If the answer is lost, the sweep finds the
// upload.
func (s *Store) newMultipart(ctx context.Context, key string) (id string, err error) {
	err = s.repeat(ctx, func(ctx context.Context) error {
		return s.call(ctx, "begin multipart upload", func(ctx context.Context) (err error) {
			id, err = s.core.NewMultipartUpload(ctx, s.bucket, s.root+key, s.putOptions())
			if err == nil && (id == "" || len(id) > maxUploadID) {
				err = fmt.Errorf("%s gave a multipart upload an id of %d bytes", s.where, len(id))
			}
			return err
		})
	})
	return id, err
}

// copyRange copies n bytes of an object, from the offset off on, into a part of a
// multipart upload.
func (s *Store) copyRange(ctx context.Context, from, key, uploadID string, number int, off, n int64) (p minio.CompletePart, err error) {
	err = s.repeat(ctx, func(ctx context.Context) error {
		return s.call(ctx, "copy part", func(ctx context.Context) (err error) {
			p, err = s.core.CopyObjectPart(ctx, s.bucket, from, s.bucket, s.root+key, uploadID, number, off, n, nil)
			if err == nil && p.ETag == "" { // S3 reports errors inside a 200
				err = &objstore.BusyError{Err: fmt.Errorf("%s: the part was not copied", s.where)}
			}
			return err
		})
	})
	return p, err
}

// complete makes an object of the given size from the parts, and returns its ETag.
func (s *Store) complete(ctx context.Context, key, uploadID string, parts []minio.CompletePart, size int64) (etag string, err error) {
	tries := 0
	err = s.repeat(ctx, func(ctx context.Context) error {
		err := s.call(ctx, "complete multipart upload", func(ctx context.Context) error {
			tries++ // call may run this twice
			o, err := s.core.CompleteMultipartUpload(ctx, s.bucket, s.root+key, uploadID, parts, minio.PutObjectOptions{})
			if err == nil {
				err, etag = s.proof(o.ETag), o.ETag
			}
			if err == nil && o.ETag != multipartETag(parts) {
				err = s.confirm(ctx, s.root+key, size)
			}
			return err
		})
		if tries == 1 || !errors.Is(err, objstore.ErrNotExist) {
			return err
		}
		// The previous try may have succeeded although its answer was lost. Keys are
		// content addresses, so an object of that size under the key is the right one.
		if info, statErr := s.stat(ctx, key); statErr == nil && info.Size == size {
			etag = info.Tag
			return nil
		}
		return err
	})
	return etag, err
}

// abortMultipart drops a multipart upload. A missing upload is not an error.
func (s *Store) abortMultipart(ctx context.Context, key, uploadID string) error {
	err := s.call(ctx, "abort multipart upload", func(ctx context.Context) error {
		return s.core.AbortMultipartUpload(ctx, s.bucket, s.root+key, uploadID)
	})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil
	}
	return err
}

// copyLarge copies an object that is too large for one request.
func (s *Store) copyLarge(ctx context.Context, from, to string, size int64) (err error) {
	id, err := s.newMultipart(ctx, to)
	if err != nil {
		return err
	}
	s.hold(id)
	defer s.letGo(id)
	n := int((size + copyPart - 1) / copyPart)
	list := make([]minio.CompletePart, n)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(copies)
	for i := range n {
		off := int64(i) * copyPart
		g.Go(func() (err error) {
			list[i], err = s.copyRange(gctx, from, to, id, i+1, off, min(copyPart, size-off))
			return err
		})
	}
	if err = g.Wait(); err == nil {
		_, err = s.complete(ctx, to, id, list, size)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
		defer cancel()
		err = errors.Join(err, s.abortMultipart(clean, to, id))
	}
	return err
}
