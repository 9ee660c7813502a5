package upstream

import (
	"context"
	"errors"
	"time"
)

// Patiently repeats a request to a busy upstream after the time that the upstream wants,
// for as long as patience. It returns other errors at once.
func Patiently(ctx context.Context, patience time.Duration, ask func() error) error {
	left := patience
	for {
		began := time.Now()
		err := ask()
		if KindOf(err) != Busy {
			return err
		}
		pause := max(RetryAfter(err), 50*time.Millisecond)
		if left -= time.Since(began) + pause; left < 0 {
			return err
		}
		if err := Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// RetryAfter returns how long an upstream wants to be left alone before the next request.
func RetryAfter(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Await waits for a channel to be closed.
func Await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
