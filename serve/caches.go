package serve

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry"
	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/cluster"
	"example.org/slipway/registry/prefetch"
)

const (
	// cacheDir is the disk's share of the cache within a data root.
	cacheDir = "slipway/cache"
	// smallBlob is the size in bytes up to which the registry keeps blobs in its own
	// memory, or in the catalogue: those never reach the object store's cache.
	smallBlob = 64 << 10
	// defaultCacheRAM is the share of memory for blobs where it is not configured, and
	// maxCacheRAM the most of it, in bytes.
	defaultCacheRAM = 0.1
	maxCacheRAM     = 1 << 30
)

// openCaches puts what a server keeps near in front of its object store: first what
// the other servers have, then what this one has.
func (r *root) openCaches(cfg *config.Config, log *slog.Logger) error {
	if cfg.Cluster.Enabled() {
		if err := r.openCluster(&cfg.Cluster, log); err != nil {
			return err
		}
	}
	if err := r.openCache(cfg, log); err != nil {
		return err
	}
	if r.store != r.inner {
		r.store = &cachedStore{Store: r.store, inner: r.inner}
	}
	return r.openPrefetch(&cfg.Storage, log)
}

// openCluster makes this server known to the others that share its catalogue.
func (r *root) openCluster(c *config.Cluster, log *slog.Logger) error {
	trust, err := clusterTLS(c)
	if err != nil {
		return err
	}
	r.cluster, err = cluster.New(r.cat.DB, cluster.Config{ID: c.Name(), URL: c.Where(), Secret: []byte(c.Secret.Reveal()), Digest: blobOf},
		&cluster.Options{TLS: trust, Logger: log})
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	r.store = r.cluster.Store(r.store)
	r.collectors = append(r.collectors, r.cluster.Metrics()...)
	return nil
}

// clusterTLS is how other servers are checked; nil is the system's way.
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

// openCache puts the cache of blobs in front of the store, if there is to be one.
func (r *root) openCache(cfg *config.Config, log *slog.Logger) error {
	c := &cfg.Storage.BlobCache
	ram := cacheRAM(&cfg.Storage, machineMemory())
	if ram == 0 && c.SSD == 0 {
		return nil
	}
	if limit := goMemory(); ram > limit/4*3 {
		log.Warn("the cache of blobs may take nearly all of GOMEMLIMIT, or more: the garbage collector will hardly rest once it is full; make storage.blob_cache.ram smaller, or GOMEMLIMIT larger",
			"ram", ram, "gomemlimit", limit)
	}
	admission, err := policy.ParseAdmission(c.Admission)
	if err != nil {
		return fmt.Errorf("storage.blob_cache.admission: %w", err)
	}
	o := &tier.Options{
		RAMBytes: ram, SSDBytes: int64(c.SSD), Dir: c.Directory, RAMPolicy: c.RAMPolicy, SSDPolicy: c.SSDPolicy,
		Admission: admission, SSDWritePerDay: int64(c.WriteBudget), WriteThrough: c.WriteThrough,
		WarmLimit: cfg.Storage.Prefetch.Parallel + warmParallel,
		// Swift's state of an upload is its name, whoever has written to it.
		CheckUploads: cfg.Storage.Swift != nil && cfg.Storage.Catalog.Postgres != "",
		Cacheable:    isBlob, Verify: verifyBlob,
		Logger: log,
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(r.dir, cacheDir)
	}
	if c.Large != nil {
		if o.LargeObject = int64(*c.Large); o.LargeObject == 0 {
			o.LargeObject = 1 // nothing goes to memory; to the cache 0 is its default
		}
	}
	if r.cache, err = tier.New(r.store, o); err != nil {
		return fmt.Errorf("open the cache of blobs: %w", err)
	}
	r.store = r.cache
	r.collectors = append(r.collectors, r.cache.Metrics()...)
	return nil
}

// isBlob reports whether a key is that of a blob's object, as blobOf does, but at a cost
// that each hit can bear.
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

// cacheRAM is how much memory blobs may take, of a machine with so many bytes.
func cacheRAM(st *config.Storage, machine int64) int64 {
	switch {
	case st.BlobCache.RAM != nil:
		return int64(*st.BlobCache.RAM)
	case !st.Remote():
		return 0
	}
	return min(int64(float64(machine)*defaultCacheRAM), maxCacheRAM)
}

// openPrefetch sets up what fills the cache.
func (r *root) openPrefetch(st *config.Storage, log *slog.Logger) error {
	c, redirect := &st.Prefetch, &st.Redirect
	bypassed := redirect.Mode == "always" && len(redirect.Rules) == 0 && !redirect.Disable && st.Remote()
	if r.cache == nil || c.Mode == "off" || bypassed {
		return nil
	}
	o := prefetch.Options{
		Parallel: c.Parallel, Small: smallBlob, Key: registry.BlobKey, Logger: log,
		Algorithm1: policy.Algorithm1Options{LM: c.LM, ML: c.ML},
		Manifests: policy.ManifestsOptions{
			Keep: c.ML, Forget: c.Forget, Cancel: c.Cancel, Eager: int64(c.Eager), Remember: c.Remember, Rate: int64(c.Budget), Burst: int64(c.Burst),
			Precision: c.Precision, Rest: c.Rest, Pin: c.Pin, PinClients: c.PinClients,
		},
		Rate: int64(c.Budget), Burst: int64(c.Burst),
		Manifest: func(ctx context.Context, repo string, d oci.Digest) ([]byte, error) {
			m, err := r.cat.Manifest(ctx, repo, d)
			return m.Content, err
		},
	}
	if c.Precision == 0 {
		o.Manifests.Precision = -1 // no bound; to the policy 0 is its default
	}
	if c.Mode == "algorithm1" {
		o.Mode = prefetch.Algorithm1
	}
	var err error
	if r.prefetch, err = prefetch.New(r.cache, o); err != nil {
		return err
	}
	r.collectors = append(r.collectors, r.prefetch.Metrics()...)
	return nil
}

// peerServer serves what other servers read from this one's cache.
type peerServer struct {
	ln  net.Listener
	srv *http.Server
}

// listenPeers listens for other servers, if there are to be any.
func (s *Server) listenPeers() (err error) {
	c := &s.cfg.Cluster
	if !c.Enabled() {
		return nil
	}
	ln, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return fmt.Errorf("listen for other servers: %w", err)
	}
	s.peers = &peerServer{ln: ln}
	return nil
}

// servePeers sets up the answers to other servers.
func (s *Server) servePeers() {
	if s.peers == nil {
		return
	}
	s.peers.srv = &http.Server{
		Handler:           s.requests.guard(s.root.cluster.Handler(s.root.store)),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	if strings.HasPrefix(s.cfg.Cluster.Where(), "https:") {
		s.peers.ln = tls.NewListener(s.peers.ln, &tls.Config{MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &s.certs.current.Load().cert, nil }})
	}
}

func (p *peerServer) serve() error { return p.srv.Serve(p.ln) }

// close is for a peerServer that may be nil.
func (p *peerServer) close() {
	if p == nil {
		return
	}
	if p.srv != nil {
		p.srv.Close()
	}
	p.ln.Close() // which the server may have done already
}
