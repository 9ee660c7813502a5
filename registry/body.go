package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// bufferPool holds the buffers between socket and store. Each has 256 KiB, so that system
// calls cost little compared with hashing, and many concurrent uploads take little
// memory.
var bufferPool = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// checkOffset refuses a chunk that does not begin where the upload stands.
func (u *upload) checkOffset(off int64) error {
	if off != oci.AtEnd && off != u.size {
		return oci.Errorf(oci.CodeRangeInvalid, "the chunk begins at byte %d, the upload stands at %d", off, u.size)
	}
	return nil
}

// receive adds a request's body to the upload. u.mu is held. want is the digest that the
// upload is to have, if it is known, so that the right sum is computed.
func (r *Registry) receive(ctx context.Context, u *upload, off, size int64, body io.Reader, want oci.Digest) error {
	if err := u.checkOffset(off); err != nil {
		return err
	}
	if body == nil || size == 0 {
		return checkLength(size, 0)
	}
	if err := r.room(); err != nil {
		return err
	}
	if u.hash == nil {
		u.setHash(algorithm(want))
	}
	u.inRow = false
	return r.copyBody(ctx, u, size, body)
}

func (r *Registry) copyBody(ctx context.Context, u *upload, size int64, body io.Reader) error {
	var bufs [2][]byte // one is filled and stored while the other is hashed
	if size >= 0 && size <= catalog.InlineMax {
		bufs[0] = make([]byte, size)
		bufs[1] = bufs[0]
	} else {
		for i := range bufs {
			p := bufferPool.Get().(*[]byte)
			defer bufferPool.Put(p)
			bufs[i] = *p
		}
		defer u.hashed() // defer u.hashed() // runs before the buffers go back to the pool
	}
	var got int64
	for i := 0; ; i++ {
		buf := bufs[i%2]
		if size >= 0 && got == size {
			return checkEnd(body, size)
		}
		if size >= 0 && size-got < int64(len(buf)) {
			buf = buf[:size-got]
		}
		n, err := body.Read(buf)
		if n > 0 {
			got += int64(n)
			if err := r.writeUpload(ctx, u, buf[:n], size-got); err != nil {
				return ClientError("store the upload", err)
			}
		}
		switch {
		case err == io.EOF:
			return checkLength(size, got)
		case err != nil:
			return bodyError(err, size, got)
		}
	}
}

func checkLength(size, got int64) error {
	if size > 0 && got != size {
		return oci.Errorf(oci.CodeSizeInvalid, "the body has %d bytes, %d were announced", got, size)
	}
	return nil
}

// checkEnd returns an error if anything follows the announced bytes. A client would
// believe that the rest was stored too.
func checkEnd(body io.Reader, size int64) error {
	var one [1]byte
	for {
		switch n, err := body.Read(one[:]); {
		case n > 0:
			return oci.Errorf(oci.CodeSizeInvalid, "the body has more than the %d bytes that were announced", size)
		case err == io.EOF:
			return nil
		case err != nil:
			return bodyError(err, size, size)
		}
	}
}

// bodyError describes a body that broke off.
func bodyError(err error, size, got int64) error {
	var known *oci.Error
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return oci.Errorf(oci.CodeSizeInvalid, "the body ended after %d of %d bytes", got, size)
	}
	return &oci.Error{Code: oci.CodeBlobUploadInvalid, Message: fmt.Sprintf("the body broke off after %d bytes", got), Err: err}
}
