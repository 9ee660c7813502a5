package serve

import (
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/page"
	"example.org/slipway/web/manage"
)

// newPage creates the web page.
func (s *Server) newPage() (*page.Page, error) {
	return page.New(page.Options{Config: s.cfg, Root: s.root, Writes: s.writes, Logger: s.log, Version: s.version,
		Auth: s.auth, Site: s.site, Audit: s.audit, Nodes: s.nodes, Listeners: s.listeners})
}

// listeners returns the addresses on which the server listens.
func (s *Server) listeners() []manage.Fact {
	what := "Clients, without TLS"
	if s.cfg.HTTP.TLS.Enabled() {
		what = "Clients, by TLS"
	}
	list := []manage.Fact{{Name: what, Value: s.Addr().String()}}
	if a := s.DebugAddr(); a != nil {
		list = append(list, manage.Fact{Name: "Metrics and health", Value: a.String()})
	}
	if s.peers != nil {
		list = append(list, manage.Fact{Name: "Other servers", Value: s.peers.ln.Addr().String()})
	}
	return append(list, manage.Fact{Name: "Administration", Value: admin.Socket + " in the data directory"})
}
