package swiftstore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/registry/objstore"
)

const (
	stateName = "state"
	keyName   = "key-"

	// stateVersion is in each state object.
	stateVersion = 1
	// maxState bounds a state object or a manifest, in bytes. A segment takes
	// about 120.
	maxState = 64 << 20
	// maxKeys bounds how many keys one upload was committed under or moved to.
	maxKeys = 1000
	// workers is how many requests one call makes at once.
	workers = 8
)

// segment is a part of an upload, stored as an object.
type segment struct {
	Name string `json:"name"` // below the upload's directory
	Size int64  `json:"size"`
	Etag string `json:"etag"`
}

// newSegment returns a new name for a segment that begins at off.
func newSegment(off int64) segment {
	return segment{Name: fmt.Sprintf("d%015d-%s", off, rand.Text())}
}

// validID reports whether id could be one that rand.Text makes: 26 characters of base32.
// Nothing else reaches the network.
func validID(id string) bool {
	for i := range len(id) {
		if c := id[i]; !('A' <= c && c <= 'Z' || '2' <= c && c <= '7') {
			return false
		}
	}
	return len(id) == 26
}

// uploadDir returns the directory of an upload's segments and records.
func uploadDir(id string) string { return segmentDir + id + "/" }

// state is what Resume needs to know.
type state struct {
	Version  int       `json:"version"`
	Segments []segment `json:"segments"`
}

func encodeState(segs []segment) ([]byte, error) {
	return json.Marshal(state{stateVersion, segs})
}

// decodeState reads a state object. It returns the segments, which follow each other
// without a gap, and the number of bytes in them.
func decodeState(data []byte) (segs []segment, size int64, err error) {
	var st state
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, 0, fmt.Errorf("state of upload: %w", err)
	}
	if st.Version != stateVersion {
		return nil, 0, fmt.Errorf("state of upload has version %d, want %d", st.Version, stateVersion)
	}
	for _, seg := range st.Segments {
		off, tag, ok := strings.Cut(strings.TrimPrefix(seg.Name, "d"), "-")
		if !ok || !strings.HasPrefix(seg.Name, "d") || len(off) != 15 || off != fmt.Sprintf("%015d", size) || !validID(tag) {
			return nil, 0, fmt.Errorf("state of upload has segment %q at %d", seg.Name, size)
		}
		if seg.Size <= 0 || seg.Size > math.MaxInt64-size || !validEtag(seg.Etag) {
			return nil, 0, fmt.Errorf("state of upload has segment %q of %d bytes with ETag %q", seg.Name, seg.Size, seg.Etag)
		}
		size += seg.Size
	}
	return st.Segments, size, nil
}

// validEtag reports whether e is an MD5.
func validEtag(e string) bool {
	for i := range len(e) {
		if c := e[i]; !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return len(e) == 32
}

// read returns the bytes of a small object, from its newest replica.
func (s *Store) read(ctx context.Context, name string, q url.Values) ([]byte, error) {
	r := &request{method: http.MethodGet, path: s.path(name), query: q, header: map[string]string{"X-Newest": "true"}}
	resp, err := s.c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(limitBody(resp.Body, maxState+1))
	if err == nil && len(data) > maxState {
		err = fmt.Errorf("it has more than %d bytes", maxState)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// putManifest makes name a large object from segments of the upload id.
func (s *Store) putManifest(ctx context.Context, name, id string, segs []segment) (etag string, err error) {
	type item struct {
		Path string `json:"path"`
		Etag string `json:"etag,omitempty"`
		Size int64  `json:"size_bytes"`
	}
	items := make([]item, len(segs))
	for i, seg := range segs {
		items[i] = item{"/" + s.path(uploadDir(id)+seg.Name), seg.Etag, seg.Size}
	}
	body, err := json.Marshal(items)
	if err != nil {
		return "", err
	}
	answer, err := s.change(ctx, &request{
		method: http.MethodPut, path: s.path(name), query: url.Values{"multipart-manifest": {"put"}}, body: body,
		header: map[string]string{"Content-Type": "application/octet-stream", "Accept": "application/json", refHeader: id},
	})
	if statusOf(err) == http.StatusNotFound {
		return "", s.noContainer()
	}
	return etagIn(answer), err
}

// manifestError returns the error of a manifest that the server refuses because of its
// segments. The server asks for each of them and lists what is wrong, even if a storage
// server does not answer at the moment.
func manifestError(body []byte) error {
	var list struct {
		Errors [][]string `json:"Errors"`
	}
	if json.Unmarshal(body, &list) != nil {
		return nil
	}
	var worst error
	for _, e := range list.Errors {
		if len(e) != 2 {
			continue
		}
		code, _, _ := strings.Cut(e[1], " ")
		status, _ := strconv.Atoi(code) // 0 matches no case below
		switch {
		case status == http.StatusNotFound:
			return fmt.Errorf("a segment is not there any more: %w", objstore.ErrNotExist)
		case isBusy(status):
			worst = &objstore.BusyError{Err: errors.New(e[1])}
		}
	}
	return worst
}

// manifest returns the names, relative to the upload's directory, of the parts of a large
// object.
func (s *Store) manifest(ctx context.Context, name, id string) ([]string, error) {
	data, err := s.read(ctx, name, url.Values{"multipart-manifest": {"get"}})
	if err != nil {
		return nil, err
	}
	var items []struct {
		Name string `json:"name"`
		Sub  bool   `json:"sub_slo"`
	}
	if err := json.Unmarshal(data, &items); err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", name, err)
	}
	var names []string
	for _, it := range items {
		short, ok := strings.CutPrefix(it.Name, "/"+s.path(uploadDir(id)))
		if !ok {
			return nil, fmt.Errorf("manifest %s has a segment of another upload", name)
		}
		names = append(names, short)
		if it.Sub {
			sub, err := s.manifest(ctx, uploadDir(id)+short, id)
			if err != nil {
				return nil, err
			}
			names = append(names, sub...)
		}
	}
	return names, nil
}

// keyOf reads the n-th key of an upload. Errors: ErrNotExist after the last one.
func (s *Store) keyOf(ctx context.Context, id string, n int) (string, error) {
	data, err := s.read(ctx, uploadDir(id)+keyName+strconv.Itoa(n), nil)
	if err != nil {
		return "", err
	}
	if err := objstore.CheckKey(string(data)); err != nil {
		return "", fmt.Errorf("%s%d of upload %s: %w", keyName, n, id, err)
	}
	return string(data), nil
}

// markKey records that a manifest of the upload may be put under key. Records are never
// changed, so a reader cannot see an old one.
func (s *Store) markKey(ctx context.Context, id, key string) error {
	for n := range maxKeys {
		name := uploadDir(id) + keyName + strconv.Itoa(n)
		_, err := s.put(ctx, name, []byte(key), etagOf([]byte(key)), map[string]string{"If-None-Match": "*"})
		if !errors.Is(err, objstore.ErrExist) {
			return err
		}
		if have, err := s.keyOf(ctx, id, n); err != nil || have == key {
			return err
		}
	}
	return fmt.Errorf("upload %s was moved more than %d times", id, maxKeys)
}

// reference is a key that an upload has or had, and what is there now.
type reference struct {
	key   string
	there bool
	head  head
	live  bool // it is a manifest of the upload
}

// references returns where manifests of an upload may be.
func (s *Store) references(ctx context.Context, id string) (refs []reference, live bool, err error) {
	for n := range maxKeys {
		key, err := s.keyOf(ctx, id, n)
		if errors.Is(err, objstore.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, false, err
		}
		ref := reference{key: key}
		ref.head, err = s.head(ctx, key, true)
		if err != nil && statusOf(err) != http.StatusNotFound {
			return nil, false, err
		}
		ref.there = err == nil
		ref.live = ref.there && ref.head.ref == id
		live = live || ref.live
		refs = append(refs, ref)
	}
	return refs, live, nil
}

// release removes an upload's objects, unless an object needs them. names are in its
// directory; a listing may lack them.
func (s *Store) release(ctx context.Context, id string, names ...string) error {
	refs, live, err := s.references(ctx, id)
	if err != nil || live {
		return err
	}
	for e, err := range s.walk(ctx, uploadDir(id), "", false) {
		if err != nil {
			return err
		}
		names = append(names, strings.TrimPrefix(e.name, uploadDir(id)))
	}
	for n := range refs {
		names = append(names, keyName+strconv.Itoa(n))
	}
	return s.removeUpload(ctx, id, names)
}

// removeUpload removes objects of an upload's directory: the state first, so that it
// cannot be resumed, and the keys last, so that the rest can be recognized after an
// interruption. Names may occur twice.
func (s *Store) removeUpload(ctx context.Context, id string, names []string) error {
	var data []string
	keys := 0
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		if n, ok := strings.CutPrefix(name, keyName); ok {
			if i, err := strconv.Atoi(n); err == nil && i < maxKeys {
				keys = max(keys, i+1)
			}
		} else if name != stateName {
			data = append(data, name)
		}
	}
	if seen[stateName] {
		if err := s.remove(ctx, uploadDir(id)+stateName); err != nil {
			return err
		}
	}
	if err := s.removeAll(ctx, id, data); err != nil {
		return err
	}
	for n := keys - 1; n >= 0; n-- {
		if err := s.remove(ctx, uploadDir(id)+keyName+strconv.Itoa(n)); err != nil {
			return err
		}
	}
	return nil
}

// removeAll removes objects of an upload's directory in any order.
func (s *Store) removeAll(ctx context.Context, id string, names []string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for _, name := range names {
		g.Go(func() error { return s.remove(ctx, uploadDir(id)+name) })
	}
	return g.Wait()
}
