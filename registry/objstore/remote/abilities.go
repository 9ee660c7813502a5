package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"example.org/slipway/registry/objstore"
)

// Adapt gives the abilities of the inner store, with retries, limits and metrics.
// See [objstore.Adapter].
func (s *Store) Adapt(target any) bool {
	switch t := target.(type) {
	case *objstore.Mover:
		return adapt(s, t, func(in objstore.Mover) objstore.Mover { return &mover{s, in} })
	case *objstore.Adopter:
		return adapt(s, t, func(in objstore.Adopter) objstore.Adopter { return &adopter{s, in} })
	case *objstore.Opener:
		return adapt(s, t, func(in objstore.Opener) objstore.Opener { return &opener{s, in} })
	case *objstore.Redirector:
		return adapt(s, t, func(in objstore.Redirector) objstore.Redirector { return &redirector{s, in} })
	case *objstore.KeyedUploader:
		return adapt(s, t, func(in objstore.KeyedUploader) objstore.KeyedUploader { return &keyed{s, in} })
	case *objstore.UploadSweeper:
		return adapt(s, t, func(in objstore.UploadSweeper) objstore.UploadSweeper { return &sweeper{s, in} })
	}
	return false
}

// adapt sets the target if the inner store has the ability.
func adapt[T any](s *Store, target *T, wrap func(T) T) bool {
	in, ok := objstore.As[T](s.inner)
	if ok {
		*target = wrap(in)
	}
	return ok
}

type mover struct {
	s     *Store
	inner objstore.Mover
}

// Move implements [objstore.Mover]. If a retry finds the old object gone and the new one
// there, the earlier try has succeeded.
func (m *mover) Move(ctx context.Context, from, to string) error {
	tries := 0
	return m.s.do(ctx, actionMove, m.s.o.CommitTimeout, func(ctx context.Context) error {
		tries++
		err := m.inner.Move(ctx, from, to)
		if tries > 1 && errors.Is(err, objstore.ErrNotExist) {
			if _, statErr := m.s.inner.Stat(ctx, to); statErr == nil {
				return nil
			}
		}
		return err
	})
}

type adopter struct {
	s     *Store
	inner objstore.Adopter
}

// AdoptFile implements [objstore.Adopter]. It is not retried, because after an error the
// file may be gone.
func (a *adopter) AdoptFile(ctx context.Context, key, path string) error {
	if err := a.s.enter(ctx); err != nil {
		return err
	}
	defer a.s.leave()
	begin := time.Now()
	err := bounded(ctx, a.s.o.CommitTimeout, func(ctx context.Context) error { return a.inner.AdoptFile(ctx, key, path) })
	a.s.metrics.done(actionAdopt, begin, err)
	return err
}

type redirector struct {
	s     *Store
	inner objstore.Redirector
}

// URL implements [objstore.Redirector].
func (r *redirector) URL(ctx context.Context, key string, valid time.Duration) (url string, err error) {
	err = r.s.do(ctx, actionURL, r.s.o.Timeout, func(ctx context.Context) (err error) {
		url, err = r.inner.URL(ctx, key, valid)
		return err
	})
	return url, err
}

type keyed struct {
	s     *Store
	inner objstore.KeyedUploader
}

// NewUploadFor implements [objstore.KeyedUploader].
func (k *keyed) NewUploadFor(ctx context.Context, key string, sizeHint int64) (objstore.Upload, error) {
	return k.s.upload(ctx, actionUpload, func(ctx context.Context) (objstore.Upload, error) {
		return k.inner.NewUploadFor(ctx, key, sizeHint)
	})
}

type sweeper struct {
	s     *Store
	inner objstore.UploadSweeper
}

// SweepUploads implements [objstore.UploadSweeper]. Only ctx bounds it, because it may
// have much to do. It is not retried as a whole: the next sweep continues its work.
func (sw *sweeper) SweepUploads(ctx context.Context, before time.Time, keep func(string) bool) (n int, bytes int64, err error) {
	if err := sw.s.enter(ctx); err != nil {
		return 0, 0, err
	}
	defer sw.s.leave()
	begin := time.Now()
	n, bytes, err = sw.inner.SweepUploads(ctx, before, keep)
	sw.s.metrics.done(actionSweep, begin, err)
	return n, bytes, err
}

type opener struct {
	s     *Store
	inner objstore.Opener
}

// OpenAt implements [objstore.Opener]. Only the values of ctx are used: the handle lasts
// until Close.
func (o *opener) OpenAt(ctx context.Context, key string) (objstore.ReadAtCloser, error) {
	if err := o.s.enter(ctx); err != nil {
		return nil, err
	}
	defer o.s.leave()
	begin := time.Now()
	r := &readerAt{s: o.s, key: key}
	var release func()
	err := o.s.retry.run(ctx, o.s.metrics.retried(actionOpenAt), func(ctx context.Context) (err error) {
		release, err = opening(ctx, o.s.o.Timeout, func(ctx context.Context) (func() error, error) {
			r.inner, err = o.inner.OpenAt(ctx, key)
			return func() error { return r.inner.Close() }, err
		})
		return err
	})
	o.s.metrics.done(actionOpenAt, begin, err)
	if err != nil {
		return nil, err
	}
	rctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.ctx, r.cancel = rctx, func() {
		cancel()
		release()
	}
	return r, nil
}

// readerAt retries reads. The driver, which makes the requests, bounds their time.
type readerAt struct {
	s      *Store
	key    string
	inner  objstore.ReadAtCloser
	ctx    context.Context // of the handle, cancelled by Close
	cancel context.CancelFunc
}

// ReadAt implements [io.ReaderAt].
func (r *readerAt) ReadAt(p []byte, off int64) (n int, err error) {
	if r.ctx.Err() != nil {
		return 0, fmt.Errorf("read object %s at %d: %w", r.key, off, os.ErrClosed)
	}
	if err := r.s.enter(r.ctx); err != nil {
		return 0, err
	}
	defer r.s.leave()
	begin := time.Now()
	err = r.s.retry.run(r.ctx, r.s.metrics.retried(actionReadAt), func(context.Context) (err error) {
		n, err = r.inner.ReadAt(p, off)
		return err
	})
	r.s.metrics.got(n)
	if errors.Is(err, io.EOF) {
		r.s.metrics.done(actionReadAt, begin, nil)
		return n, err
	}
	r.s.metrics.done(actionReadAt, begin, err)
	return n, err
}

// Close implements [io.Closer].
func (r *readerAt) Close() error {
	r.cancel()
	return r.inner.Close()
}
