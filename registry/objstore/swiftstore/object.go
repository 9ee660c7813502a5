package swiftstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/remote"
)

// refHeader is in the manifest of a large object. It holds the id of the upload that its
// segments belong to.
const refHeader = "X-Object-Meta-Slipway-Upload"

// Get opens n bytes of an object from the offset off. See [objstore.Store]. ctx also
// bounds the reading.
func (s *Store) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return nil, err
	}
	if off < 0 {
		return nil, fmt.Errorf("read object %s: offset %d is negative", key, off)
	}
	o, err := s.get(ctx, key, off, n)
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", key, err)
	}
	return o, nil
}

// get is like Get, for any name below the prefix.
func (s *Store) get(ctx context.Context, name string, off, n int64) (*remote.Object, error) {
	if n == 0 {
		return s.getNothing(ctx, name)
	}
	r := &request{method: http.MethodGet, path: s.path(name), header: map[string]string{}}
	rng := wire.Range(off, n)
	if rng != "" {
		r.header["Range"] = rng
	}
	resp, err := s.c.do(ctx, r)
	if statusOf(err) == http.StatusNotFound {
		// An object server can say so of an object that is being replaced: it has looked for the
		// newest file, and a newer one has come before it opens that file.
		resp, err = s.c.do(ctx, r)
	}
	if statusOf(err) == http.StatusRequestedRangeNotSatisfiable {
		return s.getNothing(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	info := objstore.Info{Key: name, Size: resp.ContentLength, ModTime: modTime(resp.Header), Tag: etagIn(resp.Header)}
	if rng != "" {
		info.Size, err = checkRange(resp, off, n)
	}
	if err == nil && resp.ContentLength < 0 {
		err = errors.New("the server does not tell how long the answer is")
	}
	if err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	return remote.NewObject(info, resp.Body, off, resp.ContentLength), nil
}

// getNothing is like get, for an empty range.
func (s *Store) getNothing(ctx context.Context, name string) (*remote.Object, error) {
	h, err := s.head(ctx, name, false)
	if err != nil {
		return nil, err
	}
	h.info.Key = name
	return remote.NewObject(h.info, http.NoBody, 0, 0), nil
}

// checkRange checks that an answer holds the requested range, and returns the size of the
// whole object.
func checkRange(resp *http.Response, off, n int64) (size int64, err error) {
	v := resp.Header.Get("Content-Range")
	if resp.StatusCode != http.StatusPartialContent {
		return 0, fmt.Errorf("the server ignores the range and answers %d", resp.StatusCode)
	}
	first, last, size, ok := wire.ParseContentRange(v)
	if !ok || size < 0 {
		return 0, fmt.Errorf("the server sends range %q, which cannot be read", v)
	}
	end := size
	if n > 0 && n < size-off {
		end = off + n
	}
	if first != off || last != end-1 || last-first+1 != resp.ContentLength {
		return 0, fmt.Errorf("the server sends %d bytes of range %q in place of %d from %d", resp.ContentLength, v, n, off)
	}
	return size, nil
}

// head is what HEAD returns of an object.
type head struct {
	info  objstore.Info
	large bool   // it is a manifest
	ref   string // the upload its segments belong to, if it is one of ours
}

// head asks for an object. If newest is set, it asks for the newest of its replicas.
func (s *Store) head(ctx context.Context, name string, newest bool) (head, error) {
	r := &request{method: http.MethodHead, path: s.path(name), header: map[string]string{}}
	if newest {
		r.header["X-Newest"] = "true"
	}
	resp, err := s.c.do(ctx, r)
	if err != nil {
		return head{}, err
	}
	discard(resp)
	if resp.ContentLength < 0 {
		return head{}, fmt.Errorf("%s %s: the server does not tell the size", r.method, r.path)
	}
	h := head{
		info:  objstore.Info{Key: name, Size: resp.ContentLength, ModTime: modTime(resp.Header), Tag: etagIn(resp.Header)},
		large: strings.EqualFold(resp.Header.Get("X-Static-Large-Object"), "true"),
	}
	if ref := resp.Header.Get(refHeader); h.large && validID(ref) {
		h.ref = ref
	}
	return h, nil
}

// Stat describes an object. See [objstore.Store].
func (s *Store) Stat(ctx context.Context, key string) (objstore.Info, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return objstore.Info{}, err
	}
	h, err := s.head(ctx, key, false)
	if err != nil {
		return objstore.Info{}, fmt.Errorf("stat object %s: %w", key, err)
	}
	return h.info, nil
}

// etagIn returns the ETag of an answer.
func etagIn(h http.Header) string { return strings.Trim(h.Get("Etag"), `"`) }

// modTime returns when an object was written, as exactly as in listings if the server
// puts that into the header, too.
func modTime(h http.Header) time.Time {
	sec, frac, _ := strings.Cut(h.Get("X-Timestamp"), ".")
	if n, err := strconv.ParseUint(sec, 10, 40); err == nil && len(frac) <= 9 {
		ns, err := strconv.ParseUint((frac + "000000000")[:9], 10, 32)
		if err == nil {
			return time.Unix(int64(n), int64(ns)).UTC()
		}
	}
	t, _ := http.ParseTime(h.Get("Last-Modified")) // the zero time says that it is not known
	return t
}
