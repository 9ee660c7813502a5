package swiftstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// remains is what a listing shows of one upload.
type remains struct {
	id     string
	names  []string
	newest time.Time
	bytes  int64 // of the segments
	state  bool
	marked bool // there is a key-0
}

func (r *remains) add(e entry) {
	name := strings.TrimPrefix(e.name, uploadDir(r.id))
	r.names = append(r.names, name)
	if e.modTime.After(r.newest) {
		r.newest = e.modTime
	}
	switch {
	case name == stateName:
		r.state = true
	case name == keyName+"0":
		r.marked = true
	case strings.HasPrefix(name, "d"):
		r.bytes += e.size
	}
}

// SweepUploads drops uploads that nobody continued, and the segments of objects whose
// replacement or deletion was interrupted by the end of a process. See
// [objstore.UploadSweeper]. It makes two requests for each large object.
func (s *Store) SweepUploads(ctx context.Context, before time.Time, keep func(state string) bool) (n int, bytes int64, err error) {
	if err := s.begin(ctx); err != nil {
		return 0, 0, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	var mu sync.Mutex // guards n and bytes
	sweep := func(r *remains) {
		if r == nil || !validID(r.id) || !r.newest.Before(before) || keep(r.id) {
			return
		}
		g.Go(func() error {
			swept, err := s.sweep(gctx, r)
			if err != nil {
				return fmt.Errorf("sweep upload %s: %w", r.id, err)
			}
			if swept {
				mu.Lock()
				defer mu.Unlock()
				n++
				bytes += r.bytes
			}
			return nil
		})
	}
	var r *remains
	for e, listErr := range s.walk(gctx, segmentDir, "", false) {
		if listErr != nil {
			err = fmt.Errorf("list uploads: %w", listErr)
			break
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(e.name, segmentDir), "/")
		if r == nil || r.id != id {
			sweep(r)
			r = &remains{id: id}
		}
		r.add(e)
	}
	if err == nil {
		sweep(r)
	}
	if sweepErr := g.Wait(); sweepErr != nil {
		err = sweepErr // it ended the walk, too
	}
	return n, bytes, err
}

// sweep drops an upload if nothing refers to it.
func (s *Store) sweep(ctx context.Context, r *remains) (swept bool, err error) {
	refs, live, err := s.references(ctx, r.id)
	if err != nil {
		return false, err
	}
	if live {
		return false, s.tidy(ctx, r, refs)
	}
	if len(refs) == 0 && r.marked {
		return false, nil // the listing and the object servers do not agree
	}
	for _, ref := range refs {
		if sure, err := s.confirm(ctx, ref); err != nil || !sure {
			return false, err
		}
	}
	return true, s.removeUpload(ctx, r.id, r.names)
}

// confirm asks the listing whether it, too, has nothing newer under a key. The listing
// and the object are on different servers, so an unreachable server cannot make an object
// seem to be gone.
func (s *Store) confirm(ctx context.Context, ref reference) (bool, error) {
	for e, err := range s.walk(ctx, ref.key, "", false) {
		if err != nil {
			return false, err
		}
		if e.name != ref.key { // it would come first
			break
		}
		return ref.there && !e.modTime.After(ref.head.info.ModTime), nil
	}
	return true, nil
}

// tidy removes what an interrupted Suspend or Commit left beside the segments of an
// object.
func (s *Store) tidy(ctx context.Context, r *remains, refs []reference) error {
	needed := make(map[string]bool)
	var size int64
	for _, ref := range refs {
		if ref.live {
			size = max(size, ref.head.info.Size)
		}
	}
	if !r.state && r.bytes <= size {
		return nil // nothing is left
	}
	for _, ref := range refs {
		if !ref.live {
			continue
		}
		names, err := s.manifest(ctx, ref.key, r.id)
		if err != nil {
			return err
		}
		for _, name := range names {
			needed[name] = true
		}
	}
	var rest []string
	for _, name := range r.names {
		if !needed[name] && !strings.HasPrefix(name, keyName) {
			rest = append(rest, name)
		}
	}
	return s.removeUpload(ctx, r.id, rest)
}
