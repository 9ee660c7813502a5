package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server/edge"
)

// newHTTPServer makes the registry's HTTP server. Bodies have deadlines of their
// own in package server; here are those of everything around them.
func newHTTPServer(h *config.HTTP, log *slog.Logger, handler http.Handler) *http.Server {
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       edge.ConnContext,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(h.TLS.Enabled() && !h.HTTP2.Disabled)
	p.SetUnencryptedHTTP2(h.H2C.Enabled)
	srv.Protocols = &p
	return srv
}

// listenAll opens the listeners. Who connects waits until the server runs.
func (s *Server) listenAll() (err error) {
	h := &s.cfg.HTTP
	if h.Net == "unix" {
		if err := removeStaleSocket(h.Addr); err != nil {
			return err
		}
	}
	if s.listen, err = net.Listen(h.Net, h.Addr); err != nil {
		return fmt.Errorf("listen (http.addr): %w", err)
	}
	if h.RateLimit.MaxConnections > 0 {
		s.listen = limitConnections(s.listen, h.RateLimit.MaxConnections)
	}
	if err := s.listenPeers(); err != nil {
		return err
	}
	if h.Debug.Addr == "" {
		return nil
	}
	if s.debugLn, err = net.Listen("tcp", h.Debug.Addr); err != nil {
		return fmt.Errorf("listen (http.debug.addr): %w", err)
	}
	return nil
}

// encrypt puts TLS on the registry's listener, if it is configured; otherwise what
// sends small answers in one piece.
func (s *Server) encrypt() (err error) {
	h := &s.cfg.HTTP
	if !h.TLS.Enabled() {
		s.listen = edge.Listener(s.listen)
		return nil
	}
	if s.certs, err = loadCertificates(&h.TLS, s.log, s.certCheck); err != nil {
		return err
	}
	tc, err := s.certs.tlsConfig(&h.TLS)
	if err != nil {
		return err
	}
	if !h.HTTP2.Disabled {
		tc.NextProtos = []string{"h2", "http/1.1"}
	}
	s.http.TLSConfig = tc
	s.listen = tls.NewListener(s.listen, tc)
	return nil
}

// removeStaleSocket removes a socket nobody listens on any more.
func removeStaleSocket(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return fmt.Errorf("another process listens on %s", path)
	}
	return os.Remove(path)
}

// limited is a listener with a bound on open connections.
type limited struct {
	net.Listener
	slots     chan struct{}
	closed    chan struct{}
	closeOnce sync.Once
}

func limitConnections(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

// Close implements net.Listener. It also ends an Accept that waits for a place,
// without which http.Server could not stop while all places are taken.
func (l *limited) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// Accept waits for a free place before it takes a connection from the kernel's
// queue, so that clients wait there instead of being refused.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, release: func() { <-l.slots }}, nil
}

type limitedConn struct {
	net.Conn
	closed  atomic.Bool
	release func()
}

// ReadFrom implements io.ReaderFrom, without which net/http could not use
// sendfile.
func (c *limitedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// CloseWrite implements the interface by which net/http lets the client read the
// last answer before the connection is closed.
func (c *limitedConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return nil
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	if c.closed.CompareAndSwap(false, true) {
		c.release()
	}
	return err
}

// setUpDebug makes the second server: metrics, health and profiles.
func (s *Server) setUpDebug() {
	if s.debugLn == nil {
		return
	}
	d := &s.cfg.HTTP.Debug
	s.metrics.MustRegister(processMetrics()...)
	mux := http.NewServeMux()
	if d.Prometheus.Enabled {
		path := d.Prometheus.Path
		if path == "" {
			path = "/metrics"
		}
		mux.Handle("GET "+path, promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	}
	mux.HandleFunc("GET /livez", s.health.live)
	mux.HandleFunc("GET /readyz", s.health.ready)
	mux.HandleFunc("GET /debug/health", s.health.ready)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s.debug = &http.Server{Handler: s.onlyOwnNames(mux), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
}

// onlyOwnNames refuses requests of other sites' pages to the debug listener, which
// asks nobody for a password. Metrics and health are answered under any name to other
// machines, where a scraper or a load balancer has its own.
func (s *Server) onlyOwnNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := s.site.Check(r)
		if err == nil && (auth.NeedsHost(r) || strings.HasPrefix(r.URL.Path, "/debug/pprof")) {
			err = s.site.CheckHost(r.Host)
		}
		var refused *oci.Error
		if errors.As(err, &refused) {
			http.Error(w, refused.Message, refused.HTTPStatus())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// certificates are the server's certificate and the client authorities, read
// again when their files change.
type certificates struct {
	cfg     *config.TLS
	log     *slog.Logger
	every   time.Duration
	current atomic.Pointer[loadedCert]
	stop    chan struct{}
	done    chan struct{}
}

type loadedCert struct {
	cert    tls.Certificate
	clients *x509.CertPool
	stamp   string
}

func loadCertificates(cfg *config.TLS, log *slog.Logger, every time.Duration) (*certificates, error) {
	if every <= 0 {
		every = 10 * time.Second
	}
	c := &certificates{cfg: cfg, log: log, every: every, stop: make(chan struct{}), done: make(chan struct{})}
	l, err := c.load()
	if err != nil {
		return nil, err
	}
	c.current.Store(l)
	go c.watch()
	return c, nil
}

func (c *certificates) load() (*loadedCert, error) {
	l := &loadedCert{stamp: c.stamp()}
	var err error
	if l.cert, err = tls.LoadX509KeyPair(c.cfg.Certificate, c.cfg.Key); err != nil {
		return nil, fmt.Errorf("load http.tls.certificate and key: %w", err)
	}
	if len(c.cfg.ClientCAs) > 0 {
		if l.clients, err = wire.Pool(c.cfg.ClientCAs...); err != nil {
			return nil, fmt.Errorf("load http.tls.clientcas: %w", err)
		}
	}
	return l, nil
}

// stamp changes when one of the files does.
func (c *certificates) stamp() string {
	var s string
	for _, file := range append([]string{c.cfg.Certificate, c.cfg.Key}, c.cfg.ClientCAs...) {
		if fi, err := os.Stat(file); err == nil {
			s += fmt.Sprintf("%d/%d;", fi.ModTime().UnixNano(), fi.Size())
		}
	}
	return s
}

func (c *certificates) watch() {
	defer close(c.done)
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	var refused string // files that cannot be loaded, complained about once
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
		stamp := c.stamp()
		if stamp == c.current.Load().stamp {
			continue
		}
		l, err := c.load()
		if err != nil { // a renewal caught half way: the old one serves on
			if stamp != refused {
				c.log.Error("certificates changed but cannot be loaded; the old ones stay in use", "err", err)
			}
			refused = stamp
			continue
		}
		c.current.Store(l)
		c.log.Info("certificates reloaded")
	}
}

func (c *certificates) close() {
	close(c.stop)
	<-c.done
}

func (c *certificates) tlsConfig(cfg *config.TLS) (*tls.Config, error) {
	base := &tls.Config{MinVersion: cfg.MinVersion(), CipherSuites: cfg.CipherSuiteIDs()}
	if len(cfg.ClientCAs) > 0 {
		base.ClientAuth = cfg.ClientAuthType()
	}
	outer := base.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		l := c.current.Load()
		t := base.Clone()
		t.NextProtos = outer.NextProtos
		t.Certificates = []tls.Certificate{l.cert}
		t.ClientCAs = l.clients
		return t, nil
	}
	return outer, nil
}
