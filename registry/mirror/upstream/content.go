package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
)

// maxETag is the length, in bytes, up to which an ETag is kept.
const maxETag = 512

// manifest fetches a manifest from one endpoint.
func (e *endpoint) manifest(ctx context.Context, s subject, repo, ref, have string) (m *oci.Manifest, etag string, unchanged bool, err error) {
	a := e.ask(http.MethodGet, oci.Request{Kind: oci.KindManifest, Repo: repo, Ref: ref})
	a.header["Accept"] = []string{client.AcceptManifests}
	// An ETag means something only to the endpoint that made it.
	old, ours := strings.CutPrefix(have, e.name+" ")
	if ours {
		a.header["If-None-Match"] = []string{old}
	}
	resp, err := e.do(ctx, a)
	if err != nil {
		return nil, "", false, e.explain(ctx, s, err)
	}
	switch {
	case resp.StatusCode == http.StatusOK:
	case resp.StatusCode == http.StatusNotModified && ours:
		return nil, have, true, resp.Body.Close()
	default:
		return nil, "", false, e.answered(s, client.ReadError(resp, s.notFound))
	}
	if tag := resp.Header.Get("Etag"); tag != "" && len(tag) <= maxETag {
		etag = e.name + " " + tag
	}
	if m, err = client.ReadManifest(resp, ref); err != nil {
		err = e.explain(ctx, s, err)
		if KindOf(err) == Wrong {
			e.health.wrong(err)
		}
		return nil, "", false, err
	}
	return m, etag, false, nil
}

// resolveManifest asks one endpoint by HEAD, and by GET if HEAD gets no descriptor.
func (e *endpoint) resolveManifest(ctx context.Context, s subject, repo, ref string) (oci.Descriptor, error) {
	a := e.ask(http.MethodHead, oci.Request{Kind: oci.KindManifest, Repo: repo, Ref: ref})
	a.header["Accept"] = []string{client.AcceptManifests}
	resp, err := e.do(ctx, a)
	if err == nil {
		_ = resp.Body.Close()
		if desc, ok := client.DescribeManifest(resp, ref); ok {
			return desc, nil
		}
	} else if !ofHeadAlone(err) {
		return oci.Descriptor{}, e.explain(ctx, s, err)
	}
	m, _, _, err := e.manifest(ctx, s, repo, ref, "")
	if err != nil {
		return oci.Descriptor{}, err
	}
	return m.Descriptor, nil
}

// resolveBlob asks one endpoint by HEAD. If the answer has no size, it sends a GET and
// does not read the body. The size is -1 if neither answer has it.
func (e *endpoint) resolveBlob(ctx context.Context, s subject, repo string, d oci.Digest) (int64, error) {
	resp, err := e.do(ctx, e.ask(http.MethodHead, oci.Request{Kind: oci.KindBlob, Repo: repo, Ref: string(d)}))
	if err == nil {
		_ = resp.Body.Close()
		told := oci.Digest(resp.Header.Get("Docker-Content-Digest"))
		if n := sizeOf(d, resp); n >= 0 && resp.StatusCode == http.StatusOK && !another(told, d) {
			return n, nil
		}
	} else if !ofHeadAlone(err) {
		return 0, e.explain(ctx, s, err)
	}
	b, err := e.blob(ctx, s, repo, d, 0)
	if err != nil {
		return 0, err
	}
	e.health.good()
	_ = b.Close() // what is left of it does not matter
	return b.told, nil
}

// ofHeadAlone reports whether GET may succeed after HEAD got this error. It may if a
// connection was made and the endpoint neither asked for fewer requests nor was silent.
func ofHeadAlone(err error) bool {
	var e *Error
	var op *net.OpError
	var cert *tls.CertificateVerificationError
	switch {
	case !errors.As(err, &e) || e.Kind != Unavailable || e.slow || e.RetryAfter > 0:
		return false
	case errors.As(err, &op) && op.Op != "read" && op.Op != "write", errors.As(err, &cert):
		return false
	}
	return true
}

// sizeOf returns the size of a blob from an answer. It returns -1 if the answer has no
// size, the size of a compressed body, or an implausible 0.
func sizeOf(d oci.Digest, resp *http.Response) int64 {
	if c := resp.Header.Get("Content-Encoding"); c != "" && c != "identity" {
		return -1
	}
	if resp.ContentLength == 0 && d.Algorithm().FromBytes(nil) != d {
		return -1
	}
	return resp.ContentLength
}

// another reports whether an endpoint reported a digest that contradicts d.
func another(told, d oci.Digest) bool {
	return oci.ValidDigest(told) && told.Algorithm() == d.Algorithm() && told != d
}

// Body is a blob, or the rest of one, as it comes from an upstream. It must be closed.
// Errors of Read are of kind [Unavailable], except io.EOF and errors of the context. The
// bytes read before are good, and reading can continue from there.
type Body struct {
	io.ReadCloser
	// Size is the size of the whole blob in bytes, or -1 if the upstream does not say.
	Size int64
	// Off is where in the blob the body begins: at the requested offset, or at 0 if the
	// endpoint cannot begin elsewhere.
	Off int64

	e    *endpoint
	what subject
	told int64 // Size, if that can be relied on, or -1
}

// Blame says that the bytes were not those of the blob. For a while the endpoint is tried
// after the others.
func (b *Body) Blame(err error) {
	if b.e != nil {
		b.e.health.wrong(fmt.Errorf("%s: %w", b.what, err))
	}
}

// Blob opens a blob at byte off. It tries each endpoint once. If the body breaks, another
// call continues it. Besides the upstream's errors it returns RANGE_INVALID, of kind
// [Wrong], if the blob has no byte off.
func (u *Upstream) Blob(ctx context.Context, repo string, d oci.Digest, off int64) (b *Body, err error) {
	s, err := blobOf(repo, d)
	if err != nil {
		return nil, err
	}
	if off < 0 {
		return nil, oci.Errorf(oci.CodeRangeInvalid, "a range cannot begin at %d", off)
	}
	err = u.round(ctx, ofBlobs, func(e *endpoint) (err error) {
		b, err = e.blob(ctx, s, repo, d, off)
		return err
	})
	return b, err
}

// blob opens a blob at one endpoint.
func (e *endpoint) blob(ctx context.Context, s subject, repo string, d oci.Digest, off int64) (*Body, error) {
	a := e.ask(http.MethodGet, oci.Request{Kind: oci.KindBlob, Repo: repo, Ref: string(d)})
	if off > 0 {
		a.header["Range"] = []string{wire.Range(off, -1)}
	}
	resp, err := e.do(ctx, a)
	if err != nil {
		return nil, e.explain(ctx, s, err)
	}
	b := &Body{ReadCloser: named{resp.Body, e, ctx, s}, Size: -1, e: e, what: s, told: sizeOf(d, resp)}
	switch resp.StatusCode {
	case http.StatusOK:
		b.Size = resp.ContentLength
	case http.StatusPartialContent:
		first, last, total, ok := wire.ParseContentRange(resp.Header.Get("Content-Range"))
		if !ok || first != off || total >= 0 && last != total-1 || off == 0 ||
			resp.ContentLength >= 0 && resp.ContentLength != last-first+1 {
			err = fmt.Errorf("it answered with the range %q, of %d bytes, and was asked for all from %d on",
				resp.Header.Get("Content-Range"), resp.ContentLength, off)
		}
		b.Off, b.Size = first, total
	default:
		return nil, e.answered(s, client.ReadError(resp, s.notFound))
	}
	// The encoding may belong to the blob as it was stored. The digest will tell.
	if told := oci.Digest(resp.Header.Get("Docker-Content-Digest")); err == nil && another(told, d) {
		err = fmt.Errorf("it answered with %s", told)
	}
	if err != nil {
		e.health.wrong(err)
		return nil, errors.Join(e.error(Wrong, resp.StatusCode, s, err), resp.Body.Close())
	}
	return b, nil
}

// named is a body whose errors name the blob.
type named struct {
	io.ReadCloser
	e   *endpoint
	ctx context.Context // of the caller, spans the body's life
	s   subject
}

// Read implements io.Reader.
func (n named) Read(p []byte) (int, error) {
	got, err := n.ReadCloser.Read(p)
	if err != nil && err != io.EOF && KindOf(err) != 0 {
		err = n.e.explain(n.ctx, n.s, err)
	}
	return got, err
}
