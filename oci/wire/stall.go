package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// ErrStalled is the error of a request, or of reading its answer, that a
// [StallGuard] has ended.
var ErrStalled = errors.New("the registry delivered nothing for too long")

// StallGuard ends a request whose answer does not come, or comes and then
// delivers nothing for a time. Go's timeouts are for whole requests, which is
// useless for blobs of any size. It is made for one request, and then it is the
// body of the answer.
type StallGuard struct {
	rc     io.ReadCloser // the answer's body
	limit  time.Duration
	timer  *time.Timer
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc
}

// NewStallGuard begins to wait for an answer, which may take as long as answer
// says; each read of its body may then take as long as read says. Both must be
// positive. The request is to be made with the context returned, and Answered to
// be called with what became of it.
func NewStallGuard(ctx context.Context, answer, read time.Duration) (*StallGuard, context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	g := &StallGuard{limit: read, ctx: ctx, cancel: cancel}
	g.timer = time.AfterFunc(answer, func() { cancel(ErrStalled) })
	return g, ctx
}

// Answered ends the wait, guards the body of an answer and explains an error.
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

// explain says of a read that was cut off by the guard that it was.
func (g *StallGuard) explain(err error) error {
	if errors.Is(err, context.Canceled) && context.Cause(g.ctx) == ErrStalled {
		return ErrStalled
	}
	return err
}

// Read implements io.Reader. The time runs during reads only: a slow consumer
// is no stall.
func (g *StallGuard) Read(p []byte) (int, error) {
	g.timer.Reset(g.limit)
	defer g.timer.Stop()
	n, err := g.rc.Read(p)
	if err != nil && err != io.EOF {
		err = g.explain(err)
	}
	return n, err
}

// Close implements io.Closer. Ending the request first saves reading the rest.
func (g *StallGuard) Close() error {
	g.timer.Stop()
	g.cancel(nil)
	return g.rc.Close()
}
