package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"example.org/slipway/internal/reach"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/mirror/route"
)

const (
	// maxRedirects is how many redirects of one request are followed. Registries
	// make one or two.
	maxRedirects = 10
	// maxDrain is how many bytes of an answer that nobody needs are read to keep
	// its connection.
	maxDrain = 16 << 10
	// maxHeader is how many bytes an answer's header may have.
	maxHeader = 256 << 10
	// idleConns is how many connections to a host are kept: as many as a default
	// upstream has requests under way.
	idleConns = 64
)

// endpoint is one registry that has an upstream's content: the upstream itself, or a
// mirror of it.
type endpoint struct {
	up     *Upstream
	base   *url.URL // scheme, host, and the path before /v2
	prefix string   // of repository names, "" or ending with a slash
	name   string   // the URL as configured, for logs and the status
	list   *client.Client
	keys   keyring
	health health
	links  links
}

// role says why a host is contacted.
type role uint8

const (
	peer   role = iota // the endpoint itself
	target             // where a redirect leads
	tokens             // a token service elsewhere
)

// links holds the transports to hosts. Each role has its own connections, so that a
// connection allowed in one role is not used in another.
type links struct {
	byRole  [3]*http.Transport
	guards  [3]*reach.Guard
	proxied [3]*http.Transport // as byRole, by way of a proxy
	proxy   func(*http.Request) (*url.URL, error)
	seen    atomic.Uint32 // classes of the endpoint's own addresses
}

// parseEndpoint splits an endpoint's URL. What follows /v2/ in it is put before the names
// of repositories. Errors never contain the URL, because people put passwords there.
func parseEndpoint(s string) (base *url.URL, prefix, name string, err error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, "", "", errors.New("the URL is malformed")
	case u.User != nil:
		return nil, "", "", errors.New("the URL has a user name; configure credentials instead")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, "", "", fmt.Errorf("%q: want https://host or http://host", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return nil, "", "", errors.New("the URL has a query or fragment")
	}
	path := strings.TrimRight(u.Path, "/")
	base = &url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host), Path: path}
	name = base.String()
	if before, after, ok := strings.Cut(path+"/", "/v2/"); ok {
		base.Path = strings.TrimRight(before, "/")
		if prefix = strings.TrimRight(after, "/"); prefix != "" {
			if !oci.ValidName(prefix) {
				return nil, "", "", fmt.Errorf("%q, which follows /v2/ in the URL, is not the beginning of a repository name", prefix)
			}
			prefix += "/"
		}
	}
	return base, prefix, name, nil
}

func newEndpoint(u *Upstream, s string, o *Options) (*endpoint, error) {
	e := &endpoint{up: u}
	var err error
	if e.base, e.prefix, e.name, err = parseEndpoint(s); err != nil {
		return nil, err
	}
	e.keys.init(e, o.Credential)
	e.health.clock, e.health.log = u.clock, u.log.With("upstream", u.name, "endpoint", e.name)
	e.links.init(o)
	// The client makes the lists. Here it only asks and decodes: RoundTrip handles
	// credentials, redirects, limits and timeouts.
	e.list, err = client.New(e.base.String(), &client.Options{
		Transport: e, Retries: -1, StallTimeout: -1, UserAgent: o.UserAgent,
	})
	return e, err
}

// init makes the transports. They use HTTP/1.1, because streams that share one connection
// break together and wait for each other, which is bad for blobs.
func (l *links) init(o *Options) {
	conf := &tls.Config{}
	if o.TLS != nil {
		conf = o.TLS.Clone()
	}
	conf.NextProtos = nil
	conf.MinVersion = max(conf.MinVersion, tls.VersionTLS12)
	other := conf.Clone() // a client certificate is for the endpoint alone
	other.Certificates, other.GetClientCertificate, other.ServerName = nil, nil, ""
	// The settings for the endpoint's certificates do not apply to other hosts. Those
	// hosts see what is fetched, and token services see the credentials.
	other.InsecureSkipVerify, other.RootCAs = false, o.OtherRoots
	l.proxy = o.Proxy
	l.guards = [3]*reach.Guard{target: {Allow: o.Redirects, Rule: ruleLed}, tokens: {Allow: o.Redirects, Like: &l.seen, Rule: ruleLed}}
	if o.PublicOnly {
		l.guards[peer] = &reach.Guard{Allow: o.Redirects, Rule: ruleUnlisted}
	}
	for r := range l.byRole {
		shown, control := conf, remember(&l.seen)
		if role(r) != peer {
			shown = other
		}
		if g := l.guards[r]; g != nil {
			control = g.Control
		}
		l.byRole[r] = transport(o, shown, nil, control)
		l.proxied[r] = transport(o, shown, o.Proxy, nil)
	}
}

func transport(o *Options, conf *tls.Config, proxy func(*http.Request) (*url.URL, error), control controlFunc) *http.Transport {
	d := &net.Dialer{Timeout: o.ConnectTimeout, ControlContext: control}
	t := &http.Transport{
		Proxy:                  proxy,
		DialContext:            d.DialContext,
		TLSClientConfig:        conf,
		TLSHandshakeTimeout:    o.ConnectTimeout,
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        90 * time.Second,
		DisableCompression:     true, // digests are of the bytes as stored
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// send makes one request to a host in its role.
func (e *endpoint) send(req *http.Request, r role) (*http.Response, error) {
	via, err := e.links.proxy(req)
	if err != nil {
		return nil, fmt.Errorf("choose a proxy: %w", err)
	}
	if via == nil {
		return e.links.byRole[r].RoundTrip(req)
	}
	if g := e.links.guards[r]; g != nil {
		if err := g.CheckURL(req.URL); err != nil {
			return nil, err
		}
	}
	return e.links.proxied[r].RoundTrip(req)
}

// at reports whether a URL has the endpoint's own scheme, host and port.
func (e *endpoint) at(u *url.URL) bool {
	return u.Scheme == e.base.Scheme && u.Host == e.base.Host || origin(u) == origin(e.base)
}

// idle closes connections that are not in use.
func (e *endpoint) idle() {
	for r := range e.links.byRole {
		e.links.byRole[r].CloseIdleConnections()
		e.links.proxied[r].CloseIdleConnections()
	}
}

// ask is a request to an endpoint.
type ask struct {
	method string
	oci.Request
	url    *url.URL
	header http.Header // belongs to the request from then on
}

// ask returns a request for r. It adds the endpoint's prefix to the repository's name.
func (e *endpoint) ask(method string, r oci.Request) ask {
	r.Repo = e.prefix + r.Repo
	u := *e.base
	u.Path += r.Path()
	return ask{method: method, Request: r, url: &u, header: http.Header{
		"User-Agent":      {e.up.agent},
		"Accept-Encoding": {"identity"}, // digests are of the bytes as stored
	}}
}

// RoundTrip implements http.RoundTripper for the client that makes the lists.
func (e *endpoint) RoundTrip(req *http.Request) (*http.Response, error) {
	r, ok, err := oci.Parse(&url.URL{Path: strings.TrimPrefix(req.URL.Path, e.base.Path)})
	if !ok || err != nil {
		return nil, fmt.Errorf("not a request to a registry: %s", req.URL.Path)
	}
	resp, err := e.do(req.Context(), ask{method: req.Method, Request: r, url: req.URL, header: req.Header.Clone()})
	if err == nil {
		resp.Header.Del("Www-Authenticate") // it has been answered, as far as it can be
	}
	return resp, err
}

// do makes a request with its turn, its token and its redirects. The answer may have any
// status. Its body must be closed. An error is an Error, or the context's.
func (e *endpoint) do(ctx context.Context, a ask) (*http.Response, error) {
	release, err := e.admit(ctx, a)
	if err != nil {
		return nil, err
	}
	b := &body{e: e, ctx: ctx, release: release}
	if a.Kind != oci.KindBlob { // a small answer must not trickle in for ever
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, e.up.header+e.up.stall, wire.ErrStalled)
		b.release = func() { cancel(); release() }
	}
	guard, guarded := wire.NewStallGuard(ctx, e.up.header, e.up.stall)
	began := e.up.clock()
	resp, err := e.exchange(guarded, a)
	guard.Answered(&resp, &err)
	if err != nil {
		err = e.failed(ctx, err)
		if waited := e.up.clock().Sub(began); errors.Is(ctx.Err(), context.DeadlineExceeded) && gone(ctx) && waited >= e.up.connect {
			// The caller gave up before our own limit, but after a long wait.
			e.health.failed(fmt.Errorf("it did not answer in %v", waited.Round(time.Millisecond)), true)
		}
		b.release()
		return nil, err
	}
	b.rc, resp.Body = resp.Body, b
	b.whole = a.method == http.MethodHead || resp.StatusCode/100 != 2 // judge says what that means
	if err := e.judge(resp, a, began); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// failed notes that a request got no answer, and returns the error.
func (e *endpoint) failed(ctx context.Context, err error) error {
	out := e.explain(ctx, subject{}, err)
	var known *Error
	if errors.As(out, &known) && known.Kind == Unavailable {
		e.health.failed(known.Err, known.slow)
	} else {
		e.health.unknown()
	}
	return out
}

// judge notes what an answer says about the endpoint, and refuses answers that do not
// come from a registry.
func (e *endpoint) judge(resp *http.Response, a ask, began time.Time) error {
	now := e.up.clock()
	e.health.answered(now.Sub(began))
	e.up.metrics.latency.Observe(now.Sub(began).Seconds())
	own := e.at(resp.Request.URL)
	if own {
		if l, ok := parseLimit(resp.Header, now); ok {
			e.health.limited(l)
		}
	}
	status := resp.StatusCode
	told := pause(resp.Header, now)
	switch {
	case status == http.StatusTooManyRequests:
		return e.busy(told, status, quotaOf(a.Kind))
	case status == http.StatusServiceUnavailable && told > 0:
		return e.busy(told, status, ofManifests, ofBlobs, ofLists)
	case status >= 500 && status != http.StatusNotImplemented && status != http.StatusLoopDetected:
		e.health.failed(fmt.Errorf("it answered %d", status), false)
	case !own && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		// Signatures expire. The status says nothing about our rights.
		return e.useless(status, fmt.Errorf("it leads to %s, which answered %d", resp.Request.URL.Host, status))
	case status/100 == 2 && a.Kind != oci.KindReferrers && isPage(resp.Header):
		return e.useless(status, errors.New("it answered with a web page"))
	case status/100 == 2 && status != http.StatusOK && status != http.StatusPartialContent:
		return e.useless(status, fmt.Errorf("it answered %d", status))
	case status/100 != 2 || a.method == http.MethodHead:
		e.health.good()
	default:
		e.health.began()
	}
	return nil
}

// busy notes an answer that asks for fewer requests of some quotas.
func (e *endpoint) busy(told time.Duration, status int, of ...quota) error {
	e.health.backOff(told, status, of...)
	err := e.error(Busy, status, subject{}, fmt.Errorf("it answered %d", status))
	err.RetryAfter, _ = e.health.look(of[0])
	return err
}

// useless notes an answer that does not come from a registry.
func (e *endpoint) useless(status int, err error) error {
	e.health.failed(err, false)
	return e.error(Unavailable, status, subject{}, err)
}

// isPage reports whether an answer is the page of a portal, a proxy or a web interface. A
// registry that serves a page which somebody pushed sends its digest.
func isPage(h http.Header) bool {
	t, _, _ := mime.ParseMediaType(h.Get("Content-Type")) // a malformed type counts as none
	return (t == "text/html" || t == "application/xhtml+xml") && h.Get("Docker-Content-Digest") == ""
}

// exchange sends a request, with a token if the endpoint wants one, and follows
// redirects.
func (e *endpoint) exchange(ctx context.Context, a ask) (*http.Response, error) {
	shown, err := e.keys.authorization(ctx, a.Repo)
	if err != nil {
		return nil, err
	}
	resp, err := e.first(ctx, a, shown)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusUnauthorized {
		again, err := e.keys.challenged(ctx, a.Repo, resp.Header, shown)
		if err != nil {
			drain(resp)
			return nil, err
		}
		if again != "" {
			drain(resp)
			if resp, err = e.first(ctx, a, again); err != nil {
				return nil, err
			}
		}
	}
	return e.follow(ctx, resp)
}

// first sends a request to the endpoint itself.
func (e *endpoint) first(ctx context.Context, a ask, authorization string) (*http.Response, error) {
	h := a.header.Clone() // a request that was sent before may still be looked at
	route.Set(ctx, h)
	if authorization != "" {
		h.Set("Authorization", authorization)
	}
	return e.send(newRequest(ctx, a.method, a.url, h), peer)
}

func newRequest(ctx context.Context, method string, u *url.URL, h http.Header) *http.Request {
	r := &http.Request{Method: method, URL: u, Host: u.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	return r.WithContext(ctx)
}

// drain reads the rest of a short answer, so that its connection can be reused, and
// closes it.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain) // a broken connection is not reused, that is all
	_ = resp.Body.Close()
}

// errRedirect is the error of a redirect that is not followed.
var errRedirect = errors.New("redirect is not followed")

// follow follows the redirects of an answer. Credentials are sent only to the endpoint's
// own scheme, host and port, and never again once a redirect has led away.
func (e *endpoint) follow(ctx context.Context, resp *http.Response) (*http.Response, error) {
	left := false
	var been map[string]bool
	for hops := 0; ; hops++ {
		next, err := location(resp)
		if next == nil && err == nil {
			return resp, nil
		}
		drain(resp)
		from := resp.Request
		if been == nil {
			been = map[string]bool{from.URL.String(): true}
		}
		switch {
		case err != nil:
			return nil, err
		case hops == maxRedirects:
			return nil, fmt.Errorf("%w: there were %d before it", errRedirect, hops)
		case been[next.String()]:
			return nil, fmt.Errorf("%w: it leads in a circle, to %s", errRedirect, next.Host)
		}
		been[next.String()] = true
		h, host, r := from.Header.Clone(), e, target
		for _, o := range e.up.endpoints {
			if o.at(next) {
				host, r = o, peer
			}
		}
		if left = left || host != e || r != peer; left {
			h.Del("Authorization")
			h.Del(route.Header)
		}
		if resp, err = host.send(newRequest(ctx, from.Method, next, h), r); err != nil {
			return nil, fmt.Errorf("redirect to %s: %w", next.Host, err)
		}
	}
}

// location returns where an answer redirects to, or nil.
func location(resp *http.Response) (*url.URL, error) {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	s := resp.Header.Get("Location")
	if s == "" {
		return nil, fmt.Errorf("%w: it answered %d without a Location", errRedirect, resp.StatusCode)
	}
	u, err := resp.Request.URL.Parse(s)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: its Location is malformed", errRedirect)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%w: it leads to a %q URL", errRedirect, u.Scheme)
	case resp.Request.URL.Scheme == "https" && u.Scheme != "https":
		return nil, fmt.Errorf("%w: it leads from https to %s", errRedirect, u.Scheme)
	case u.User != nil:
		return nil, fmt.Errorf("%w: its Location has a user name", errRedirect)
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// body is the body of an answer. It gives back the request's turn, and notes the
// endpoint's failure if it breaks.
type body struct {
	rc      io.ReadCloser
	e       *endpoint
	ctx     context.Context // of the caller, spans the body's life
	release func()
	whole   bool // the end was reached, or there is nothing to reach
	broken  bool
	closed  bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.rc.Read(p)
	if n > 0 {
		b.e.up.received(n)
	}
	switch {
	case err == nil || b.closed:
	case err == io.EOF:
		if !b.whole && !b.broken {
			b.whole = true
			b.e.health.good()
		}
	case !b.broken:
		b.broken = true
		if !gone(b.ctx) {
			b.e.up.metrics.broken.Inc()
		}
		err = b.e.failed(b.ctx, fmt.Errorf("read its answer: %w", err))
	default:
		err = b.e.explain(b.ctx, subject{}, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	err := b.rc.Close()
	b.e.health.unknown() // also ends a probe whose answer nobody read
	b.release()
	return err
}
