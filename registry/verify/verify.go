// Package verify reads contents and compares them with their digests.
package verify

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strings"
	"sync"

	"example.org/slipway/oci"
)

// ReadError is an error of the source of a copy, not of its destination.
type ReadError struct{ Err error }

// Error implements error.
func (e *ReadError) Error() string { return e.Err.Error() }

// Unwrap returns the source's own error.
func (e *ReadError) Unwrap() error { return e.Err }

// Algorithm returns the name of a digest's algorithm, or "sha256" if there is no digest yet.
func Algorithm(d oci.Digest) string {
	if strings.HasPrefix(string(d), "sha512:") {
		return "sha512"
	}
	return "sha256"
}

// NewHash returns the hash of a digest's algorithm. Unlike those of package go-digest it can
// be saved and continued.
func NewHash(d oci.Digest) hash.Hash {
	if Algorithm(d) == "sha512" {
		return sha512.New()
	}
	return sha256.New()
}

// Sum returns the digest of what h has hashed, with the algorithm of d.
func Sum(d oci.Digest, h hash.Hash) oci.Digest {
	return oci.Digest(Algorithm(d) + ":" + hex.EncodeToString(h.Sum(nil)))
}

// buffers holds the buffers between socket and store. Each has 256 KiB, so that system calls
// cost little compared with the hash, and many concurrent uploads take little memory.
var buffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// Buffer returns a buffer of 256 KiB. The caller gives it back with Release.
func Buffer() *[]byte { return buffers.Get().(*[]byte) }

// Release takes a buffer back, which nobody uses any more.
func Release(p *[]byte) { buffers.Put(p) }

// Copy reads src to its end and writes it to dst unless dst is nil. It returns the number of bytes,
// and whether they have the digest d. It calls step with the number of bytes of each read. An error
// of src is a *ReadError.
func Copy(ctx context.Context, dst io.Writer, src io.Reader, d oci.Digest, step func(n int)) (n int64, match bool, err error) {
	sum := d.Algorithm().Hash()
	p := Buffer()
	defer Release(p)
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
