package poolfs

import (
	"context"
	"errors"
	"time"
)

// These are the reasons, beside those of package fuse, why the context of a request or of
// a fetch ended.
var (
	errStalled   = errors.New("no progress within the bound")
	errAbandoned = errors.New("nobody waits any more")
	errDone      = errors.New("the fetch is done")
)

// watch bounds one piece of work. It ends the work's context if Progress is not called
// for too long.
type watch struct {
	d time.Duration
	t *time.Timer
}

type watchKey struct{}

// Progress reports to the pool that the work under ctx makes progress. It restarts the
// bound on time without progress. ctx is a context that the pool passed to a [Backend] or
// [Content]. For any other context, Progress does nothing. Call it when bytes arrive.
func Progress(ctx context.Context) {
	if w, ok := ctx.Value(watchKey{}).(*watch); ok && ctx.Err() == nil {
		w.t.Reset(w.d)
	}
}

// watched derives a context for a piece of work that has to make progress.
func watched(ctx context.Context, d time.Duration) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{d: d}
	w.t = time.AfterFunc(d, func() { cancel(errStalled) })
	return context.WithValue(ctx, watchKey{}, w), func(cause error) {
		w.t.Stop()
		cancel(cause)
	}
}
