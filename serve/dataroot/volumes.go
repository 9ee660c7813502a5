package dataroot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/file"
	"example.org/slipway/volume/rbd"
	volumeregistry "example.org/slipway/volume/service"
)

// openVolumes opens the volume side of a data root, if there is one. Its storage is
// opened when it is first needed, so a registry can serve while that storage is
// unavailable.
func (r *Root) openVolumes() error {
	cfg, log := r.cfg, r.log
	c := &cfg.Volumes
	if c.Driver == "" {
		return nil
	}
	if c.Driver == "rbd" && !rbd.Available {
		_, err := rbd.Open(context.Background(), rbd.Options{}) // the error says how to get support for it
		return fmt.Errorf("volumes.driver: %w", err)
	}
	build, err := volumePolicy(c)
	if err != nil {
		return err
	}
	r.Volumes = volumeregistry.New(r.Catalog, r.Gear, besideImages{r}, func(ctx context.Context) (block.Store, error) { return openVolumeStore(ctx, c, log) },
		&volumeregistry.Options{Logger: log, Build: build, FS: c.FileSystems(), Workers: c.Workers, CredentialTTL: c.CredentialTTL,
			Copied:   func(repo string) bool { return r.IsMirror != nil && r.IsMirror(repo) },
			ReadOnly: cfg.Storage.Maintenance.ReadOnly.Enabled})
	return nil
}

var _ volumeregistry.Issuer = rbd.Issuer(nil)

// openVolumeStore opens the configured storage of volumes.
func openVolumeStore(ctx context.Context, c *config.Volumes, log *slog.Logger) (block.Store, error) {
	switch c.Driver {
	case "file":
		return file.Open(c.File.Dir, nil)
	case "rbd":
		o := &c.RBD
		return rbd.Open(ctx, rbd.Options{Conf: o.Conf, User: o.User, Keyring: o.Keyring, Pool: o.Pool, Namespace: o.Namespace, Clones: o.ClonesNamespace, Log: log})
	}
	return nil, fmt.Errorf("there is no driver %q of volumes", c.Driver)
}

// volumePolicy compiles the rules that say which repositories' images are built when they
// are pushed.
func volumePolicy(c *config.Volumes) (func(repo string) bool, error) {
	type rule struct {
		repos func(string) bool
		build bool
	}
	var rules []rule
	for i, r := range c.Rules {
		repos, err := patterns.CompileAll(r.Repositories)
		if err != nil {
			return nil, fmt.Errorf("volumes.rules.%d.repositories: %w", i, err)
		}
		rules = append(rules, rule{repos, r.Build == "push"})
	}
	return func(repo string) bool {
		for _, r := range rules {
			if r.repos(repo) {
				return r.build
			}
		}
		return c.Build == "push"
	}, nil
}

// besideImages stores records beside images. It exists because the registry is opened
// after the volume side, which receives the registry's events.
type besideImages struct{ r *Root }

// PushBlob implements volumeregistry.Registry.
func (b besideImages) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	return b.r.Registry.PushBlob(ctx, repo, d, size, r)
}

// PutManifest implements volumeregistry.Registry.
func (b besideImages) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	return b.r.Registry.PutManifest(ctx, repo, m)
}

// DeleteManifest implements volumeregistry.Registry.
func (b besideImages) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	return b.r.Registry.DeleteManifest(ctx, repo, d)
}

// volumeEvents passes an event to the function next and then to the volume side.
func volumeEvents(v *volumeregistry.Service, next func(context.Context, registry.Event) error) func(context.Context, registry.Event) error {
	if v == nil {
		return next
	}
	return func(ctx context.Context, e registry.Event) error {
		v.OnEvent(ctx, e)
		return next(ctx, e)
	}
}

// CollectVolumes removes the volumes that nothing needs any more, after a garbage
// collection. The volume side itself retries what fails.
func (r *Root) CollectVolumes(ctx context.Context, now bool) {
	if r.Volumes == nil {
		return
	}
	_, err := r.Volumes.Collect(ctx, now)
	if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrLeased) {
		r.log.Warn("volumes that nothing needs are not removed; it is tried again", "err", err)
	}
}
