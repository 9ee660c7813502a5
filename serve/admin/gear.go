package admin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"example.org/slipway/config"
	gearregistry "example.org/slipway/gear/service"
)

// ConvertArgs are the arguments of [Admin.Convert].
type ConvertArgs struct {
	// Again also converts layers whose conversion failed before.
	Again bool
}

// ConvertReport is the progress of converting everything.
type ConvertReport struct {
	// Queued is how many layers had no index at the beginning.
	Queued int `json:"queued"`
	// Waiting is how many layers wait or are being converted.
	Waiting int64                 `json:"waiting"`
	Active  []gearregistry.Active `json:"active"`
	// Converted counts the layers converted since the beginning. Failed counts all layers
	// that cannot be converted.
	Converted int64 `json:"converted"`
	Failed    int64 `json:"failed"`
	// Failures lists some of the failures.
	Failures []gearregistry.Failure `json:"failures"`
	Took     time.Duration          `json:"took"`
}

// SettleArgs are the arguments of [Admin.Settle].
type SettleArgs struct {
	// All also settles packs that have not changed since they were last settled.
	All bool
}

// SettleReport says how packs were changed by settling them.
type SettleReport struct {
	PacksBefore     int64         `json:"packs_before"`
	PackBytesBefore int64         `json:"pack_bytes_before"`
	Packs           int64         `json:"packs"`
	PackBytes       int64         `json:"pack_bytes"`
	Took            time.Duration `json:"took"`
}

// watchEvery is how often progress is read.
const watchEvery = 200 * time.Millisecond

// Convert converts the layers that have no index, of all images.
func (a *Admin) Convert(ctx context.Context, args ConvertArgs, progress func(ConvertReport)) (ConvertReport, error) {
	if a.local == nil {
		return askServer(ctx, a, "convert", args, progress)
	}
	if err := gearWritable(a.cfg); err != nil {
		return ConvertReport{}, err
	}
	// No server processes the queue.
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.local.Gear.Run(ctx) }) // ends with ctx and returns no error
	defer wg.Wait()
	defer cancel()
	return convertAll(ctx, a.local.Gear, args, progress)
}

func convertAll(ctx context.Context, g *gearregistry.Service, args ConvertArgs, progress func(ConvertReport)) (rep ConvertReport, err error) {
	began := time.Now()
	before, err := g.Status(ctx)
	if err != nil {
		return rep, err
	}
	n, err := g.QueueAll(ctx, args.Again)
	if err != nil {
		return rep, fmt.Errorf("queue the layers: %w", err)
	}
	for {
		st, err := g.Status(ctx)
		if err != nil {
			return rep, err
		}
		rep = ConvertReport{Queued: n, Waiting: st.Waiting, Active: st.Active, Converted: max(0, st.Layers-before.Layers),
			Failed: st.Failed, Failures: st.Failures, Took: time.Since(began)}
		if st.Waiting == 0 && len(st.Active) == 0 {
			return rep, nil
		}
		if progress != nil {
			progress(rep)
		}
		select {
		case <-ctx.Done():
			return rep, ctx.Err()
		case <-time.After(watchEvery):
		}
	}
}

// GearStatus returns the state of the Gear side.
func (a *Admin) GearStatus(ctx context.Context) (gearregistry.Status, error) {
	if a.local == nil {
		return askServer[struct{}, gearregistry.Status](ctx, a, "status", struct{}{}, nil)
	}
	return a.local.Gear.Status(ctx)
}

// Settle rewrites packs and frees the space of contents that nothing needs any more.
func (a *Admin) Settle(ctx context.Context, args SettleArgs) (SettleReport, error) {
	if a.local == nil {
		return askServer[SettleArgs, SettleReport](ctx, a, "settle", args, nil)
	}
	if err := gearWritable(a.cfg); err != nil {
		return SettleReport{}, err
	}
	return settle(ctx, a.local.Gear, args)
}

// gearWritable returns an error if packs may not be changed.
func gearWritable(cfg *config.Config) error {
	if cfg.Storage.Maintenance.ReadOnly.Enabled {
		return errors.New("storage.maintenance.readonly is enabled, so nothing is converted or settled")
	}
	return nil
}

func settle(ctx context.Context, g *gearregistry.Service, args SettleArgs) (rep SettleReport, err error) {
	began := time.Now()
	before, err := g.Status(ctx)
	if err == nil {
		err = g.Settle(ctx, args.All)
	}
	if err != nil {
		return rep, err
	}
	after, err := g.Status(ctx)
	return SettleReport{before.Packs, before.PackBytes, after.Packs, after.PackBytes, time.Since(began)}, err
}
