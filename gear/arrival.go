package gear

import (
	"context"
	"io"
)

type arrivalKey struct{}

// WithArrival returns a context under which a FileSource tells came how many bytes
// have arrived, as they do: contents and chunks are delivered whole, and a slow link
// takes long for one, in which nobody could tell it from a dead one. The bytes are as
// they are sent, compressed and with what describes them; 0 says that an answer begins,
// which may repeat what broke off. came is called by whatever goroutine reads, and by
// one at a time for each request.
func WithArrival(ctx context.Context, came func(n int)) context.Context {
	return context.WithValue(ctx, arrivalKey{}, came)
}

// Arriving returns a reader of r, an answer, that tells whoever asked by WithArrival.
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
