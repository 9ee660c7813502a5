package admin

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
	"example.org/slipway/serve/dataroot"
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
	// wrap is for the root into which a backup is merged; see Options.
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
	rep.Restored, err = dataroot.Restore(ctx, cfg, dir, backup.RestoreOptions{AllowDamaged: o.AllowDamaged, Quick: o.Quick, Progress: o.Progress})
	if errors.Is(err, backup.ErrNotEmpty) {
		rep.Merged = true
		rep.Copied, err = merge(ctx, cfg, dir, o)
	}
	return rep, err
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
	a, err := Open(ctx, cfg, &Options{Create: cfg.Storage.Remote(), Logger: o.Logger, wrap: o.wrap})
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
