package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/config"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/recipes"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/cluster"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/prefetch"
	"example.org/slipway/serve/mirrors"
	volumeregistry "example.org/slipway/volume/service"
)

// root is a data root that this process has to itself, with the object store and the
// catalogue. It may share the catalogue with other processes.
type root struct {
	dir  string
	lock *lockFile
	cat  *catalog.Catalog
	// inner is the object store. store is what the registry uses: inner with the caches
	// of a server in front. Closing store closes both.
	inner, store objstore.Store
	// local reports that the objects are in dir.
	local bool
	// cache, cluster and prefetch are nil if they are not configured.
	cache    *tier.Store
	cluster  *cluster.Cluster
	prefetch *prefetch.Prefetcher

	files *filestore.Store
	gear  *gearregistry.Service
	// recipes is part of inner. keeper fills it.
	recipes *recipes.Store
	keeper  *recipes.Keeper
	// volumes is nil if images are not built as volumes.
	volumes *volumeregistry.Service
	reg     *registry.Registry
	// mirrors is nil if nothing is mirrored. Outside a server it is nil until it is
	// needed.
	mirrors *mirrors.Mirrors
	// isMirror reports whether a repository is a mirror. It is nil if there are no
	// mirrors.
	isMirror func(repo string) bool
	// collectors are the metrics of the stores.
	collectors []prometheus.Collector
}

// adminSocket is the administration socket's name within a data root.
const adminSocket = "admin.sock"

// rootOptions are options of openRoot.
type rootOptions struct {
	log     *slog.Logger
	onEvent func(context.Context, registry.Event) error
	// wrap wraps the object store. If it is nil, the store is used as it is.
	wrap func(objstore.Store) objstore.Store
	// serving opens what only a server needs: caches and peers. Administration has no use
	// for them.
	serving bool
	// enter is called before layers are dropped. If it is nil, dropping is always
	// allowed.
	enter func() (leave func(), err error)
}

// openRoot locks and opens the data root of a configuration.
func openRoot(ctx context.Context, cfg *config.Config, o rootOptions) (_ *root, err error) {
	if err := checkAdopted(cfg); err != nil {
		return nil, err
	}
	r, err := openStorage(ctx, cfg, "")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(ctx))
		}
	}()
	if o.wrap != nil {
		r.inner = o.wrap(r.inner)
		r.store = r.inner
	}
	if err := r.openRecipes(o.log); err != nil {
		return nil, err
	}
	if err := r.checkCatalog(ctx, cfg); err != nil {
		return nil, err
	}
	if o.serving {
		if err := r.openCaches(cfg, o.log); err != nil {
			return nil, err
		}
	}
	opts, err := registryOptions(cfg, o.log)
	if err != nil {
		return nil, err
	}
	opts.Memory = registry.NewMemory(opts.MemoryBytes)
	if err := r.openGear(cfg, o.log, opts.Memory); err != nil {
		return nil, err
	}
	r.isMirror = mirrors.Mirrored(cfg)
	opts.Partial = r.isMirror
	if err := r.openVolumes(cfg, o.log); err != nil {
		return nil, err
	}
	opts.OnEvent = volumeEvents(r.volumes, gearEvents(r.gear, o.onEvent, cfg.Notifications.Events.IncludeMirrored))
	opts.PullEvents = o.onEvent != nil
	opts.Tap = r.gear
	if r.reg, err = registry.New(ctx, r.cat, r.store, opts); err != nil {
		return nil, err
	}
	r.keeper, err = r.newKeeper(&cfg.Storage.Rebuild, o.enter)
	return r, err
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

func (r *root) close(ctx context.Context) error {
	errs := []error{r.mirrors.Close(ctx)}
	if r.volumes != nil {
		errs = append(errs, r.volumes.Close())
	}
	if r.gear != nil {
		r.gear.Close()
	}
	if r.reg != nil {
		errs = append(errs, r.reg.Close(ctx))
	}
	if r.cat != nil {
		errs = append(errs, r.cat.Close())
	}
	if r.store != nil {
		errs = append(errs, r.store.Close())
	}
	if r.cluster != nil {
		errs = append(errs, r.cluster.Close())
	}
	if r.lock != nil {
		errs = append(errs, r.lock.release())
	}
	return errors.Join(errs...)
}
