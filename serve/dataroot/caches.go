package dataroot

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"strings"

	"example.org/slipway/config"
	"example.org/slipway/internal/footprint"
	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/cluster"
	"example.org/slipway/registry/prefetch"
	"example.org/slipway/registry/storage"
)

const (
	// cacheDir is the directory in a data root for the cache's share of the disk.
	cacheDir = "slipway/cache"
	// SmallBlob is the size in bytes up to which the registry keeps blobs in its own
	// memory or in the catalogue. Such blobs never reach the object store's cache.
	SmallBlob = 64 << 10
	// defaultCacheRAM is the default share of memory for blobs, and maxCacheRAM is the
	// largest such default in bytes.
	defaultCacheRAM = 0.1
	maxCacheRAM     = 1 << 30
)

// openCaches puts the caches of a server in front of its object store: first the blobs of
// the other servers, then the server's own cache.
func (r *Root) openCaches() error {
	if r.cfg.Cluster.Enabled() {
		if err := r.openCluster(&r.cfg.Cluster); err != nil {
			return err
		}
	}
	if err := r.openCache(); err != nil {
		return err
	}
	if r.Store != r.Objects {
		r.Store = &cachedStore{Store: r.Store, inner: r.Objects}
	}
	return r.openPrefetch(&r.cfg.Storage)
}

// openCluster registers this server with the others that share its catalogue.
func (r *Root) openCluster(c *config.Cluster) error {
	trust, err := clusterTLS(c)
	if err != nil {
		return err
	}
	r.Cluster, err = cluster.New(r.Catalog.DB, cluster.Config{ID: c.Name(), URL: c.Where(), Secret: []byte(c.Secret.Reveal()), Digest: blobOf},
		&cluster.Options{TLS: trust, Logger: r.log})
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	r.Store = r.Cluster.Store(r.Store)
	r.collectors = append(r.collectors, r.Cluster.Metrics()...)
	return nil
}

// clusterTLS returns the TLS configuration for verifying other servers. nil means the
// system's authorities.
func clusterTLS(c *config.Cluster) (*tls.Config, error) {
	if c.CAFile == "" {
		return nil, nil
	}
	pool, err := wire.Pool(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("cluster.cafile: %w", err)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// openCache puts the cache of blobs in front of the store if one is configured.
func (r *Root) openCache() error {
	c := &r.cfg.Storage.BlobCache
	ram := cacheRAM(&r.cfg.Storage, footprint.Available())
	if ram == 0 && c.SSD == 0 {
		return nil
	}
	if limit := footprint.GoLimit(); ram > limit/4*3 {
		r.log.Warn("the cache of blobs may take nearly all of GOMEMLIMIT, or more: the garbage collector will hardly rest once it is full; make storage.blob_cache.ram smaller, or GOMEMLIMIT larger",
			"ram", ram, "gomemlimit", limit)
	}
	admission, err := policy.ParseAdmission(c.Admission)
	if err != nil {
		return fmt.Errorf("storage.blob_cache.admission: %w", err)
	}
	o := &tier.Options{
		RAMBytes: ram, SSDBytes: int64(c.SSD), Dir: c.Directory, RAMPolicy: c.RAMPolicy, SSDPolicy: c.SSDPolicy,
		Admission: admission, SSDWritePerDay: int64(c.WriteBudget), WriteThrough: c.WriteThrough,
		WarmLimit: r.cfg.Storage.Prefetch.Parallel + warmParallel,
		// Swift stores an upload under its name alone, so another server may have written
		// to it.
		CheckUploads: r.cfg.Storage.Swift != nil && r.cfg.Storage.Catalog.Postgres != "",
		Cacheable:    isBlob, Verify: verifyBlob,
		Logger: r.log,
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(r.Dir, cacheDir)
	}
	if c.Large != nil {
		if o.LargeObject = int64(*c.Large); o.LargeObject == 0 {
			o.LargeObject = 1 // no blob goes to memory; the cache would take 0 as its default
		}
	}
	if r.Cache, err = tier.New(r.Store, o); err != nil {
		return fmt.Errorf("open the cache of blobs: %w", err)
	}
	r.Store = r.Cache
	r.collectors = append(r.collectors, r.Cache.Metrics()...)
	return nil
}

// isBlob reports whether a key is the key of a blob's object. It decides as blobOf does,
// but is cheap enough for each cache hit.
func isBlob(key string) bool {
	rest, ok := strings.CutPrefix(key, blobsDir)
	alg, rest, _ := strings.Cut(rest, "/")
	rest, data := strings.CutSuffix(rest, "/data")
	digits := 0
	switch alg {
	case "sha256":
		digits = 64
	case "sha384":
		digits = 96
	case "sha512":
		digits = 128
	}
	if !ok || !data || digits == 0 || len(rest) != 3+digits || rest[2] != '/' || rest[:2] != rest[3:5] {
		return false
	}
	for i := range digits {
		if c := rest[3+i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// cacheRAM returns how many bytes of memory blobs may take on a machine that has the
// given number of bytes.
func cacheRAM(st *config.Storage, machine int64) int64 {
	switch {
	case st.BlobCache.RAM != nil:
		return int64(*st.BlobCache.RAM)
	case !st.Remote():
		return 0
	}
	return min(int64(float64(machine)*defaultCacheRAM), maxCacheRAM)
}

// openPrefetch sets up the prefetching into the cache.
func (r *Root) openPrefetch(st *config.Storage) error {
	c, redirect := &st.Prefetch, &st.Redirect
	bypassed := redirect.Mode == "always" && len(redirect.Rules) == 0 && !redirect.Disable && st.Remote()
	if r.Cache == nil || c.Mode == "off" || bypassed {
		return nil
	}
	o := prefetch.Options{
		Parallel: c.Parallel, Small: SmallBlob, Key: storage.BlobKey, Logger: r.log,
		Algorithm1: policy.Algorithm1Options{LM: c.LM, ML: c.ML},
		Manifests: policy.ManifestsOptions{
			Keep: c.ML, Forget: c.Forget, Cancel: c.Cancel, Eager: int64(c.Eager), Remember: c.Remember, Rate: int64(c.Budget), Burst: int64(c.Burst),
			Precision: c.Precision, Rest: c.Rest, Pin: c.Pin, PinClients: c.PinClients,
		},
		Rate: int64(c.Budget), Burst: int64(c.Burst),
		Manifest: func(ctx context.Context, repo string, d oci.Digest) ([]byte, error) {
			m, err := r.Catalog.Manifest(ctx, repo, d)
			return m.Content, err
		},
	}
	if c.Precision == 0 {
		o.Manifests.Precision = -1 // no bound; the policy would take 0 as its default
	}
	if c.Mode == "algorithm1" {
		o.Mode = prefetch.Algorithm1
	}
	var err error
	if r.Prefetch, err = prefetch.New(r.Cache, o); err != nil {
		return err
	}
	r.collectors = append(r.collectors, r.Prefetch.Metrics()...)
	return nil
}
