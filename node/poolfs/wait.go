package poolfs

import (
	"context"
	"errors"
	"time"
)

// Why the context of a request or of a fetch ended, beside the reasons of package fuse.
var (
	errStalled   = errors.New("no progress within the bound")
	errAbandoned = errors.New("nobody waits any more")
	errDone      = errors.New("the fetch is done")
)

// watch is the bound of one piece of work: it ends its context when Progress is not called for long enough.
type watch struct {
	d time.Duration
	t *time.Timer
}

type watchKey struct{}

// Progress tells the pool that the work done under ctx, a context that it gave to a [Backend] or [Content], gets on: the
// bound without progress begins anew. Call it when bytes arrive. Any other context is left alone.
func Progress(ctx context.Context) {
	if w, ok := ctx.Value(watchKey{}).(*watch); ok && ctx.Err() == nil {
		w.t.Reset(w.d)
	}
}

// watched derives the context of a piece of work that has to make progress.
func watched(ctx context.Context, d time.Duration) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{d: d}
	w.t = time.AfterFunc(d, func() { cancel(errStalled) })
	return context.WithValue(ctx, watchKey{}, w), func(cause error) {
		w.t.Stop()
		cancel(cause)
	}
}
