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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/server/edge"
)

// newHTTPServer returns the registry's HTTP server. Package server sets the deadlines of
// bodies; this function sets all others.
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

// listenAll opens the listeners. Clients that connect wait until the server runs.
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

// encrypt adds TLS to the registry's listener if TLS is configured. Otherwise it adds a
// wrapper that sends small answers in one piece.
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

// removeStaleSocket removes a socket that nobody listens on any more.
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

// limited is a listener that bounds the number of open connections.
type limited struct {
	net.Listener
	slots     chan struct{}
	closed    chan struct{}
	closeOnce sync.Once
}

func limitConnections(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

// Close implements net.Listener. It also ends an Accept that waits for a free place.
// Otherwise http.Server could not stop while all places are taken.
func (l *limited) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// Accept waits for a free place before it takes a connection from the kernel's queue. So
// clients wait there instead of being refused.
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

// ReadFrom implements io.ReaderFrom. net/http needs it to use sendfile.
func (c *limitedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// CloseWrite implements the interface that net/http uses to let the client read the last
// answer before the connection is closed.
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

// setUpDebug creates the second HTTP server, for metrics, health and profiles.
func (s *Server) setUpDebug() {
	if s.debugLn == nil {
		return
	}
	d := &s.cfg.HTTP.Debug
	s.metrics.MustRegister(processMetrics(s.version)...)
	s.metrics.MustRegister(s.certs.expiry())
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

// onlyOwnNames refuses requests that pages of other sites send to the debug listener,
// which requires no password. For other machines, metrics and health are served under any
// host name, because a scraper or a load balancer may use its own name for the server.
func (s *Server) onlyOwnNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := s.site.Check(r)
		if err == nil && (edge.NeedsHost(r) || strings.HasPrefix(r.URL.Path, "/debug/pprof")) {
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

// certificates holds the server's certificate and the client authorities. They are read
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

// expiry returns the metric that says when the certificate in use expires. c is nil without
// TLS.
func (c *certificates) expiry() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slipway_tls_certificate_expiry_timestamp_seconds",
		Help: "When the certificate of http.tls expires, in seconds since 1970. It is 0 without TLS."}, func() float64 {
		if c == nil {
			return 0
		}
		return float64(c.current.Load().cert.Leaf.NotAfter.Unix())
	})
}

// stamp returns a string that changes when one of the files changes.
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
	var refused string // the files that could not be loaded, so that each failure is logged once
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
		if err != nil { // a renewal that is only half done; the old certificate stays in use
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
