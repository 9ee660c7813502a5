package dataroot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog/snapshot"
	"example.org/slipway/registry/retention"
)

// GCArgs are the arguments of [Root.Collect]; see registry.CollectOptions.
type GCArgs struct{ DryRun, Now, Untagged bool }

// FsckArgs are the arguments of [Root.Fsck]; see check.Options.
type FsckArgs struct {
	Quick, Repair, EmptyQuarantine, GiveUpMany, AdoptStore bool
	// From is the source of good copies for a repair. If it is nil, there is none.
	From *FsckSource
	// Rebuild makes the check first record the packs of Gear files that the catalogue
	// does not know.
	Rebuild  bool
	Parallel int
}

// BackupArgs are the arguments of [Root.Backup].
type BackupArgs struct {
	// Dir is an absolute path.
	Dir string
	// These are as in backup.Options.
	Verify, ReplaceOther, AllowShrink bool
}

// RetainArgs are the arguments of [Root.Retain]; see retention.Options.
type RetainArgs struct{ DryRun, Now, TrustClock bool }

// Collect collects garbage, and then the volumes that nothing needs any more.
func (r *Root) Collect(ctx context.Context, args GCArgs, progress func(registry.CollectReport)) (registry.CollectReport, error) {
	rep, err := r.Registry.Collect(ctx, registry.CollectOptions{DryRun: args.DryRun, Now: args.Now, Untagged: args.Untagged, Progress: progress})
	if err == nil && !args.DryRun {
		r.CollectVolumes(ctx, args.Now)
	}
	return rep, err
}

// Backup copies everything into a directory.
func (r *Root) Backup(ctx context.Context, args BackupArgs, progress func(backup.Report)) (backup.Report, error) {
	if !filepath.IsAbs(args.Dir) {
		return backup.Report{}, fmt.Errorf("the backup directory %q is not an absolute path", args.Dir)
	}
	inside, err := within(args.Dir, r.Dir)
	if err != nil {
		return backup.Report{}, err
	}
	if inside {
		return backup.Report{}, fmt.Errorf("the backup directory %s is in the data directory, and would be lost with it; choose another, on another disk", args.Dir)
	}
	rep, err := backup.Make(PastCache(ctx), r.Registry, args.Dir,
		backup.Options{Progress: progress, Verify: args.Verify, ReplaceOther: args.ReplaceOther, AllowShrink: args.AllowShrink})
	if err == nil {
		if err := snapshot.NoteLast(ctx, r.Catalog.DB, time.Now()); err != nil { // the backup is complete all the same
			r.log.Warn("the time of this backup is not recorded for metrics", "err", err)
		}
	}
	return rep, err
}

// within reports whether path is dir or lies in it. The path need not exist yet.
func within(path, dir string) (bool, error) {
	top, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	// The longest part of the path that exists decides, with its links followed.
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			path = real
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return false, err
		}
		path = filepath.Dir(path)
	}
	for {
		fi, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		if os.SameFile(fi, top) {
			return true, nil
		}
		if path == filepath.Dir(path) {
			return false, nil
		}
		path = filepath.Dir(path)
	}
}

// Retain applies the retention rules of the configuration.
func (r *Root) Retain(ctx context.Context, args RetainArgs) (retention.Report, error) {
	rules, err := retentionRules(r.cfg.Storage.Retention)
	if err != nil {
		return retention.Report{}, err
	}
	return retention.Apply(ctx, r.Registry, rules, retention.Options{DryRun: args.DryRun, Now: args.Now, TrustClock: args.TrustClock})
}
