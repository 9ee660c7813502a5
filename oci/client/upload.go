package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/oci"
)

// PushBlob implements [oci.Writer] with a POST and one PUT of the whole content. If that
// fails, the upload is cancelled.
func (c *Client) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	if err := checkBlob(repo, d); err != nil {
		return oci.Descriptor{}, err
	}
	b, err := newBody(r, size)
	if err != nil {
		return oci.Descriptor{}, err
	}
	up, _, err := c.start(ctx, repo)
	if err != nil {
		return oci.Descriptor{}, err
	}
	if err := c.commit(ctx, repo, up.location, d, b, nil); err != nil {
		c.abandon(ctx, repo, up.location)
		return oci.Descriptor{}, err
	}
	return blobDescriptor(d, b.count()), nil
}

// MountBlob implements [oci.Writer]. A registry that does not mount the blob opens an
// upload instead, which is cancelled.
func (c *Client) MountBlob(ctx context.Context, to, from string, d oci.Digest) (oci.Descriptor, error) {
	if err := checkBlob(to, d); err != nil {
		return oci.Descriptor{}, err
	}
	if err := oci.CheckName(from); err != nil {
		return oci.Descriptor{}, err
	}
	l := c.startCall(to, url.Values{"mount": {string(d)}, "from": {from}})
	l.scopes = append(l.scopes, pull(from)...)
	l.notFound = oci.CodeBlobUnknown
	resp, err := c.do(ctx, l)
	if err != nil {
		return oci.Descriptor{}, err
	}
	finish(resp)
	if resp.StatusCode == http.StatusCreated {
		return c.ResolveBlob(ctx, to, d) // for the blob's size, which the answer lacks
	}
	if loc, err := c.location(l.url, resp.Header.Get("Location")); err == nil {
		c.abandon(ctx, to, loc)
	}
	return oci.Descriptor{}, oci.Errorf(oci.CodeBlobUnknown, "the registry did not mount %s of %s in %s", d, from, to)
}

// StartUpload implements [oci.Writer].
func (c *Client) StartUpload(ctx context.Context, repo string) (oci.UploadStatus, error) {
	if err := oci.CheckName(repo); err != nil {
		return oci.UploadStatus{}, err
	}
	up, resp, err := c.start(ctx, repo)
	if err != nil {
		return oci.UploadStatus{}, err
	}
	id := lastSegment(up.location)
	if id == "" {
		return oci.UploadStatus{}, fmt.Errorf("POST %s: the Location names no upload", bare(resp.Request.URL))
	}
	c.upload.put(repo, id, up)
	return oci.UploadStatus{ID: id, MinChunk: up.minChunk}, nil
}

func (c *Client) startCall(repo string, q url.Values) call {
	return call{
		method:   http.MethodPost,
		url:      c.url(oci.Request{Kind: oci.KindUploads, Repo: repo}, q),
		scopes:   push(repo),
		notFound: oci.CodeNameUnknown,
	}
}

// start opens an upload.
func (c *Client) start(ctx context.Context, repo string) (upload, *http.Response, error) {
	l := c.startCall(repo, nil)
	resp, err := c.do(ctx, l)
	if err != nil {
		return upload{}, nil, err
	}
	finish(resp)
	loc, err := c.location(l.url, resp.Header.Get("Location"))
	if err != nil {
		return upload{}, nil, fmt.Errorf("POST %s: %w", bare(l.url), err)
	}
	return upload{location: loc, minChunk: minChunk(resp.Header)}, resp, nil
}

// minChunk returns the value of OCI-Chunk-Min-Length (SPEC), or 0.
func minChunk(h http.Header) int64 {
	n, err := strconv.ParseUint(h.Get("OCI-Chunk-Min-Length"), 10, 63)
	if err != nil {
		return 0
	}
	return int64(n)
}

// UploadStatus implements [oci.Writer].
func (c *Client) UploadStatus(ctx context.Context, repo, id string) (oci.UploadStatus, error) {
	up, err := c.find(repo, id)
	if err != nil {
		return oci.UploadStatus{}, err
	}
	return c.status(ctx, repo, id, up)
}

// find returns an upload that this client has begun. For any other id it returns the URL
// that the upload has if the registry builds upload URLs as in the specification's
// examples.
func (c *Client) find(repo, id string) (upload, error) {
	if err := oci.CheckName(repo); err != nil {
		return upload{}, err
	}
	if up, ok := c.upload.get(repo, id); ok {
		return up, nil
	}
	if id == "" || strings.ContainsAny(id, "/?#%") || strings.Trim(id, ".") == "" {
		return upload{}, oci.Errorf(oci.CodeBlobUploadUnknown, "%q is not an upload's id", id)
	}
	return upload{location: c.url(oci.Request{Kind: oci.KindUpload, Repo: repo, Ref: id}, nil), size: sizeUnknown}, nil
}

func (c *Client) uploadCall(method, repo string, loc *url.URL) call {
	return call{method: method, url: loc, scopes: push(repo), notFound: oci.CodeBlobUploadUnknown}
}

func (c *Client) status(ctx context.Context, repo, id string, up upload) (oci.UploadStatus, error) {
	l := c.uploadCall(http.MethodGet, repo, up.location)
	l.retry = retryAll
	resp, err := c.do(ctx, l)
	if err != nil {
		c.forgetUnknown(repo, id, err)
		return oci.UploadStatus{}, err
	}
	finish(resp)
	size, ok := parseUploadRange(resp.Header.Get("Range"))
	switch {
	case !ok: // "0--1", or nothing
		size = 0
	case size == 1:
		// Registries answer "0-0" both for no byte and for one byte. After a chunk has
		// failed, no byte is by far more likely.
		size = min(max(0, up.size), 1)
	}
	up.size = size
	return c.note(repo, id, up, l.url, resp.Header), nil
}

// note remembers the location and the progress of an upload.
func (c *Client) note(repo, id string, up upload, from *url.URL, h http.Header) oci.UploadStatus {
	if loc, err := c.location(from, h.Get("Location")); err == nil {
		up.location = loc // each answer may move the upload
	}
	if m := minChunk(h); m > 0 {
		up.minChunk = m
	}
	c.upload.put(repo, id, up)
	return oci.UploadStatus{ID: id, Size: max(0, up.size), MinChunk: up.minChunk}
}

func (c *Client) forgetUnknown(repo, id string, err error) {
	if oci.HasCode(err, oci.CodeBlobUploadUnknown) {
		c.upload.drop(repo, id)
	}
}

// parseUploadRange parses the Range header of an upload, "0-<last byte>", and returns how
// many bytes there are. For "0-0" it returns 1, although that may also mean 0.
func parseUploadRange(s string) (int64, bool) {
	s = strings.TrimPrefix(s, "bytes=")
	from, to, ok := strings.Cut(s, "-")
	if !ok || from != "0" {
		return 0, false
	}
	last, err := strconv.ParseUint(to, 10, 62)
	if err != nil {
		return 0, false
	}
	return int64(last) + 1, true
}

// AppendUpload implements [oci.Writer] by PATCH.
func (c *Client) AppendUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader) (oci.UploadStatus, error) {
	up, err := c.find(repo, id)
	if err != nil {
		return oci.UploadStatus{}, err
	}
	b, err := newBody(r, size)
	if err != nil {
		return oci.UploadStatus{}, err
	}
	if up, err = c.at(ctx, repo, id, up, off); err != nil {
		return oci.UploadStatus{}, err
	}
	if size == 0 { // HTTP has no empty Content-Range
		return c.status(ctx, repo, id, up)
	}
	l := c.uploadCall(http.MethodPatch, repo, up.location)
	l.body, l.header = b, chunkHeader(off, size)
	resp, err := c.do(ctx, l)
	if err != nil {
		c.lost(repo, id, up, err)
		return oci.UploadStatus{}, err
	}
	finish(resp)
	got, ok := parseUploadRange(resp.Header.Get("Range"))
	switch {
	case up.size != sizeUnknown && (!ok || got == 1):
		up.size += b.count()
	case ok:
		up.size = got
	default:
		up.size = sizeUnknown
	}
	st := c.note(repo, id, up, l.url, resp.Header)
	if up.size == sizeUnknown {
		return c.UploadStatus(ctx, repo, id)
	}
	return st, nil
}

// at makes sure that the next byte of an upload is at off. Some registries ignore
// Content-Range and would append a chunk at the wrong place.
func (c *Client) at(ctx context.Context, repo, id string, up upload, off int64) (upload, error) {
	if off == oci.AtEnd || off == up.size {
		return up, nil
	}
	st, err := c.status(ctx, repo, id, up)
	if err != nil {
		return upload{}, err
	}
	if st.Size != off {
		return upload{}, oci.Errorf(oci.CodeRangeInvalid, "the upload stands at %d, not at %d", st.Size, off)
	}
	return c.find(repo, id)
}

// lost forgets how many bytes an upload has, because a part of the chunk may have
// arrived.
func (c *Client) lost(repo, id string, up upload, err error) {
	c.forgetUnknown(repo, id, err)
	if !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
		up.size = sizeUnknown
		c.upload.put(repo, id, up)
	}
}

func chunkHeader(off, size int64) http.Header {
	h := http.Header{"Content-Type": {oci.MediaTypeOctetStream}}
	if off >= 0 && size > 0 {
		// SPEC end-5: Content-Range: <start>-<end>, without a unit.
		h.Set("Content-Range", fmt.Sprintf("%d-%d", off, off+size-1))
	}
	return h
}

// CommitUpload implements [oci.Writer] by PUT.
func (c *Client) CommitUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader, d oci.Digest) (oci.Descriptor, error) {
	if err := checkBlob(repo, d); err != nil {
		return oci.Descriptor{}, err
	}
	up, err := c.find(repo, id)
	if err != nil {
		return oci.Descriptor{}, err
	}
	b, err := newBody(r, size)
	if err != nil {
		return oci.Descriptor{}, err
	}
	if up, err = c.at(ctx, repo, id, up, off); err != nil {
		return oci.Descriptor{}, err
	}
	if err := c.commit(ctx, repo, up.location, d, b, chunkHeader(off, size)); err != nil {
		if oci.HasCode(err, oci.CodeDigestInvalid) {
			c.upload.drop(repo, id)
		} else {
			c.lost(repo, id, up, err)
		}
		return oci.Descriptor{}, err
	}
	c.upload.drop(repo, id)
	if up.size == sizeUnknown {
		return c.ResolveBlob(ctx, repo, d)
	}
	return blobDescriptor(d, up.size+b.count()), nil
}

// commit sends the last bytes of an upload and makes it the blob d.
func (c *Client) commit(ctx context.Context, repo string, loc *url.URL, d oci.Digest, b *body, h http.Header) error {
	u := *loc
	// The registry's query stays byte for byte as it is, because it may be signed.
	if u.RawQuery != "" {
		u.RawQuery += "&"
	}
	u.RawQuery += "digest=" + url.QueryEscape(string(d))
	if h == nil {
		h = http.Header{"Content-Type": {oci.MediaTypeOctetStream}}
	}
	l := c.uploadCall(http.MethodPut, repo, &u)
	l.body, l.header = b, h
	resp, err := c.do(ctx, l)
	if err != nil {
		return err
	}
	finish(resp)
	if got := oci.Digest(resp.Header.Get("Docker-Content-Digest")); oci.ValidDigest(got) && got.Algorithm() == d.Algorithm() && got != d {
		return oci.Errorf(oci.CodeDigestInvalid, "the registry stored %s as %s", d, got)
	}
	return nil
}

// CancelUpload implements [oci.Writer].
func (c *Client) CancelUpload(ctx context.Context, repo, id string) error {
	up, err := c.find(repo, id)
	if err != nil {
		return err
	}
	l := c.uploadCall(http.MethodDelete, repo, up.location)
	l.retry = retryStatus
	resp, err := c.do(ctx, l)
	if err != nil {
		c.forgetUnknown(repo, id, err)
		return err
	}
	finish(resp)
	c.upload.drop(repo, id)
	return nil
}

// abandonTimeout bounds the cancelling of an upload that failed.
const abandonTimeout = 10 * time.Second

// abandon cancels an upload that nobody will continue. It reports no error, because
// registries remove abandoned uploads anyway.
func (c *Client) abandon(ctx context.Context, repo string, loc *url.URL) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	resp, _, err := c.once(ctx, c.uploadCall(http.MethodDelete, repo, loc))
	if err != nil {
		var answered *oci.Error
		if !errors.As(err, &answered) {
			c.log.DebugContext(ctx, "upload is not cancelled", "repo", repo, "err", err)
		}
		return
	}
	finish(resp)
}

// lastSegment returns the last segment of a Location, which is the registry's id of the
// upload.
func lastSegment(u *url.URL) string {
	p := strings.TrimRight(u.Path, "/")
	return p[strings.LastIndexByte(p, '/')+1:]
}
