package serve

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
)

// peerServer serves blobs from this server's cache to other servers.
type peerServer struct {
	ln  net.Listener
	srv *http.Server
}

// listenPeers opens the listener for other servers if one is configured.
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

// servePeers sets up the HTTP server that answers other servers.
func (s *Server) servePeers() {
	if s.peers == nil {
		return
	}
	s.peers.srv = &http.Server{
		Handler:           s.requests.Guard(s.root.Cluster.Handler(s.root.Store)),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	if strings.HasPrefix(s.cfg.Cluster.Where(), "https:") {
		s.peers.ln = tls.NewListener(s.peers.ln, &tls.Config{MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &s.certs.current.Load().cert, nil }})
	}
}

func (p *peerServer) serve() error { return p.srv.Serve(p.ln) }

// close closes the server. p may be nil.
func (p *peerServer) close() {
	if p == nil {
		return
	}
	if p.srv != nil {
		p.srv.Close()
	}
	p.ln.Close() // the server may have closed it already
}
