package upload

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// checkOffset refuses a chunk that does not begin where the upload stands.
func (u *upload) checkOffset(off int64) error {
	if off != oci.AtEnd && off != u.size {
		return oci.Errorf(oci.CodeRangeInvalid, "the chunk begins at byte %d, the upload stands at %d", off, u.size)
	}
	return nil
}

// receive adds a request's body to the upload. u.mu is held. want is the digest that the
// upload is to have, if it is known, so that the right sum is computed.
func (u *upload) receive(ctx context.Context, off, size int64, body io.Reader, want oci.Digest) error {
	if err := u.checkOffset(off); err != nil {
		return err
	}
	if body == nil || size == 0 {
		return checkLength(size, 0)
	}
	if err := u.us.storage.Room(); err != nil {
		return err
	}
	if u.hash == nil {
		u.setHash(verify.Algorithm(want))
	}
	u.inRow = false
	return u.copyBody(ctx, size, body)
}

func (u *upload) copyBody(ctx context.Context, size int64, body io.Reader) error {
	var bufs [2][]byte // one is filled and stored while the other is hashed
	if size >= 0 && size <= catalog.InlineMax {
		bufs[0] = make([]byte, size)
		bufs[1] = bufs[0]
	} else {
		for i := range bufs {
			p := verify.Buffer()
			defer verify.Release(p)
			bufs[i] = *p
		}
		defer u.hashed() // runs before the buffers go back to the pool
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
			if err := u.writeUpload(ctx, buf[:n], size-got); err != nil {
				return storage.ClientError("store the upload", err)
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

// besideMin is the size in bytes of the smallest piece of a body that is hashed
// concurrently with the other work. For smaller pieces the handover costs more than it
// gains. besideMin is greater than catalog.InlineMax, up to which a body has only one
// buffer.
const besideMin = 64<<10 + 1

// hashPiece adds a piece of a body to the upload's hash. Unless the piece is small or the
// last, a goroutine hashes it while the caller receives and stores the next piece. p must
// not change until hashPiece or hashed returns again. Without this a large push takes as
// long as hashing and storing together.
func (u *upload) hashPiece(p []byte, last bool) {
	u.hashed()
	if last || len(p) < besideMin {
		u.hash.Write(p)
		return
	}
	done := make(chan struct{})
	u.hashing = done
	go func() {
		defer close(done)
		u.hash.Write(p)
	}()
}

// hashed waits until all pieces are in the hash.
func (u *upload) hashed() {
	if u.hashing != nil {
		<-u.hashing
		u.hashing = nil
	}
}
