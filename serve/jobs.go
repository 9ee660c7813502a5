package serve

import (
	"context"
	"time"

	"example.org/slipway/registry"
)

// runJobs does the regular work of a server until ctx ends.
func (s *Server) runJobs(ctx context.Context) {
	gc := &s.cfg.Storage.GC
	if gc.Disabled || s.cfg.Storage.Maintenance.ReadOnly.Enabled {
		return
	}
	tick := time.NewTicker(gc.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		rep, err := s.root.reg.Collect(ctx, registry.CollectOptions{})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.Error("garbage collection failed; it goes on at the next run", "err", err)
		case rep.Examined > 0:
			s.log.Info("garbage collected", "examined", rep.Examined, "manifests", rep.Manifests, "blobs", rep.Blobs,
				"deleted", rep.Contents, "bytes", rep.Bytes, "dur", rep.Took)
		}
	}
}
