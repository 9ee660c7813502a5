package s3store

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"syscall"
	"time"

	"example.org/slipway/oci/wire"
)

const (
	dialTimeout = 5 * time.Second
	tlsTimeout  = 10 * time.Second
	// headerTimeout is how long a server may take to answer a request it has in
	// full. Completing an upload of thousands of parts takes it minutes.
	headerTimeout = 5 * time.Minute
	idleTimeout   = 60 * time.Second
	// idlePerHost is how many connections are kept for the next requests. All requests go
	// to one host, and a new connection costs a round trip, or several with TLS.
	idlePerHost = 256
	// socketBuffer is the size of a connection's buffers, in bytes. It saves system
	// calls, because the buffers of net/http have 4 KiB.
	socketBuffer = 64 << 10
)

// errStalled is the cause of a request that was given up because the server took
// no byte of it for Options.StallTimeout.
var errStalled = errors.New("the server stopped reading the request")

// errAnswered ends the body of a request that the server has answered before it read all
// of the body.
var errAnswered = errors.New("the request was answered before its end")

// errPage is the error of an answer that is not S3's, such as the page of a login. S3
// answers in XML, and the objects of this store have another type than a page.
var errPage = errors.New("the answer is a page of HTML, or otherwise not the store's: look for a proxy, or a login, between the registry and the store")

// isListing reports whether the answer to a request for a listing begins like a listing.
// Any other document would be taken for an empty listing.
func isListing(req *http.Request, resp *http.Response) bool {
	if req.Method != http.MethodGet || !req.URL.Query().Has("list-type") || resp.StatusCode != http.StatusOK {
		return true
	}
	head := make([]byte, 512)
	n, _ := io.ReadFull(resp.Body, head) // an error comes again
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head[:n]), resp.Body), resp.Body}
	return bytes.Contains(head[:n], []byte("ListBucketResult"))
}

// isPage reports whether an answer that looks like success is a page of HTML.
func isPage(resp *http.Response) bool {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && resp.StatusCode/100 == 2 && (t == "text/html" || t == "application/xhtml+xml")
}

// newTransport makes the connections to the server.
func newTransport(o *Options) (http.RoundTripper, error) {
	if o.Transport != nil {
		return o.Transport, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.SkipVerify} // #nosec G402 -- asked for by the operator
	if o.CAFile != "" {
		var err error
		if conf.RootCAs, err = wire.SystemPool(o.CAFile); err != nil {
			return nil, err
		}
	}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:       conf,
		TLSHandshakeTimeout:   tlsTimeout,
		ResponseHeaderTimeout: headerTimeout,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConns:          2 * idlePerHost,
		MaxIdleConnsPerHost:   idlePerHost,
		ReadBufferSize:        socketBuffer,
		WriteBufferSize:       socketBuffer,
		// An object that says it is gzip must come as it was stored.
		DisableCompression: true,
		// HTTP/2 would put all streams of a host on one connection.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}, nil
}

// exchange records what happened to the requests of one operation, because minio's errors
// lack it: the header that says when to try again, and errors of the connection in their
// own types.
type exchange struct {
	mu         sync.Mutex
	retryAfter time.Duration
	err        error // of the connection, nil when the server answered
	answered   bool
	reused     bool // the connection had carried requests before
}

type exchangeKey struct{}

// withExchange gives a context whose requests write down how they went.
func withExchange(ctx context.Context) (context.Context, *exchange) {
	x := &exchange{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: x.gotConn})
	return context.WithValue(ctx, exchangeKey{}, x), x
}

func (x *exchange) gotConn(c httptrace.GotConnInfo) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.reused = c.Reused
}

// stale reports whether the request went to a connection that the server had closed
// meanwhile. net/http repeats such requests itself, but not those with a body.
func (x *exchange) stale() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.reused && !x.answered && (errors.Is(x.err, syscall.EPIPE) || errors.Is(x.err, syscall.ECONNRESET) || errors.Is(x.err, io.EOF))
}

func (x *exchange) note(resp *http.Response, err error, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err, x.answered, x.retryAfter = err, err == nil, 0
	if err == nil {
		x.retryAfter = min(wire.RetryAfter(resp.Header.Get("Retry-After"), now), 24*time.Hour)
	}
}

// watched is the [http.RoundTripper] of the store. It notes how requests went and
// gives up those whose body the server does not take.
type watched struct {
	inner http.RoundTripper
	stall time.Duration
}

// RoundTrip implements [http.RoundTripper].
func (w *watched) RoundTrip(req *http.Request) (*http.Response, error) {
	x, _ := req.Context().Value(exchangeKey{}).(*exchange)
	resp, err := w.send(req)
	if err == nil && (isPage(resp) || !isListing(req, resp)) {
		_ = resp.Body.Close() // the answer is not from S3
		resp, err = nil, errPage
	}
	if x != nil {
		x.note(resp, err, time.Now())
	}
	return resp, err
}

func (w *watched) send(req *http.Request) (*http.Response, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return w.inner.RoundTrip(req)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	body := &movingBody{inner: req.Body, left: req.ContentLength, stall: w.stall}
	if w.stall > 0 {
		body.timer = time.AfterFunc(w.stall, func() { cancel(errStalled) })
	}
	out := req.WithContext(ctx)
	out.Body = body
	resp, err := w.inner.RoundTrip(out)
	body.end()
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	// The answer is read under the same context.
	resp.Body = &endingBody{ReadCloser: resp.Body, end: func() { cancel(nil) }}
	return resp, nil
}

// movingBody is a request's body. Each Read means that the server has taken the bytes
// read before. net/http may continue to read after an answer, when the caller may use the
// buffer again, so movingBody then gives it no more bytes.
type movingBody struct {
	inner io.ReadCloser
	stall time.Duration

	mu    sync.Mutex
	left  int64       // bytes not yet read
	timer *time.Timer // nil when the body has been sent
	ended bool
}

func (b *movingBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended && b.left <= 0:
		return 0, io.EOF
	case b.ended:
		return 0, errAnswered
	}
	n, err := b.inner.Read(p)
	b.left -= int64(n)
	if b.timer != nil {
		b.timer.Reset(b.stall)
		if err != nil { // what follows is the server's time to answer
			b.timer.Stop()
			b.timer = nil
		}
	}
	return n, err
}

// Close ends the body. The reader inside is the caller's and needs none.
func (b *movingBody) Close() error {
	b.end()
	return nil
}

func (b *movingBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
}

// endingBody calls end when it is closed.
type endingBody struct {
	io.ReadCloser
	end func()
}

func (b *endingBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}
