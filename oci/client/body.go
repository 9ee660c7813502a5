package client

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"

	"example.org/slipway/oci"
)

// body is the body of a request. Authentication may send a request twice, so net/http
// gets a GetBody. GetBody rewinds the body if it can be rewound. Otherwise it returns the
// body only if nothing was read from it yet. To make that likely, a large stream waits
// for "100 Continue" before it is sent.
type body struct {
	size int64 // of src in bytes; negative if unknown

	mu    sync.Mutex // guards what follows
	src   io.Reader
	seek  io.Seeker // nil if src cannot be rewound
	start int64     // the position of src at the beginning
	sent  int64     // how many bytes of src the current reader has handed out
	turn  int       // the number of the current turn; readers of earlier turns are dead
	err   error     // the error of reading src
}

// errStale ends a reader whose request was abandoned.
var errStale = errors.New("the request that read this body was given up")

// newBody returns a body that reads r, which may be nil. size is negative if it is not
// known.
func newBody(r io.Reader, size int64) (*body, error) {
	if r == nil {
		r = http.NoBody
	}
	b := &body{size: size, src: r}
	if s, ok := r.(io.Seeker); ok {
		if at, err := s.Seek(0, io.SeekCurrent); err == nil { // fails for a pipe, although it is a Seeker
			b.seek, b.start = s, at
		}
	}
	if size == 0 { // net/http will not read the body at all
		return b, b.ended()
	}
	return b, nil
}

// bytesBody returns a body that reads bytes in RAM.
func bytesBody(p []byte) (*body, error) { return newBody(bytes.NewReader(p), int64(len(p))) }

// attach sets b as the body of a request.
func (b *body) attach(req *http.Request) error {
	if b.size == 0 {
		req.Body, req.ContentLength = http.NoBody, 0
		req.GetBody = func() (io.ReadCloser, error) { return http.NoBody, nil }
		return nil
	}
	rc, err := b.reader()
	if err != nil {
		return err
	}
	req.Body, req.GetBody, req.ContentLength = rc, b.reader, b.size
	if b.size < 0 || b.size > 1<<20 { // below 1 MiB the extra round trip costs more than it saves
		req.Header.Set("Expect", "100-continue")
	}
	return nil
}

// stop ends the current turn. After the request was answered, net/http may continue to
// read the body, although the caller may use the source again.
func (b *body) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn++
}

// reader starts a new turn.
func (b *body) reader() (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent > 0 {
		if b.seek == nil {
			return nil, errors.New("the stream was already read from and cannot be rewound")
		}
		if _, err := b.seek.Seek(b.start, io.SeekStart); err != nil {
			return nil, err
		}
	}
	b.sent, b.err = 0, nil
	b.turn++
	return &bodyReader{b: b, turn: b.turn}, nil
}

// count returns how many bytes the last turn handed out.
func (b *body) count() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent
}

// cause returns the error of reading the stream, or nil.
func (b *body) cause() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// bodyReader is one turn: it reads the body for one attempt at sending the request. The
// lock is held while the source is read, so a new turn waits until the earlier one has
// let go of the source.
type bodyReader struct {
	b    *body
	turn int
	// all reports whether this turn has handed out all of the promised bytes.
	all bool
}

func (r *bodyReader) Close() error { return nil }

func (r *bodyReader) Read(p []byte) (int, error) {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case r.all:
		// net/http looks for the end once more. It may do so after the answer has come
		// and the turn is over. An error would make it close the connection, and the rest
		// of the answer would be lost.
		return 0, io.EOF
	case r.turn != b.turn:
		return 0, errStale
	case b.err != nil:
		return 0, b.err
	case len(p) == 0:
		return 0, nil
	}
	if b.size >= 0 {
		p = p[:min(int64(len(p)), b.size-b.sent)]
	}
	n, err := b.src.Read(p)
	b.sent += int64(n)
	switch {
	case err == io.EOF && b.size >= 0 && b.sent < b.size:
		b.err = oci.Errorf(oci.CodeSizeInvalid, "the content ended after %d bytes of %d", b.sent, b.size)
		return n, b.err
	case err != nil && err != io.EOF:
		b.err = err
		return n, err
	case err == nil && b.sent == b.size:
		// Look for further bytes before the last ones are sent. If the content is longer
		// than promised, no part of it may be stored.
		if err = b.ended(); err != nil {
			return 0, err
		}
	}
	r.all = b.size >= 0 && b.sent == b.size
	return n, err
}

// ended checks that no bytes follow the promised ones.
func (b *body) ended() error {
	var more [1]byte
	n, err := io.ReadFull(b.src, more[:])
	switch {
	case n > 0:
		b.err = oci.Errorf(oci.CodeSizeInvalid, "the content has more than %d bytes", b.size)
	case err != io.EOF:
		b.err = err
	}
	return b.err
}
