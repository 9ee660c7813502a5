package client

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client/wrongserver"
	"example.org/slipway/oci/wire"
)

// retry says when a request may be repeated.
type retry uint8

const (
	// retryNone means never: the request has effects or carries a stream.
	retryNone retry = iota
	// retryStatus means: only if the registry answered that it did nothing.
	retryStatus
	// retryAll means also if the connection broke.
	retryAll
)

// call is a request to make.
type call struct {
	method string
	url    *url.URL
	header http.Header // may be nil; is not modified
	body   *body       // may be nil
	scopes []string    // scopes of the token, which may save a round trip
	retry  retry
	// stalls says that the answer may stall, like the answer to a GET.
	stalls bool
	// notFound is the error code for a 404 if the registry gives no better code.
	notFound oci.Code
	// accept lists statuses that are not errors, in addition to 2xx.
	accept []int
}

// url returns the URL of a request.
func (c *Client) url(r oci.Request, q url.Values) *url.URL {
	u := *c.base
	u.Path += r.Path()
	u.RawQuery = q.Encode()
	return &u
}

func pull(repo string) []string { return []string{auth.ScopeRepository(repo, auth.ActionPull)} }

func push(repo string) []string {
	return []string{auth.ScopeRepository(repo, auth.ActionPull, auth.ActionPush)}
}

func volume(repo string, clones bool) []string {
	if clones {
		return []string{auth.ScopeRepository(repo, "volume", "clone")}
	}
	return []string{auth.ScopeRepository(repo, "volume")}
}

func remove(repo string) []string { return []string{auth.ScopeRepository(repo, auth.ActionDelete)} }

// do makes a request, and repeats it if that is allowed and useful. The caller closes the
// answer's body. An answer whose status is neither 2xx nor accepted is an error.
func (c *Client) do(ctx context.Context, l call) (*http.Response, error) {
	var last error
	op := func() (*http.Response, error) {
		resp, after, err := c.once(ctx, l)
		last = err
		switch {
		case err == nil:
			return resp, nil
		case after < 0 || ctx.Err() != nil:
			return nil, backoff.Permanent(err)
		case after > 0:
			return nil, &backoff.RetryAfterError{Duration: after}
		}
		return nil, err
	}
	resp, err := backoff.Retry(ctx, op,
		backoff.WithBackOff(c.pauses()),
		backoff.WithMaxTries(uint(c.tries)),
		backoff.WithMaxElapsedTime(0), // the tries and ctx are the bounds
		backoff.WithNotify(func(_ error, pause time.Duration) {
			c.log.WarnContext(ctx, "request to registry is repeated", "method", l.method, "url", bare(l.url), "pause", pause, "err", last)
		}))
	if err == nil {
		return resp, nil
	}
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(last, ctxErr) {
		return nil, fmt.Errorf("%w (after %w)", ctxErr, last)
	}
	return nil, last
}

// pauses returns the pauses between tries.
func (c *Client) pauses() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = c.wait, c.most, 2
	return b
}

// once makes a request once. after says whether to repeat it: never if it is negative,
// after the usual pause if it is 0, and otherwise after that time.
func (c *Client) once(ctx context.Context, l call) (resp *http.Response, after time.Duration, err error) {
	ctx = auth.AppendScopesForHost(ctx, c.base.Host, l.scopes...)
	if c.stall > 0 && (l.stalls || l.method == http.MethodGet || l.method == http.MethodHead) {
		var guard *wire.StallGuard
		guard, ctx = wire.NewStallGuard(ctx, c.stall, c.stall)
		defer func() { guard.Answered(&resp, &err) }()
	}
	req, err := http.NewRequestWithContext(ctx, l.method, l.url.String(), nil)
	if err != nil {
		return nil, -1, Redact(err)
	}
	for k, v := range l.header {
		req.Header[k] = v
	}
	// Digests are of the bytes as they are stored, so nobody may compress them on the
	// way.
	req.Header.Set("Accept-Encoding", "identity")
	if l.body != nil {
		if err := l.body.attach(req); err != nil {
			return nil, -1, fmt.Errorf("%s %s: %w", l.method, bare(l.url), err)
		}
		defer l.body.stop()
	}
	resp, err = c.auth.Do(req)
	if err != nil {
		after, err = -1, wrongserver.NeedsTLS(err)
		if l.retry == retryAll && c.retryable(err) {
			after = 0
		}
		return nil, after, c.sendError(l, err)
	}
	c.answered.Store(true)
	if resp.StatusCode/100 == 2 || slices.Contains(l.accept, resp.StatusCode) {
		return resp, 0, nil
	}
	err = answerError(l, resp)
	if errors.Is(err, wrongserver.ErrNeedsTLS) {
		return nil, -1, err
	}
	return nil, c.retryAfter(l, resp), err
}

// retryAfter says whether to repeat a request that got an error answer. Its result has
// the same meaning as the result after of the method once.
func (c *Client) retryAfter(l call, resp *http.Response) time.Duration {
	if l.retry == retryNone {
		return -1
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		if l.retry != retryAll {
			return -1
		}
	default:
		return -1
	}
	after := wire.RetryAfter(resp.Header.Get("Retry-After"), time.Now())
	if after > c.most {
		return -1
	}
	return after
}

// retryable reports whether a request that got no answer may succeed later. It cannot if
// credentials are missing or refused, if a redirect was not followed, or if the server is
// the wrong one. A server that has answered before and is now unreachable may be about to
// start again. A server that has never answered is not waited for.
func (c *Client) retryable(err error) bool {
	var token *errcode.ErrorResponse
	switch {
	case errors.As(err, &token):
		return token.StatusCode == http.StatusTooManyRequests || token.StatusCode >= 500
	case wrongserver.Misdirected(err), !c.answered.Load() && wrongserver.Unreachable(err):
		return false
	case errors.Is(err, auth.ErrBasicCredentialNotFound), errors.Is(err, errRedirect):
		return false
	}
	var sent *url.Error // the request, or a request for a token, was sent to the network
	return errors.As(err, &sent)
}

// sendError returns an error that names the request which got no answer, and says why.
func (c *Client) sendError(l call, err error) error {
	if l.body != nil {
		if cause := l.body.cause(); cause != nil { // reading the caller's stream failed
			err = cause
		}
	}
	var token *errcode.ErrorResponse
	if errors.As(err, &token) {
		err = &oci.Error{Code: oci.UnmarshalError(token.StatusCode, nil).Code, Status: token.StatusCode,
			Message: fmt.Sprintf("the token service answered %d", token.StatusCode)}
	} else if errors.Is(err, auth.ErrBasicCredentialNotFound) {
		err = &oci.Error{Code: oci.CodeUnauthorized, Message: "the registry wants a user name and password, and there are none; slipway login keeps them", Err: auth.ErrBasicCredentialNotFound}
	}
	var u *url.Error
	if errors.As(err, &u) && l.url.Host == hostOf(u.URL) {
		err = u.Err // otherwise the URL would appear twice
	}
	return fmt.Errorf("%s %s: %w", l.method, bare(l.url), Redact(err))
}

func hostOf(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return u.Host
}

// answerError returns the error for an answer and closes the answer.
func answerError(l call, resp *http.Response) error {
	return fmt.Errorf("%s %s: %d: %w", l.method, bare(l.url), resp.StatusCode, ReadError(resp, l.notFound))
}

// ReadError returns the error in an error answer and closes the answer. notFound is the
// code for a 404 if the registry gives no better code.
func ReadError(resp *http.Response, notFound oci.Code) *oci.Error {
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		b = nil // the status says enough
	}
	e := oci.UnmarshalError(resp.StatusCode, b)
	if resp.Request != nil && wrongserver.SaysNeedsTLS(resp.Request.URL.Scheme, resp.StatusCode, b) {
		e.Err = wrongserver.ErrNeedsTLS
	}
	if resp.StatusCode == http.StatusNotFound && notFound != "" && !aboutContent(e.Code) {
		// Registries also send NAME_UNKNOWN, NOT_FOUND or no code instead of this code.
		e.Code = notFound
	}
	return e
}

// aboutContent reports whether a code says which kind of content is missing.
func aboutContent(c oci.Code) bool {
	switch c {
	case oci.CodeBlobUnknown, oci.CodeManifestUnknown, oci.CodeManifestBlobUnknown, oci.CodeBlobUploadUnknown:
		return true
	}
	return false
}

// bare returns a URL in the form in which it may be logged: without its query, which
// holds upload states and signatures.
func bare(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

var queries = regexp.MustCompile(`(https?://[^\s"?]*)\?[^\s"]*`)

// redacted is an error whose text has no queries of URLs.
type redacted struct{ err error }

// Redact removes the queries of URLs from an error's text, because they hold signatures
// and the states of uploads. [errors.Is] and [errors.As] see the original error.
func Redact(err error) error { return redacted{err} }

func (r redacted) Error() string { return queries.ReplaceAllString(r.err.Error(), "$1") }
func (r redacted) Unwrap() error { return r.err }

var errRedirect = errors.New("redirect is not followed")

// checkRedirect bounds redirects. It need not remove Authorization, because auth.Client
// does not send it to another origin than the registry's, on any hop.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return fmt.Errorf("%w: there were %d before it", errRedirect, len(via))
	}
	if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return fmt.Errorf("%w: it leads from https to %s", errRedirect, req.URL.Scheme)
	}
	return nil
}

// location resolves a Location or Link against the request that it answers. It is an
// error if the result is on another host than the registry's. Behind a proxy that ends
// TLS, registries answer with http URLs, so location keeps the client's scheme.
func (c *Client) location(from *url.URL, s string) (*url.URL, error) {
	if s == "" {
		return nil, errors.New("the registry answered without a Location")
	}
	ref, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("the registry answered with a malformed Location")
	}
	u := from.ResolveReference(ref)
	if !strings.EqualFold(hostPort(u.Host, u.Scheme), hostPort(c.base.Host, u.Scheme)) {
		return nil, fmt.Errorf("the registry refers to another host, %q", u.Host)
	}
	return &url.URL{Scheme: c.base.Scheme, Host: c.base.Host, Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery}, nil
}

// hostPort returns a host without its port if that is the default port of the scheme.
func hostPort(host, scheme string) string {
	if scheme == "http" {
		return strings.TrimSuffix(host, ":80")
	}
	return strings.TrimSuffix(host, ":443")
}

// readAll reads a body of at most limit bytes and closes it. A body that was compressed
// although the client did not ask for that is decompressed. A body that is only declared
// to be compressed stays as it is.
func readAll(resp *http.Response, limit int64) ([]byte, error) {
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if c := contentEncoding(resp.Header); err == nil && (c == "gzip" || c == "x-gzip") && bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
			b, err = io.ReadAll(io.LimitReader(z, limit+1))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", bare(resp.Request.URL), Redact(err))
	}
	if int64(len(b)) > limit {
		return nil, oci.Errorf(oci.CodeSizeInvalid, "the registry's answer is larger than %d bytes", limit)
	}
	return b, nil
}

// contentEncoding returns the compression that an answer declares, or "".
func contentEncoding(h http.Header) string {
	c := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding")))
	if c == "identity" {
		return ""
	}
	return c
}

// finish reads the rest of an answer that is not needed, so that its connection can be
// used again, and closes the answer.
func finish(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxErrorBody) // after an error the connection is not reused
	_ = resp.Body.Close()
}
