// Package wire is a small client of the distribution protocol, with which the tests check
// a registry themselves. It sends exactly what the test asks for, never retries, and
// checks every byte that it receives against the requested digest.
package wire

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// requestTimeout bounds one exchange. Only a hung server takes longer.
const requestTimeout = 2 * time.Minute

// Client talks to one registry over plain HTTP. Its methods may run
// concurrently.
type Client struct {
	base string
	auth string // value of the Authorization header, empty for none
	http *http.Client
}

// New returns a client of the registry at addr ("host:port").
func New(addr string) *Client {
	return &Client{
		base: "http://" + addr,
		http: &http.Client{
			Timeout: requestTimeout,
			// Each client has its own connections. So a registry that was killed leaves
			// no connections in a pool that is shared with its successor.
			Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
	}
}

// As returns a client of the same registry that sends a user's password with each request.
func (c *Client) As(user, password string) *Client {
	as := *c
	as.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	return &as
}

// send sends a request.
func (c *Client) send(req *http.Request) (*http.Response, error) {
	if c.auth != "" {
		req.Header.Set("Authorization", c.auth)
	}
	return c.http.Do(req)
}

// Close ends the client's idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Response is an answer with its whole body.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// StatusError is an answer with another status than the method needs.
type StatusError struct {
	Method, Path string
	Status       int
	// Codes are the error codes in the body, if the body has the specification's form of
	// an error. Otherwise they are empty.
	Codes []string
	Body  string
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: status %d: %s", e.Method, e.Path, e.Status, e.Body)
}

// StatusOf returns the HTTP status of an error of this package, or 0 for other errors.
func StatusOf(err error) int {
	var e *StatusError
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

// Digest returns the sha256 digest of b in the registry's form.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Do sends one request. The path may be a full URL, as in a Location header.
// The body is read whole.
func (c *Client) Do(ctx context.Context, method, path string, header http.Header, body []byte) (*Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url(path), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: read body: %w", method, path, err)
	}
	return &Response{resp.StatusCode, resp.Header, b}, nil
}

func (c *Client) url(path string) string {
	if strings.HasPrefix(path, "/") {
		return c.base + path
	}
	return path
}

// expect is like Do, but returns an error unless the answer has the given status.
func (c *Client) expect(ctx context.Context, status int, method, path string, header http.Header, body []byte) (*Response, error) {
	resp, err := c.Do(ctx, method, path, header, body)
	if err != nil {
		return nil, err
	}
	if resp.Status != status {
		return nil, Unexpected(method, path, resp)
	}
	return resp, nil
}

// Unexpected returns the error for an answer whose status is not the needed one.
func Unexpected(method, path string, resp *Response) *StatusError {
	e := &StatusError{Method: method, Path: path, Status: resp.Status, Body: string(resp.Body)}
	var body struct{ Errors []struct{ Code string } }
	if json.Unmarshal(resp.Body, &body) == nil {
		for _, x := range body.Errors {
			e.Codes = append(e.Codes, x.Code)
		}
	}
	return e
}

// StartUpload opens an upload and returns its location.
func (c *Client) StartUpload(ctx context.Context, repo string) (string, error) {
	resp, err := c.expect(ctx, http.StatusAccepted, http.MethodPost, "/v2/"+repo+"/blobs/uploads/", nil, nil)
	if err != nil {
		return "", err
	}
	return resp.Header.Get("Location"), nil
}

// PushBlob uploads data as one POST and one PUT and returns its digest. A nil
// error is the registry's promise that the blob is stored.
func (c *Client) PushBlob(ctx context.Context, repo string, data []byte) (string, error) {
	return c.PushBlobChunked(ctx, repo, data, 0)
}

// PushBlobChunked uploads data with PATCH requests of the chunk size in bytes and a closing PUT.
// With a chunk size of 0 the PUT sends everything.
func (c *Client) PushBlobChunked(ctx context.Context, repo string, data []byte, chunk int) (string, error) {
	location, err := c.StartUpload(ctx, repo)
	if err != nil {
		return "", err
	}
	rest := data
	for off := 0; chunk > 0 && len(rest) > 0; off += chunk {
		part := rest[:min(chunk, len(rest))]
		resp, err := c.expect(ctx, http.StatusAccepted, http.MethodPatch, location, http.Header{
			"Content-Type":  {"application/octet-stream"},
			"Content-Range": {fmt.Sprintf("%d-%d", off, off+len(part)-1)},
		}, part)
		if err != nil {
			return "", err
		}
		location, rest = resp.Header.Get("Location"), rest[len(part):]
	}
	digest := Digest(data)
	put, err := WithDigest(location, digest)
	if err != nil {
		return "", err
	}
	_, err = c.expect(ctx, http.StatusCreated, http.MethodPut, put,
		http.Header{"Content-Type": {"application/octet-stream"}}, rest)
	return digest, err
}

// WithDigest adds the digest parameter to an upload's location.
func WithDigest(location, digest string) (string, error) {
	u, err := url.Parse(location)
	if err != nil {
		return "", fmt.Errorf("parse upload location %q: %w", location, err)
	}
	q := u.Query()
	q.Set("digest", digest)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// PutManifest stores a manifest under a tag or digest and returns its digest.
func (c *Client) PutManifest(ctx context.Context, repo, ref, mediaType string, data []byte) (string, error) {
	_, err := c.expect(ctx, http.StatusCreated, http.MethodPut, manifestPath(repo, ref),
		http.Header{"Content-Type": {mediaType}}, data)
	return Digest(data), err
}

// Manifest is a manifest as received.
type Manifest struct {
	MediaType string
	Digest    string // computed from Bytes
	Bytes     []byte
}

// acceptAll lists every manifest media type, as clients send it.
var acceptAll = []string{
	"application/vnd.oci.image.manifest.v1+json",
	"application/vnd.oci.image.index.v1+json",
	"application/vnd.docker.distribution.manifest.v2+json",
	"application/vnd.docker.distribution.manifest.list.v2+json",
	"*/*",
}

// GetManifest fetches a manifest by tag or digest. The bytes must match the requested
// digest and the digest in the registry's header.
func (c *Client) GetManifest(ctx context.Context, repo, ref string) (*Manifest, error) {
	resp, err := c.expect(ctx, http.StatusOK, http.MethodGet, manifestPath(repo, ref),
		http.Header{"Accept": acceptAll}, nil)
	if err != nil {
		return nil, err
	}
	m := &Manifest{resp.Header.Get("Content-Type"), Digest(resp.Body), resp.Body}
	if strings.HasPrefix(ref, "sha256:") && ref != m.Digest {
		return nil, fmt.Errorf("manifest %s@%s: the content has digest %s", repo, ref, m.Digest)
	}
	if h := resp.Header.Get("Docker-Content-Digest"); h != m.Digest {
		return nil, fmt.Errorf("manifest %s:%s: header says %q, the content has digest %s", repo, ref, h, m.Digest)
	}
	return m, nil
}

// CheckBlob downloads a blob and checks its digest. It also checks the size unless sizeBytes is
// negative.
func (c *Client) CheckBlob(ctx context.Context, repo, digest string, sizeBytes int64) error {
	path := "/v2/" + repo + "/blobs/" + digest
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url(path), nil)
	if err != nil {
		return err
	}
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // only the status matters
		return Unexpected(http.MethodGet, path, &Response{resp.StatusCode, resp.Header, body})
	}
	h := sha256.New()
	n, err := io.Copy(h, resp.Body)
	if err != nil {
		return fmt.Errorf("blob %s: read after %d bytes: %w", digest, n, err)
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != digest || sizeBytes >= 0 && n != sizeBytes {
		return fmt.Errorf("blob %s of %d bytes: got %s with %d bytes", digest, sizeBytes, got, n)
	}
	return nil
}

// Delete deletes a path and expects 202, as the specification says.
func (c *Client) Delete(ctx context.Context, path string) error {
	_, err := c.expect(ctx, http.StatusAccepted, http.MethodDelete, path, nil, nil)
	return err
}

// DeleteManifest deletes a tag, or a manifest by digest.
func (c *Client) DeleteManifest(ctx context.Context, repo, ref string) error {
	return c.Delete(ctx, manifestPath(repo, ref))
}

// DeleteBlob deletes a blob of a repository.
func (c *Client) DeleteBlob(ctx context.Context, repo, digest string) error {
	return c.Delete(ctx, "/v2/"+repo+"/blobs/"+digest)
}

// Tags lists a repository's tags, following the registry's links. With a pageSize of 0 the registry
// chooses the size of a page.
func (c *Client) Tags(ctx context.Context, repo string, pageSize int) ([]string, error) {
	path := "/v2/" + repo + "/tags/list"
	if pageSize > 0 {
		path += "?n=" + strconv.Itoa(pageSize)
	}
	var tags []string
	for path != "" {
		resp, err := c.expect(ctx, http.StatusOK, http.MethodGet, path, nil, nil)
		if err != nil {
			return nil, err
		}
		var page struct{ Tags []string }
		if err := json.Unmarshal(resp.Body, &page); err != nil {
			return nil, fmt.Errorf("tag list of %s: %w", repo, err)
		}
		if pageSize > 0 && len(page.Tags) > pageSize {
			return nil, fmt.Errorf("tag list of %s: a page of %d tags, asked for %d", repo, len(page.Tags), pageSize)
		}
		tags = append(tags, page.Tags...)
		path, _, _ = strings.Cut(strings.TrimPrefix(resp.Header.Get("Link"), "<"), ">")
	}
	return tags, nil
}

func manifestPath(repo, ref string) string { return "/v2/" + repo + "/manifests/" + ref }
