// Package verify reads contents and compares them with their digests.
package verify

import (
	"context"
	"fmt"
	"io"
	"sync"

	"example.org/slipway/oci"
)

// ReadError is an error of the source of a copy, not of its destination.
type ReadError struct{ Err error }

// Error implements error.
func (e *ReadError) Error() string { return e.Err.Error() }

// Unwrap returns the source's own error.
func (e *ReadError) Unwrap() error { return e.Err }

// buffers holds buffers as large as those of uploads, so that system calls cost little compared
// with the hash.
var buffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// Copy reads src to its end and writes it to dst unless dst is nil. It returns the number of bytes,
// and whether they have the digest d. It calls step with the number of bytes of each read. An error
// of src is a *ReadError.
func Copy(ctx context.Context, dst io.Writer, src io.Reader, d oci.Digest, step func(n int)) (n int64, match bool, err error) {
	sum := d.Algorithm().Hash()
	p := buffers.Get().(*[]byte)
	defer buffers.Put(p)
	for {
		if err := ctx.Err(); err != nil {
			return n, false, err
		}
		got, err := src.Read(*p)
		if got > 0 {
			n += int64(got)
			sum.Write((*p)[:got])
			step(got)
			if dst != nil {
				if _, err := dst.Write((*p)[:got]); err != nil {
					return n, false, err
				}
			}
		}
		switch {
		case err == io.EOF:
			return n, fmt.Sprintf("%x", sum.Sum(nil)) == d.Encoded(), nil
		case err != nil:
			return n, false, &ReadError{Err: err}
		}
	}
}
