package fill

import (
	"context"
	"errors"
	"io"
	"os"

	"example.org/slipway/oci"
	"example.org/slipway/registry/storage"
)

// content is an open part of a blob that is being fetched. ctx spans its use.
type content struct {
	ctx      context.Context
	f        *Fill
	by       Origin
	size     int64
	off, end int64
	file     *os.File // nil for a blob in RAM
	past     *passage // goes on when the fill cannot
	closed   bool
}

var _ oci.Content = (*content)(nil)

// Settled returns the channel of the fill that a content is read from. ok is false if the
// content does not come from a fill.
func Settled(c oci.Content) (settled <-chan struct{}, ok bool) {
	f, ok := c.(*content)
	if !ok {
		return nil, false
	}
	return f.f.settled, true
}

func (c *content) openFile() error {
	file, err := os.Open(c.f.path())
	if err != nil {
		return err
	}
	if c.off > 0 {
		if _, err := file.Seek(c.off, io.SeekStart); err != nil {
			file.Close()
			return err
		}
	}
	c.file = file
	return nil
}

// Descriptor implements oci.Content.
func (c *content) Descriptor() oci.Descriptor { return storage.BlobDescriptor(c.f.digest, c.size) }

// Close implements io.Closer.
func (c *content) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	c.f.Leave()
	var err error
	if c.past != nil {
		c.past.close()
	}
	if c.file != nil {
		err = c.file.Close()
	}
	return err
}

// ready waits for bytes and returns how many there are. It returns 0 if the rest comes
// from c.past.
func (c *content) ready() (n int64, err error) {
	if c.past != nil {
		return 0, nil
	}
	end, err := c.f.wait(c)
	switch {
	case isSpoolError(err):
		c.past = newPassage(c)
		return 0, nil
	case errors.Is(err, ErrLookAgain), err != nil && c.ctx.Err() == nil && c.by.Repo != c.f.o.Repo:
		err = errBrokenOff // the store has the blob, or the error is about another repository
	}
	return min(end, c.end) - c.off, err
}

// errBrokenOff ends a reader whose fill ended for a reason that has nothing to do with
// the reader.
var errBrokenOff = &oci.Error{Code: oci.CodeUnavailable, Message: "the blob broke off on its way from the upstream; ask again"}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	if c.off >= c.end {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.ready()
	if err != nil {
		return 0, err
	}
	var got int
	switch {
	case c.past != nil:
		got, err = c.past.Read(p)
	case c.file == nil:
		got = copy(p, c.f.buf[c.off:c.off+n])
	default:
		if got, err = c.file.Read(p[:min(int64(len(p)), n)]); errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
	}
	c.off += int64(got)
	return got, err
}

// WriteTo implements io.WriterTo. It sends a file through w's ReadFrom, which is sendfile
// for a socket.
func (c *content) WriteTo(w io.Writer) (sent int64, err error) {
	for c.off < c.end {
		n, err := c.ready()
		if err != nil {
			return sent, err
		}
		var got int64
		switch {
		case c.past != nil:
			got, err = c.past.WriteTo(w)
		case c.file == nil:
			var k int
			k, err = w.Write(c.f.buf[c.off : c.off+n])
			got = int64(k)
		default:
			got, err = c.sendFile(w, n)
		}
		sent += got
		c.off += got
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

func (c *content) sendFile(w io.Writer, n int64) (sent int64, err error) {
	src := &io.LimitedReader{R: c.file, N: n}
	if rf, ok := w.(io.ReaderFrom); ok {
		sent, err = rf.ReadFrom(src)
	} else {
		buf := chunks.Get().(*[chunk]byte)
		sent, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{src}, buf[:])
		chunks.Put(buf)
	}
	if err == nil && sent < n {
		err = io.ErrUnexpectedEOF
	}
	return sent, err
}
