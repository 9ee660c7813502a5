package volfs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
	"example.org/slipway/volume/block"
)

var errBound = errors.New("storage did not answer within the bound")

// begin does the work of a request in its own goroutine. It answers the request when the
// work fails, at the bound, or when the process that asked is being killed, even if the
// work has not ended.
func (s *Server) begin(r *fuse.Request, f *file, work func(*fuse.Op) error) {
	bounded, stopTimer := context.WithTimeoutCause(s.conn.Context(), s.o.Bound, errBound)
	ctx, cancel := context.WithCancelCause(bounded)
	o := s.conn.Begin(r, ctx, func(cause error) { cancel(cause); stopTimer() })
	go func() {
		defer s.conn.End(o)
		stop := context.AfterFunc(ctx, func() { s.fail(o, f, context.Cause(ctx)) })
		err := work(o)
		stop()
		if err != nil {
			s.fail(o, f, err)
		}
	}()
}

// fail answers a request with an error, unless it is answered already.
func (s *Server) fail(o *fuse.Op, f *file, err error) {
	if !o.Claim() {
		return
	}
	errno := unix.EIO
	switch {
	case errors.Is(err, fuse.ErrKilled):
		s.conn.Fail(o.Unique(), unix.EINTR)
		return
	case errors.Is(err, block.ErrFull):
		errno = unix.ENOSPC
	}
	if f.failed.Add(1) == 1 {
		f.log.Error("a request to a volume failed", "err", err, "bound", s.o.Bound)
	}
	s.conn.Fail(o.Unique(), errno)
}

// These are the pauses between two tries.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

// retry calls do with the volume until it succeeds or ctx ends, and then returns the last
// error of storage. A volume that fails twice is opened anew: its client may have been
// shut out, or its credential replaced.
func (f *file) retry(ctx context.Context, do func(block.Volume) error) error {
	var last error
	for pause, tries := firstPause, 1; ; pause, tries = min(2*pause, maxPause), tries+1 {
		err := f.try(ctx, tries%2 == 0, do)
		if err == nil {
			f.well()
			return nil
		}
		if ctx.Err() != nil {
			if errors.Is(context.Cause(ctx), errBound) && last != nil {
				return fmt.Errorf("%w; before: %w", errBound, last)
			}
			return context.Cause(ctx)
		}
		last = err
		f.troubled(err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// try makes one try. again says that the previous one failed, too. If a try outlasts its
// request, a writable volume is given up, so that no later write comes before one that
// may still be written.
func (f *file) try(ctx context.Context, again bool, do func(block.Volume) error) error {
	v, err := f.use(ctx)
	if err != nil {
		return err
	}
	defer f.release(v)
	stop := context.AfterFunc(ctx, func() {
		if f.mapped().Writable || errors.Is(context.Cause(ctx), errBound) {
			f.retire(v)
		}
	})
	defer stop()
	err = do(v.v)
	if err != nil && again {
		f.retire(v)
	}
	return err
}
