package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// ErrStalled is the error of a request, or of reading its answer, that a [StallGuard] has
// ended.
var ErrStalled = errors.New("the registry delivered nothing for too long")

// StallGuard ends a request whose answer does not come, or whose answer stops delivering
// bytes. Go's timeouts are for whole requests, so they are no use for blobs, which may
// have any size. A StallGuard is made for one request and then serves as the body of the
// answer.
type StallGuard struct {
	rc     io.ReadCloser // the answer's body
	limit  time.Duration
	timer  *time.Timer
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc
}

// NewStallGuard begins to wait for an answer. answer bounds the time until the answer
// comes, and read bounds each read of its body. Both must be positive. The request must
// be made with the returned context. Then Answered must be called with the result.
func NewStallGuard(ctx context.Context, answer, read time.Duration) (*StallGuard, context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	g := &StallGuard{limit: read, ctx: ctx, cancel: cancel}
	g.timer = time.AfterFunc(answer, func() { cancel(ErrStalled) })
	return g, ctx
}

// Answered ends the wait for the answer, guards its body, and turns the error of a stall
// into ErrStalled.
func (g *StallGuard) Answered(resp **http.Response, err *error) {
	g.timer.Stop()
	if *err != nil {
		*err = g.explain(*err)
		g.cancel(nil)
		return
	}
	g.rc = (*resp).Body
	(*resp).Body = g
}

// explain returns ErrStalled if the guard has ended the request, and otherwise err.
func (g *StallGuard) explain(err error) error {
	if errors.Is(err, context.Canceled) && context.Cause(g.ctx) == ErrStalled {
		return ErrStalled
	}
	return err
}

// Read implements io.Reader. The time runs only during reads: a slow consumer is not a
// stall.
func (g *StallGuard) Read(p []byte) (int, error) {
	g.timer.Reset(g.limit)
	defer g.timer.Stop()
	n, err := g.rc.Read(p)
	if err != nil && err != io.EOF {
		err = g.explain(err)
	}
	return n, err
}

// Close implements io.Closer. It ends the request first, which saves reading the rest.
func (g *StallGuard) Close() error {
	g.timer.Stop()
	g.cancel(nil)
	return g.rc.Close()
}
