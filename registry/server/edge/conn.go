package edge

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
)

// Listener returns l, whose connections can hold back what net/http writes, so
// that a small answer leaves in one piece: net/http gathers 4 KiB, and would send
// the headers and the beginning of the body, and then the rest, each of which
// wakes the client. It has an effect together with ConnContext, below TLS none.
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

// ConnContext lets the handler find a connection of Listener. It is the
// http.Server's.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if h, ok := c.(*holdingConn); ok {
		return context.WithValue(ctx, connKey{}, h)
	}
	return ctx
}

const (
	// heldBody is the longest body in bytes that is sent in one piece with its
	// headers. A longer one gains nothing.
	heldBody = 32 << 10
	// heldBytes is how much a connection holds back at most, headers included.
	heldBytes = heldBody + 8<<10
)

var heldBuffers = sync.Pool{New: func() any { return new([heldBytes]byte) }}

// holdingConn is a connection that can hold back what is written. One goroutine
// writes at a time, which is so in HTTP/1.
type holdingConn struct {
	net.Conn
	held []byte
	buf  *[heldBytes]byte // nil: nothing is held back
}

// hold begins to hold back what is written, which release ends.
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

// ReadFrom implements io.ReaderFrom, without which net/http could not use
// sendfile.
func (c *holdingConn) ReadFrom(r io.Reader) (int64, error) {
	if err := c.release(); err != nil {
		return 0, err
	}
	if rf, ok := c.Conn.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, r)
}

// CloseWrite implements the interface by which net/http lets the client read the
// last answer before the connection is closed.
func (c *holdingConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return nil
}

// InOnePiece sends the answer to r that write writes to w, whose body has n bytes and whose
// Content-Length is set, with its headers in one piece if it is short enough.
func InOnePiece(w http.ResponseWriter, r *http.Request, n int64, write func() error) error {
	c, _ := r.Context().Value(connKey{}).(*holdingConn)
	if c == nil || n > heldBody || r.ProtoMajor != 1 {
		return write()
	}
	c.hold()
	// Also when write panics: the answer to that must not be held back.
	defer c.release()
	if err := write(); err != nil {
		return err
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	return c.release() // which finds out whether the client is still there
}
