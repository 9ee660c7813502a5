package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/gear/filestore"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry/check"
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

// These are the kinds of problems of the Gear side. Package registry has others.
const (
	// ProblemGear means that a pack, or a content in it, is damaged. A repair records the
	// content as lost, and it is made again from a layer that holds it.
	ProblemGear check.Kind = "gear-damaged"
	// ProblemGearUnknown means that the store has a pack that the catalogue does not
	// know. A repair deletes it.
	ProblemGearUnknown check.Kind = "gear-pack-unknown"
)

const (
	// watchEvery is how often progress is read.
	watchEvery = 200 * time.Millisecond
	// maxGearProblems is how many problems of packs a report lists; further problems are
	// only counted. Package registry has the same limit.
	maxGearProblems = 1000
)

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
	wg.Go(func() { _ = a.local.gear.Run(ctx) }) // ends with ctx and returns no error
	defer wg.Wait()
	defer cancel()
	return convertAll(ctx, a.local.gear, args, progress)
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
	return a.local.gear.Status(ctx)
}

// Settle rewrites packs and frees the space of contents that nothing needs any more.
func (a *Admin) Settle(ctx context.Context, args SettleArgs) (SettleReport, error) {
	if a.local == nil {
		return askServer[SettleArgs, SettleReport](ctx, a, "settle", args, nil)
	}
	if err := gearWritable(a.cfg); err != nil {
		return SettleReport{}, err
	}
	return settle(ctx, a.local.gear, args)
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

// gearCheck adds the problems of packs to a report.
type gearCheck struct {
	rep    *check.Report
	repair bool
	listed int
	// pack is the last pack that is damaged as a whole. at is its place in rep's list, or
	// -1.
	pack string
	at   int
}

func (g *gearCheck) found(p filestore.Problem) {
	out := check.Problem{Kind: ProblemGear, Key: "slipway/gear/packs/" + p.Pack, Detail: p.What, Repaired: g.repair && !p.Needed}
	if p.Needed {
		out.Detail += "; a dropped layer consists of it: bring the pack back from a backup"
	}
	switch {
	case p.Orphan:
		out.Kind = ProblemGearUnknown
	case p.Name != "":
		out.Digest = oci.Digest("sha256:" + p.Name)
		if out.Repaired && p.Pack == g.pack { // the contents are damaged because the pack is
			g.repaired(ProblemGear)
			if g.at >= 0 {
				g.rep.Problems[g.at].Repaired = true
			}
			g.pack = ""
		}
	default:
		g.pack, out.Repaired = p.Pack, false
	}
	g.rep.Counts[out.Kind]++
	if out.Repaired {
		g.repaired(out.Kind)
	}
	at := -1
	if g.listed < maxGearProblems {
		g.listed++
		at = len(g.rep.Problems)
		g.rep.Problems = append(g.rep.Problems, out)
	}
	if p.Name == "" && !p.Orphan {
		g.at = at
	}
}

func (g *gearCheck) repaired(kind check.Kind) { g.rep.Repaired[kind]++ }

// rebuild records the packs that the catalogue does not know and then checks everything.
func rebuild(ctx context.Context, r *root, args FsckArgs, progress func(check.Report)) (check.Report, error) {
	began := time.Now()
	if err := r.reg.CheckStore(ctx); err != nil {
		return check.Report{}, err
	}
	// Damaged packs are not reported here, because the check finds them again among the
	// unknown packs.
	packs, files, err := r.files.Rebuild(ctx, func(filestore.Problem) {})
	if err != nil {
		return check.Report{}, fmt.Errorf("record the packs that the catalogue does not know: %w", err)
	}
	took := time.Since(began)
	args.Rebuild = false
	rep, err := fsckAll(ctx, r, args, progress)
	rep.RebuiltPacks, rep.RebuiltFiles, rep.Took = int64(packs), int64(files), rep.Took+took
	return rep, err
}

// fsckAll checks everything. Packs come last, because by then the repairs before them
// have freed space.
func fsckAll(ctx context.Context, r *root, args FsckArgs, progress func(check.Report)) (check.Report, error) {
	ctx = pastCache(ctx)
	if args.Rebuild {
		return rebuild(ctx, r, args, progress)
	}
	rep, err := fsck(ctx, r.reg, args, progress)
	if err != nil {
		return rep, err
	}
	began := time.Now()
	g := &gearCheck{rep: &rep, repair: args.Repair}
	n, err := r.files.Verify(ctx, filestore.VerifyOptions{Contents: !args.Quick, Repair: args.Repair, Found: g.found})
	rep.Objects += int64(n.Packs)
	rep.Bytes, rep.BytesTotal = rep.Bytes+n.Bytes, rep.BytesTotal+n.Bytes
	rep.Took += time.Since(began)
	if err != nil {
		return rep, fmt.Errorf("check the packs of Gear files: %w", err)
	}
	return rep, nil
}
