// Package serve is the composition root of the registry server. It connects the data root with
// access control, listeners, the web page and administration, and runs them.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"example.org/slipway/config"
	"example.org/slipway/internal/systemd"
	"example.org/slipway/oci/fleet"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/mirror/route"
	"example.org/slipway/registry/replication"
	"example.org/slipway/registry/server"
	"example.org/slipway/registry/server/edge"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/serve/gate"
	"example.org/slipway/serve/page"
	"example.org/slipway/web"
	"example.org/slipway/workload/trace"
)

// Options are the options of New in addition to the configuration.
type Options struct {
	// Logger defaults to slog.Default.
	Logger *slog.Logger
	// Stdout receives the access log if that names no file; default os.Stdout.
	Stdout *os.File
	// Version is the version of the program, for the web page.
	Version string
	// CertificateCheck is how often the certificate files are checked for changes;
	// default 10 s.
	CertificateCheck time.Duration
	// Reload reads the configuration again, for [Server.Reload]. ConfigFile is the file
	// that it reads. The file is checked for changes every ConfigCheck; default 5 s.
	Reload      func() (*config.Config, error)
	ConfigFile  string
	ConfigCheck time.Duration
}

// Server is a registry server that is ready to run.
type Server struct {
	cfg   *config.Config
	log   *slog.Logger
	root  *dataroot.Root
	auth  *auth.Auth
	audit *auth.AuditLog
	// access is nil without an access log. accessFile is nil if the access log is not a
	// file.
	access     *trace.Writer
	accessFile *logFile

	handler         *server.Server
	http, debug     *http.Server
	listen, debugLn net.Listener
	peers           *peerServer // nil without other servers
	admin           *admin.Server
	certs           *certificates
	tracing         *sdktrace.TracerProvider // nil when off
	metrics         *prometheus.Registry
	nodes           *fleet.Book
	page            *page.Page // nil without a web page
	health          *health
	site            *edge.Site // for the web page and the debug listener
	certCheck       time.Duration
	// reload is nil if the configuration cannot be read again. configInfo is the state of
	// configFile before the configuration was used.
	reload      func() (*config.Config, error)
	configFile  string
	configInfo  os.FileInfo
	configCheck time.Duration
	reloading   sync.Mutex
	version     string
	// requests counts the requests and admin tasks under way. Close waits for them.
	requests gate.Requests
	// writes can stop changes while reads continue.
	writes *gate.Writes

	closeOnce sync.Once
	closeErr  error
}

// configCheck is how often the configuration file is checked for changes by default.
const configCheck = 5 * time.Second

// New opens everything that the configuration names and binds the listeners, so that
// errors show at once. The caller must run the server and close it.
func New(ctx context.Context, cfg *config.Config, o *Options) (_ *Server, err error) {
	if o == nil {
		o = &Options{}
	}
	s := &Server{cfg: cfg, log: o.Logger, metrics: prometheus.NewRegistry(), certCheck: o.CertificateCheck, version: o.Version, writes: gate.NewWrites()}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.reload, s.configFile, s.configCheck = o.Reload, o.ConfigFile, cmp.Or(o.ConfigCheck, configCheck)
	if s.configFile != "" {
		s.configInfo, _ = os.Stat(s.configFile) // if it is away now, it has changed when it is back
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	// Checks that are cheap come first. If one of them fails, no data directory is left
	// behind.
	if err := CheckFiles(cfg); err != nil {
		return nil, err
	}
	if err := s.listenAll(); err != nil {
		return nil, err
	}
	if err := s.openLogs(o); err != nil {
		return nil, err
	}
	if s.root, err = dataroot.Open(ctx, cfg, dataroot.Options{Logger: s.log, Serving: true, Enter: s.writes.Enter, Stopping: s.writes.Stopping}); err != nil {
		return nil, err
	}
	if err := s.root.OpenMirrors(s.writes); err != nil {
		return nil, err
	}
	if err := s.root.Mirrors.WarnOfPushed(ctx, s.log); err != nil {
		return nil, err
	}
	ao := &auth.Options{Logger: s.log, Audit: s.audit, Dir: s.root.Dir, Host: config.NoSlash(cfg.HTTP.Host), Prefix: config.NoSlash(cfg.HTTP.Prefix), Tokens: s.root.TokenStore()}
	if s.root.Mirrors != nil {
		ao.Repository = s.root.Mirrors.ForToken
	}
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

// ReopenLogs opens the access and audit log files again by name, after a log rotation has
// moved them away.
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

// keepOpen hides Close, because standard output is not ours to close.
type keepOpen struct{ f *os.File }

func (k keepOpen) Write(p []byte) (int, error) { return k.f.Write(p) }

// setUpHTTP creates the handlers, and the servers on the listeners.
func (s *Server) setUpHTTP() error {
	h := &s.cfg.HTTP
	so := &server.Options{
		Auth: s.auth, Logger: s.log, Headers: http.Header(h.Headers), Host: config.NoSlash(h.Host),
		Prefix: config.NoSlash(h.Prefix), MaxCatalog: s.cfg.Catalog.MaxEntries,
		MaxManifestBytes: int64(h.Limits.ManifestBytes), IdleTimeout: h.Limits.BodyIdleTimeout, MinBodyRate: int64(h.Limits.BodyMinRate),
		RequestsPerSecond: h.RateLimit.RequestsPerSecond, Burst: h.RateLimit.Burst,
		MaxUploadsPerClient: h.RateLimit.Uploads, WithActor: func() bool { return s.root.Prefetch != nil || s.root.Notifies() },
	}
	s.site = siteOf(s.cfg, nil)
	so.Site = siteOf(s.cfg, corsOrigins(h.Headers))
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
	so.Gear = gearAPI{s.root.Gear, s.writes, s.root.Quotas}
	so.History = historyAPI{s.root.History, s.writes}
	s.nodes = fleet.NewBook(nil)
	so.Nodes, so.AnonymousReports = s.nodes, s.cfg.Gear.Anonymous
	so.Warm = s.root.Warming
	if err := s.introducePeers(so); err != nil {
		return err
	}
	if s.root.Volumes != nil {
		so.Volumes = volumeAPI{s.root.Volumes, s.writes}
	}
	var err error
	if !s.cfg.Web.Disabled {
		if s.page, err = s.newPage(); err != nil {
			return err
		}
		so.Web, so.IsWeb = s.page, web.Serves
	}
	if so.Redirect, err = s.redirector(); err != nil {
		return err
	}
	if s.root.Mirrors != nil {
		so.Repository, so.Defaulted = s.root.Mirrors.Repository, s.root.Mirrors.ByDefault
		so.Incomplete = s.root.Mirrors.Incomplete
	}
	s.handler = server.New(s.root.Quotas.Registry(s.writes.Registry(s.root.Served())), so)
	s.metrics.MustRegister(s.handler.Metrics()...)
	s.metrics.MustRegister(s.root.Metrics()...)
	s.metrics.MustRegister(s.auth.Metrics()...)
	s.metrics.MustRegister(s.root.Quotas.Metrics()...)
	s.health = newHealth(s.cfg, s.root, s.log)
	s.http = newHTTPServer(h, s.log, s.requests.Guard(traced(s.tracing, replication.Receive(route.Receive(s.handler)))))
	if err := s.encrypt(); err != nil {
		return err
	}
	s.servePeers()
	s.setUpDebug()
	s.admin, err = admin.NewServer(s.cfg, s.root, s.writes, admin.ServerOptions{Guard: s.requests.Guard, Log: s.log, Auth: s.auth, Audit: s.audit, Reload: s.Reload})
	return err
}

// siteOf returns what is known about the names of a server. Pages of origins may change
// things, too.
func siteOf(cfg *config.Config, origins []string) *edge.Site {
	var names []string
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	for _, own := range slices.Concat(cfg.HTTP.Names, cfg.Proxy.OwnNames, cfg.Proxy.Hosts()) {
		if host, _, err := net.SplitHostPort(own); err == nil {
			own = host
		}
		names = append(names, own)
	}
	return edge.NewSite(cfg.HTTP.Host, names, origins)
}

// corsOrigins returns the sites whose pages may use the API according to the configured
// headers.
func corsOrigins(headers http.Header) (origins []string) {
	for key, values := range headers {
		if http.CanonicalHeaderKey(key) == "Access-Control-Allow-Origin" {
			origins = append(origins, values...)
		}
	}
	return origins
}

// Addr returns the address on which the registry listens.
func (s *Server) Addr() net.Addr { return s.listen.Addr() }

// DebugAddr returns the address on which metrics and health listen, or nil.
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
	failed := make(chan error, 20) // larger than the number of senders below
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
	run("serve administration", s.admin.Serve)
	if s.peers != nil {
		run("serve other servers", s.peers.serve)
		run("find other servers", func() error { return s.root.Cluster.Run(ctx) })
	}
	if s.root.Prefetch != nil {
		run("fetch ahead", func() error { return s.root.Prefetch.Run(ctx) })
	}
	run("send notifications", func() error { return s.root.Deliver(ctx) })
	if !s.cfg.Storage.Maintenance.ReadOnly.Enabled {
		run("convert", func() error { return s.convert(ctx) })
		run("replicate", func() error { s.root.Replicator.Run(ctx); return nil })
	}
	run("orders for nodes", func() error { return s.root.Warming.Run(ctx) })
	run("background work", func() error { s.runJobs(ctx); return nil })
	run("memory", func() error { keepSmall(ctx, s.handler.Served); return nil })
	run("read the access rules again", func() error { s.watchConfig(ctx); return nil })
	run("count for quotas", func() error { s.root.Quotas.Run(ctx); return nil })
	run("count for metrics", func() error { s.root.Meter.Run(ctx); return nil })
	run("note the use of API tokens", func() error { s.auth.Run(ctx); return nil })
	run("health checks", func() error { s.health.run(ctx); return nil })
	systemd.Notify(systemd.Ready)
	attrs := []any{"addr", s.listen.Addr().String(), "root", s.root.Dir, "tls", s.certs != nil, "auth", !s.auth.Open()}
	if s.debugLn != nil {
		attrs = append(attrs, "debug", s.debugLn.Addr().String())
	}
	s.log.Info("serving", attrs...)
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	systemd.Notify(systemd.Stopping)
	err = errors.Join(err, s.drain())
	cancel()
	wg.Wait()
	return err
}

// drain closes the listeners, after http.drain_delay. Uploads under way may finish. Unfinished
// uploads can be continued after the restart.
func (s *Server) drain() error {
	s.health.stopping()
	if delay := s.cfg.HTTP.DrainDelay; delay > 0 {
		s.log.Info("stopping; requests are still accepted", "for", delay)
		time.Sleep(delay)
	}
	wait := s.cfg.HTTP.DrainTimeout
	s.log.Info("stopping; requests under way may finish", "within", wait)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	s.page.EndStreams() // by themselves they end only after minutes
	err := s.http.Shutdown(ctx)
	if err != nil { // the time is over
		s.log.Warn("requests were cut off", "err", err)
		err = s.http.Close()
	}
	s.admin.Stop()
	s.peers.close()
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
			s.admin.Stop()
		}
		s.peers.close()
		s.page.Close()
		// Nothing may still use what is closed next, and no other process may open the
		// data root while this one writes to it.
		errs = append(errs, s.requests.Shut(ctx))
		if s.root != nil {
			errs = append(errs, s.root.Close(ctx))
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
