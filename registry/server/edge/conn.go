package edge

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
)

// Listener returns a listener whose connections can hold back what net/http writes, so
// that a small answer is sent in one piece. net/http buffers only 4 KiB. It would first
// send the headers and the beginning of the body, and then the rest, and each part wakes
// the client. Listener has an effect only together with ConnContext, and none below TLS.
func Listener(l net.Listener) net.Listener { return holdingListener{l} }

type holdingListener struct{ net.Listener }

// Accept implements net.Listener.
func (l holdingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &holdingConn{Conn: c}, nil
}

type connKey struct{}

// ConnContext lets the handler find a connection of Listener. It is for the field of the
// same name in http.Server.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if h, ok := c.(*holdingConn); ok {
		return context.WithValue(ctx, connKey{}, h)
	}
	return ctx
}

const (
	// heldBody is the size in bytes of the longest body that is sent in one piece with
	// its headers. A longer body would gain nothing.
	heldBody = 32 << 10
	// heldBytes is how many bytes a connection holds back at most, including headers.
	heldBytes = heldBody + 8<<10
)

var heldBuffers = sync.Pool{New: func() any { return new([heldBytes]byte) }}

// holdingConn is a connection that can hold back what is written. Only one goroutine may
// write at a time, as is the case in HTTP/1.
type holdingConn struct {
	net.Conn
	held []byte
	buf  *[heldBytes]byte // nil if nothing is held back
}

// hold begins to hold back what is written. release ends that.
func (c *holdingConn) hold() {
	if c.buf == nil {
		c.buf = heldBuffers.Get().(*[heldBytes]byte)
		c.held = c.buf[:0]
	}
}

// release writes what was held back.
func (c *holdingConn) release() error {
	if c.buf == nil {
		return nil
	}
	var err error
	if len(c.held) > 0 {
		_, err = c.Conn.Write(c.held)
	}
	heldBuffers.Put(c.buf)
	c.held, c.buf = nil, nil
	return err
}

// Write implements net.Conn.
func (c *holdingConn) Write(p []byte) (int, error) {
	if c.buf != nil {
		if len(p) <= cap(c.held)-len(c.held) {
			c.held = append(c.held, p...)
			return len(p), nil
		}
		if err := c.release(); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}

// ReadFrom implements io.ReaderFrom. Without it net/http could not use sendfile.
func (c *holdingConn) ReadFrom(r io.Reader) (int64, error) {
	if err := c.release(); err != nil {
		return 0, err
	}
	if rf, ok := c.Conn.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, r)
}

// CloseWrite implements the interface with which net/http lets the client read the last
// answer before the connection is closed.
func (c *holdingConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return nil
}

// InOnePiece sends the answer to r. write writes the answer to w. Its body has n bytes,
// and its Content-Length must be set. If the answer is short enough, InOnePiece sends it
// in one piece with its headers.
func InOnePiece(w http.ResponseWriter, r *http.Request, n int64, write func() error) error {
	c, _ := r.Context().Value(connKey{}).(*holdingConn)
	if c == nil || n > heldBody || r.ProtoMajor != 1 {
		return write()
	}
	c.hold()
	// This also runs if write panics, because the answer to the panic must not be held
	// back.
	defer c.release()
	if err := write(); err != nil {
		return err
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	return c.release() // it also finds out whether the client is still there
}
