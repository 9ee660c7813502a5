package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/objstore"
)

// RestoreOptions of Restore. The zero value works.
type RestoreOptions struct {
	// AllowDamaged restores what can be restored of a damaged backup into an
	// empty root.
	AllowDamaged bool
	// Quick compares only the sizes of what is here already with the catalogue's,
	// where a backup is merged. Otherwise its bytes are read.
	Quick bool
	// Progress, if not nil, is told how far a restore into an empty root is,
	// MergeProgress how far a merge is.
	Progress      func(backup.Report)
	MergeProgress func(client.CopyProgress)
	// Logger; default slog.Default.
	Logger *slog.Logger
	// wrap is for the root that a backup is merged into; see AdminOptions.
	wrap func(objstore.Store) objstore.Store
}

// RestoreReport is what Restore did.
type RestoreReport struct {
	// Merged tells that the root held something, or that content goes into an object
	// store, and so the backup's images were added to it: Copied counts these. Otherwise Restored counts objects.
	Merged   bool
	Restored backup.Report
	Copied   client.CopyProgress
}

// Restore restores the backup in the directory dir. Into a data root that is
// missing or empty everything comes back as it was; to any other, and to an object
// store, the backup's images are added, through the server that uses it if one does. The report
// says how far it came also when there is an error.
func Restore(ctx context.Context, cfg *config.Config, dir string, o RestoreOptions) (rep RestoreReport, err error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	root, err := diskRoot(cfg)
	if err != nil {
		return rep, err
	}
	if err := checkOwner(root); err != nil {
		return rep, err
	}
	if !cfg.Storage.Remote() {
		err = backup.CheckRestorable(root)
	}
	switch {
	case cfg.Storage.Remote() || errors.Is(err, backup.ErrNotEmpty):
		rep.Merged = true
		rep.Copied, err = merge(ctx, cfg, dir, o)
		return rep, err
	case err != nil:
		return rep, fmt.Errorf("look into the data directory: %w", err)
	}
	rep.Restored, err = backup.Restore(ctx, dir, root, backup.RestoreOptions{AllowDamaged: o.AllowDamaged, Progress: o.Progress,
		Claim: func() (func() error, error) {
			l, err := lockRoot(root)
			if err != nil {
				return nil, err
			}
			return l.release, nil
		}})
	return rep, err
}

// merge adds a backup's images to a data root, and replaces what is damaged there. The
// backup is opened first, so that one that cannot be used changes nothing.
func merge(ctx context.Context, cfg *config.Config, dir string, o RestoreOptions) (_ client.CopyProgress, err error) {
	// Also after an interrupt: closing saves what is only in RAM.
	closing := func(f func(context.Context) error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, f(ctx))
	}
	src, closeBackup, err := backup.Open(ctx, dir, o.Logger)
	if err != nil {
		return client.CopyProgress{}, err
	}
	defer closing(closeBackup)
	a, err := OpenAdmin(ctx, cfg, &AdminOptions{Create: cfg.Storage.Remote(), Logger: o.Logger, wrap: o.wrap})
	if err != nil {
		return client.CopyProgress{}, err
	}
	defer closing(a.Close)
	repos, _, err := a.Registry().Repositories(ctx, "", 1)
	if err != nil {
		return client.CopyProgress{}, fmt.Errorf("look whether the registry is empty: %w", err)
	}
	rep, err := a.Copy(ctx, src, client.CopyOptions{Referrers: true, ContinueOnError: true, Progress: o.MergeProgress}, o.Quick)
	if err == nil && len(repos) == 0 {
		err = a.continues(ctx, dir)
	}
	return rep, err
}

// checkRestored refuses a directory into which a restore has not come to its
// end. Errors: ErrInUse while it is under way.
func checkRestored(dir string) error {
	if !backup.RestoreCutOff(dir) {
		return nil // also where it cannot be looked at; whoever opens the root will say so
	}
	l, err := lockRoot(dir) // held as long as the restore is under way
	if err != nil {
		return err
	}
	if err := l.release(); err != nil {
		return err
	}
	return fmt.Errorf("a restore into %s was interrupted; run slipway restore again, which goes on where that one ended", dir)
}
