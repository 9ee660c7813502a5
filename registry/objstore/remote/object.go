package remote

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"example.org/slipway/registry/objstore"
)

// Object is a range of an object whose bytes are arriving, for drivers that read it from
// the body of an answer. A body that ends early gives an error other than io.EOF.
type Object struct {
	info   objstore.Info
	body   io.ReadCloser
	off    int64 // where reading is
	left   int64 // bytes still to come
	closed bool
}

var _ objstore.Object = (*Object)(nil)

// NewObject returns n bytes from the offset off on. Close closes the body.
func NewObject(info objstore.Info, body io.ReadCloser, off, n int64) *Object {
	return &Object{info: info, body: body, off: off, left: n}
}

// Info implements objstore.Object.
func (o *Object) Info() objstore.Info { return o.info }

// Close implements objstore.Object. If the body was not read to its end, the connection
// cannot be reused.
func (o *Object) Close() error {
	if o.closed {
		return nil
	}
	o.closed = true
	return o.body.Close()
}

// Read implements objstore.Object.
func (o *Object) Read(p []byte) (int, error) {
	switch {
	case o.closed:
		return 0, o.failed(fs.ErrClosed)
	case o.left == 0:
		return 0, io.EOF
	}
	n, err := o.body.Read(p[:min(int64(len(p)), o.left)])
	o.off += int64(n)
	o.left -= int64(n)
	switch {
	case o.left == 0, err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, o.failed(err)
}

func (o *Object) failed(err error) error {
	return fmt.Errorf("read object %s at %d: %w", o.info.Key, o.off, err)
}

// WriteTo implements objstore.Object.
func (o *Object) WriteTo(w io.Writer) (int64, error) {
	if o.closed {
		return 0, o.failed(fs.ErrClosed)
	}
	buf := make([]byte, min(o.left+1, copyBuffer)) // never empty
	// Without the wrappers, io.Copy would use the ReadFrom or WriteTo of w or o, with
	// buffers of their own.
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{o}, buf)
}
