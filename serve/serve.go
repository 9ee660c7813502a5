// Package serve is the composition root of the registry server: it chooses the
// drivers the configuration names, wires catalogue, store, registry, access
// control and listeners together, and runs them.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"example.org/slipway/auth"
	"example.org/slipway/catalog"
	"example.org/slipway/config"
	"example.org/slipway/filestore"
	"example.org/slipway/gearregistry"
	"example.org/slipway/objstore"
	"example.org/slipway/objstore/fsstore"
	"example.org/slipway/objstore/memstore"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/server"
	"example.org/slipway/trace"
)

// Options of New beside the configuration.
type Options struct {
	// Logger; default slog.Default.
	Logger *slog.Logger
	// Stdout is where the access log goes that names no file; default os.Stdout.
	Stdout *os.File
	// CertificateCheck is how often the certificate files are looked at;
	// default 10 s.
	CertificateCheck time.Duration
}

// Server is a registry server that is ready to run.
type Server struct {
	cfg   *config.Config
	log   *slog.Logger
	root  *root
	auth  *auth.Auth
	audit *auth.AuditLog
	// access is nil without an access log, accessFile where it is no file.
	access     *trace.Writer
	accessFile *logFile

	handler         *server.Server
	http, debug     *http.Server
	listen, debugLn net.Listener
	admin           *adminServer
	notifier        *notifier
	certs           *certificates
	tracing         *sdktrace.TracerProvider // nil when off
	metrics         *prometheus.Registry
	health          *health
	certCheck       time.Duration
	// requests and admin tasks under way, which Close waits for.
	requests gate

	closeOnce sync.Once
	closeErr  error
}

// New opens everything the configuration names and binds the listeners, so that
// whatever is wrong is known now. The caller runs the server and closes it.
func New(ctx context.Context, cfg *config.Config, o *Options) (_ *Server, err error) {
	if o == nil {
		o = &Options{}
	}
	s := &Server{cfg: cfg, log: o.Logger, metrics: prometheus.NewRegistry(), certCheck: o.CertificateCheck}
	if s.log == nil {
		s.log = slog.Default()
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	// What is cheap to find wrong comes first: a start that fails because of it
	// leaves no data directory behind.
	if err := CheckFiles(cfg); err != nil {
		return nil, err
	}
	if err := s.listenAll(); err != nil {
		return nil, err
	}
	if err := s.openLogs(o); err != nil {
		return nil, err
	}
	s.notifier = newNotifier(cfg, s.log)
	if s.root, err = openRoot(ctx, cfg, s.log, s.notifier.hook()); err != nil {
		return nil, err
	}
	if err := s.notifier.start(s.root.cat); err != nil {
		return nil, err
	}
	ao := &auth.Options{Logger: s.log, Audit: s.audit, Dir: s.root.dir, Host: noSlash(cfg.HTTP.Host), Prefix: noSlash(cfg.HTTP.Prefix)}
	if s.auth, err = auth.New(cfg.Auth, ao); err != nil {
		return nil, authProblem(cfg, err)
	}
	if s.tracing, err = startTracing(ctx, cfg); err != nil {
		return nil, err
	}
	return s, s.setUpHTTP()
}

func (s *Server) openLogs(o *Options) (err error) {
	if s.cfg.Log.Audit.File != "" {
		if s.audit, err = auth.OpenAuditLog(s.cfg.Log.Audit.File, nil); err != nil {
			return fmt.Errorf("open the audit log: %w", err)
		}
	}
	al := s.cfg.Log.AccessLog
	if al.Disabled {
		return nil
	}
	format, err := trace.ParseFormat(al.Format)
	if err != nil {
		return fmt.Errorf("log.accesslog.format: %w", err)
	}
	if al.File == "" {
		out := o.Stdout
		if out == nil {
			out = os.Stdout
		}
		s.access = trace.NewWriter(keepOpen{out}, format)
		return nil
	}
	if s.accessFile, err = openLogFile(al.File); err != nil {
		return fmt.Errorf("open the access log: %w", err)
	}
	s.access = trace.NewWriter(s.accessFile, format)
	return nil
}

// ReopenLogs opens the access and audit log files again by name, after a log
// rotation moved them away.
func (s *Server) ReopenLogs() error {
	var errs []error
	if s.accessFile != nil {
		errs = append(errs, s.accessFile.reopen())
	}
	if s.audit != nil {
		errs = append(errs, s.audit.Reopen())
	}
	return errors.Join(errs...)
}

// keepOpen hides Close: standard output is not ours to close.
type keepOpen struct{ f *os.File }

func (k keepOpen) Write(p []byte) (int, error) { return k.f.Write(p) }

// root is a data root that this process has to itself.
type root struct {
	dir   string
	lock  *lockFile
	cat   *catalog.Catalog
	store objstore.Store
	files *filestore.Store
	gear  *gearregistry.Service
	reg   *registry.Registry
}

// adminSocket is the administration socket's name within a data root.
const adminSocket = "admin.sock"

// openRoot locks and opens the data root of a configuration.
func openRoot(ctx context.Context, cfg *config.Config, log *slog.Logger, onEvent func(context.Context, registry.Event) error) (_ *root, err error) {
	if err := checkAdopted(cfg); err != nil {
		return nil, err
	}
	r, err := openStorage(ctx, cfg, "")
	if err != nil {
		return nil, err
	}
	opts, err := registryOptions(cfg, log)
	if err == nil {
		opts.Memory = registry.NewMemory(opts.MemoryBytes)
		err = r.openGear(cfg, log, opts.Memory)
	}
	if err == nil {
		opts.OnEvent = gearEvents(r.gear, onEvent)
		opts.PullEvents = onEvent != nil
		opts.Tap = r.gear
		r.reg, err = registry.New(ctx, r.cat, r.store, opts)
	}
	if err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	return r, nil
}

// checkAdopted refuses a Distribution storage without a catalogue: it would look
// empty, and pushes to it would be unknown to Distribution. Likewise what an
// interrupted restore left, which would look empty too.
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
	if _, err := os.Stat(filepath.Join(dir, distributionDir)); err != nil {
		return nil
	}
	// Distribution keeps its links in repositories; we have none.
	if _, err := os.Stat(filepath.Join(dir, distributionDir, "repositories")); err != nil {
		return fmt.Errorf("%s holds blobs and no %s: the catalogue is lost; restore a backup (slipway restore)", dir, registry.CatalogFile)
	}
	return fmt.Errorf("%s is the storage of a Distribution registry; adopt it first: slipway import --in-place %s", dir, dir)
}

// openStorage locks a data root and opens its catalogue and object store.
// catalogDir is where the catalogue is, "" for the root itself.
func openStorage(ctx context.Context, cfg *config.Config, catalogDir string) (_ *root, err error) {
	inMemory := cfg.Storage.Driver() == "inmemory"
	r := &root{dir: cfg.Storage.FileSystem.RootDirectory}
	if inMemory { // the catalogue needs a file all the same
		if r.dir, err = os.MkdirTemp("", "slipway-inmemory-"); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(ctx))
		}
	}()
	if _, err := os.Stat(filepath.Join(r.dir, registry.BackupMarker)); err == nil {
		// Its catalogue may be hard-linked with those of other backups.
		return nil, fmt.Errorf("%s is a backup, which nobody may write to; restore it first: slipway restore %s --root DIR", r.dir, r.dir)
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	if r.lock, err = lockRoot(r.dir); err != nil {
		return nil, err
	}
	r.lock.removeDir = inMemory
	if inMemory {
		r.store = memstore.New(nil)
	} else if r.store, err = fsstore.New(r.dir, nil); err != nil {
		return nil, fmt.Errorf("open the object store: %w", err)
	}
	if catalogDir == "" {
		catalogDir = r.dir
	}
	r.cat, err = catalog.Open(ctx, filepath.Join(catalogDir, registry.CatalogFile), &catalog.Options{Grace: cfg.Storage.GC.Grace})
	return r, err
}

// distributionDir is where a Distribution registry keeps everything.
const distributionDir = "docker/registry/v2"

// AdoptInPlace makes the storage directory of a Distribution registry the data
// root of a configuration, without moving anything.
func AdoptInPlace(ctx context.Context, cfg *config.Config, o registry.AdoptOptions) (registry.AdoptReport, error) {
	dir := cfg.Storage.FileSystem.RootDirectory
	if _, err := os.Stat(filepath.Join(dir, distributionDir)); err != nil {
		return registry.AdoptReport{}, fmt.Errorf("%s holds no Distribution storage, which has %s in it: %w", dir, distributionDir, err)
	}
	if err := checkRestored(dir); err != nil {
		return registry.AdoptReport{}, err
	}
	if err := checkOwner(dir); err != nil {
		return registry.AdoptReport{}, err
	}
	catalogDir := ""
	if _, err := os.Stat(filepath.Join(dir, registry.CatalogFile)); o.DryRun && err != nil {
		// A catalogue left here by a dry run would make the storage look adopted.
		if catalogDir, err = os.MkdirTemp("", "slipway-adopt-"); err != nil {
			return registry.AdoptReport{}, err
		}
		defer os.RemoveAll(catalogDir)
	}
	r, err := openStorage(ctx, cfg, catalogDir)
	if err != nil {
		return registry.AdoptReport{}, err
	}
	rep, err := registry.Adopt(ctx, r.cat, r.store, o)
	return rep, errors.Join(err, r.close(ctx))
}

func (r *root) close(ctx context.Context) error {
	var errs []error
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
	if r.lock != nil {
		errs = append(errs, r.lock.release())
	}
	return errors.Join(errs...)
}

// registryOptions translates the configuration for the registry.
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
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = -1 // no cache; to the registry 0 is its default
	}
	if !st.Maintenance.UploadPurging.Enabled {
		o.UploadMaxAge = 100 * 365 * 24 * time.Hour
	}
	var err error
	if o.Immutable, err = immutableTags(st.ImmutableTags); err != nil {
		return nil, err
	}
	if cfg.Validation.Disabled {
		o.MissingPlatforms = func(string, oci.Descriptor) bool { return true }
		return o, nil
	}
	o.MissingPlatforms = missingPlatforms(cfg.Validation.Manifests.Indexes)
	o.ForeignURL, err = foreignURLs(cfg.Validation.Manifests.URLs)
	return o, err
}

// setUpHTTP makes the handlers and the servers on the listeners.
func (s *Server) setUpHTTP() error {
	h := &s.cfg.HTTP
	so := &server.Options{
		Auth: s.auth, Logger: s.log, Headers: http.Header(h.Headers), Host: noSlash(h.Host),
		Prefix: noSlash(h.Prefix), MaxCatalog: s.cfg.Catalog.MaxEntries,
		MaxManifestBytes: int64(h.Limits.ManifestBytes), IdleTimeout: h.Limits.BodyIdleTimeout, MinBodyRate: int64(h.Limits.BodyMinRate),
		RequestsPerSecond: h.RateLimit.RequestsPerSecond, Burst: h.RateLimit.Burst,
		MaxUploadsPerClient: h.RateLimit.Uploads, WithActor: s.notifier.hook() != nil,
	}
	so.TrustedProxies, so.TrustUnixPeers = h.Proxies()
	if h.RelativeURLs {
		so.Host = ""
	}
	if s.audit != nil {
		so.Audit = s.audit
	}
	if s.access != nil {
		so.AccessLog = s.access
	}
	if name, err := os.Hostname(); err == nil {
		so.Name = name
	}
	if th := s.auth.TokenHandler(); th != nil {
		so.Token, so.TokenPath = th, auth.TokenPath
	}
	so.Gear = gearAPI{s.root.gear}
	s.handler = server.New(s.root.reg, so)
	s.metrics.MustRegister(s.handler.Metrics()...)
	s.metrics.MustRegister(s.root.reg.Metrics()...)
	s.metrics.MustRegister(s.root.gear.Metrics()...)
	s.metrics.MustRegister(s.notifier.metrics()...)
	s.metrics.MustRegister(freeSpace(s.root.dir))
	s.health = newHealth(s.cfg, s.root.reg, s.log)
	s.http = newHTTPServer(h, s.log, s.requests.guard(traced(s.tracing, s.handler)))
	if err := s.encrypt(); err != nil {
		return err
	}
	s.setUpDebug()
	var err error
	s.admin, err = newAdminServer(s)
	return err
}

// Addr is where the registry listens.
func (s *Server) Addr() net.Addr { return s.listen.Addr() }

// DebugAddr is where metrics and health listen, or nil.
func (s *Server) DebugAddr() net.Addr {
	if s.debugLn == nil {
		return nil
	}
	return s.debugLn.Addr()
}

// Run serves until ctx ends, then lets requests under way finish for at most
// http.draintimeout. It returns nil after a clean end.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	failed := make(chan error, 4)
	run := func(what string, f func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, context.Canceled) {
				failed <- fmt.Errorf("%s: %w", what, err)
			}
		}()
	}
	run("serve", func() error { return s.http.Serve(s.listen) })
	if s.debug != nil {
		run("serve metrics", func() error { return s.debug.Serve(s.debugLn) })
	}
	run("serve administration", s.admin.serve)
	run("send notifications", func() error { return s.notifier.run(ctx) })
	if !s.cfg.Storage.Maintenance.ReadOnly.Enabled {
		run("convert", func() error { return s.root.gear.Run(ctx) })
	}
	run("background work", func() error { s.runJobs(ctx); return nil })
	run("memory", func() error { keepSmall(ctx, s.handler.Served); return nil })
	run("health checks", func() error { s.health.run(ctx); return nil })
	notifySystemd("READY=1")
	attrs := []any{"addr", s.listen.Addr().String(), "root", s.root.dir, "tls", s.certs != nil, "auth", !s.auth.Open()}
	if s.debugLn != nil {
		attrs = append(attrs, "debug", s.debugLn.Addr().String())
	}
	s.log.Info("serving", attrs...)
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	notifySystemd("STOPPING=1")
	err = errors.Join(err, s.drain())
	cancel()
	wg.Wait()
	return err
}

// drain ends the listeners. Uploads under way may finish; what is left then can
// be continued after the restart.
func (s *Server) drain() error {
	wait := s.cfg.HTTP.DrainTimeout
	s.log.Info("stopping; requests under way may finish", "within", wait)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	s.health.stopping()
	err := s.http.Shutdown(ctx)
	if err != nil { // the time is over
		s.log.Warn("requests were cut off", "err", err)
		err = s.http.Close()
	}
	s.admin.stop()
	if s.debug != nil {
		err = errors.Join(err, s.debug.Close())
	}
	return err
}

// Close releases everything. It is idempotent.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var errs []error
		if s.http != nil {
			errs = append(errs, s.http.Close())
		}
		for _, l := range []net.Listener{s.listen, s.debugLn} {
			if l != nil {
				l.Close() // already closed after Run
			}
		}
		if s.admin != nil {
			s.admin.stop()
		}
		// Nobody may still use what is closed next, and no other process may
		// open the data root while somebody here writes to it.
		errs = append(errs, s.requests.shut(ctx))
		if s.root != nil {
			errs = append(errs, s.root.close(ctx))
		}
		if s.auth != nil {
			errs = append(errs, s.auth.Close())
		}
		if s.certs != nil {
			s.certs.close()
		}
		if s.access != nil {
			errs = append(errs, s.access.Close())
		}
		if s.audit != nil {
			errs = append(errs, s.audit.Close())
		}
		if s.tracing != nil {
			errs = append(errs, s.tracing.Shutdown(ctx))
		}
		s.closeErr = errors.Join(errs...)
	})
	return s.closeErr
}
