package swiftstore

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"example.org/slipway/registry/objstore"
)

// maxPage bounds a page of a listing, in bytes. Swift lists 10000 objects at once,
// each with 200 bytes beside its name.
const maxPage = 32 << 20

// entry is an object in a listing. Its name is relative to the store's prefix.
type entry struct {
	name    string
	size    int64 // for a large object, the size of all segments together
	modTime time.Time
}

// page returns objects whose names begin with prefix, after marker, as many as the server
// lists at once. It returns none if there are no more.
func (s *Store) page(ctx context.Context, prefix, marker string) ([]entry, error) {
	q := url.Values{"format": {"json"}}
	if p := s.prefix + prefix; p != "" {
		q.Set("prefix", p)
	}
	if marker != "" {
		q.Set("marker", s.prefix+marker)
	}
	if s.pageSize != "" {
		q.Set("limit", s.pageSize)
	}
	resp, err := s.c.do(ctx, &request{method: http.MethodGet, path: s.container, query: q})
	if statusOf(err) == http.StatusNotFound {
		return nil, fmt.Errorf("container %s does not exist any more", s.container)
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent {
		return nil, nil
	}
	var rows []struct {
		Name     string `json:"name"`
		Bytes    int64  `json:"bytes"`
		Modified string `json:"last_modified"`
	}
	if err := json.NewDecoder(limitBody(resp.Body, maxPage)).Decode(&rows); err != nil {
		return nil, fmt.Errorf("read listing of container %s: %w", s.container, err)
	}
	entries := make([]entry, 0, len(rows))
	last := marker
	for _, row := range rows {
		if row.Name == s.prefix {
			continue // others mark directories so
		}
		name, ok := strings.CutPrefix(row.Name, s.prefix)
		if !ok || name <= last || !strings.HasPrefix(name, prefix) {
			return nil, fmt.Errorf("listing of container %s is not what was asked for: %q behind %q", s.container, row.Name, last)
		}
		last = name
		at, err := time.Parse("2006-01-02T15:04:05.999999999", row.Modified)
		if err != nil {
			return nil, fmt.Errorf("read listing of container %s: time of %q: %w", s.container, row.Name, err)
		}
		entries = append(entries, entry{name: name, size: row.Bytes, modTime: at})
	}
	return entries, nil
}

// walk yields every object whose name begins with prefix, after marker. If skip is set,
// it leaves out what lies in segmentDir.
func (s *Store) walk(ctx context.Context, prefix, marker string, skip bool) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		for {
			list, err := s.page(ctx, prefix, marker)
			if err != nil {
				yield(entry{}, err)
				return
			}
			if len(list) == 0 {
				return
			}
			for _, e := range list {
				marker = e.name
				if skip && strings.HasPrefix(e.name, segmentDir) {
					// This comes after all of them, because ids are letters and digits.
					marker = max(marker, segmentDir+"~")
					break
				}
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// List walks the objects. See [objstore.Store]. An object that was just written or
// deleted may be missing or still listed. Objects of others in the container whose names
// are not keys are left out.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := s.begin(ctx); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		if keyPart(prefix) != len(prefix) {
			return // no key begins like that
		}
		// Swift refuses markers that are not UTF-8, for example. An earlier marker will
		// do, because names up to after are skipped here.
		marker := after[:keyPart(after)]
		for e, err := range s.walk(ctx, prefix, marker, true) {
			if err != nil {
				yield(objstore.Info{}, fmt.Errorf("list objects: %w", err))
				return
			}
			if e.name <= after || objstore.CheckKey(e.name) != nil {
				continue
			}
			if !yield(objstore.Info{Key: e.name, Size: e.size, ModTime: e.modTime}, nil) {
				return
			}
		}
	}
}

// keyPart returns the length of the longest prefix of a text that could begin a key.
func keyPart(text string) int {
	for i := range len(text) {
		c := text[i]
		if c != '/' && objstore.CheckKey("k"+string(rune(c))) != nil {
			return i
		}
	}
	return len(text)
}
