package client

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
)

// Media types of the Gear extension.
const (
	// MediaTypeGearIndex is the media type of the index of a layer.
	MediaTypeGearIndex = "application/vnd.slipway.gear.index.v1"
	// MediaTypeGearStream is the media type of a framed stream of files.
	MediaTypeGearStream = "application/vnd.slipway.gear.stream.v1"
	// MediaTypeGearChunks is the media type of some chunks of a large file.
	MediaTypeGearChunks = "application/vnd.slipway.gear.chunks.v1"
)

// GearInfo says what a registry supports of the Gear extension.
type GearInfo struct {
	Version int `json:"version"`
	// Index, Stream and Chunks are the media types that the registry supports.
	Index  []string   `json:"index"`
	Stream []string   `json:"stream"`
	Chunks []string   `json:"chunks"`
	Limits GearLimits `json:"limits"`
}

// GearLimits are the limits of one request.
type GearLimits struct {
	// Names bounds the names in a list, and ProfileNames bounds the names in a profile.
	Names        int `json:"names"`
	ProfileNames int `json:"profile_names"`
	// FileBytes bounds the size of a file, and UploadBytes bounds the size of a stream of
	// files that is uploaded.
	FileBytes   int64 `json:"file_bytes"`
	UploadBytes int64 `json:"upload_bytes"`
}

// GearPendingError says that a layer has no index, and whether there will be one. It
// wraps the registry's BLOB_UNKNOWN.
type GearPendingError struct {
	// RetryAfter is how long to wait before asking again. It is 0 if the conversion has
	// failed.
	RetryAfter time.Duration
	// Reason says why the conversion failed, if the registry says it.
	Reason string
	// Err is the error of the answer.
	Err error
}

// Error implements error.
func (e *GearPendingError) Error() string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("%v (ask again in %v)", e.Err, e.RetryAfter)
	}
	return fmt.Sprintf("%v: %s", e.Err, e.Reason)
}

// Unwrap returns the error of the answer.
func (e *GearPendingError) Unwrap() error { return e.Err }

// GearInfo asks the registry what it supports of the extension. The error is UNSUPPORTED
// if it supports nothing.
func (c *Client) GearInfo(ctx context.Context) (*GearInfo, error) {
	l := call{method: http.MethodGet, url: c.url(oci.Request{Kind: oci.KindExtension, Ref: gearPath}, nil), retry: retryAll, notFound: oci.CodeUnsupported}
	var info GearInfo
	if _, err := c.getJSON(ctx, l, maxErrorBody, &info); err != nil {
		return nil, err
	}
	return &info, nil
}

// GearLayer is a registry's answer about the index of a layer.
type GearLayer struct {
	// Name is the SHA-256 of the index.
	Name [32]byte
	// DiffID is the SHA-256 of the uncompressed layer, or zero if it is not known.
	DiffID [32]byte
}

// GearLayer opens the index of a layer. The index is checked against its name, as a blob
// is checked against its digest. ctx spans the handle's life. Errors: *GearPendingError,
// BLOB_UNKNOWN.
func (c *Client) GearLayer(ctx context.Context, repo string, layer oci.Digest) (oci.Content, GearLayer, error) {
	var l GearLayer
	if err := checkBlob(repo, layer); err != nil {
		return nil, l, err
	}
	get := func(method string) call { return c.gearCall(method, repo, "layers/"+string(layer)) }
	ask := get(http.MethodGet)
	ask.accept = []int{http.StatusNotFound}
	resp, err := c.do(ctx, ask)
	if err != nil {
		return nil, l, err
	}
	if resp.StatusCode == http.StatusNotFound {
		return nil, l, pendingError(resp.Header, answerError(ask, resp))
	}
	s := resp.Header.Get("Slipway-Gear-Name")
	l.Name, err = parseGearName(s)
	if id := resp.Header.Get("Slipway-Gear-Diff-Id"); err == nil && id != "" {
		l.DiffID, err = parseGearName(id)
	}
	if err != nil {
		_ = resp.Body.Close()
		return nil, l, fmt.Errorf("GET %s: the answer does not name its content: %w", bare(ask.url), err)
	}
	r := &blobReader{c: c, ctx: ctx, repo: repo, get: get, end: -1, tries: c.tries - 1}
	r.desc.Digest = oci.Digest(s)
	if err := r.begin(resp); err != nil {
		return nil, l, err
	}
	r.desc.MediaType = MediaTypeGearIndex
	if err := r.verify(); err != nil {
		return nil, l, err
	}
	return r, l, nil
}

// pendingError returns a GearPendingError if err, the 404 for a layer's index, says
// whether there will be an index. Otherwise it returns err.
func pendingError(h http.Header, err error) error {
	var e *oci.Error
	if !errors.As(err, &e) {
		return err
	}
	var detail struct{ State, Reason string }
	if raw, ok := e.Detail.(json.RawMessage); ok {
		_ = json.Unmarshal(raw, &detail) // detail stays empty if another registry sends something else
	}
	after := wire.RetryAfter(h.Get("Retry-After"), time.Now())
	if after == 0 && detail.State != "failed" {
		return err
	}
	return &GearPendingError{RetryAfter: after, Reason: detail.Reason, Err: err}
}

// GearFile opens n bytes of a file from the offset off on. If n < 0 it opens the file up
// to its end. The content is continued and checked as in [Client.GetBlobRange]. Errors:
// BLOB_UNKNOWN, RANGE_INVALID.
func (c *Client) GearFile(ctx context.Context, repo string, name [32]byte, off, n int64) (oci.Content, error) {
	if err := oci.CheckName(repo); err != nil {
		return nil, err
	}
	d := gearDigest(name)
	return c.openRange(ctx, repo, d, off, n, func(method string) call { return c.gearCall(method, repo, "files/"+string(d)) })
}

// GearChunks opens n chunks of a large file, beginning with the chunk first, as they are
// stored. Package gear decodes and checks them. It may only be called if the registry's
// GearInfo has MediaTypeGearChunks. If the connection breaks off, reading ends with an
// error that is not io.EOF. ctx spans the stream's life. Errors: BLOB_UNKNOWN,
// RANGE_INVALID.
func (c *Client) GearChunks(ctx context.Context, repo string, name [32]byte, first, n int) (io.ReadCloser, error) {
	if err := oci.CheckName(repo); err != nil {
		return nil, err
	}
	l := c.gearCall(http.MethodGet, repo, fmt.Sprintf("files/%s/chunks/%d-%d", gearDigest(name), first, first+n-1))
	l.stalls = true
	resp, err := c.do(ctx, l)
	return bodyOf(resp, err, MediaTypeGearChunks, "chunks")
}

// GearFetch opens the framed stream of files, in the order of names. Package gear decodes
// and checks it. If the connection breaks off, reading ends with an error that is not
// io.EOF. ctx spans the stream's life. Errors: SIZE_INVALID for more names than GearInfo
// allows.
func (c *Client) GearFetch(ctx context.Context, repo string, names [][32]byte) (io.ReadCloser, error) {
	resp, err := c.postList(ctx, repo, "fetch", "application/octet-stream", binaryNames(names), false)
	return bodyOf(resp, err, MediaTypeGearStream, "stream of files")
}

// GearPack is like [Client.GearFetch], for the first small files of an image's profile. The
// error is MANIFEST_UNKNOWN if there is no profile.
func GearPack(ctx context.Context, c *Client, repo string, manifest oci.Digest) (io.ReadCloser, error) {
	resp, err := c.postList(ctx, repo, "fetch", "application/json", fmt.Appendf(nil, `{"profile":%q}`, manifest), false)
	return bodyOf(resp, err, MediaTypeGearStream, "stream of files")
}

// bodyOf returns the body of an answer that must have a media type.
func bodyOf(resp *http.Response, err error, mediaType, what string) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	if got := resp.Header.Get("Content-Type"); got != mediaType {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s %s: the answer is %q and no %s", resp.Request.Method, bare(resp.Request.URL), got, what)
	}
	return resp.Body, nil
}

// GearProfile lists the files that a container of an image opens first, in that order.
type GearProfile struct {
	Names [][32]byte
	// Origins has one letter for each name. The letter says why the file is expected, as
	// described in docs/formats/gear-api.md. If Origins is empty, containers of this
	// image opened all the files.
	Origins string
	// Donor is the manifest that names were inherited from, or empty.
	Donor oci.Digest
}

// GearProfile returns the profile of an image. The error is MANIFEST_UNKNOWN if there is
// none.
func (c *Client) GearProfile(ctx context.Context, repo string, manifest oci.Digest) (GearProfile, error) {
	var p GearProfile
	if err := checkBlob(repo, manifest); err != nil {
		return p, err
	}
	var list struct {
		Names   []gearName `json:"names"`
		Origins string     `json:"origins"`
		Donor   oci.Digest `json:"donor"`
	}
	if _, err := c.getJSON(ctx, c.gearCall(http.MethodGet, repo, "profiles/"+string(manifest)), maxListBody, &list); err != nil {
		return p, err
	}
	if len(list.Origins) != 0 && len(list.Origins) != len(list.Names) {
		return p, fmt.Errorf("profile of %s: %d origins of %d names", manifest, len(list.Origins), len(list.Names))
	}
	p = GearProfile{Names: make([][32]byte, len(list.Names)), Origins: list.Origins, Donor: list.Donor}
	for i, name := range list.Names {
		p.Names[i] = name
	}
	return p, nil
}

// gearPath is the path of the extension.
const gearPath = "_slipway/gear"

// gearCall returns a call that reads.
func (c *Client) gearCall(method, repo, path string) call {
	return call{
		method: method,
		url:    c.url(oci.Request{Kind: oci.KindExtension, Repo: repo, Ref: gearPath + "/" + path}, nil),
		scopes: pull(repo),
		retry:  retryAll,
	}
}

// postList posts a list of names. The request may be repeated. If writes is set, the
// request needs the right to push.
func (c *Client) postList(ctx context.Context, repo, path, mediaType string, list []byte, writes bool) (*http.Response, error) {
	if err := oci.CheckName(repo); err != nil {
		return nil, err
	}
	b, err := bytesBody(list)
	if err != nil {
		return nil, err
	}
	l := c.gearCall(http.MethodPost, repo, path)
	l.body, l.header = b, http.Header{"Content-Type": {mediaType}}
	if l.stalls = true; writes {
		l.scopes = push(repo)
	}
	return c.do(ctx, l)
}

// gearName is a name in its JSON form.
type gearName [32]byte

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *gearName) UnmarshalText(b []byte) error {
	name, err := parseGearName(string(b))
	*n = name
	return err
}

// parseGearName parses "sha256:" and 64 hexadecimal digits.
func parseGearName(s string) (name [32]byte, err error) {
	digits, ok := strings.CutPrefix(s, "sha256:")
	if err := oci.CheckDigest(oci.Digest(s)); err != nil || !ok {
		return name, oci.Errorf(oci.CodeDigestInvalid, "%.80q is not a file's name", s)
	}
	_, err = hex.Decode(name[:], []byte(digits))
	return name, err
}

func gearDigest(name [32]byte) oci.Digest {
	return oci.Digest("sha256:" + hex.EncodeToString(name[:]))
}

// binaryNames returns a list of names in the form of a request's body.
func binaryNames(names [][32]byte) []byte {
	b := make([]byte, 0, len(names)*32)
	for i := range names {
		b = append(b, names[i][:]...)
	}
	return b
}
