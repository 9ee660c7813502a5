package catalog

import (
	"context"
	"errors"
	"time"
)

// ErrLeased: somebody else has the lease.
var ErrLeased = newVerdict("another process is doing this")

// ErrLeaseLost is the cause with which a held lease ends when it could not be
// prolonged.
var ErrLeaseLost = errors.New("the lease could not be prolonged")

// releaseWithin bounds the end of a lease. What fails ends by itself.
const releaseWithin = 5 * time.Second

// Hold takes a lease and prolongs it until release is called or ctx ends. held is a
// ctx that ends with the lease at the latest: before anybody else can have it, if
// clocks run equally fast, as what has begun under it gets a sixth of d to end in.
// Errors: ErrLeased.
func (c *Catalog) Hold(ctx context.Context, name, owner string, d time.Duration) (held context.Context, release func(), err error) {
	began := time.Now()
	ok, err := c.Lease(ctx, name, owner, d)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, ErrLeased
	}
	held, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.prolong(held, cancel, name, owner, d, began)
	}()
	return held, func() {
		cancel(nil)
		<-done
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
		defer stop()
		_ = c.Unlease(end, name, owner) // it ends by itself
	}, nil
}

// prolong keeps a lease that was taken at good at the latest.
func (c *Catalog) prolong(held context.Context, cancel context.CancelCauseFunc, name, owner string, d time.Duration, good time.Time) {
	tick := time.NewTicker(d / 4)
	defer tick.Stop()
	for {
		end := time.NewTimer(time.Until(good.Add(d - d/6)))
		select {
		case <-held.Done():
			end.Stop()
			return
		case <-end.C:
			cancel(ErrLeaseLost)
			return
		case <-tick.C:
			end.Stop()
		}
		asked := time.Now()
		try, stop := context.WithDeadline(held, good.Add(d-d/6))
		ok, err := c.Lease(try, name, owner, d)
		stop()
		switch {
		case err == nil && ok:
			good = asked
		case err == nil:
			cancel(ErrLeaseLost)
			return
		}
	}
}
