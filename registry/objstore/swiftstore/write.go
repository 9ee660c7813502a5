package swiftstore

import (
	"context"
	"crypto/md5" // what Swift checks bodies with
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/url"
	"time"

	"example.org/slipway/registry/objstore"
)

const (
	// olderAttempts is how often a change is sent if the cluster's clocks take it for older
	// than the present state. That happens if others change the same object at the same moment,
	// or if the proxies' clocks differ.
	olderAttempts = 6
	// olderPause is the first pause between these attempts. Each pause is twice the one
	// before.
	olderPause = 20 * time.Millisecond
)

// etagOf returns what Swift uses as an object's ETag: the MD5 of its bytes.
func etagOf(data []byte) string {
	sum := md5.Sum(data) // not for secrecy
	return hex.EncodeToString(sum[:])
}

// change sends a PUT or DELETE of an object, and sends it again if the cluster takes it
// for older than the present state.
func (s *Store) change(ctx context.Context, r *request) (http.Header, error) {
	pause := olderPause
	for i := 0; ; i++ {
		h, err := s.c.call(ctx, r)
		older := errors.Is(err, errOlder) || r.method == http.MethodDelete && statusOf(err) == http.StatusConflict
		if !older {
			return h, err
		}
		if i == olderAttempts {
			return nil, fmt.Errorf("%s %s: %w", r.method, r.path, &objstore.BusyError{Err: errOlder})
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// put writes an object whole. The server checks the bytes against etag. header may be
// nil.
func (s *Store) put(ctx context.Context, name string, data []byte, etag string, header map[string]string) (reusable bool, err error) {
	r := &request{method: http.MethodPut, path: s.path(name), body: data, header: map[string]string{
		"Content-Type": "application/octet-stream", "Etag": etag,
	}}
	for k, v := range header {
		r.header[k] = v
	}
	_, err = s.change(ctx, r)
	if statusOf(err) == http.StatusNotFound {
		err = s.noContainer()
	}
	return r.reusable && err == nil, err
}

// noContainer returns the error of a PUT that was answered 404.
func (s *Store) noContainer() error {
	return fmt.Errorf("container %s does not exist any more", s.container)
}

// Put writes a small object whole. See [objstore.Store]. The package comment says how far
// ifAbsent can be relied on.
func (s *Store) Put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	if err := s.beginKey(ctx, key); err != nil {
		return err
	}
	var header map[string]string
	if ifAbsent {
		header = map[string]string{"If-None-Match": "*"}
		turn := s.taken[maphash.String(s.seed, key)%uint64(len(s.taken))]
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if _, err := s.put(ctx, key, data, etagOf(data), header); err != nil {
		return fmt.Errorf("put object %s: %w", key, err)
	}
	return nil
}

// copyObject copies a plain object, or the manifest of a large one, in the cluster. The
// new object is visible once it is whole.
func (s *Store) copyObject(ctx context.Context, from, to string, h head) error {
	source := url.URL{Path: "/" + s.path(from)}
	r := &request{method: http.MethodPut, path: s.path(to), header: map[string]string{
		"X-Copy-From": source.EscapedPath(),
	}}
	if h.large {
		r.query = url.Values{"multipart-manifest": {"get"}}
	} else {
		// A server that does not know copies would write an empty object. With this
		// header it refuses.
		r.header["Etag"] = h.info.Tag
	}
	_, err := s.change(ctx, r)
	return err
}

// remove deletes an object that may be gone already.
func (s *Store) remove(ctx context.Context, name string) error {
	_, err := s.change(ctx, &request{method: http.MethodDelete, path: s.path(name)})
	if statusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}

// Delete removes an object. See [objstore.Store]. It removes the object first and then
// its segments, so that the object is never there in part. It leaves segments that cannot
// be removed now to SweepUploads.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.beginKey(ctx, key); err != nil {
		return err
	}
	h, err := s.head(ctx, key, true)
	if err != nil && statusOf(err) != http.StatusNotFound {
		return fmt.Errorf("delete object %s: %w", key, err)
	}
	if h.large && h.ref == "" && s.removeForeign(ctx, key) {
		return nil
	}
	if err := s.remove(ctx, key); err != nil {
		return fmt.Errorf("delete object %s: %w", key, err)
	}
	if h.ref != "" {
		_ = s.release(ctx, h.ref) // SweepUploads would find them
	}
	return nil
}

// removeForeign tries to delete a large object that another program has put there, with
// its segments, wherever they are. That may be forbidden.
func (s *Store) removeForeign(ctx context.Context, key string) bool {
	_, err := s.c.call(ctx, &request{method: http.MethodDelete, path: s.path(key), query: url.Values{"multipart-manifest": {"delete"}}})
	if err != nil {
		return false
	}
	// The answer is 200 in any case.
	_, err = s.head(ctx, key, true)
	return statusOf(err) == http.StatusNotFound
}

// Move gives an object another key. See [objstore.Mover]. For a large object it copies
// only the manifest, and checks that the segments are there.
func (s *Store) Move(ctx context.Context, from, to string) error {
	err := errors.Join(s.beginKey(ctx, from), s.beginKey(ctx, to))
	if err != nil {
		return err
	}
	if err := s.move(ctx, from, to); err != nil {
		return fmt.Errorf("move object %s to %s: %w", from, to, err)
	}
	return nil
}

func (s *Store) move(ctx context.Context, from, to string) error {
	h, err := s.head(ctx, from, true)
	if err != nil || from == to {
		return err
	}
	old, err := s.head(ctx, to, true)
	if err != nil && statusOf(err) != http.StatusNotFound {
		return err
	}
	if h.ref != "" {
		if err := s.markKey(ctx, h.ref, to); err != nil {
			return err
		}
	}
	if err := s.copyObject(ctx, from, to, h); err != nil {
		return err
	}
	if err := s.remove(ctx, from); err != nil {
		return err
	}
	if old.ref != "" && old.ref != h.ref {
		_ = s.release(ctx, old.ref) // SweepUploads would find them
	}
	return nil
}
