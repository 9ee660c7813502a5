package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"example.org/slipway/oci"
)

// GearQuery returns the elements of names whose files the repository lacks, in the order
// of names.
func (c *Client) GearQuery(ctx context.Context, repo string, names [][32]byte) ([][32]byte, error) {
	resp, err := c.postList(ctx, repo, "query", "application/octet-stream", binaryNames(names), true)
	if err != nil {
		return nil, err
	}
	b, err := readAll(resp, int64(len(names))*32)
	if err != nil {
		return nil, err
	}
	if len(b)%32 != 0 {
		return nil, fmt.Errorf("read answer of %s: %d bytes are not a list of names", bare(resp.Request.URL), len(b))
	}
	missing := make([][32]byte, 0, len(b)/32)
	for ; len(b) > 0; b = b[32:] {
		missing = append(missing, [32]byte(b))
	}
	return missing, nil
}

// GearPutFile uploads a file of size bytes. size is negative if it is not known. If r can
// seek, it may be read again from its start. Errors: DIGEST_INVALID if the content does
// not have the given name, SIZE_INVALID.
func (c *Client) GearPutFile(ctx context.Context, repo string, name [32]byte, size int64, r io.Reader) error {
	resp, err := c.putGear(ctx, http.MethodPut, repo, "files/"+string(gearDigest(name)), oci.MediaTypeOctetStream, size, r)
	if err != nil {
		return err
	}
	finish(resp)
	return nil
}

// GearPutFiles uploads a framed stream of files and returns how many of them the registry
// stored. size is the stream's size in bytes, negative if it is not known. After an error
// some files may have been stored. Uploading them again does no harm.
func (c *Client) GearPutFiles(ctx context.Context, repo string, size int64, stream io.Reader) (int, error) {
	resp, err := c.putGear(ctx, http.MethodPost, repo, "files", MediaTypeGearStream, size, stream)
	if err != nil {
		return 0, err
	}
	b, err := readAll(resp, maxErrorBody)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Stored int `json:"stored"`
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		return 0, fmt.Errorf("read answer of %s: %w", bare(resp.Request.URL), err)
	}
	return answer.Stored, nil
}

// putGear sends files. The name of a file depends only on its content, so a stream that
// can be rewound may be sent again.
func (c *Client) putGear(ctx context.Context, method, repo, path, mediaType string, size int64, r io.Reader) (*http.Response, error) {
	if err := oci.CheckName(repo); err != nil {
		return nil, err
	}
	b, err := newBody(r, size)
	if err != nil {
		return nil, err
	}
	l := c.gearCall(method, repo, path)
	l.scopes, l.body, l.header = push(repo), b, http.Header{"Content-Type": {mediaType}}
	if b.seek == nil && size != 0 {
		l.retry = retryNone
	}
	return c.do(ctx, l)
}

// GearReportProfile reports the files that a container of an image opened first, in that
// order. If whole is set, the container opened no other files. Otherwise it may have
// opened others. Errors: MANIFEST_UNKNOWN, SIZE_INVALID for more names than GearInfo
// allows.
func (c *Client) GearReportProfile(ctx context.Context, repo string, manifest oci.Digest, names [][32]byte, whole bool) error {
	if err := oci.CheckDigest(manifest); err != nil {
		return err
	}
	list := struct {
		Names []oci.Digest `json:"names"`
		Part  bool         `json:"part,omitempty"`
	}{make([]oci.Digest, len(names)), !whole}
	for i, name := range names {
		list.Names[i] = gearDigest(name)
	}
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	resp, err := c.postList(ctx, repo, "profiles/"+string(manifest), "application/json", b, false)
	if err != nil {
		return err
	}
	finish(resp)
	return nil
}
