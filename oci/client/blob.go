package client

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
)

// ResolveBlob implements [oci.Reader] with HEAD. If the registry has no HEAD or gives no
// size, it uses a GET and does not read the body.
func (c *Client) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	if err := checkBlob(repo, d); err != nil {
		return oci.Descriptor{}, err
	}
	return c.resolve(ctx, c.blobCall(http.MethodHead, repo, d), d)
}

// resolve asks for the size of the content d with the call l.
func (c *Client) resolve(ctx context.Context, l call, d oci.Digest) (oci.Descriptor, error) {
	l.accept = []int{http.StatusMethodNotAllowed}
	for _, l.method = range []string{http.MethodHead, http.MethodGet} {
		resp, err := c.do(ctx, l)
		if err != nil {
			return oci.Descriptor{}, err
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK && resp.ContentLength >= 0 {
			return blobDescriptor(d, resp.ContentLength), nil
		}
	}
	return oci.Descriptor{}, fmt.Errorf("GET %s: the registry does not say the blob's size", bare(l.url))
}

// GetBlob implements [oci.Reader].
func (c *Client) GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error) {
	return c.GetBlobRange(ctx, repo, d, 0, -1)
}

// GetBlobRange implements [oci.Reader]. If the range is the whole blob, the content is
// checked against the digest. A part of a blob cannot be checked.
func (c *Client) GetBlobRange(ctx context.Context, repo string, d oci.Digest, off, n int64) (oci.Content, error) {
	if err := checkBlob(repo, d); err != nil {
		return nil, err
	}
	return c.openRange(ctx, repo, d, off, n, func(method string) call { return c.blobCall(method, repo, d) })
}

// openRange opens a part of the content d. The function get makes the calls for it.
func (c *Client) openRange(ctx context.Context, repo string, d oci.Digest, off, n int64, get func(method string) call) (oci.Content, error) {
	if off < 0 {
		return nil, oci.Errorf(oci.CodeRangeInvalid, "a range cannot begin at %d", off)
	}
	r := &blobReader{c: c, ctx: ctx, repo: repo, get: get, pos: off, end: -1, tries: c.tries - 1}
	r.desc.Digest = d
	if n >= 0 {
		r.end = off + n
		if r.end < off { // off + n overflows int64
			r.end = -1
		}
	}
	if n == 0 { // HTTP has no empty ranges
		desc, err := c.resolve(ctx, get(http.MethodHead), d)
		if err != nil {
			return nil, err
		}
		if off >= desc.Size {
			return nil, oci.Errorf(oci.CodeRangeInvalid, "the range begins at %d of %d bytes", off, desc.Size)
		}
		r.desc = desc
		return r, nil
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	if err := r.verify(); err != nil {
		return nil, err
	}
	return r, nil
}

// verify arranges that content is checked if it is read from its beginning to its end.
func (r *blobReader) verify() error {
	if r.pos != 0 || r.end != r.desc.Size {
		return nil
	}
	r.sum = r.desc.Digest.Algorithm().Hash()
	if r.end > 0 {
		return nil
	}
	if err := r.check(); err != nil { // empty content has no last byte at which to check
		_ = r.Close()
		return err
	}
	return nil
}

func checkBlob(repo string, d oci.Digest) error {
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	return oci.CheckDigest(d)
}

func blobDescriptor(d oci.Digest, size int64) oci.Descriptor {
	return oci.Descriptor{MediaType: oci.MediaTypeOctetStream, Digest: d, Size: size}
}

func (c *Client) blobCall(method, repo string, d oci.Digest) call {
	return call{
		method:   method,
		url:      c.url(oci.Request{Kind: oci.KindBlob, Repo: repo, Ref: string(d)}, nil),
		scopes:   pull(repo),
		retry:    retryAll,
		notFound: oci.CodeBlobUnknown,
	}
}

// resumeProgress is how many bytes a connection must deliver to reset the count of tries.
// Without that minimum, a registry that delivers one byte per connection would be tried
// for ever.
const resumeProgress = 1 << 20

// blobReader is an open blob. It reads from one connection after the other.
type blobReader struct {
	c    *Client
	ctx  context.Context // for the handle's life, as in oci.Reader
	repo string
	get  func(method string) call // makes a call for the content
	desc oci.Descriptor

	body   io.ReadCloser // nil if there is no connection
	pos    int64         // offset in the blob of the next byte
	end    int64         // offset after the last byte to read; -1 until it is known
	sum    hash.Hash     // hash of a whole blob; nil for a part
	fresh  int64         // bytes since the last resume
	tries  int           // resumes left
	failed error         // the error that all further reads return
}

// Descriptor implements [oci.Content].
func (r *blobReader) Descriptor() oci.Descriptor { return r.desc }

// Close implements [oci.Content].
func (r *blobReader) Close() error {
	if r.failed == nil {
		r.failed = errors.New("read of a closed blob")
	}
	if r.body == nil {
		return nil
	}
	err := r.body.Close()
	r.body = nil
	return err
}

// Read implements [oci.Content].
func (r *blobReader) Read(p []byte) (int, error) {
	if r.failed != nil {
		return 0, r.failed
	}
	if r.pos == r.end || r.end < 0 {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	if left := r.end - r.pos; int64(len(p)) > left {
		p = p[:left]
	}
	for {
		n, err := r.body.Read(p)
		if n > 0 {
			return r.took(p[:n])
		}
		if err == nil {
			continue
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if r.failed = r.resume(err); r.failed != nil {
			return 0, r.failed
		}
	}
}

// took accounts for bytes that were read. If a blob does not match its digest, its last
// bytes are withheld, so that a reader who knows the size and stops there notices, too.
func (r *blobReader) took(p []byte) (int, error) {
	r.pos += int64(len(p))
	r.fresh += int64(len(p))
	if r.sum == nil {
		return len(p), nil
	}
	_, _ = r.sum.Write(p) // a hash does not fail
	if r.pos == r.end {
		if r.failed = r.check(); r.failed != nil {
			return 0, r.failed
		}
	}
	return len(p), nil
}

// check compares the content with its digest.
func (r *blobReader) check() error {
	got := fmt.Sprintf("%s:%x", r.desc.Digest.Algorithm(), r.sum.Sum(nil))
	if got == string(r.desc.Digest) {
		return nil
	}
	return oci.Errorf(oci.CodeDigestInvalid, "blob %s of %s: the registry delivered %d bytes with digest %s", r.desc.Digest, r.repo, r.pos, got)
}

// resume replaces a broken connection by a new one, within the limits on tries.
func (r *blobReader) resume(broken error) error {
	_ = r.body.Close()
	r.body = nil
	pauses := r.c.pauses()
	if r.fresh >= resumeProgress {
		r.tries = r.c.tries - 1
	}
	for {
		if err := r.ctx.Err(); err != nil {
			return r.fail(err)
		}
		if r.tries <= 0 {
			return r.fail(broken)
		}
		r.tries--
		pause := pauses.NextBackOff()
		r.c.log.WarnContext(r.ctx, "broken blob download is continued", "repo", r.repo, "digest", r.desc.Digest, "off", r.pos, "pause", pause, "err", Redact(broken))
		if err := sleep(r.ctx, pause); err != nil {
			return r.fail(err)
		}
		r.fresh = 0
		err := r.open()
		if err == nil {
			return nil
		}
		var answered *oci.Error
		if errors.As(err, &answered) || errors.Is(err, errRange) {
			return r.fail(err) // do has already repeated the request if that was useful
		}
		broken = err
	}
}

func (r *blobReader) fail(err error) error {
	return fmt.Errorf("read blob %s of %s at byte %d: %w", r.desc.Digest, r.repo, r.pos, Redact(err))
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errRange means that an answer is not the requested part of the blob.
var errRange = errors.New("the registry sends another part of the blob than was requested")

// open opens a connection whose next byte is at r.pos. The first call finds out the
// blob's size and r.end. Later answers must agree with them.
func (r *blobReader) open() error {
	l := r.get(http.MethodGet)
	if r.pos > 0 || r.end >= 0 {
		rng := "bytes=" + strconv.FormatInt(r.pos, 10) + "-"
		if r.end >= 0 {
			rng += strconv.FormatInt(r.end-1, 10)
		}
		l.header = http.Header{"Range": {rng}}
	}
	resp, err := r.c.do(r.ctx, l)
	if err != nil {
		return err
	}
	return r.begin(resp)
}

// begin uses an answer as the new connection, or closes it.
func (r *blobReader) begin(resp *http.Response) error {
	if err := r.accept(resp); err != nil {
		_ = resp.Body.Close()
		return err
	}
	r.body = resp.Body
	return nil
}

// accept checks which part of the blob an answer has, and the size of the blob.
func (r *blobReader) accept(resp *http.Response) error {
	var begin, total int64
	switch resp.StatusCode {
	case http.StatusOK: // the registry ignores ranges, or the whole blob was requested
		total = resp.ContentLength
	case http.StatusPartialContent:
		var last int64
		var ok bool
		begin, last, total, ok = wire.ParseContentRange(resp.Header.Get("Content-Range"))
		if !ok || begin != r.pos || r.end >= 0 && last >= r.end {
			return fmt.Errorf("%w: %q at %d", errRange, resp.Header.Get("Content-Range"), r.pos)
		}
	default:
		return fmt.Errorf("GET %s: unexpected status %d", bare(resp.Request.URL), resp.StatusCode)
	}
	if err := r.setSize(total); err != nil {
		return err
	}
	if begin < r.pos {
		if _, err := io.CopyN(io.Discard, resp.Body, r.pos-begin); err != nil {
			return fmt.Errorf("skip to byte %d: %w", r.pos, err)
		}
	}
	return nil
}

// setSize notes the blob's size, or compares it with the size that is known.
func (r *blobReader) setSize(total int64) error {
	if r.desc.MediaType != "" { // known
		if total >= 0 && total != r.desc.Size {
			return fmt.Errorf("%w: its size was %d bytes and is now %d", errRange, r.desc.Size, total)
		}
		return nil
	}
	if total < 0 {
		desc, err := r.c.resolve(r.ctx, r.get(http.MethodHead), r.desc.Digest)
		if err != nil {
			return err
		}
		total = desc.Size
	}
	if (r.pos > 0 || r.end >= 0) && r.pos >= total {
		return oci.Errorf(oci.CodeRangeInvalid, "the range begins at %d of %d bytes", r.pos, total)
	}
	r.desc = blobDescriptor(r.desc.Digest, total)
	if r.end < 0 || r.end > total {
		r.end = total
	}
	return nil
}

// WriteTo implements [oci.Content].
func (r *blobReader) WriteTo(w io.Writer) (int64, error) {
	buf := r.c.bufs.Get().(*[]byte)
	defer r.c.bufs.Put(buf)
	var total int64
	for {
		n, err := r.Read(*buf)
		if n > 0 {
			m, werr := w.Write((*buf)[:n])
			total += int64(m)
			if werr != nil {
				return total, werr
			}
			if m < n {
				return total, io.ErrShortWrite
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
