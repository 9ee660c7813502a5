package serve

import (
	"net/http"

	"example.org/slipway/web"
)

// webPage makes the handler of the web page.
func (s *Server) webPage() (http.Handler, error) {
	o := &web.Options{Access: s.auth, Logger: s.log, Prefix: noSlash(s.cfg.HTTP.Prefix), Host: noSlash(s.cfg.HTTP.Host), Title: s.cfg.Web.Title,
		Logins: s.auth, Session: s.cfg.Web.Session, Version: s.version}
	if s.audit != nil {
		o.Audit = s.audit
	}
	return web.New(o)
}
