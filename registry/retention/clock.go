package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/registry"
	"example.org/slipway/registry/storage"
)

// ErrClock is returned if the clock is so far from what the catalogue records that ages cannot be
// judged.
var ErrClock = errors.New("the clock is not believed")

// maxBehind is how far the clock may be behind what the catalogue records.
const maxBehind = time.Hour

// checkClock returns an error if the clock is far from the newest push or pull, or from
// the latest time that the catalogue has noted. Ages cannot be judged by such a clock.
// The noted time is needed because a pull just after the clock jumped makes the newest
// record agree with the clock. A dry run is refused in the same cases as the run.
func checkClock(ctx context.Context, up *registry.Upkeep, o Options) error {
	now := up.Replica.Now()
	if o.TrustClock {
		if o.DryRun {
			return nil
		}
		return up.Catalog.Settings.NoteClock(ctx, now, 0)
	}
	newest, err := up.Catalog.Retention.Newest(ctx)
	if err != nil {
		return storage.ClientError("look for the newest push or pull", err)
	}
	noted, err := up.Catalog.Settings.Clock(ctx)
	if err != nil {
		return storage.ClientError("look for the time noted last", err)
	}
	if err := plausible(now, newest, "the newest push or pull"); err != nil {
		return err
	}
	if err := plausible(now, noted, "the registry last noted the time"); err != nil || o.DryRun {
		return err
	}
	return up.Catalog.Settings.NoteClock(ctx, now, registry.MaxIdle)
}

// plausible returns ErrClock, with advice, if now is far from a time in Unix
// milliseconds. It ignores a time of 0.
func plausible(now time.Time, ms int64, what string) error {
	const way = "nothing was removed; set the clock, or run \"slipway retention --trust-clock\" once if it is right"
	at := time.UnixMilli(ms)
	ahead := now.Sub(at)
	var far string
	switch {
	case ms == 0:
		return nil
	case ahead > registry.MaxIdle:
		far = fmt.Sprintf("%d days after %s", int(ahead.Hours()/24), what)
	case -ahead > maxBehind:
		far = fmt.Sprintf("%s before %s", (-ahead).Round(time.Second), what)
	default:
		return nil
	}
	return fmt.Errorf("%w: it says %s, %s (%s); %s", ErrClock, now.UTC().Format(time.RFC3339), far, at.UTC().Format(time.RFC3339), way)
}
