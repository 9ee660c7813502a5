package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"example.org/slipway/integration/internal/wire"
)

// get reads the whole answer to a GET request into buf.
func (s *server) get(ctx context.Context, path, accept string, buf *bytes.Buffer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr+path, nil)
	if err != nil {
		return err
	}
	if accept != "" {
		req.Header["Accept"] = []string{accept}
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	buf.Reset()
	if _, err := buf.ReadFrom(resp.Body); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d: %.300s", path, resp.StatusCode, buf.Bytes())
	}
	return nil
}

// pull downloads an image by its tag as a client does, verifies every byte of it, and returns the
// number of bytes.
func (s *server) pull(ctx context.Context, im *image, buf *bytes.Buffer) (int64, error) {
	base := "/v2/" + im.repo
	if err := s.get(ctx, base+"/manifests/"+imageTag, manifestType, buf); err != nil {
		return 0, err
	}
	if got := wire.Digest(buf.Bytes()); got != im.manifest.digest {
		return 0, fmt.Errorf("manifest of %s: got %s, want %s", im.repo, got, im.manifest.digest)
	}
	n := int64(buf.Len())
	var doc wire.Document
	if err := json.Unmarshal(buf.Bytes(), &doc); err != nil {
		return 0, fmt.Errorf("manifest of %s: %w", im.repo, err)
	}
	for _, d := range append([]wire.Descriptor{*doc.Config}, doc.Layers...) {
		if err := s.get(ctx, base+"/blobs/"+d.Digest, "", buf); err != nil {
			return 0, err
		}
		if got := wire.Digest(buf.Bytes()); got != d.Digest {
			return 0, fmt.Errorf("blob %s of %s: the content has digest %s", d.Digest, im.repo, got)
		}
		n += int64(buf.Len())
	}
	return n, nil
}

// head asks for a manifest by tag. If the answer has a digest, it must be the right one.
// A web server does not send a digest.
func (s *server) head(ctx context.Context, repo, tag, digest string) error {
	path := "/v2/" + repo + "/manifests/" + tag
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, "http://"+s.Addr+path, nil)
	if err != nil {
		return err
	}
	req.Header["Accept"] = []string{manifestType}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	got := resp.Header.Get("Docker-Content-Digest")
	if resp.StatusCode != http.StatusOK || (got != digest && !s.Static) {
		return fmt.Errorf("HEAD %s: status %d, digest %q, want %q", path, resp.StatusCode, got, digest)
	}
	return nil
}

// download reads a blob. It checks only the size, so that the client costs as little as
// possible.
func (s *server) download(ctx context.Context, repo string, b blob, chunk []byte) error {
	path := "/v2/" + repo + "/blobs/" + b.digest
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr+path, nil)
	if err != nil {
		return err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n := 0
	for err == nil {
		var k int
		k, err = resp.Body.Read(chunk)
		n += k
	}
	if err != io.EOF || resp.StatusCode != http.StatusOK || n != len(b.data) {
		return fmt.Errorf("GET %s: status %d, %d of %d bytes: %w", path, resp.StatusCode, n, len(b.data), err)
	}
	return nil
}

// pushMode says how blobs are uploaded.
type pushMode struct {
	// single sends a blob in one POST instead of a POST and a PUT.
	single bool
	// chunk is the size of PATCH requests in bytes; 0 means no PATCH.
	chunk int
}

// pushImage uploads an image blob by blob, as the protocol demands, and tags it. It returns when
// the registry has acknowledged everything.
func (s *server) pushImage(ctx context.Context, im *image, mode pushMode) error {
	for _, b := range im.blobs {
		if err := s.pushBlob(ctx, im.repo, b, mode); err != nil {
			return err
		}
	}
	return s.putManifest(ctx, im.repo, imageTag, manifestType, im.manifest.data)
}

func (s *server) pushBlob(ctx context.Context, repo string, b blob, mode pushMode) error {
	if mode.single {
		path := "/v2/" + repo + "/blobs/uploads/?digest=" + url.QueryEscape(b.digest)
		_, err := s.send(ctx, http.StatusCreated, http.MethodPost, path, binaryType, "", b.data)
		return err
	}
	location, err := s.push.StartUpload(ctx, repo)
	if err != nil {
		return err
	}
	rest := b.data
	for off := 0; mode.chunk > 0 && len(rest) > 0; off += mode.chunk {
		part := rest[:min(mode.chunk, len(rest))]
		contentRange := strconv.Itoa(off) + "-" + strconv.Itoa(off+len(part)-1)
		if location, err = s.send(ctx, http.StatusAccepted, http.MethodPatch, location, binaryType, contentRange, part); err != nil {
			return err
		}
		rest = rest[len(part):]
	}
	put, err := wire.WithDigest(location, b.digest)
	if err != nil {
		return err
	}
	_, err = s.send(ctx, http.StatusCreated, http.MethodPut, put, binaryType, "", rest)
	return err
}

// putManifest stores a manifest. ref may end in a query.
func (s *server) putManifest(ctx context.Context, repo, ref, mediaType string, data []byte) error {
	_, err := s.send(ctx, http.StatusCreated, http.MethodPut, "/v2/"+repo+"/manifests/"+ref, mediaType, "", data)
	return err
}

// send sends a request with a body and returns the location in the answer.
func (s *server) send(ctx context.Context, want int, method, path, mediaType, contentRange string, body []byte) (location string, err error) {
	header := http.Header{"Content-Type": {mediaType}}
	if contentRange != "" {
		header["Content-Range"] = []string{contentRange}
	}
	resp, err := s.push.Do(ctx, method, path, header, body)
	if err != nil {
		return "", err
	}
	if resp.Status != want {
		return "", fmt.Errorf("%s %s: status %d, want %d: %.300s", method, path, resp.Status, want, resp.Body)
	}
	return resp.Header.Get("Location"), nil
}

// page reads a page of a list and returns its names.
func (s *server) page(ctx context.Context, path, key string, n int, last string, buf *bytes.Buffer) ([]string, error) {
	path += "?n=" + strconv.Itoa(n)
	if last != "" {
		path += "&last=" + url.QueryEscape(last)
	}
	if err := s.get(ctx, path, "", buf); err != nil {
		return nil, err
	}
	var list struct{ Tags, Repositories []string }
	if err := json.Unmarshal(buf.Bytes(), &list); err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if key == "tags" {
		return list.Tags, nil
	}
	return list.Repositories, nil
}
