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
// from the latest time that the catalogue has noted: a pull just after the clock jumped
// makes the newest record agree with it. A dry run is refused as the run would be.
func (r *Registry) checkClock(ctx context.Context, o RetainOptions) error {
	now := r.now()
	if o.TrustClock {
		if o.DryRun {
			return nil
		}
		return r.cat.NoteClock(ctx, now, 0)
	}
	newest, err := r.cat.Newest(ctx)
	if err != nil {
		return ClientError("look for the newest push or pull", err)
	}
	noted, err := r.cat.Clock(ctx)
	if err != nil {
		return ClientError("look for the time noted last", err)
	}
	if err := plausible(now, newest, "the newest push or pull"); err != nil {
		return err
	}
	if err := plausible(now, noted, "the registry last noted the time"); err != nil || o.DryRun {
		return err
	}
	return r.cat.NoteClock(ctx, now, maxIdle)
}

// plausible returns ErrClock, with the way out, if now is far from a time in Unix
// milliseconds; 0 is no time.
func plausible(now time.Time, ms int64, what string) error {
	const way = "nothing was removed; set the clock, or run \"slipway retention --trust-clock\" once if it is right"
	at := time.UnixMilli(ms)
	ahead := now.Sub(at)
	var far string
	switch {
	case ms == 0:
		return nil
	case ahead > maxIdle:
		far = fmt.Sprintf("%d days after %s", int(ahead.Hours()/24), what)
	case -ahead > maxBehind:
		far = fmt.Sprintf("%s before %s", (-ahead).Round(time.Second), what)
	default:
		return nil
	}
	return fmt.Errorf("%w: it says %s, %s (%s); %s", ErrClock, now.UTC().Format(time.RFC3339), far, at.UTC().Format(time.RFC3339), way)
}

// noteClock notes the time once an hour, so that a jump of the clock shows also when it
// happens while the registry does not run. Only keepHouse calls it.
func (r *Registry) noteClock(ctx context.Context) error {
	if at := r.opts.Steady(); r.clockNoted == 0 || at-r.clockNoted >= time.Hour {
		r.clockNoted = at
		return r.cat.NoteClock(ctx, r.now(), maxIdle)
	}
	return nil
}

// seedClock notes the time of the newest push or pull where no time was noted yet, so that
// a clock that jumped before the start is not believed because of a pull after it.
func (r *Registry) seedClock(ctx context.Context) error {
	noted, err := r.cat.Clock(ctx)
	if err != nil || noted != 0 {
		return err
	}
	newest, err := r.cat.Newest(ctx)
	if err != nil || newest == 0 {
		return err
	}
	return r.cat.NoteClock(ctx, time.UnixMilli(newest), maxIdle)
}
