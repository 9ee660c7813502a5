package s3store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"example.org/slipway/registry/objstore"
)

// List walks objects, a page of 1,000 at a time. See [objstore.Store]. Objects
// below the prefix whose names are no keys are left out.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := s.begin(ctx); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		if objstore.CheckKey(prefix+"a") != nil && objstore.CheckKey(prefix) != nil {
			return // no key begins like that
		}
		for o, err := range s.list(ctx, s.root+prefix, after) {
			if err != nil {
				yield(objstore.Info{}, fmt.Errorf("list objects %q: %w", prefix, err))
				return
			}
			key := o.Key[len(s.root):]
			if objstore.CheckKey(key) != nil || strings.HasPrefix(key, uploadDir) || key <= after {
				continue
			}
			// Some listings have milliseconds, which the answer to HEAD lacks.
			if !yield(objstore.Info{Key: key, Size: o.Size, ModTime: o.LastModified.Truncate(time.Second)}, nil) {
				return
			}
		}
	}
}

// list walks objects of the bucket by their full names, beginning after root+after.
func (s *Store) list(ctx context.Context, prefix, after string) iter.Seq2[minio.ObjectInfo, error] {
	return func(yield func(minio.ObjectInfo, error) bool) {
		owner := false
		opts := minio.ListObjectsOptions{Prefix: prefix, Recursive: true, FetchOwner: &owner}
		if after != "" {
			opts.StartAfter = s.root + after
		}
		began := false
		for try := 0; ; try++ {
			used, err := s.keys.get(ctx)
			if err != nil {
				yield(minio.ObjectInfo{}, &objstore.BusyError{Err: fmt.Errorf("renew the credentials: %w", err)})
				return
			}
			xctx, x := withExchange(ctx)
			for o := range s.core.ListObjectsIter(xctx, s.bucket, opts) {
				if err = o.Err; err != nil {
					break
				}
				began = true
				if !strings.HasPrefix(o.Key, prefix) {
					continue
				}
				if !yield(o, nil) {
					return
				}
			}
			if err == nil {
				err = ctx.Err() // the walk does not report the end of ctx
			}
			if err == nil {
				s.seen.Store(s.clock())
				return
			}
			if try == 0 && !began && refusesKeys(minio.ToErrorResponse(err)) && s.keys.renewed(ctx, used) {
				continue
			}
			yield(minio.ObjectInfo{}, s.translate(ctx, x, err))
			return
		}
	}
}

// SweepUploads drops uploads that nobody continued. See [objstore.UploadSweeper]. It
// keeps uploads that are open in this process. It recognises uploads that are open in
// another process only by their age, so the time before must be longer ago than any pause
// between two parts. It sweeps all multipart uploads below the prefix, whoever began
// them.
func (s *Store) SweepUploads(ctx context.Context, before time.Time, keep func(state string) bool) (n int, bytes int64, err error) {
	if err := s.begin(ctx); err != nil {
		return 0, 0, err
	}
	sw := &sweep{s: s, before: before, keep: keep, kept: map[string]bool{}, swept: map[string]bool{}}
	if err := sw.staged(ctx); err != nil {
		return sw.n, sw.bytes, fmt.Errorf("sweep uploads: %w", err)
	}
	if err := sw.multipart(ctx); err != nil {
		return sw.n, sw.bytes, fmt.Errorf("sweep multipart uploads: %w", err)
	}
	return sw.n, sw.bytes, nil
}

// sweep is one walk over all uploads.
type sweep struct {
	s      *Store
	before time.Time
	keep   func(state string) bool

	kept, swept map[string]bool // staging ids
	n           int
	bytes       int64
}

// staging is what is listed of one upload.
type staging struct {
	id    string
	names []string // full names in the bucket, those of states first
	bytes int64
	keep  bool
}

// staged walks the directory of uploads, whose objects come upload by upload.
func (sw *sweep) staged(ctx context.Context) error {
	var up staging
	dir := sw.s.root + uploadDir
	for o, err := range sw.s.list(ctx, dir, "") {
		if err != nil {
			return err
		}
		id, base, _ := strings.Cut(o.Key[len(dir):], "/")
		if !validID(id) {
			continue
		}
		if id != up.id {
			if err := sw.finish(ctx, &up); err != nil {
				return err
			}
			up = staging{id: id, keep: sw.s.isOpen(id)}
		}
		up.keep = up.keep || !o.LastModified.Before(sw.before)
		if state, ok := parseStateName(id, base); ok {
			up.keep = up.keep || sw.keep(state.String())
			up.bytes += state.tail
			up.names = append([]string{o.Key}, up.names...)
			continue
		}
		up.bytes += o.Size
		up.names = append(up.names, o.Key)
	}
	return sw.finish(ctx, &up)
}

func (sw *sweep) finish(ctx context.Context, up *staging) error {
	if up.id == "" {
		return nil
	}
	// The upload may have been resumed since it was listed.
	if up.keep || sw.s.isOpen(up.id) {
		sw.kept[up.id] = true
		return nil
	}
	if err := sw.s.removeAll(ctx, up.names); err != nil {
		return err
	}
	sw.swept[up.id] = true
	sw.n++
	sw.bytes += up.bytes
	return nil
}

// multipart walks the multipart uploads below the prefix.
func (sw *sweep) multipart(ctx context.Context) error {
	var keyMark, idMark string
	for {
		var page minio.ListMultipartUploadsResult
		err := sw.s.call(ctx, "list multipart uploads", func(ctx context.Context) (err error) {
			page, err = sw.s.core.ListMultipartUploads(ctx, sw.s.bucket, sw.s.root, keyMark, idMark, "", 1000)
			return err
		})
		if err != nil {
			return err
		}
		for _, up := range page.Uploads {
			if err := sw.abort(ctx, up); err != nil {
				return err
			}
		}
		if !page.IsTruncated || page.NextKeyMarker == keyMark && page.NextUploadIDMarker == idMark {
			return nil
		}
		keyMark, idMark = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// abort drops one multipart upload if it is old and nobody claims it.
func (sw *sweep) abort(ctx context.Context, up minio.ObjectMultipartInfo) error {
	s := sw.s
	key, ours := strings.CutPrefix(up.Key, s.root)
	id := keyedID(key, up.UploadID)
	if !ours || objstore.CheckKey(key) != nil || !up.Initiated.Before(sw.before) || s.isOpen(up.UploadID) || sw.kept[id] {
		return nil
	}
	bytes, newest, err := s.parts(ctx, up.Key, up.UploadID)
	if errors.Is(err, objstore.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !newest.Before(sw.before) {
		return nil
	}
	if err := s.abortMultipart(ctx, key, up.UploadID); err != nil {
		return err
	}
	if !sw.swept[id] {
		sw.n++
	}
	sw.bytes += bytes
	return nil
}

// parts returns how many bytes a multipart upload has, and when its newest part arrived.
func (s *Store) parts(ctx context.Context, name, uploadID string) (bytes int64, newest time.Time, err error) {
	for mark := 0; ; {
		var page minio.ListObjectPartsResult
		err := s.call(ctx, "list parts", func(ctx context.Context) (err error) {
			page, err = s.core.ListObjectParts(ctx, s.bucket, name, uploadID, mark, 1000)
			return err
		})
		if err != nil {
			return 0, newest, err
		}
		for _, p := range page.ObjectParts {
			bytes += p.Size
			if p.LastModified.After(newest) {
				newest = p.LastModified
			}
		}
		if !page.IsTruncated || page.NextPartNumberMarker <= mark {
			return bytes, newest, nil
		}
		mark = page.NextPartNumberMarker
	}
}

// removeAll deletes objects by their full names, the first of them before the
// others.
func (s *Store) removeAll(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := s.remove(ctx, names[0]); err != nil {
		return err
	}
	names = names[1:]
	for len(names) > 0 {
		page := names[:min(len(names), 1000)]
		names = names[len(page):]
		if len(page) > 1 && s.removePage(ctx, page) == nil {
			continue
		}
		for _, name := range page { // not every server deletes several at once
			if err := s.remove(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// removePage deletes up to 1,000 objects by one request.
func (s *Store) removePage(ctx context.Context, names []string) error {
	return s.call(ctx, "delete objects", func(ctx context.Context) error {
		list := make(chan minio.ObjectInfo, len(names))
		for _, name := range names {
			list <- minio.ObjectInfo{Key: name}
		}
		close(list)
		var first error
		for r := range s.core.RemoveObjects(ctx, s.bucket, list, minio.RemoveObjectsOptions{}) {
			if first == nil {
				first = r.Err
			}
		}
		return first
	})
}

// removeUpload deletes everything of staged uploads.
func (s *Store) removeUpload(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		dir := s.root + uploadDir + id + "/"
		var names []string
		for o, err := range s.list(ctx, dir, "") {
			if err != nil {
				return err
			}
			if strings.HasPrefix(o.Key[len(dir):], "state-") { // nobody may resume what is no longer whole
				names = append([]string{o.Key}, names...)
				continue
			}
			names = append(names, o.Key)
		}
		if err := s.removeAll(ctx, names); err != nil {
			return err
		}
	}
	return nil
}

// hold marks a staging id or a multipart upload as open in this process.
func (s *Store) hold(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[id]++
}

func (s *Store) letGo(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[id]--; s.open[id] <= 0 {
		delete(s.open, id)
	}
}

func (s *Store) isOpen(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[id] > 0
}
