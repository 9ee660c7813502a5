package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

var errStalled = errors.New("the registry delivered nothing for too long")

// stallGuard ends a request whose answer does not come, or comes and then
// delivers nothing for a time. Go's timeouts are for whole requests, which is
// useless for blobs of any size.
type stallGuard struct {
	rc     io.ReadCloser // the answer's body
	limit  time.Duration
	timer  *time.Timer
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc
}

// newStallGuard begins to wait for an answer.
func newStallGuard(ctx context.Context, limit time.Duration) (*stallGuard, context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	g := &stallGuard{limit: limit, ctx: ctx, cancel: cancel}
	g.timer = time.AfterFunc(limit, func() { cancel(errStalled) })
	return g, ctx
}

// answered ends the wait, guards the body of an answer and explains an error.
func (g *stallGuard) answered(resp **http.Response, err *error) {
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
func (g *stallGuard) explain(err error) error {
	if errors.Is(err, context.Canceled) && context.Cause(g.ctx) == errStalled {
		return errStalled
	}
	return err
}

// Read implements io.Reader. The time runs during reads only: a slow consumer
// is no stall.
func (g *stallGuard) Read(p []byte) (int, error) {
	g.timer.Reset(g.limit)
	defer g.timer.Stop()
	n, err := g.rc.Read(p)
	if err != nil && err != io.EOF {
		err = g.explain(err)
	}
	return n, err
}

// Close implements io.Closer. Ending the request first saves reading the rest.
func (g *stallGuard) Close() error {
	g.timer.Stop()
	g.cancel(nil)
	return g.rc.Close()
}
