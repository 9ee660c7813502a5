package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/registry/objstore"
)

// NewUpload begins an upload. See [objstore.Store].
func (s *Store) NewUpload(ctx context.Context, sizeHint int64) (objstore.Upload, error) {
	return s.upload(ctx, actionUpload, func(ctx context.Context) (objstore.Upload, error) {
		return s.inner.NewUpload(ctx, sizeHint)
	})
}

// Resume continues a suspended upload. See [objstore.Store].
func (s *Store) Resume(ctx context.Context, state string, size int64) (objstore.Upload, error) {
	return s.upload(ctx, actionResume, func(ctx context.Context) (objstore.Upload, error) {
		return s.inner.Resume(ctx, state, size)
	})
}

// upload opens an upload. The driver may use the context of the successful try as
// long as the upload is open.
func (s *Store) upload(ctx context.Context, action string, open func(context.Context) (objstore.Upload, error)) (objstore.Upload, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	begin := time.Now()
	u := &upload{s: s}
	err := s.retry.run(ctx, s.metrics.retried(action), func(ctx context.Context) (err error) {
		u.release, err = opening(ctx, s.o.Timeout, func(ctx context.Context) (func() error, error) {
			u.u, err = open(ctx)
			return func() error {
				if action != actionResume {
					return u.u.Cancel(ctx)
				}
				_, err := u.u.Suspend(ctx) // what was resumed stays resumable
				return err
			}, err
		})
		return err
	})
	s.metrics.done(action, begin, err)
	if err != nil {
		return nil, err
	}
	return u, nil
}

// opening runs f for at most d. What f opens may use its context until release is called.
// undo closes what f opens too late.
func opening(ctx context.Context, d time.Duration, f func(context.Context) (undo func() error, err error)) (release func(), err error) {
	octx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer stop()
	timer := time.AfterFunc(d, func() { cancel(errTimeout) })
	defer timer.Stop()
	undo, err := f(octx)
	if err == nil && octx.Err() == nil {
		return func() { cancel(nil) }, nil
	}
	if err == nil { // at the last moment
		err = errors.Join(octx.Err(), undo())
	}
	cause := context.Cause(octx)
	cancel(nil)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(cause, errTimeout):
		return nil, &objstore.BusyError{Err: fmt.Errorf("%w (%v): %v", errTimeout, d, err)}
	}
	return nil, err
}

// upload passes its calls on to an upload of the inner store.
type upload struct {
	s       *Store
	u       objstore.Upload
	release func()
}

var _ objstore.Upload = (*upload)(nil)

func (u *upload) Size() int64 { return u.u.Size() }
func (u *upload) Tag() string { return u.u.Tag() }

// Write is passed on as it is: see the package.
func (u *upload) Write(p []byte) (int, error) {
	n, err := u.u.Write(p)
	u.s.metrics.sent(n)
	if err != nil {
		u.s.metrics.failed(actionUpload, kind(err))
	}
	return n, err
}

// Suspend implements [objstore.Upload]. It does not wait for a place: it releases what
// the upload holds, and must work after the client has gone.
func (u *upload) Suspend(ctx context.Context) (state string, err error) {
	defer u.release()
	begin := time.Now()
	err = bounded(ctx, u.s.o.CommitTimeout, func(ctx context.Context) (err error) {
		state, err = u.u.Suspend(ctx)
		return err
	})
	u.s.metrics.done(actionSuspend, begin, err)
	return state, err
}

// Commit implements [objstore.Upload].
func (u *upload) Commit(ctx context.Context, key string) error {
	defer u.release()
	if err := u.s.enter(ctx); err != nil {
		return errors.Join(err, u.u.Cancel(ctx))
	}
	defer u.s.leave()
	begin := time.Now()
	err := bounded(ctx, u.s.o.CommitTimeout, func(ctx context.Context) error { return u.u.Commit(ctx, key) })
	u.s.metrics.done(actionCommit, begin, err)
	return err
}

// Cancel implements [objstore.Upload].
func (u *upload) Cancel(ctx context.Context) error {
	defer u.release()
	begin := time.Now()
	err := u.u.Cancel(ctx)
	u.s.metrics.done(actionCancel, begin, err)
	return err
}
