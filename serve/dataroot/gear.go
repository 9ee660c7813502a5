package dataroot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"example.org/slipway/config"
	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/rootfs"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/storage"
)

// gearTemp is the directory in a data root for large files during their conversion. It is
// emptied at every start.
const gearTemp = "slipway/gear/tmp"

// openGear opens the Gear side of a data root. Small files that are often requested are
// kept in memory.
func (r *Root) openGear(memory *registry.Memory) error {
	cfg := r.cfg
	mode, err := gearModes(&cfg.Gear)
	if err != nil {
		return err
	}
	r.GearMode = mode
	temp := filepath.Join(r.Dir, gearTemp)
	if err := errors.Join(os.RemoveAll(temp), os.MkdirAll(temp, 0o700)); err != nil {
		return fmt.Errorf("make a directory for temporary files: %w", err)
	}
	r.files, err = filestore.New(r.Catalog, r.Store, &filestore.Options{Log: r.log, Cache: memory, OnCorrupt: func(e *filestore.CorruptError) { r.Gear.Remake(e) },
		Proof: r.recipes.Proof()})
	if err != nil {
		return err
	}
	o := &gearregistry.Options{
		Logger: r.log, Mode: mode, SyncTimeout: cfg.Gear.SyncTimeout, Workers: cfg.Gear.Workers, TempDir: temp,
		Layer:     layerLimits(&cfg.Gear),
		Index:     &gear.Limits{Entries: cfg.Gear.MaxEntries},
		LayerTime: cfg.Gear.MaxLayerTime,
		StagedFor: cfg.Gear.StagedFor, SettleEvery: cfg.Gear.Settle.Interval, SettleShare: cfg.Gear.Settle.Share,
		ReadOnly: cfg.Storage.Maintenance.ReadOnly.Enabled,
		Owner:    ownerOf(&cfg.Auth),
	}
	if cfg.Gear.Settle.Disabled {
		o.SettleEvery = 0
	}
	r.Gear = gearregistry.New(r.Catalog, storedBlobs{r}, r.files, o)
	return nil
}

// ownerOf returns a function that returns the owner of a repository. If users are
// configured, the first part of the repository's name is its owner. If everybody may do
// everything, all repositories have the same owner.
func ownerOf(c *auth.Config) func(repo string) string {
	if c.HTPasswd == nil && c.LDAP == nil && c.Token == nil && len(c.OIDC) == 0 && c.MTLS == nil {
		return nil
	}
	return func(repo string) string {
		owner, _, _ := strings.Cut(repo, "/")
		return owner
	}
}

// layerLimits returns the limits for layers to convert.
func layerLimits(c *config.Gear) *rootfs.Options {
	return &rootfs.Options{
		MaxEntries: int64(c.MaxEntries), MaxBytes: int64(c.MaxLayerBytes), MaxFileSize: int64(c.MaxFileBytes),
		MaxRatio: int64(c.MaxRatio), RatioFree: int64(c.RatioFree), MaxMetadataBytes: int64(c.MaxMetadataBytes),
		MaxXattrs: int64(c.MaxXattrs), MaxXattrBytes: int64(c.MaxXattrBytes), MaxWindow: int64(c.MaxWindow),
	}
}

// gearModes compiles the rules that say which repositories are converted, and when.
func gearModes(c *config.Gear) (func(repo string) gearregistry.Mode, error) {
	modes := map[string]gearregistry.Mode{"off": gearregistry.Off, "async": gearregistry.Async, "sync": gearregistry.Sync}
	type rule struct {
		repos func(string) bool
		mode  gearregistry.Mode
	}
	var rules []rule
	for i, r := range c.Rules {
		repos, err := patterns.CompileAll(r.Repositories)
		if err != nil {
			return nil, fmt.Errorf("gear.rules.%d.repositories: %w", i, err)
		}
		rules = append(rules, rule{repos, modes[r.Convert]})
	}
	return func(repo string) gearregistry.Mode {
		for _, r := range rules {
			if r.repos(repo) {
				return r.mode
			}
		}
		return modes[c.Convert]
	}, nil
}

// storedBlobs reads the blobs of a data root.
type storedBlobs struct{ r *Root }

func (b storedBlobs) OpenBlob(ctx context.Context, d oci.Digest, off int64) (io.ReadCloser, int64, error) {
	return storage.OpenBlob(ctx, b.r.Catalog, b.r.Store, d, off)
}

// gearEvents passes an event to the function next and then to the Gear side. The Gear
// side is last because it may wait for conversions for longer than ctx lasts, and the
// records of others must neither be late nor fail because of that. Others receive events
// of what mirrors fetch only if they are configured to.
func gearEvents(g *gearregistry.Service, next func(context.Context, registry.Event) error, mirrored bool) func(context.Context, registry.Event) error {
	return func(ctx context.Context, e registry.Event) error {
		var err error
		if next != nil && (mirrored || !e.Mirrored) {
			err = next(ctx, e)
		}
		g.OnEvent(ctx, e)
		return err
	}
}
