package serve

import (
	"context"
	"errors"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/serve/dataroot"
)

// runJobs does the regular work of a server until ctx ends: garbage collections and the
// retention rules.
func (s *Server) runJobs(ctx context.Context) {
	st := &s.cfg.Storage
	if st.Maintenance.ReadOnly.Enabled {
		return
	}
	var wg sync.WaitGroup
	every := func(interval time.Duration, job func()) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					job()
				}
			}
		}()
	}
	if !st.GC.Disabled {
		every(st.GC.Interval, func() { s.collectGarbage(ctx) })
	}
	wg.Go(func() { s.dropLayers(ctx) }) // always: layers may have been dropped before
	every(st.Rebuild.Interval, func() { s.dropLayers(ctx) })
	wg.Go(func() { s.scrub(ctx) })
	every(st.Rebuild.Interval, func() { s.scrub(ctx) })
	if len(st.Retention) > 0 {
		every(st.RetentionInterval, func() { s.applyRetention(ctx) })
	}
	if ttl := s.cfg.Proxy.TTL; ttl > 0 && s.root.Mirrors != nil {
		every(min(max(ttl/10, time.Second), pruneEvery), func() { s.pruneMirrors(ctx, ttl) })
	}
	wg.Wait()
}

// pruneEvery is the longest time between two searches for mirrored images that nobody
// pulls any more.
const pruneEvery = time.Hour

func (s *Server) pruneMirrors(ctx context.Context, ttl time.Duration) {
	leave, err := s.writes.Enter()
	if err != nil { // the catalogue is being moved
		return
	}
	defer leave()
	rep, err := s.root.Mirrors.Prune(ctx, mirror.PruneOptions{NotPulledSince: ttl})
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.log.Error("mirrored images that nobody pulls cannot be removed; it is tried again at the next run", "err", err)
	case rep.Images > 0:
		s.log.Info("removed mirrored images that nobody has pulled for proxy.ttl", "images", rep.Images, "bytes", rep.Bytes)
	}
}

func (s *Server) collectGarbage(ctx context.Context) {
	leave, err := s.writes.Enter()
	if err != nil { // the catalogue is being moved
		return
	}
	defer leave()
	rep, err := s.root.Registry.Collect(ctx, registry.CollectOptions{})
	s.root.CollectVolumes(ctx, false)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.log.Error("garbage collection failed; it goes on at the next run", "err", err)
	case rep.Examined > 0:
		s.log.Info("garbage collected", "examined", rep.Examined, "manifests", rep.Manifests, "blobs", rep.Blobs,
			"deleted", rep.Contents, "bytes", rep.Bytes, "dur", rep.Took)
	}
}

func (s *Server) applyRetention(ctx context.Context) {
	leave, err := s.writes.Enter()
	if err != nil { // the catalogue is being moved
		return
	}
	defer leave()
	rep, err := s.root.Retain(ctx, dataroot.RetainArgs{})
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.log.Error("retention failed; it is tried again at the next run", "err", err)
	case rep.Removed > 0:
		s.log.Info("retention removed tags", "repositories", rep.Repositories, "kept", rep.Kept, "removed", rep.Removed, "manifests", rep.Manifests)
	}
}

// convert runs the conversion to Gear and the building of volumes until ctx ends. It
// pauses while writes are stopped or the object store is unavailable.
func (s *Server) convert(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if leave, err := s.writes.Enter(); err == nil && s.root.Registry.StoreAway() != nil {
			leave()
		} else if err == nil {
			err := s.convertUntil(ctx, s.writes.Stopping())
			leave()
			if ctx.Err() != nil || err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *Server) convertUntil(ctx context.Context, stop <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for s.root.Registry.StoreAway() == nil {
			select {
			case <-stop:
				cancel()
				return
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel()
	})
	if v := s.root.Volumes; v != nil {
		wg.Go(func() { _ = v.Run(ctx) }) // ends with ctx and returns no error
	}
	return s.root.Gear.Run(ctx)
}

// dropLayers looks once for layers that may be dropped, and drops them.
func (s *Server) dropLayers(ctx context.Context) {
	began := time.Now()
	rep, err := s.root.DropLayers(ctx)
	switch {
	case ctx.Err() != nil || unavailable(err): // writes are stopped, or the object store is unavailable
	case err != nil:
		s.log.Error("layers cannot be dropped; it is tried again at the next run", "err", err)
	case rep.Made+rep.Refused+rep.Dropped+rep.Back+rep.Failed > 0:
		s.log.Info("made recipes and dropped layers", "made", rep.Made, "refused", rep.Refused, "dropped", rep.Dropped,
			"bytes", rep.DroppedBytes, "back", rep.Back, "failed", rep.Failed, "dur", time.Since(began))
	}
}

// scrub reads the packs of dropped layers that were not read for long. Damage is in the
// log, in the status and in the metrics.
func (s *Server) scrub(ctx context.Context) {
	rep, err := s.root.Scrub(ctx)
	switch {
	case ctx.Err() != nil || unavailable(err):
	case err != nil:
		s.log.Error("the packs of dropped layers cannot be scrubbed; it is tried again at the next run", "err", err)
	case rep.Packs > 0:
		s.log.Info("scrubbed the packs of dropped layers", "packs", rep.Packs, "bytes", rep.Bytes, "damaged", rep.Damaged)
	}
}

// unavailable reports whether an error is temporary.
func unavailable(err error) bool {
	var e *oci.Error
	return errors.As(err, &e) && e.Code == oci.CodeUnavailable
}
