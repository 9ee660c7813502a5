package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"example.org/slipway/config"
	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/predict"
	"example.org/slipway/gear/rootfs"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server"
	"example.org/slipway/registry/storage"
	"example.org/slipway/serve/gate"
)

// gearTemp is the directory in a data root for large files during their conversion. It is
// emptied at every start.
const gearTemp = "slipway/gear/tmp"

// openGear opens the Gear side of a data root. Small files that are often requested are
// kept in memory.
func (r *root) openGear(cfg *config.Config, log *slog.Logger, memory *registry.Memory) error {
	mode, err := gearModes(&cfg.Gear)
	if err != nil {
		return err
	}
	temp := filepath.Join(r.dir, gearTemp)
	if err := errors.Join(os.RemoveAll(temp), os.MkdirAll(temp, 0o700)); err != nil {
		return fmt.Errorf("make a directory for temporary files: %w", err)
	}
	r.files, err = filestore.New(r.cat, r.store, &filestore.Options{Log: log, Cache: memory, OnCorrupt: func(e *filestore.CorruptError) { r.gear.Remake(e) },
		Proof: r.recipes.Proof()})
	if err != nil {
		return err
	}
	o := &gearregistry.Options{
		Logger: log, Mode: mode, SyncTimeout: cfg.Gear.SyncTimeout, Workers: cfg.Gear.Workers, TempDir: temp,
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
	r.gear = gearregistry.New(r.cat, storedBlobs{r}, r.files, o)
	return nil
}

// ownerOf returns a function that returns the owner of a repository. If users are
// configured, the first part of the repository's name is its owner. If everybody may do
// everything, all repositories have the same owner.
func ownerOf(c *auth.Config) func(repo string) string {
	if c.HTPasswd == nil && c.Token == nil && len(c.OIDC) == 0 && c.MTLS == nil {
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
		repos, err := auth.CompilePatterns(r.Repositories)
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
type storedBlobs struct{ r *root }

func (b storedBlobs) OpenBlob(ctx context.Context, d oci.Digest, off int64) (io.ReadCloser, int64, error) {
	return storage.OpenBlob(ctx, b.r.cat, b.r.store, d, off)
}

// gearEvents passes an event to next and then to the Gear side. The Gear side is last
// because it may wait for conversions for longer than ctx lasts, and the records of
// others must neither be late nor fail because of that. Others receive events of what
// mirrors fetch only if they are configured to.
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

// gearAPI serves the Gear side over HTTP.
type gearAPI struct {
	*gearregistry.Service
	writes *gate.Writes
}

var _ server.Gear = gearAPI{}

// Layer implements server.Gear.
func (g gearAPI) Layer(ctx context.Context, repo string, d oci.Digest) (server.GearIndex, error) {
	c, err := g.Service.Layer(ctx, repo, d)
	var pending *gear.PendingError
	if errors.As(err, &pending) {
		return nil, &server.GearPendingError{RetryAfter: pending.RetryAfter, Reason: pending.Reason}
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// File implements server.Gear.
func (g gearAPI) File(ctx context.Context, repo string, name [32]byte) (server.GearContent, error) {
	c, err := g.Service.File(ctx, repo, name)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Profile implements server.Gear.
func (g gearAPI) Profile(ctx context.Context, repo string, manifest oci.Digest) (server.GearProfile, error) {
	p, err := g.Predict(ctx, repo, manifest)
	out := server.GearProfile{Names: predict.Names(p.Files), Donor: p.Donor}
	if p.Inferred() {
		out.Origins = predict.Origins(p.Files)
	}
	return out, err
}

// PutFile implements server.Gear.
func (g gearAPI) PutFile(ctx context.Context, repo string, name [32]byte, size int64, body io.Reader) error {
	_, err := gate.Do(g.writes, func() (struct{}, error) { return struct{}{}, g.Service.PutFile(ctx, repo, name, size, body) })
	return err
}

// PutFiles implements server.Gear.
func (g gearAPI) PutFiles(ctx context.Context, repo string, stream io.Reader) (int, error) {
	return gate.Do(g.writes, func() (int, error) { return g.Service.PutFiles(ctx, repo, stream) })
}

// ReportProfile implements server.Gear.
func (g gearAPI) ReportProfile(ctx context.Context, repo string, manifest oci.Digest, names [][32]byte, whole bool) error {
	report := g.Service.ReportProfile
	if !whole {
		report = g.ReportSeen
	}
	_, err := gate.Do(g.writes, func() (struct{}, error) { return struct{}{}, report(ctx, repo, manifest, names) })
	return err
}
