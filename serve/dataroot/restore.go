package dataroot

import (
	"context"
	"errors"
	"fmt"

	"example.org/slipway/config"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
)

// Restore restores the backup in the directory dir as it was, unless there is a registry that has its
// catalogue. In that case it returns backup.ErrNotEmpty.
func Restore(ctx context.Context, cfg *config.Config, dir string, o backup.RestoreOptions) (rep backup.Report, err error) {
	root, err := diskRoot(cfg)
	if err != nil {
		return rep, err
	}
	if err := checkOwner(root); err != nil {
		return rep, err
	}
	if cfg.Storage.Remote() {
		return restoreRemote(ctx, cfg, dir, o)
	}
	return restoreRoot(ctx, root, dir, o)
}

// restoreRoot restores a backup into a data root. It returns backup.ErrNotEmpty if a
// registry is already there.
func restoreRoot(ctx context.Context, root, dir string, o backup.RestoreOptions) (rep backup.Report, err error) {
	if err := backup.CheckRestorable(root); err != nil {
		return rep, fmt.Errorf("look into the data directory: %w", err)
	}
	o.Claim = func() (func() error, error) {
		l, err := lockRoot(root)
		if err != nil {
			return nil, err
		}
		return l.release, nil
	}
	return backup.Restore(ctx, dir, root, o)
}

// restoreRemote restores a backup into an object store whose catalogue is new or was
// lost. It returns backup.ErrNotEmpty if a registry is already there.
func restoreRemote(ctx context.Context, cfg *config.Config, dir string, o backup.RestoreOptions) (backup.Report, error) {
	o.Into = func(ctx context.Context, fill func(backup.Target) error) (err error) {
		r, err := openStorage(ctx, cfg, "")
		if errors.Is(err, ErrInUse) {
			return backup.ErrNotEmpty // a server uses it, so it is a registry
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close(ctx)) }()
		begun, err := hasBegun(ctx, r.Catalog)
		if err == nil && begun {
			err = backup.ErrNotEmpty
		}
		owner := ""
		if err == nil {
			owner, err = storage.Owner(ctx, r.Objects)
		}
		if err == nil && owner == "" {
			err = r.checkCatalog(ctx, cfg) // blobs in the store would belong to no repository
		}
		if err != nil {
			return err
		}
		return fill(backup.Target{Store: r.Objects, SetCatalog: r.setCatalog})
	}
	return backup.Restore(ctx, dir, "", o)
}

// hasBegun reports whether the catalogue belongs to a registry and is not new.
func hasBegun(ctx context.Context, cat *catalog.Catalog) (bool, error) {
	if id, _, err := cat.Settings.RegistryID(ctx); err != nil || id != "" {
		return id != "", err
	}
	return knowsBlobs(ctx, cat)
}

// setCatalog turns the catalogue in a file into the catalogue of the root, whose own
// catalogue is new.
func (r *Root) setCatalog(ctx context.Context, file string) error {
	if r.Catalog.DB.Shared() {
		return backup.MoveCatalog(ctx, file, r.Catalog)
	}
	err := r.Catalog.Close()
	r.Catalog = nil
	if err != nil {
		return err
	}
	return backup.PlaceCatalog(file, r.Dir)
}

// checkRestored refuses a directory whose restore has not finished. It returns ErrInUse
// while the restore is under way.
func checkRestored(dir string) error {
	if !backup.RestoreCutOff(dir) {
		return nil // also if the directory cannot be read; opening the root will report that
	}
	l, err := lockRoot(dir) // the lock is held as long as the restore is under way
	if err != nil {
		return err
	}
	if err := l.release(); err != nil {
		return err
	}
	return fmt.Errorf("a restore into %s was interrupted; run slipway restore again, which continues where it stopped", dir)
}
