// Package wire sends requests without a body over HTTP/1.1 with as little work as
// possible. It is for programs that measure servers on the machine they run on: the
// server lacks every microsecond that the client uses.
//
// A [Client] sends one request after the other. It keeps a connection to each host and
// reads into one buffer. It hands on a body in pieces, without copying them, and
// allocates only the parts of an answer that are kept. It does not follow redirects. It
// does not use proxies, credentials or cookies, and does not decompress bodies: its
// caller sees what the server sent. An answer that violates RFC 9112 is an error, and its
// connection is closed. Valid answers are understood as net/http understands them.
package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"time"
)

// These are defaults and limits.
const (
	defaultTimeout = time.Minute
	dialTimeout    = 10 * time.Second
	// bufferSize is the size in bytes of the buffer that answers are read into. It is
	// what one read of a socket usually brings, and bounds a line of a head.
	bufferSize = 64 << 10
	// maxHead bounds the bytes of an answer's head, as in net/http.
	maxHead = 1 << 20
)

// Options are the options of a Client. The zero value is usable.
type Options struct {
	// TLS is the configuration for https. nil means the system's certificates.
	TLS *tls.Config
	// Timeout bounds a request together with its answer. 0 means a minute.
	Timeout time.Duration
	// UserAgent is sent with each request. If it is "", no User-Agent is sent.
	UserAgent string
}

// Host is a server.
type Host struct {
	// Secure says that TLS is used.
	Secure bool
	// Name is host[:port], as in a URL.
	Name string
}

// HostOf returns the server that a URL names. It is an error if the scheme is not http or
// https.
func HostOf(u *url.URL) (Host, error) {
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return Host{}, errors.New("the address is neither http://HOST nor https://HOST")
	}
	if !printable(u.Host) {
		return Host{}, errors.New("the address has a malformed host")
	}
	return Host{Secure: u.Scheme == "https", Name: u.Host}, nil
}

// address returns the address to connect to.
func (h Host) address() string {
	u := url.URL{Host: h.Name}
	port := u.Port()
	switch {
	case port != "":
	case h.Secure:
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Request is a request without a body.
type Request struct {
	Host Host
	// Method is GET, HEAD or another method without a body.
	Method string
	// Target is the path with the query, escaped as it is to be sent.
	Target []byte
	// Header has further header lines, each ended by CR LF, or is empty.
	Header []byte
}

// Answer is a server's answer without the body.
type Answer struct {
	Status int
	// Size is how many bytes the body had. For an answer to HEAD it is Content-Length, or
	// -1 if there is none.
	Size int64
	// Location, Link, Challenge (WWW-Authenticate) and Digest (Docker-Content-Digest) are
	// headers of the answer, or "" if the server did not send them. If there are several
	// of the same name, the first counts.
	Location, Link, Challenge, Digest string
}

// Client sends one request after the other. Only Close may be called concurrently with
// other methods.
type Client struct {
	o       Options
	ctx     context.Context // spans the client's life
	stop    func() bool
	request []byte

	mu     sync.Mutex // guards what follows, for Close
	conns  map[Host]*conn
	closed bool
}

// conn is a connection that is kept open.
type conn struct {
	net.Conn
	r    *bufio.Reader
	used bool // an answer has come over it
}

// New returns a client. When ctx ends, the client's connections are closed and a request
// under way fails. The caller closes the client.
func New(ctx context.Context, o *Options) *Client {
	c := &Client{ctx: ctx, conns: map[Host]*conn{}}
	if o != nil {
		c.o = *o
	}
	if c.o.Timeout == 0 {
		c.o.Timeout = defaultTimeout
	}
	c.stop = context.AfterFunc(ctx, func() { _ = c.shut() }) // nobody needs the errors of closing
	return c
}

// Close closes the connections. A request under way fails, and so does every later
// request.
func (c *Client) Close() error {
	c.stop()
	return c.shut()
}

func (c *Client) shut() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var errs []error
	for h, k := range c.conns {
		errs = append(errs, k.Close())
		delete(c.conns, h)
	}
	return errors.Join(errs...)
}

// errStale says that the server closed an idle connection before it saw the request. The
// request is then sent again over a new connection.
var errStale = errors.New("the server closed an idle connection")

// Do sends a request and passes the body of the answer to body, piece by piece. If body
// is nil, the pieces are dropped. A piece is valid until body returns. If body returns an
// error, the request ends with that error. A request is sent only once, unless the server
// had closed an idle connection. If there is an error, the answer has the part that came
// before it. Status is 0 if there was no answer.
func (c *Client) Do(r *Request, body func(p []byte) error) (Answer, error) {
	for try := 0; ; try++ {
		a, err := c.once(r, body)
		if !errors.Is(err, errStale) || try > 0 {
			return a, c.cause(err)
		}
	}
}

// cause returns the context's error if the client is closed, and otherwise err.
func (c *Client) cause(err error) error {
	if err != nil && c.ctx.Err() != nil {
		return c.ctx.Err()
	}
	return err
}

func (c *Client) once(r *Request, body func(p []byte) error) (a Answer, err error) {
	k, err := c.connect(r.Host)
	if err != nil {
		return a, err
	}
	reused := k.used
	keep := false
	defer func() {
		if !keep {
			c.drop(r.Host, k)
		}
	}()
	if err := k.SetDeadline(time.Now().Add(c.o.Timeout)); err != nil {
		return a, err
	}
	if _, err := k.Write(c.head(r)); err != nil {
		return a, stale(err, reused)
	}
	if _, err := k.r.Peek(1); err != nil { // no byte of an answer came
		return a, stale(err, reused)
	}
	var h head
	if a, err = h.read(k.r); err != nil {
		return a, timely(err)
	}
	if err = h.body(k.r, r.Method, &a, body); err != nil {
		return a, timely(err)
	}
	k.used, keep = true, h.keep && k.r.Buffered() == 0
	return a, nil
}

// stale marks an error as errStale if it may come from a connection that the server
// closed while it was idle.
func stale(err error, reused bool) error {
	if reused && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	return timely(err)
}

// timely returns context.DeadlineExceeded for a timeout, and io.ErrUnexpectedEOF if a
// connection ended too early.
func timely(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.DeadlineExceeded
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// head returns the head of the request.
func (c *Client) head(r *Request) []byte {
	b := append(c.request[:0], r.Method...)
	b = append(b, ' ')
	b = append(b, r.Target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host.Name...)
	if c.o.UserAgent != "" {
		b = append(b, "\r\nUser-Agent: "...)
		b = append(b, c.o.UserAgent...)
	}
	b = append(b, "\r\n"...)
	b = append(b, r.Header...)
	c.request = append(b, "\r\n"...)
	return c.request
}

// connect returns the connection to a host. If there is none, it opens one.
func (c *Client) connect(h Host) (*conn, error) {
	c.mu.Lock()
	k, closed := c.conns[h], c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return nil, net.ErrClosed
	case k != nil:
		return k, nil
	}
	raw, err := c.dial(h)
	if err != nil {
		return nil, err
	}
	k = &conn{Conn: raw, r: bufio.NewReaderSize(raw, bufferSize)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(net.ErrClosed, raw.Close())
	}
	c.conns[h] = k
	return k, nil
}

func (c *Client) dial(h Host) (net.Conn, error) {
	d := net.Dialer{Timeout: min(dialTimeout, c.o.Timeout)}
	if !h.Secure {
		return d.DialContext(c.ctx, "tcp", h.address())
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.o.TLS != nil {
		conf = c.o.TLS.Clone()
	}
	conf.NextProtos = []string{"http/1.1"}
	return (&tls.Dialer{NetDialer: &d, Config: conf}).DialContext(c.ctx, "tcp", h.address())
}

// drop closes a connection.
func (c *Client) drop(h Host, k *conn) {
	c.mu.Lock()
	if c.conns[h] == k {
		delete(c.conns, h)
	}
	c.mu.Unlock()
	_ = k.Close() // it is given up
}

// printable reports whether s may be part of a line of a head.
func printable[T string | []byte](s T) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// Clean reports whether target can be sent as the target of a request: whether it begins
// with a slash and contains no spaces or control characters.
func Clean(target []byte) bool {
	return bytes.HasPrefix(target, []byte("/")) && printable(target)
}
