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
	MergeProgress func(imagecopy.Progress)
	// Logger; default slog.Default.
	Logger *slog.Logger
	// wrap is for the root that a backup is merged into; see AdminOptions.
	wrap func(objstore.Store) objstore.Store
}

// RestoreReport is what Restore did.
type RestoreReport struct {
	// Merged reports whether there was a registry already. If so, the backup's images were
	// added to it: Copied counts these. Otherwise Restored counts objects.
	Merged   bool
	Restored backup.Report
	Copied   imagecopy.Progress
}

// Restore restores the backup in the directory dir. Where there is no registry, or one
// that has lost its catalogue, everything comes back as it was. To any other registry the
// backup's images are added, through the server that uses it if one does. The report says
// how far it came also when there is an error.
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

// restoreRoot restores a backup into a data root. Errors: backup.ErrNotEmpty where a
// registry is there already.
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

// restoreRemote restores a backup into an object store, whose catalogue is new or was
// lost. Errors: backup.ErrNotEmpty where a registry is there already.
func restoreRemote(ctx context.Context, cfg *config.Config, dir string, o backup.RestoreOptions) (backup.Report, error) {
	o.Into = func(ctx context.Context, fill func(backup.Target) error) (err error) {
		r, err := openStorage(ctx, cfg, "")
		if errors.Is(err, ErrInUse) {
			return backup.ErrNotEmpty // by a server, whose registry it is then
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
			owner, err = registry.StoreOwner(ctx, r.inner)
		}
		if err == nil && owner == "" {
			err = r.checkCatalog(ctx, cfg) // blobs in it would be nobody's
		}
		if err != nil {
			return err
		}
		return fill(backup.Target{Store: r.inner, SetCatalog: r.setCatalog})
	}
	return backup.Restore(ctx, dir, "", o)
}

// began reports whether the catalogue is that of a registry, and not new.
func (r *root) began(ctx context.Context) (bool, error) {
	if id, _, err := r.cat.Settings.RegistryID(ctx); err != nil || id != "" {
		return id != "", err
	}
	return r.knowsBlobs(ctx)
}

// setCatalog makes the catalogue in a file that of the root, whose own is new.
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

// merge adds a backup's images to a data root, and replaces what is damaged there. The
// backup is opened first, so that one that cannot be used changes nothing.
func merge(ctx context.Context, cfg *config.Config, dir string, o RestoreOptions) (_ imagecopy.Progress, err error) {
	// Also after an interrupt: closing saves what is only in RAM.
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
		Partial: mirrored(cfg), Tagged: tagged, Progress: o.MergeProgress}, o.Quick)
	if err == nil && len(repos) == 0 {
		err = a.continues(ctx, dir)
	}
	return rep, err
}

// backedUp returns all images of a backup, with those that have no tag, and what gives a
// tag that was restored the times that it had. Otherwise it would be newer than all tags
// that are here, and retention would keep it in their place.
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
