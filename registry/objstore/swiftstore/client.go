package swiftstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ncw/swift/v2"

	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/objstore"
)

const (
	// waitForContinue is the size in bytes from which a body is sent with "Expect:
	// 100-continue", because the server may refuse it for a token or a quota.
	waitForContinue = 1 << 20
	// maxDrain is how much of a body that nobody wants is read, in bytes, to keep
	// the connection.
	maxDrain = 64 << 10
	// attempts is how often a request of an upload is sent at most while the
	// server is busy. What an upload holds would be lost otherwise.
	attempts = 3
	// longestWait bounds the pause that the server asks for between attempts.
	longestWait = 5 * time.Second
)

// client sends requests to one account, and gets a new token when the old one is
// not taken any more. It leaves the identity services to ncw/swift and sends
// everything else itself: it must see Retry-After, must not read the rest of an
// object that nobody wants, and must renew a token once for all requests.
type client struct {
	http    *http.Client
	own     *http.Transport // nil if the transport was given
	timeout time.Duration
	now     func() time.Time

	current atomic.Pointer[session]
	ahead   atomic.Int64  // by how much the server's clock is ahead, in seconds
	turn    chan struct{} // held while conn is in use
	conn    *swift.Connection
	service string // the identity service, to be shown
}

// session is where the account is and the token for it.
type session struct {
	url   *url.URL
	token string
}

func newClient(o *Options) (*client, error) {
	service, err := url.Parse(o.AuthURL)
	if err != nil || service.Host == "" {
		return nil, errors.New("swift: the URL of the identity service cannot be used")
	}
	c := &client{timeout: o.Timeout, now: time.Now, turn: make(chan struct{}, 1), service: service.Redacted()}
	if c.timeout <= 0 {
		c.timeout = DefaultTimeout
	}
	rt := o.Transport
	if rt == nil {
		if c.own, err = newTransport(o); err != nil {
			return nil, err
		}
		rt = c.own
	}
	rt = pastStray{rt}
	c.http = &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.conn = &swift.Connection{
		AuthUrl: o.AuthURL, AuthVersion: o.AuthVersion,
		UserName: o.Username, UserId: o.UserID, ApiKey: o.Password,
		Tenant: o.Tenant, TenantId: o.TenantID, TenantDomain: o.TenantDomain, TenantDomainId: o.TenantDomainID,
		Domain: o.Domain, DomainId: o.DomainID, TrustId: o.TrustID,
		ApplicationCredentialId: o.ApplicationCredentialID, ApplicationCredentialName: o.ApplicationCredentialName,
		ApplicationCredentialSecret: o.ApplicationCredentialSecret,
		Region:                      o.Region, EndpointType: swift.EndpointType(cmpEndpoint(o.EndpointType)),
		UserAgent: "slipway",
		// Our own time-out, by context, comes first: this one would leave the
		// request running.
		ConnectTimeout: 2 * c.timeout,
		// The library closes the transport's idle connections at each authentication, if
		// it can. But other requests use these connections.
		Transport: struct{ http.RoundTripper }{rt},
	}
	return c, nil
}

// pastStray repeats a request whose answer was the rest of an earlier answer. Swift ends
// its answer to a HEAD with an expired token by an empty chunk, which the next request on
// the connection may meet.
type pastStray struct{ inner http.RoundTripper }

func (p pastStray) RoundTrip(req *http.Request) (*http.Response, error) {
	const tries = 4
	for try := 1; ; try++ {
		resp, err := p.inner.RoundTrip(req)
		if err == nil || try == tries || req.Body != nil && req.Body != http.NoBody || !strings.Contains(err.Error(), "malformed HTTP response \"0\"") {
			return resp, err
		}
	}
}

// cmpEndpoint cuts the ending of "publicURL" and the like, because many configurations
// have it.
func cmpEndpoint(t string) string { return strings.TrimSuffix(t, "URL") }

func newTransport(o *Options) (*http.Transport, error) {
	conf := &tls.Config{InsecureSkipVerify: o.InsecureSkipVerify, MinVersion: tls.VersionTLS12} // what the operator asked for
	if o.CAFile != "" {
		var err error
		if conf.RootCAs, err = wire.SystemPool(o.CAFile); err != nil {
			return nil, fmt.Errorf("swift: %w", err)
		}
	}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     conf,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 64,
		// Swift closes a connection that was idle for client_timeout, 60 s.
		IdleConnTimeout:       30 * time.Second,
		ExpectContinueTimeout: 2 * time.Second,
		DisableCompression:    true,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}, nil
}

func (c *client) close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// session returns a session other than used. If there is none yet, it asks the
// identity service; one caller at a time does so, and the others take its result.
func (c *client) session(ctx context.Context, used *session) (*session, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s := c.current.Load(); s != used {
		return s, nil
	}
	authCtx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := c.conn.Authenticate(authCtx); err != nil {
		return nil, authError(ctx, c.service, err)
	}
	u, err := url.Parse(c.conn.StorageUrl)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("swift: identity service %s gives an address of the account that cannot be used", c.service)
	}
	u.Path, u.RawPath, u.RawQuery, u.Fragment = strings.TrimRight(u.Path, "/"), "", "", ""
	s := &session{url: u, token: c.conn.AuthToken}
	c.current.Store(s)
	return s, nil
}

// authError returns the error of an answer of the identity service.
func authError(ctx context.Context, where string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var status *swift.Error
	if !errors.As(err, &status) {
		err = unreachable(err)
		return fmt.Errorf("swift: ask identity service %s: %w", where, err)
	}
	switch status.StatusCode {
	case 0:
		return fmt.Errorf("swift: identity service %s knows of no object store for this user: check tenant, region and endpoint type", where)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("swift: identity service %s refuses the user: check user, password, tenant and domain", where)
	}
	if isBusy(status.StatusCode) {
		return fmt.Errorf("swift: ask identity service %s: %w", where, &objstore.BusyError{Err: status})
	}
	return fmt.Errorf("swift: ask identity service %s: %w", where, status)
}

// request is one request to the account.
type request struct {
	method string
	path   string // below the account: container, or container/object
	info   bool   // to /info in place of the account
	// last closes the connection afterwards. After a HEAD of a container or account,
	// Swift wrongly sends the end of a chunked body.
	last   bool
	query  url.Values
	header map[string]string
	body   []byte
	// reusable, if set, is called after the request, once nobody reads body any more.
	reusable bool
}

// do sends a request and returns an answer of status 2xx, whose body must be closed. ctx
// also bounds the reading of the body.
func (c *client) do(ctx context.Context, r *request) (*http.Response, error) {
	used := c.current.Load()
	for retried := false; ; retried = true {
		if used == nil {
			var err error
			if used, err = c.session(ctx, nil); err != nil {
				return nil, err
			}
		}
		resp, err := c.send(ctx, used, r)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode/100 == 2 {
			if err := r.believe(resp); err != nil {
				discard(resp)
				return nil, err
			}
			return resp, nil
		}
		err = statusError(r, resp)
		discard(resp)
		if resp.StatusCode != http.StatusUnauthorized || retried {
			return nil, err
		}
		// The token has expired or was revoked.
		if used, err = c.session(ctx, used); err != nil {
			return nil, err
		}
	}
}

// believe returns an error for an answer that looks like success and is not from Swift,
// such as a login page. Swift sends the ETag of each object. For an object that was just
// written it is the MD5 of the bytes that were sent.
func (r *request) believe(resp *http.Response) error {
	etag := strings.Trim(resp.Header.Get("Etag"), `"`)
	ok := true
	switch object := strings.Contains(r.path, "/"); {
	case r.info || r.path == "":
	case !object && r.method == http.MethodGet:
		kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		ok = resp.StatusCode == http.StatusNoContent || err == nil && kind == "application/json"
	case !object || resp.StatusCode == http.StatusAccepted: // the server has something newer; see call
	case r.method == http.MethodPut:
		want := r.header["Etag"]
		ok = resp.StatusCode == http.StatusCreated && etag != "" && (want == "" || strings.EqualFold(etag, strings.Trim(want, `"`)))
	case r.method == http.MethodGet || r.method == http.MethodHead:
		ok = etag != ""
	case r.method == http.MethodDelete:
		ok = resp.StatusCode == http.StatusNoContent || r.query.Has("multipart-manifest")
	}
	if ok {
		return nil
	}
	return &answer{status: resp.StatusCode, what: r.method + " " + r.path, err: &objstore.BusyError{Err: errNotSwift}}
}

// errNotSwift says why an answer does not count.
var errNotSwift = errors.New("the answer is not one of Swift's: look for a proxy, or a login, between the registry and the store")

// call is like do, for a request whose answer is in its header.
func (c *client) call(ctx context.Context, r *request) (http.Header, error) {
	resp, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	discard(resp)
	if r.method == http.MethodPut && resp.StatusCode == http.StatusAccepted && strings.Contains(r.path, "/") {
		// Something newer is there, according to the clocks of the cluster.
		return nil, &answer{status: http.StatusAccepted, what: r.method + " " + r.path, err: &objstore.BusyError{Err: errOlder}}
	}
	return resp.Header, nil
}

// send sends a request once.
func (c *client) send(ctx context.Context, s *session, r *request) (*http.Response, error) {
	u := *s.url
	if r.info {
		// The account is .../v1/AUTH_x.
		u.Path = path.Join(path.Dir(path.Dir(u.Path)), "info")
	} else if r.path != "" {
		u.Path += "/" + r.path
	}
	u.RawQuery = r.query.Encode()
	reqCtx, cancel := context.WithCancelCause(ctx)
	dog := &watchdog{after: c.timeout}
	dog.timer = time.AfterFunc(dog.after, func() { cancel(errSilent) })
	dog.cancel = cancel
	var conn net.Conn
	if r.method == http.MethodHead {
		reqCtx = httptrace.WithClientTrace(reqCtx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { conn = c.Conn }})
	}
	req, err := http.NewRequestWithContext(reqCtx, r.method, u.String(), nil)
	if err != nil {
		dog.stop()
		return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	req.Close = r.last
	sent := r.prepare(req, s, dog)
	resp, err := c.http.Do(req)
	if sent != nil {
		r.reusable = sent.closed.Load() && !sent.again.Load()
	}
	if err != nil {
		dog.stop()
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%s %s: %w", r.method, r.path, ctx.Err())
		case errors.Is(context.Cause(reqCtx), errSilent):
			err = errSilent
		}
		return nil, fmt.Errorf("%s %s: %w", r.method, r.path, unreachable(err))
	}
	if resp.StatusCode == http.StatusUnauthorized && conn != nil {
		// The rest of the answer would be taken for the answer to the next request, the one for
		// a new token.
		_ = conn.Close()
	}
	if t, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		c.ahead.Store(t.Unix() - c.now().Unix())
	}
	resp.Body = &answerBody{ReadCloser: resp.Body, ctx: ctx, reqCtx: reqCtx, dog: dog}
	return resp, nil
}

// prepare sets header and body of an HTTP request.
func (r *request) prepare(req *http.Request, s *session, dog *watchdog) *sentBody {
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	req.Header.Set("X-Auth-Token", s.token)
	req.Header.Set("User-Agent", "slipway")
	req.Header.Set("Accept-Encoding", "identity")
	if r.header["If-None-Match"] == "" {
		// This header is not sent. It tells net/http that the request may be repeated if
		// the server closed the idle connection.
		req.Header["Idempotency-Key"] = nil
	}
	if r.method != http.MethodPut && r.method != http.MethodPost {
		return nil
	}
	if len(r.body) == 0 {
		req.Body = http.NoBody
		return nil
	}
	if len(r.body) >= waitForContinue {
		req.Header.Set("Expect", "100-continue")
	}
	sent := newSentBody(r.body, dog)
	req.ContentLength, req.Body = int64(len(r.body)), sent
	// On a second connection the same body starts again.
	req.GetBody = func() (io.ReadCloser, error) {
		sent.again.Store(true)
		return newSentBody(r.body, dog), nil
	}
	return sent
}

// errSilent says why a request was given up.
var errSilent = errors.New("the server is silent")

// watchdog ends a request when the server has been silent for too long.
type watchdog struct {
	timer  *time.Timer
	after  time.Duration
	cancel context.CancelCauseFunc
}

func (w *watchdog) kick() { w.timer.Reset(w.after) }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// sentBody is the body of a request.
type sentBody struct {
	r      *bytes.Reader // not embedded: its WriteTo would send everything at once
	dog    *watchdog
	closed atomic.Bool
	again  atomic.Bool // another reader has the same bytes
}

func newSentBody(b []byte, dog *watchdog) *sentBody {
	return &sentBody{r: bytes.NewReader(b), dog: dog}
}

func (b *sentBody) Read(p []byte) (int, error) {
	b.dog.kick()
	return b.r.Read(p)
}

func (b *sentBody) Close() error {
	b.dog.kick()
	b.closed.Store(true)
	return nil
}

// answerBody is the body of an answer.
type answerBody struct {
	io.ReadCloser
	ctx, reqCtx context.Context // the caller's and the request's; the body spans their life
	dog         *watchdog
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.dog.kick()
	switch {
	case err == nil || err == io.EOF || err == io.ErrUnexpectedEOF:
	case b.ctx.Err() != nil:
		err = b.ctx.Err()
	case errors.Is(context.Cause(b.reqCtx), errSilent):
		err = &objstore.BusyError{Err: errSilent}
	default:
		err = &objstore.BusyError{Err: err}
	}
	return n, err
}

func (b *answerBody) Close() error {
	err := b.ReadCloser.Close()
	b.dog.stop()
	return err
}

// limitBody returns a reader of at most n bytes of an answer.
func limitBody(r io.Reader, n int64) io.Reader { return &io.LimitedReader{R: r, N: n} }

// discard closes an answer nobody reads, and keeps its connection if that is cheap.
func discard(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	_ = resp.Body.Close() // nobody needs the rest of the answer
}

// unreachable is the error of a request that got no answer.
func unreachable(err error) error {
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return err
	}
	return &objstore.BusyError{Err: err}
}

var errOlder = errors.New("the object was changed at a later time, by the cluster's clocks")

// answer is an answer that is an error. Its err is a sentinel of objstore, a
// BusyError, or nil.
type answer struct {
	status int
	what   string // method and path
	text   string // what the server says
	err    error
}

func (e *answer) Error() string {
	msg := e.what + ": " + strconv.Itoa(e.status) + " " + http.StatusText(e.status)
	if e.text != "" {
		msg += ": " + e.text
	}
	if e.err != nil {
		msg += ": " + e.err.Error()
	}
	return msg
}

func (e *answer) Unwrap() error { return e.err }

// statusOf returns the status of an answer that is an error, or 0.
func statusOf(err error) int {
	var a *answer
	if errors.As(err, &a) {
		return a.status
	}
	return 0
}

// isBusy reports whether the same request may succeed later.
func isBusy(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, 498, 499, // 498: Swift's rate limit; 499: it got the body too slowly
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// statusError returns the error of an answer whose status is not 2xx.
func statusError(r *request, resp *http.Response) error {
	e := &answer{status: resp.StatusCode, what: r.method + " " + r.path}
	switch {
	case e.status == http.StatusNotFound:
		e.err = objstore.ErrNotExist
	case e.status == http.StatusPreconditionFailed && r.header["If-None-Match"] != "":
		e.err = objstore.ErrExist
	case e.status == http.StatusRequestEntityTooLarge, e.status == http.StatusInsufficientStorage:
		e.err = objstore.ErrNoSpace
	case isBusy(e.status):
		e.err = &objstore.BusyError{RetryAfter: retryAfter(resp.Header), Err: errors.New(http.StatusText(e.status))}
	case e.status == http.StatusUnauthorized, e.status == http.StatusForbidden:
		e.text = "the user may not do this: check its rights in the tenant and the container's access lists"
	default:
		text, _ := io.ReadAll(limitBody(resp.Body, 1<<20)) // only to tell what is wrong
		if r.query.Get("multipart-manifest") != "" {
			e.err = manifestError(text)
		}
		if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
			e.text = strconv.QuoteToASCII(strings.TrimSpace(string(text[:min(len(text), 300)])))
		}
	}
	return e
}

// retryAfter returns how long to wait before the next try, or 0.
func retryAfter(h http.Header) time.Duration {
	now, err := http.ParseTime(h.Get("Date")) // the time by the server's clock
	if err != nil {
		now = time.Now()
	}
	return wire.RetryAfter(h.Get("Retry-After"), now)
}

// again calls f until it succeeds, while the server is busy, a few times at most. f must
// be idempotent.
func again(ctx context.Context, f func() error) error {
	for i := range attempts {
		err := f()
		var busy *objstore.BusyError
		if i == attempts-1 || !errors.As(err, &busy) {
			return err
		}
		wait := max(min(busy.RetryAfter, longestWait), 100*time.Millisecond<<(2*i))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
	return nil
}
