package registry

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrClock is returned when the clock is so far from what the catalogue records that
// ages cannot be told.
var ErrClock = errors.New("the clock is not believed")

// Bounds of what the clock may say. A registry that nobody pushed to or pulled from for
// longer than maxIdle is rarer than a machine without a battery for its clock; one that is
// idle loses nothing by keeping its images until somebody uses it again.
const (
	maxIdle   = 14 * 24 * time.Hour
	maxBehind = time.Hour
)

// checkClock refuses to judge ages by a clock that is far from the newest push or pull, and
// from the time of the last run of the rules: a pull just after the clock jumped makes the
// newest record agree with it. A dry run is refused as the run would be.
func (r *Registry) checkClock(ctx context.Context, o RetainOptions) error {
	now := r.now()
	newest, err := r.cat.Newest(ctx)
	if err != nil {
		return storeError("look for the newest push or pull", err)
	}
	last, err := r.cat.RetainedAt(ctx)
	if err != nil {
		return storeError("look for the last run of the retention rules", err)
	}
	const way = "Nothing was removed. Set the clock, or run `slipway retention --trust-clock` once if it is right"
	for _, at := range []struct {
		what string
		ms   int64
	}{{"newest push or pull in the catalogue", newest}, {"last run of the retention rules", last}} {
		if at.ms == 0 || o.TrustClock {
			continue
		}
		t := time.UnixMilli(at.ms)
		switch ahead := now.Sub(t); {
		case ahead > maxIdle:
			return fmt.Errorf("%w: it says %s, which is %d days after the %s (%s). %s", ErrClock,
				now.UTC().Format(time.RFC3339), int(ahead.Hours()/24), at.what, t.UTC().Format(time.RFC3339), way)
		case -ahead > maxBehind:
			return fmt.Errorf("%w: it says %s, which is %s before the %s (%s). %s", ErrClock,
				now.UTC().Format(time.RFC3339), (-ahead).Round(time.Second), at.what, t.UTC().Format(time.RFC3339), way)
		}
	}
	if o.DryRun {
		return nil
	}
	return r.cat.NoteRetained(ctx, now)
}
