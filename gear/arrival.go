package gear

import (
	"context"
	"io"
)

type arrivalKey struct{}

// WithArrival returns a context that makes a FileSource call came as bytes arrive, with
// the number of bytes. Contents and chunks are delivered whole. A slow link takes long
// for a whole content, and meanwhile nobody could distinguish a slow link from a dead
// one. The bytes are counted as they are sent, compressed and with their descriptions. 0
// says that an answer begins. The answer may repeat bytes of an interrupted one. came is
// called by whatever goroutine reads. Calls for the same request do not overlap.
func WithArrival(ctx context.Context, came func(n int)) context.Context {
	return context.WithValue(ctx, arrivalKey{}, came)
}

// Arriving returns a reader of r, an answer, that reports to the function given to
// WithArrival.
func Arriving(ctx context.Context, r io.Reader) io.Reader {
	if came, ok := ctx.Value(arrivalKey{}).(func(int)); ok {
		came(0)
		return &arriving{r, came}
	}
	return r
}

type arriving struct {
	r    io.Reader
	came func(n int)
}

// Read implements io.Reader.
func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if n > 0 {
		a.came(n)
	}
	return n, err
}
