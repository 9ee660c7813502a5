package remote

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"example.org/slipway/registry/objstore"
)

const (
	defaultTries = 5
	defaultFirst = 100 * time.Millisecond
	defaultMost  = 10 * time.Second
	defaultShare = 0.1
	defaultBurst = 50
)

// RetryOptions are the options of a Retry. The zero value works.
type RetryOptions struct {
	// Tries is how often an operation is tried at most. Default 5.
	Tries int
	// First is the first pause, and Most is the longest, even if the store asks for a
	// longer one. Pauses double, and vary by half. Default 100 ms and 10 s.
	First, Most time.Duration
	// Share is how many retries each operation adds to the budget. Default 0.1.
	Share float64
	// Burst is the most the budget holds, and what it begins with. Default 50.
	Burst float64
}

// Retry repeats operations, within one budget for all of them.
type Retry struct {
	o      RetryOptions
	budget bucket
}

// NewRetry makes a Retry with a full budget. o may be nil.
func NewRetry(o *RetryOptions) *Retry {
	r := &Retry{}
	if o != nil {
		r.o = *o
	}
	r.o.Tries = cmp.Or(r.o.Tries, defaultTries)
	r.o.First = cmp.Or(r.o.First, defaultFirst)
	r.o.Most = cmp.Or(r.o.Most, defaultMost)
	r.o.Share = cmp.Or(r.o.Share, defaultShare)
	r.o.Burst = cmp.Or(r.o.Burst, defaultBurst)
	r.budget = bucket{rate: r.o.Share, most: r.o.Burst, tokens: r.o.Burst}
	return r
}

// Do runs f. After an error that may pass, it pauses and runs f again. It returns the
// last error when the tries or the budget are used up, or ctx ends.
func (r *Retry) Do(ctx context.Context, f func(context.Context) error) error {
	return r.run(ctx, func() {}, f)
}

// run is like Do, and also calls the function again before each retry.
func (r *Retry) run(ctx context.Context, again func(), f func(context.Context) error) error {
	r.budget.add()
	pauses := r.pauses()
	for try := 1; ; try++ {
		err := f(ctx)
		if err == nil || try >= r.o.Tries || ctx.Err() != nil || !Passing(err) || !r.budget.take() {
			return err
		}
		if !r.pause(ctx, pauses, err) {
			return err
		}
		again()
	}
}

func (r *Retry) pauses() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier, b.RandomizationFactor = r.o.First, r.o.Most, 2, 0.5
	return b
}

// pause waits before a retry. It returns false if ctx has ended or would end before the
// pause, because the error at hand says more than a deadline.
func (r *Retry) pause(ctx context.Context, pauses *backoff.ExponentialBackOff, err error) bool {
	d := pauses.NextBackOff()
	var busy *objstore.BusyError
	if errors.As(err, &busy) {
		d = max(d, min(busy.RetryAfter, r.o.Most))
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Passing reports whether a retry may succeed after an error: the store is busy, did not
// answer in time, or the connection broke.
func Passing(err error) bool {
	var busy *objstore.BusyError
	var timeout net.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, objstore.ErrNotExist),
		errors.Is(err, objstore.ErrExist), errors.Is(err, objstore.ErrNoSpace):
		return false
	case errors.As(err, &busy), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, errStalled), errors.Is(err, errTimeout):
		return true
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNREFUSED),
		errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ETIMEDOUT):
		return true
	}
	return errors.As(err, &timeout) && timeout.Timeout()
}

// bucket is a budget of tokens. Each operation adds a share, up to a maximum.
type bucket struct {
	rate, most float64

	mu     sync.Mutex
	tokens float64
}

// add counts an operation.
func (b *bucket) add() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.tokens+b.rate, b.most)
}

// take uses up one token, if there is one.
func (b *bucket) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// left returns how many tokens there are.
func (b *bucket) left() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens
}
