package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"example.org/slipway/node/view"
)

// refreshEvery is how often overlays over a pool that is gone are refreshed. A file that was in
// use when the pool went away is found in the cache at most that long after its last use.
const refreshEvery = 5 * time.Second

// refresh makes overlays over a pool that is gone find files in the cache if they are on
// the node. The kernel remembers where it found a file, and it no longer finds files in
// that pool.
func refresh(stale []view.Mount, log *slog.Logger) {
	var errs []error
	for i := range stale {
		errs = append(errs, view.Forget(stale[i].Dir))
	}
	if err := errors.Join(errs...); err != nil {
		log.Warn("files that were opened before the pool was replaced may fail in containers that run on", "err", err)
	}
}

// refreshAgain continues to refresh overlays over a pool that is gone, until they are
// unmounted or ctx ends.
func (a *Agent) refreshAgain(ctx context.Context, stale []view.Mount) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		list, err := overlaysOf(a.cfg.Root)
		if err == nil {
			stale = slices.DeleteFunc(stale, func(m view.Mount) bool {
				return !slices.ContainsFunc(list, func(n view.Mount) bool { return n.ID == m.ID && n.Dir == m.Dir })
			})
		}
		if len(stale) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		refresh(stale, a.log)
	}
}
