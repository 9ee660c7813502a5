// Package client is an [oci.Registry] over HTTP: it speaks the OCI
// Distribution 1.1 protocol to any registry.
//
// It promises more than the protocol:
//
//   - If the connection of a blob breaks, the blob is continued by a Range
//     request. A whole blob is checked against its digest and size before its
//     last bytes are handed out.
//   - A manifest is checked against its digest.
//   - Idempotent requests are repeated with growing pauses, and Retry-After is
//     honoured. A request that carries a stream is never repeated after the
//     stream was read from.
//   - Credentials go to the registry and to the token service that it names,
//     and to nobody else. In particular, they do not follow redirects.
//   - If the registry answered, errors are [oci.Error] values. They name the
//     request without its query, which may hold signatures.
//
// Package imagecopy copies images between any two registries. Caching is left to others,
// and so is the choice among mirrors.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client/wrongserver"
	"example.org/slipway/oci/wire"
)

// Options configure a Client. The zero value makes an anonymous client.
type Options struct {
	// Credential is called when the registry wants credentials. It takes precedence over
	// Username and Password, which take precedence over DockerConfig.
	Credential CredentialFunc
	// Username and Password are a fixed credential for this registry.
	Username, Password string
	// DockerConfig says that credentials are taken from Docker's config.json (in
	// $DOCKER_CONFIG or ~/.docker) and from the credential helpers that it names.
	DockerConfig bool

	// Transport sends the requests. If it is nil, a transport is made from the TLS fields
	// below. They must be empty if Transport is set.
	Transport http.RoundTripper
	// InsecureSkipVerify accepts any server certificate.
	InsecureSkipVerify bool
	// RootCAs are the authorities that the server's certificate is checked against; nil
	// means the system's.
	RootCAs *x509.CertPool
	// Certificates are presented to a server that asks for a client certificate.
	Certificates []tls.Certificate

	// UserAgent defaults to "slipway".
	UserAgent string
	// Retries bounds how often a request is repeated, and how often a broken blob
	// download is continued without progress. 0 means 4. A negative value means never.
	Retries int
	// RetryWait is the first pause before a repetition. 0 means 500 ms. Each further
	// pause is twice as long, up to RetryMaxWait. Pauses vary by up to half.
	RetryWait time.Duration
	// RetryMaxWait bounds a pause. 0 means 30 s. If a registry's Retry-After is longer,
	// the request is not repeated.
	RetryMaxWait time.Duration
	// StallTimeout is how long a blob may deliver no byte before its connection is given
	// up and the blob is continued on another one. 0 means 1 min. A negative value means
	// no limit.
	StallTimeout time.Duration
	// Logger gets a line for each repetition. nil discards it.
	Logger *slog.Logger
}

// The defaults and limits of a Client.
const (
	defaultRetries      = 4
	defaultRetryWait    = 500 * time.Millisecond
	defaultRetryMaxWait = 30 * time.Second
	defaultStall        = time.Minute
	defaultUserAgent    = "slipway"

	// maxErrorBody bounds how many bytes of an error answer are read.
	maxErrorBody = 64 << 10
	// maxListBody bounds the bytes of one page of a list. A registry that does not page
	// answers with the whole list: 32 MiB are 250,000 long tags.
	maxListBody = 32 << 20
	// maxPages bounds how many pages of a list are read in one call.
	maxPages = 1000
	// copyBuffer is the size in bytes of the buffers of Content.WriteTo.
	copyBuffer = 128 << 10
)

// Client is a client of one registry. It is safe for concurrent use.
type Client struct {
	base   *url.URL
	auth   *auth.Client
	log    *slog.Logger
	own    *renewable // closed by Close; nil if the caller gave the transport
	tries  int        // at least 1
	wait   time.Duration
	most   time.Duration
	stall  time.Duration // 0: never
	upload *uploads
	// answered says that the registry has answered a request.
	answered atomic.Bool
	bufs     sync.Pool // *[]byte of copyBuffer bytes

	// referrers is held while the index of a referrers tag is rewritten. It is a channel
	// and not a mutex so that waiting for it ends with the context.
	referrers chan struct{}
}

var _ oci.Registry = (*Client)(nil)

// IsLoopback reports whether a registry's host, with or without a port, is this machine.
// Such a registry is used over HTTP unless the caller says otherwise.
func IsLoopback(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	return name == "localhost" || net.ParseIP(name).IsLoopback()
}

// New returns a client for the registry at baseURL, such as
// "https://registry.example.com" or "http://localhost:5000". A path in baseURL is put
// before /v2/. New makes no request; see [Client.Ping].
func New(baseURL string, o *Options) (*Client, error) {
	if o == nil {
		o = &Options{}
	}
	base, err := parseBase(baseURL)
	if err != nil {
		return nil, err
	}
	c := &Client{
		base:      base,
		log:       o.Logger,
		tries:     1 + max(0, orDefault(o.Retries, defaultRetries)),
		wait:      orDefault(o.RetryWait, defaultRetryWait),
		most:      orDefault(o.RetryMaxWait, defaultRetryMaxWait),
		stall:     max(0, orDefault(o.StallTimeout, defaultStall)),
		upload:    newUploads(maxUploads),
		referrers: make(chan struct{}, 1),
	}
	c.bufs.New = func() any { b := make([]byte, copyBuffer); return &b }
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	transport, err := c.transport(o)
	if err != nil {
		return nil, err
	}
	creds, err := credential(base.Host, o)
	if err != nil {
		return nil, err
	}
	agent := orDefault(o.UserAgent, defaultUserAgent)
	c.auth = &auth.Client{
		Client:     &http.Client{Transport: challenged{transport}, CheckRedirect: checkRedirect},
		Header:     http.Header{"User-Agent": {agent}},
		Credential: creds,
		Cache:      auth.NewCache(),
		ClientID:   defaultUserAgent,
	}
	return c, nil
}

// Close closes idle connections. Requests under way are not disturbed.
func (c *Client) Close() error {
	if c.own != nil {
		c.own.current.Load().CloseIdleConnections()
	}
	return nil
}

// Reconnect makes later requests use new connections. Requests under way keep theirs. It
// helps when a connection has become slow or dead, because over HTTP/2 all requests share
// one connection. It does nothing if the caller gave the transport.
func (c *Client) Reconnect() {
	if c.own != nil {
		c.own.renew()
	}
}

// renewable is a transport whose connections can be replaced.
type renewable struct {
	current atomic.Pointer[http.Transport]
}

var _ http.RoundTripper = (*renewable)(nil)

// RoundTrip implements http.RoundTripper.
func (r *renewable) RoundTrip(req *http.Request) (*http.Response, error) {
	return r.current.Load().RoundTrip(req)
}

// renew replaces the connections. Those in use are closed when their requests end.
func (r *renewable) renew() {
	old := r.current.Load()
	if r.current.CompareAndSwap(old, old.Clone()) {
		old.CloseIdleConnections()
	}
}

// URL returns the address that the client was made with, without credentials.
func (c *Client) URL() string { return c.base.String() }

// Ping asks the registry whether it supports the protocol and accepts the credentials.
func (c *Client) Ping(ctx context.Context) error {
	return closed(c.do(ctx, call{method: http.MethodGet, url: c.url(oci.Request{Kind: oci.KindPing}, nil), retry: retryAll, notFound: oci.CodeUnsupported}))
}

// closed closes an answer of which only the status matters.
func closed(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// parseBase checks a base URL. Its errors never quote the URL, because people put
// passwords there.
func parseBase(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("the registry's URL is malformed")
	}
	switch {
	case u.User != nil:
		return nil, errors.New("the registry's URL has a user name; give credentials as options")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("registry URL %q: want http://host or https://host", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("the registry's URL has a query or fragment")
	}
	return &url.URL{Scheme: u.Scheme, Host: APIHost(strings.ToLower(u.Host)), Path: strings.TrimRight(u.Path, "/")}, nil
}

// APIHost returns the host of a registry's API. For Docker Hub it differs from the host
// in image names.
func APIHost(host string) string {
	if host == "docker.io" || host == "index.docker.io" {
		return "registry-1.docker.io"
	}
	return host
}

// transport returns the caller's transport, or makes one and remembers it.
func (c *Client) transport(o *Options) (http.RoundTripper, error) {
	if o.Transport != nil {
		if o.InsecureSkipVerify || o.RootCAs != nil || len(o.Certificates) > 0 {
			return nil, errors.New("a transport and TLS options exclude each other: set TLS in the transport")
		}
		return o.Transport, nil
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: wrongserver.Dial,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // digests are of the bytes as they are stored
		TLSClientConfig: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			InsecureSkipVerify: o.InsecureSkipVerify,
			RootCAs:            o.RootCAs, Certificates: o.Certificates,
		},
	}
	c.own = &renewable{}
	c.own.current.Store(t)
	return c.own, nil
}

// challenged reduces a 401 answer to one challenge, in the plain spelling that
// auth.Client can read. auth.Client reads only the first challenge of the first header.
type challenged struct{ next http.RoundTripper }

var _ http.RoundTripper = challenged{}

// RoundTrip implements http.RoundTripper.
func (c challenged) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	const name = "Www-Authenticate"
	if c := wire.ChooseChallenge(resp.Header[name], r.URL); c.Scheme != "" {
		resp.Header[name] = []string{c.Header()}
	}
	return resp, nil
}
