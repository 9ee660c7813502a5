package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci/imagecopy"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
	"example.org/slipway/serve/mirrors"
)

// RestoreOptions are options of Restore. The zero value works.
type RestoreOptions struct {
	// AllowDamaged restores what is intact in a damaged backup into an empty root.
	AllowDamaged bool
	// Quick compares only the sizes of existing blobs with the catalogue when a backup is
	// merged. Otherwise their contents are read.
	Quick bool
	// Progress, if not nil, receives the progress of a restore into an empty root.
	// MergeProgress receives the progress of a merge.
	Progress      func(backup.Report)
	MergeProgress func(imagecopy.Progress)
	// Logger defaults to slog.Default.
	Logger *slog.Logger
	// wrap is for the root into which a backup is merged; see AdminOptions.
	wrap func(objstore.Store) objstore.Store
}

// RestoreReport says what Restore did.
type RestoreReport struct {
	// Merged reports whether there was a registry already. If so, the backup's images
	// were added to it, and Copied counts them. Otherwise Restored counts objects.
	Merged   bool
	Restored backup.Report
	Copied   imagecopy.Progress
}

// Restore restores the backup in the directory dir. If there is no registry, or one that
// has lost its catalogue, everything is restored as it was. Otherwise the backup's images
// are added to the registry, through the server that uses it if there is one. The report
// says how far the restore came even if there is an error.
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
	whole := backup.RestoreOptions{AllowDamaged: o.AllowDamaged, Quick: o.Quick, Progress: o.Progress}
	if cfg.Storage.Remote() {
		rep.Restored, err = restoreRemote(ctx, cfg, dir, whole)
	} else {
		rep.Restored, err = restoreRoot(ctx, root, dir, whole)
	}
	if errors.Is(err, backup.ErrNotEmpty) {
		rep.Merged = true
		rep.Copied, err = merge(ctx, cfg, dir, o)
	}
	return rep, err
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
		defer func() { err = errors.Join(err, r.close(ctx)) }()
		began, err := r.began(ctx)
		if err == nil && began {
			err = backup.ErrNotEmpty
		}
		owner := ""
		if err == nil {
			owner, err = storage.Owner(ctx, r.inner)
		}
		if err == nil && owner == "" {
			err = r.checkCatalog(ctx, cfg) // blobs in the store would belong to no repository
		}
		if err != nil {
			return err
		}
		return fill(backup.Target{Store: r.inner, SetCatalog: r.setCatalog})
	}
	return backup.Restore(ctx, dir, "", o)
}

// began reports whether the catalogue belongs to a registry and is not new.
func (r *root) began(ctx context.Context) (bool, error) {
	if id, _, err := r.cat.Settings.RegistryID(ctx); err != nil || id != "" {
		return id != "", err
	}
	return r.knowsBlobs(ctx)
}

// setCatalog makes the catalogue in a file the catalogue of the root, whose own catalogue
// is new.
func (r *root) setCatalog(ctx context.Context, file string) error {
	if r.cat.DB.Shared() {
		return backup.MoveCatalog(ctx, file, r.cat)
	}
	err := r.cat.Close()
	r.cat = nil
	if err != nil {
		return err
	}
	return backup.PlaceCatalog(file, r.dir)
}

// merge adds a backup's images to a data root, and replaces what is damaged there. It
// opens the backup first, so that an unusable backup changes nothing.
func merge(ctx context.Context, cfg *config.Config, dir string, o RestoreOptions) (_ imagecopy.Progress, err error) {
	// This happens even after an interrupt, because closing saves what is only in RAM.
	closing := func(f func(context.Context) error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, f(ctx))
	}
	src, closeBackup, err := backup.Open(ctx, dir, o.Logger)
	if err != nil {
		return imagecopy.Progress{}, err
	}
	defer closing(closeBackup)
	a, err := OpenAdmin(ctx, cfg, &AdminOptions{Create: cfg.Storage.Remote(), Logger: o.Logger, wrap: o.wrap})
	if err != nil {
		return imagecopy.Progress{}, err
	}
	defer closing(a.Close)
	repos, _, err := a.Registry().Repositories(ctx, "", 1)
	if err != nil {
		return imagecopy.Progress{}, fmt.Errorf("look whether the registry is empty: %w", err)
	}
	images, tagged, err := a.backedUp(ctx, src)
	if err != nil || len(images) == 0 {
		return imagecopy.Progress{}, err
	}
	rep, err := a.Copy(ctx, src, imagecopy.Options{Images: images, Referrers: true, ContinueOnError: true,
		Partial: mirrors.Mirrored(cfg), Tagged: tagged, Progress: o.MergeProgress}, o.Quick)
	if err == nil && len(repos) == 0 {
		err = a.continues(ctx, dir)
	}
	return rep, err
}

// backedUp returns all images of a backup, including those without a tag. It also returns
// a function that gives a restored tag the times that it had. Otherwise the tag would be
// newer than all tags that are here, and retention would keep it in their place.
func (a *Admin) backedUp(ctx context.Context, src *registry.Registry) (images []imagecopy.Image,
	tagged func(context.Context, string, string) error, err error) {
	repos, err := backup.Repositories(ctx, src)
	if err != nil {
		return nil, nil, fmt.Errorf("look into the backup: %w", err)
	}
	times := map[string]map[string]catalog.TagInfo{}
	for _, r := range repos {
		im := imagecopy.Image{From: r.Name}
		for _, d := range r.Untagged {
			im.References = append(im.References, string(d))
		}
		times[r.Name] = make(map[string]catalog.TagInfo, len(r.Tags))
		for _, t := range r.Tags {
			im.References = append(im.References, t.Name)
			times[r.Name][t.Name] = t
		}
		images = append(images, im)
	}
	return images, func(ctx context.Context, repo, tag string) error {
		if err := a.setTagTimes(ctx, tagTimesArgs{repo, times[repo][tag]}); err != nil {
			return fmt.Errorf("give the tag the times that it had: %w", err)
		}
		return nil
	}, nil
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
	return fmt.Errorf("a restore into %s was interrupted; run slipway restore again, which goes on where that one ended", dir)
}
