package s3store

import (
	"context"
	"crypto/md5" // #nosec G501 -- what S3 calls objects by
	"encoding/hex"
	"fmt"
	"io"
	"net/http"

	"github.com/minio/minio-go/v7"

	"example.org/slipway/registry/objstore"
)

// proof returns an error for an answer without an ETag. Every answer of S3 to a write has
// one.
func (s *Store) proof(etag string) error {
	if etag != "" {
		return nil
	}
	return &objstore.BusyError{Err: fmt.Errorf("%s: the write was answered by 200 without an ETag, so nothing says that it was stored: look for a proxy between the registry and the store", s.where)}
}

// putObject is like send, for a permanent object. The write counts only if the answer's ETag is
// the MD5 of the bytes, or else if a HEAD shows the object with its size, because ETags differ
// if the server encrypts.
func (s *Store) putObject(ctx context.Context, name string, body io.ReadSeeker, size int64, opts minio.PutObjectOptions) (etag string, err error) {
	etag, err = s.send(ctx, name, body, size, opts)
	if err != nil {
		return "", err
	}
	h := md5.New() // #nosec G401 -- what S3 calls objects by
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if _, err := io.Copy(h, body); err != nil {
		return "", err
	}
	if etag == hex.EncodeToString(h.Sum(nil)) {
		return etag, nil
	}
	return etag, s.confirm(ctx, name, size)
}

// confirm checks that an object that was just written exists and has its size.
func (s *Store) confirm(ctx context.Context, name string, size int64) error {
	o, err := s.core.StatObject(ctx, s.bucket, name, minio.StatObjectOptions{})
	switch {
	case minio.ToErrorResponse(err).StatusCode == http.StatusNotFound:
		return &objstore.BusyError{Err: fmt.Errorf("%s: the object is not there, although its write was confirmed", s.where)}
	case err == nil && o.Size != size:
		return &objstore.BusyError{Err: fmt.Errorf("%s: the object has %d bytes, although the write of %d was confirmed", s.where, o.Size, size)}
	}
	return err
}

// multipartETag returns the ETag of an object of these parts: the MD5 of their MD5s, and
// their number. It returns "" if the parts' ETags are not MD5s.
func multipartETag(parts []minio.CompletePart) string {
	h := md5.New() // #nosec G401 -- what S3 calls objects by
	for _, p := range parts {
		b, err := hex.DecodeString(p.ETag)
		if err != nil || len(b) != md5.Size {
			return ""
		}
		h.Write(b)
	}
	return fmt.Sprintf("%x-%d", h.Sum(nil), len(parts))
}
