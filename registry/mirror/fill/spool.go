package fill

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"example.org/slipway/oci"
	"example.org/slipway/registry/verify"
)

// chunk is how many bytes are written to the spool at once. They are hashed while the
// next chunk is written. Several chunks fit into a core's cache.
const chunk = 256 << 10

// chunksAhead is how many chunks may wait to be hashed.
const chunksAhead = 2

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// spoolError says that the spool could not be written.
type spoolError struct{ err error }

// Error implements error.
func (e *spoolError) Error() string { return "write to the directory of fills: " + e.err.Error() }

// Unwrap returns the cause.
func (e *spoolError) Unwrap() error { return e.err }

func isSpoolError(err error) bool {
	var e *spoolError
	return errors.As(err, &e)
}

// spool is the file of a blob that is being fetched. A goroutine computes the digest
// while the file is written. It is not safe for concurrent use.
type spool struct {
	file *os.File
	want oci.Digest
	off  int64
	cur  *[chunk]byte
	// toHash holds the pieces that were written. The goroutine puts their chunks back
	// into the pool.
	toHash chan piece
	hash   hash.Hash
	hashed chan struct{}
	closed bool
	// keep is how many bytes of the disk must stay free. The free space has been checked
	// for the file up to the offset checked.
	keep, checked int64
}

type piece struct {
	buf *[chunk]byte
	n   int
}

// newSpool begins a file.
func newSpool(path string, d oci.Digest, keep int64) (*spool, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, &spoolError{err}
	}
	return startSpool(file, d, verify.NewHash(d), 0, keep), nil
}

// resumeSpool continues a file that holds the beginning of a blob. size is the size of
// the blob in bytes, or -1 if nobody knows it. resumeSpool returns how many bytes the
// file has.
func resumeSpool(ctx context.Context, path string, d oci.Digest, size, keep int64) (*spool, int64, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, 0, &spoolError{err}
	}
	h := verify.NewHash(d)
	n, err := io.CopyBuffer(h, &contextReader{ctx, file}, make([]byte, chunk))
	if err == nil && size >= 0 && n > size { // too long to be the beginning of this blob
		h.Reset()
		n = 0
		err = file.Truncate(0)
	}
	if err != nil {
		file.Close()
		if ctx.Err() == nil {
			err = &spoolError{err}
		}
		return nil, 0, err
	}
	return startSpool(file, d, h, n, keep), n, nil
}

// contextReader reads until ctx ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func startSpool(file *os.File, d oci.Digest, h hash.Hash, off, keep int64) *spool {
	s := &spool{file: file, want: d, off: off, hash: h, keep: keep, toHash: make(chan piece, chunksAhead), hashed: make(chan struct{})}
	go func() {
		defer close(s.hashed)
		for p := range s.toHash {
			s.hash.Write(p.buf[:p.n])
			chunks.Put(p.buf)
		}
	}()
	return s
}

func (s *spool) space() []byte {
	if s.cur == nil {
		s.cur = chunks.Get().(*[chunk]byte)
	}
	return s.cur[:]
}

// take writes the first n bytes of space.
func (s *spool) take(n int) error {
	if err := s.leaveRoom(int64(n)); err != nil {
		return &spoolError{err}
	}
	if _, err := s.file.WriteAt(s.cur[:n], s.off); err != nil {
		return &spoolError{err}
	}
	s.off += int64(n)
	s.toHash <- piece{s.cur, n}
	s.cur = nil
	return nil
}

// leaveRoom returns an error if writing n more bytes would leave less of the disk free
// than must stay free. It checks the disk once per MiB.
func (s *spool) leaveRoom(n int64) error {
	const step = 1 << 20
	end := s.off + n
	if s.keep == 0 || end <= s.checked {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.file.Fd()), &st); err == nil && st.Blocks > 0 && int64(st.Bavail)*st.Bsize < s.keep+n {
		return unix.ENOSPC
	}
	s.checked = end + step
	return nil
}

// finish ends the writing and returns the digest of what was written.
func (s *spool) finish() (oci.Digest, error) {
	if err := s.close(); err != nil {
		return "", &sinkError{&spoolError{fmt.Errorf("close: %w", err)}}
	}
	return verify.Sum(s.want, s.hash), nil
}

// close ends the writing. The bytes that were written stay.
func (s *spool) close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	close(s.toHash)
	<-s.hashed
	if s.cur != nil {
		chunks.Put(s.cur)
		s.cur = nil
	}
	return s.file.Close()
}
