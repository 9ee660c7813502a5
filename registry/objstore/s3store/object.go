package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/remote"
)

const (
	// readAhead is how many bytes a small ReadAt fetches. One more request costs as much
	// as some hundred kilobytes more.
	readAhead = 512 << 10
	// fetchTime and fetchRate, in bytes a second, bound one read at an offset.
	fetchTime = 30 * time.Second
	fetchRate = 256 << 10
)

// Get opens n bytes of an object from the offset off, by one request. See
// [objstore.Store]. A body that the server cuts off is [io.ErrUnexpectedEOF] to the
// reader.
func (s *Store) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return nil, err
	}
	o, err := s.get(ctx, key, off, n)
	if err != nil {
		return nil, err
	}
	return o, nil
}

func (s *Store) get(ctx context.Context, key string, off, n int64) (*remote.Object, error) {
	if off < 0 {
		return nil, fmt.Errorf("read object %s: offset %d is negative", key, off)
	}
	if n == 0 {
		return s.emptyRange(ctx, key)
	}
	var o *remote.Object // nil: there is no such range
	err := s.call(ctx, "get object "+key, func(ctx context.Context) error {
		var opts minio.GetObjectOptions
		if rng := wire.Range(off, n); rng != "" {
			opts.Set("Range", rng)
		}
		body, info, header, err := s.core.GetObject(ctx, s.bucket, s.root+key, opts)
		if r := minio.ToErrorResponse(err); err != nil && (r.Code == codeBadRange || r.StatusCode == http.StatusRequestedRangeNotSatisfiable) {
			return nil
		}
		if err != nil {
			return err
		}
		if o, err = opened(key, body, info, header.Get("Content-Range"), off, n); err != nil {
			_ = body.Close() // it is not wanted
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if o == nil {
		return s.emptyRange(ctx, key)
	}
	return o, nil
}

// emptyRange returns an object of which no byte is read.
func (s *Store) emptyRange(ctx context.Context, key string) (*remote.Object, error) {
	info, err := s.stat(ctx, key)
	if err != nil {
		return nil, err
	}
	return remote.NewObject(info, http.NoBody, 0, 0), nil
}

// opened checks the answer to a GET of n bytes from the offset off and returns the
// object.
func opened(key string, body io.ReadCloser, info minio.ObjectInfo, contentRange string, off, n int64) (*remote.Object, error) {
	first, length, size := int64(0), info.Size, info.Size
	if contentRange != "" {
		from, last, total, ok := wire.ParseContentRange(contentRange)
		if !ok || total < 0 {
			return nil, fmt.Errorf("answer has Content-Range %q", contentRange)
		}
		first, length, size = from, last-from+1, total
	}
	if size < 0 {
		return nil, errors.New("answer does not tell the object's size")
	}
	want := size - min(off, size)
	if n >= 0 {
		want = min(want, n)
	}
	switch {
	case first == off && length == want:
	case contentRange == "" && off == 0: // the whole object for a range of its beginning
	case contentRange == "" && want == 0:
		_ = body.Close() // nothing of it is wanted
		body = http.NoBody
	default:
		return nil, fmt.Errorf("answer has bytes %d to %d of %d, asked for %d from %d", first, first+length, size, n, off)
	}
	return remote.NewObject(objstore.Info{Key: key, Size: size, ModTime: info.LastModified, Tag: info.ETag}, body, off, want), nil
}

// OpenAt opens an object for reads at offsets. See [objstore.Opener]. A small read
// fetches some of what follows and keeps it. Only the values of ctx are used: the handle
// lasts until Close.
func (s *Store) OpenAt(ctx context.Context, key string) (objstore.ReadAtCloser, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return nil, err
	}
	info, err := s.stat(ctx, key)
	if err != nil {
		return nil, err
	}
	r := &readerAt{s: s, info: info}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return r, nil
}

// readerAt reads an object at places.
type readerAt struct {
	s      *Store
	info   objstore.Info
	ctx    context.Context // of the handle, cancelled by Close
	cancel context.CancelFunc

	mu   sync.Mutex
	from int64 // where ahead begins
	// ahead holds what the last small read fetched. Its bytes never change, so they can
	// be read without mu.
	ahead []byte
}

// Close ends reads that are under way.
func (r *readerAt) Close() error {
	r.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ahead = nil
	return nil
}

// ReadAt implements [io.ReaderAt].
func (r *readerAt) ReadAt(p []byte, off int64) (int, error) {
	if r.ctx.Err() != nil {
		return 0, fmt.Errorf("read object %s at %d: %w", r.info.Key, off, os.ErrClosed)
	}
	if off < 0 {
		return 0, fmt.Errorf("read object %s: offset %d is negative", r.info.Key, off)
	}
	if off >= r.info.Size {
		return 0, io.EOF
	}
	want := min(int64(len(p)), r.info.Size-off)
	err := r.read(p[:want], off)
	if err != nil {
		return 0, err
	}
	if want < int64(len(p)) {
		return int(want), io.EOF
	}
	return int(want), nil
}

// read fills p, which is inside the object.
func (r *readerAt) read(p []byte, off int64) error {
	if len(p) >= readAhead/2 {
		return r.fetch(p, off)
	}
	r.mu.Lock()
	from, ahead := r.from, r.ahead
	r.mu.Unlock()
	if off < from || off+int64(len(p)) > from+int64(len(ahead)) {
		from, ahead = off, make([]byte, min(readAhead, r.info.Size-off))
		if err := r.fetch(ahead, off); err != nil {
			return err
		}
		r.mu.Lock()
		r.from, r.ahead = from, ahead
		r.mu.Unlock()
	}
	copy(p, ahead[off-from:])
	return nil
}

// fetch fills p by one request.
func (r *readerAt) fetch(p []byte, off int64) error {
	limit := fetchTime + time.Duration(len(p)/fetchRate)*time.Second
	ctx, cancel := context.WithTimeout(r.ctx, limit)
	defer cancel()
	o, err := r.s.get(ctx, r.info.Key, off, int64(len(p)))
	if err == nil {
		defer o.Close()
		if o.Info().Size != r.info.Size {
			return fmt.Errorf("object %s changed while it was read", r.info.Key)
		}
		_, err = io.ReadFull(o, p)
	}
	if err != nil && ctx.Err() != nil && r.ctx.Err() == nil {
		return &objstore.BusyError{Err: fmt.Errorf("no answer within %v: %w", limit, err)}
	}
	return err
}
