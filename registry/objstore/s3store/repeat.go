package s3store

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"example.org/slipway/registry/objstore"
)

const (
	// repeatTries is how often a request inside an upload is made at most.
	repeatTries = 4
	// repeatMost bounds the pause a server may ask for.
	repeatMost = 20 * time.Second
)

// repeat is the default of Options.Repeat.
func repeat(ctx context.Context, f func(context.Context) error) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 100*time.Millisecond, 5*time.Second
	for try := 1; ; try++ {
		err := f(ctx)
		var busy *objstore.BusyError
		if err == nil || try == repeatTries || !errors.As(err, &busy) {
			return err
		}
		pause := max(pauses.NextBackOff(), min(busy.RetryAfter, repeatMost))
		if sleep(ctx, pause) != nil {
			return err
		}
	}
}

// sleep waits, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
