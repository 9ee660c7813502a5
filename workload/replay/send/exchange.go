package send

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"

	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace/store"
)

// exchange is one request and its answer.
type exchange struct {
	method store.Method
	object result.Object
	url    *url.URL
	header http.Header
	// body makes the request's body, of size bytes; nil for none. It is called again if
	// the request is sent again.
	body  func() io.Reader
	size  int64
	scope string
	// check checks the answer's body. nil accepts any.
	check checker
	// fine reports whether a status of 300 or more is no error.
	fine func(status int) bool

	// These fields say what came of it.
	status  int
	answer  http.Header
	at      *url.URL // where the answer came from
	wrong   bool
	outcome result.Outcome
}

// checker takes an answer's body and checks it.
type checker interface {
	io.Writer
	// right reports whether the body was right.
	right(header http.Header) bool
}

// maxRedirects is how many redirects are followed.
const maxRedirects = 5

// maxIdleBody is how many bytes of an unwanted body are read so that the connection can
// be used again.
const maxIdleBody = 1 << 20

// do sends the request and reads the answer. The sample's End, First, Bytes, Status,
// Outcome and redirects are filled in.
func (s *Sender) do(ctx context.Context, t *target, x *exchange, sample *result.Sample) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	sample.Method, sample.Object = x.method, x.object
	if x.body != nil {
		sample.Bytes = x.size
	}
	err := s.follow(ctx, t, x, sample)
	sample.End = s.now()
	if sample.First == 0 {
		sample.First = sample.End
	}
	sample.Status = uint16(x.status)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		x.outcome = result.Timeout
	case err != nil:
		x.outcome = result.Broken
	case x.status >= 300 && (x.fine == nil || !x.fine(x.status)):
		x.outcome = result.BadStatus
	case x.wrong:
		x.outcome = result.Wrong
	default:
		x.outcome = result.OK
	}
	sample.Outcome = x.outcome
	if err != nil {
		s.note(ctx, err)
	}
}

// follow sends the request. It follows redirects, and if credentials are required it
// sends the request again with them.
func (s *Sender) follow(ctx context.Context, t *target, x *exchange, sample *result.Sample) error {
	x.at = x.url
	auth, asked := t.auth.header(x.scope), false
	for hop := 0; ; {
		begin := s.now()
		if x.at.Host != t.base.Host || x.at.Scheme != t.base.Scheme {
			auth = "" // credentials are the registry's alone
		}
		resp, err := s.send(ctx, t, x, auth)
		if err != nil {
			return err
		}
		sample.First = s.now()
		x.status, x.answer = resp.StatusCode, resp.Header
		switch {
		case resp.StatusCode == http.StatusUnauthorized && !asked && x.at.Host == t.base.Host:
			asked = true
			idle(resp)
			if auth, err = t.auth.answer(ctx, resp.Header.Values("Www-Authenticate"), x.at, x.scope, auth); err != nil {
				return err
			}
			if auth == "" {
				return nil
			}
			continue
		case redirects(resp) && hop < maxRedirects:
			to, err := resp.Location()
			idle(resp)
			if err != nil {
				return err
			}
			hop++
			x.at = to
			sample.Redirects++
			sample.RedirectTime += s.now() - begin
			continue
		}
		return s.read(resp, x, sample)
	}
}

func redirects(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return resp.Header.Get("Location") != ""
	}
	return false
}

func idle(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxIdleBody) // what cannot be read costs the connection, no more
	_ = resp.Body.Close()
}

// clientKey is the context's key of the client, a hash, if targets are told of clients.
type clientKey struct{}

// address returns an address for a client. 10.0.0.0/8 has 16 million of them.
func address(client uint64) string {
	client ^= client >> 24
	return fmt.Sprintf("10.%d.%d.%d", byte(client>>16), byte(client>>8), byte(client))
}

func (s *Sender) send(ctx context.Context, t *target, x *exchange, auth string) (*http.Response, error) {
	var body io.Reader
	if x.body != nil && x.size > 0 {
		body = x.body()
	}
	req, err := http.NewRequestWithContext(ctx, x.method.String(), "", body)
	if err != nil {
		return nil, err
	}
	req.URL, req.Host = x.at, x.at.Host
	if x.header != nil {
		req.Header = x.header.Clone()
	}
	if x.body != nil {
		req.ContentLength = x.size
	}
	req.Header.Set("User-Agent", s.o.UserAgent)
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	if client, ok := ctx.Value(clientKey{}).(uint64); ok && x.at.Host == t.base.Host {
		req.Header.Set("X-Forwarded-For", address(client))
	}
	return t.transport.RoundTrip(req)
}

// read reads the answer's body.
func (s *Sender) read(resp *http.Response, x *exchange, sample *result.Sample) (err error) {
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	buf := s.bufs.Get().(*[]byte)
	defer s.bufs.Put(buf)
	check := x.check
	if resp.StatusCode >= 300 {
		check = nil
	}
	var n int64
	for {
		k, err := resp.Body.Read(*buf)
		n += int64(k)
		if check != nil && k > 0 {
			_, _ = check.Write((*buf)[:k]) // hashes and comparisons return no error
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if x.body == nil {
		sample.Bytes = n
	}
	x.wrong = check != nil && !check.right(resp.Header)
	return nil
}

// digestCheck checks content with a known digest.
type digestCheck struct {
	hash.Hash
	n, size int64
	want    [32]byte
}

func newDigestCheck(want [32]byte, size int64) *digestCheck {
	return &digestCheck{Hash: sha256.New(), want: want, size: size}
}

func (d *digestCheck) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	return d.Hash.Write(p)
}

func (d *digestCheck) right(http.Header) bool {
	return d.n == d.size && bytes.Equal(d.Sum(nil), d.want[:])
}

// headerCheck checks a manifest that was requested by its tag. The registry itself says
// its digest.
type headerCheck struct {
	hash.Hash
	want [32]byte // zero if any will do
}

func (h *headerCheck) right(header http.Header) bool {
	var sum [32]byte
	h.Sum(sum[:0])
	if h.want != ([32]byte{}) && sum != h.want {
		return false
	}
	said := header.Get("Docker-Content-Digest")
	return said == "" || said == digestName(sum)
}

// rangeCheck checks a part of a blob by making the part again.
type rangeCheck struct {
	r   *content.Reader
	n   int64
	bad bool
	buf []byte
	// whole checks the whole blob, because a registry may ignore a range.
	whole *digestCheck
	part  int64
}

func (c *rangeCheck) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	_, _ = c.whole.Write(p)
	for got := p; len(got) > 0 && !c.bad; {
		want := c.buf[:min(len(got), len(c.buf))]
		if _, err := io.ReadFull(c.r, want); err != nil || !bytes.Equal(want, got[:len(want)]) {
			c.bad = true
		}
		got = got[len(want):]
	}
	return len(p), nil
}

func (c *rangeCheck) right(h http.Header) bool {
	if h.Get("Content-Range") == "" {
		return c.whole.right(h)
	}
	return !c.bad && c.n == c.part
}

// lengthCheck is of a HEAD.
type lengthCheck struct{ size string }

func (lengthCheck) Write(p []byte) (int, error) { return len(p), nil }

func (c lengthCheck) right(h http.Header) bool {
	said := h.Get("Content-Length")
	return said == "" || said == c.size
}
