// Package dataroot opens the data root of a registry with everything that the configuration puts on
// it: the lock, the catalogue, the store and the caches in front of it, the registry, its Gear side,
// its volumes and its mirrors. It is the only package that knows concrete drivers. It also does what
// is done with a data root as a whole: check, backup, collection, retention, adoption and restore.
package dataroot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/config"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/recipes"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/cluster"
	"example.org/slipway/registry/history"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/prefetch"
	"example.org/slipway/registry/quota"
	"example.org/slipway/registry/replication"
	"example.org/slipway/registry/warming"
	"example.org/slipway/serve/gate"
	"example.org/slipway/serve/mirrors"
	volumeregistry "example.org/slipway/volume/service"
)

// Root is a data root that this process has to itself, with the object store and the
// catalogue. It may share the catalogue with other processes.
type Root struct {
	cfg  *config.Config
	log  *slog.Logger
	lock *lockFile

	Dir     string
	Catalog *catalog.Catalog
	// Objects is the object store. Store is what the registry uses: Objects with the caches
	// of a server in front. Closing Store closes both.
	Objects, Store objstore.Store
	// local reports that the objects are in Dir.
	local bool
	// Cache, Cluster and Prefetch are nil if they are not configured.
	Cache    *tier.Store
	Cluster  *cluster.Cluster
	Prefetch *prefetch.Prefetcher

	files *filestore.Store
	Gear  *gearregistry.Service
	// GearMode reports whether, and when, the images of a repository are converted.
	GearMode func(repo string) gearregistry.Mode
	// recipes is part of Objects. keeper fills it.
	recipes *recipes.Store
	keeper  *recipes.Keeper
	// Volumes is nil if images are not built as volumes.
	Volumes  *volumeregistry.Service
	Registry *registry.Registry
	// Quotas bounds what clients may store. It is nil without quotas.
	Quotas *quota.Limits
	// Meter counts what is stored for metrics. It is nil if nothing is counted.
	Meter *quota.Meter
	// Mirrors is nil if nothing is mirrored, and before OpenMirrors.
	Mirrors *mirrors.Mirrors
	// History is the history of the registry.
	History *history.History
	// IsMirror reports whether a repository is a mirror. It is nil if there are no
	// mirrors.
	IsMirror func(repo string) bool
	// Warming keeps orders that nodes have images.
	Warming *warming.Service
	// Notify queues an event for the webhooks.
	Notify   func(context.Context, registry.Event) error
	notifier *notifier
	// Replicator copies images to and from other registries.
	Replicator *replication.Replicator
	replicated *replicationSet // nil before Replicator is opened
	// collectors are the metrics of the stores.
	collectors []prometheus.Collector
}

// Options are options of Open. The zero value works.
type Options struct {
	// Logger defaults to slog.Default.
	Logger *slog.Logger
	// Wrap wraps the object store. If it is nil, the store is used as it is.
	Wrap func(objstore.Store) objstore.Store
	// Serving opens what only a server needs: caches and peers. Administration has no use
	// for them.
	Serving bool
	// Enter is called before layers are dropped. If it is nil, dropping is always
	// allowed.
	Enter func() (leave func(), err error)
	// Stopping returns a channel that is closed when changes are to stop. It may be nil.
	Stopping func() <-chan struct{}
}

// Open locks and opens the data root of a configuration. Events are queued for the webhooks; they
// are delivered while [Root.Deliver] runs.
func Open(ctx context.Context, cfg *config.Config, o Options) (_ *Root, err error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := checkAdopted(cfg); err != nil {
		return nil, err
	}
	r, err := openStorage(ctx, cfg, "")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close(ctx))
		}
	}()
	r.log = o.Logger
	if o.Wrap != nil {
		r.Objects = o.Wrap(r.Objects)
		r.Store = r.Objects
	}
	if err := r.openRecipes(); err != nil {
		return nil, err
	}
	if err := r.checkCatalog(ctx, cfg); err != nil {
		return nil, err
	}
	if o.Serving {
		if err := r.openCaches(); err != nil {
			return nil, err
		}
	}
	opts, err := registryOptions(cfg, r.log)
	if err != nil {
		return nil, err
	}
	opts.Memory = registry.NewMemory(opts.MemoryBytes)
	if err := r.openGear(opts.Memory); err != nil {
		return nil, err
	}
	r.IsMirror = mirrors.Mirrored(cfg)
	opts.Partial = r.IsMirror
	if err := r.openVolumes(); err != nil {
		return nil, err
	}
	if r.notifier, err = openNotifier(ctx, cfg, r.Catalog, r.log); err != nil {
		return nil, err
	}
	r.Notify = r.notifier.publish
	if err := r.openWarming(o.Enter); err != nil {
		return nil, err
	}
	opts.OnEvent = warmEvents(r.Warming, volumeEvents(r.Volumes, gearEvents(r.Gear, r.publish, cfg.Notifications.Events.IncludeMirrored)))
	opts.PullEvents = r.Notifies
	opts.Tap = r.Gear
	if r.Quotas, err = newQuotas(cfg.Storage.Quotas, r.Catalog, r.log); err != nil {
		return nil, err
	}
	if r.Meter, err = newMeter(cfg.Storage.Namespaces, r.Catalog, r.log); err != nil {
		return nil, err
	}
	if r.Registry, err = registry.New(ctx, r.Catalog, r.Store, opts); err != nil {
		return nil, err
	}
	r.History = history.New(r.Catalog, r.Quotas.Registry(r.Registry), history.Options{Mirrored: r.IsMirror, Immutable: opts.Immutable})
	if r.keeper, err = r.newKeeper(&cfg.Storage.Rebuild, o.Enter); err != nil {
		return nil, err
	}
	return r, r.openReplication(&o)
}

// checkAdopted refuses a Distribution storage without a catalogue. It would look empty,
// and Distribution would not know of pushes to it. It also refuses what an interrupted
// restore left, which would look empty too.
func checkAdopted(cfg *config.Config) error {
	dir := cfg.Storage.FileSystem.RootDirectory
	if cfg.Storage.Driver() != "filesystem" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, registry.CatalogFile)); err == nil {
		return nil
	}
	if err := checkRestored(dir); err != nil {
		return err
	}
	return lostCatalog(dir)
}

// lostCatalog returns an error that says what to do, if a directory has the objects of a
// registry, of Distribution or of this program, and no catalogue.
func lostCatalog(dir string) error {
	adopt := "slipway import --in-place " + dir
	_, links := os.Stat(filepath.Join(dir, distributionDir, "repositories")) // Distribution's; we have none
	switch ours := backup.CatalogLost(dir); {
	case ours && links == nil:
		return fmt.Errorf("%s was adopted, and has lost its %s: restore a backup (slipway restore BACKUP --root %s); without one, %s says how to adopt anew what Distribution stored", dir, registry.CatalogFile, dir, adopt)
	case links == nil:
		return fmt.Errorf("%s is the storage of a Distribution registry; adopt it first: %s", dir, adopt)
	case ours:
		return fmt.Errorf("%s holds blobs and no %s: the catalogue is lost; restore a backup (slipway restore BACKUP --root %s)", dir, registry.CatalogFile, dir)
	}
	return nil
}

// distributionDir is the directory in which a Distribution registry keeps everything.
const distributionDir = "docker/registry/v2"

// Close closes everything and unlocks the data root.
func (r *Root) Close(ctx context.Context) error {
	errs := []error{r.Mirrors.Close(ctx)}
	if r.Volumes != nil {
		errs = append(errs, r.Volumes.Close())
	}
	if r.Gear != nil {
		r.Gear.Close()
	}
	if r.replicated != nil {
		r.replicated.closeBut(&replicationSet{})
	}
	if r.Registry != nil {
		errs = append(errs, r.Registry.Close(ctx))
	}
	if r.Catalog != nil {
		errs = append(errs, r.Catalog.Close())
	}
	if r.Store != nil {
		errs = append(errs, r.Store.Close())
	}
	if r.Cluster != nil {
		errs = append(errs, r.Cluster.Close())
	}
	if r.lock != nil {
		errs = append(errs, r.lock.release())
	}
	return errors.Join(errs...)
}

// OpenMirrors opens the mirrored registries, if there are any and they are not open yet.
func (r *Root) OpenMirrors(writes *gate.Writes) (err error) {
	if r.Mirrors == nil {
		r.Mirrors, err = mirrors.Open(r.cfg, *r.MirrorStore(), r.watched(), writes, r.log)
	}
	return err
}

// MirrorStore returns where mirrored images are stored.
func (r *Root) MirrorStore() *mirrors.Stored {
	return &mirrors.Stored{Dir: r.Dir, KeepFree: keepFree(r.Dir), Registry: r.Registry, Catalog: r.Catalog, Store: r.Store, IsMirror: r.IsMirror}
}

// Served returns the registry for clients.
func (r *Root) Served() oci.Registry {
	if r.Mirrors == nil {
		return r.watched()
	}
	return r.Mirrors.Registry
}

// watched returns the stored registry for clients. Prefetching learns from their
// requests.
func (r *Root) watched() oci.Registry {
	if r.Prefetch == nil {
		return r.Registry
	}
	return r.Prefetch.Registry(r.Registry)
}

// Metrics returns the collectors of everything on the data root.
func (r *Root) Metrics() []prometheus.Collector {
	list := slices.Concat(r.Registry.Metrics(), r.Gear.Metrics(), r.recipes.Metrics(), r.Mirrors.Metrics(), r.collectors, r.notifier.n.Metrics(), r.Warming.Metrics(), r.Replicator.Metrics(),
		[]prometheus.Collector{freeSpace(r.Dir), newLastBackup(r)}, r.Meter.Metrics())
	if r.Volumes != nil {
		list = append(list, r.Volumes.Metrics()...)
	}
	return list
}

// Deliver sends the queued events to the webhooks until ctx ends.
func (r *Root) Deliver(ctx context.Context) error { return r.notifier.run(ctx) }

// registryOptions converts the configuration into options of the registry.
func registryOptions(cfg *config.Config, log *slog.Logger) (*registry.Options, error) {
	st := &cfg.Storage
	o := &registry.Options{
		Logger:           log,
		MemoryBytes:      int64(st.Memory),
		MaxUploads:       cfg.HTTP.Limits.UploadSessions,
		UploadMaxAge:     st.Maintenance.UploadPurging.Age,
		MaxManifestBytes: int64(cfg.HTTP.Limits.ManifestBytes),
		Grace:            st.GC.Grace,
		DeleteUntagged:   st.GC.Untagged == "delete",
		DeleteDisabled:   !st.Delete.Enabled,
		ReadOnly:         st.Maintenance.ReadOnly.Enabled,
		Replica:          cfg.Cluster.Name(),
		StrictTags:       cfg.Cluster.StrictTags,
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = -1 // no cache; the registry would take 0 as its default
	}
	if !st.Maintenance.UploadPurging.Enabled {
		o.UploadMaxAge = 100 * 365 * 24 * time.Hour
	}
	var err error
	if o.Immutable, err = st.Immutable(); err != nil {
		return nil, err
	}
	if cfg.Validation.Disabled {
		o.MissingPlatforms = func(string, oci.Descriptor) bool { return true }
		return o, nil
	}
	o.MissingPlatforms = missingPlatforms(cfg.Validation.Manifests.Indexes)
	o.MissingBlobs = cfg.Validation.Manifests.Blobs == "none"
	o.ForeignURL, err = foreignURLs(cfg.Validation.Manifests.URLs)
	return o, err
}
