package serve

import (
	"net/http"

	"example.org/slipway/web"
)

// webPage creates the handler of the web page.
func (s *Server) webPage() (http.Handler, error) {
	o := &web.Options{Access: s.auth, Logger: s.log, Prefix: noSlash(s.cfg.HTTP.Prefix), Host: noSlash(s.cfg.HTTP.Host), Site: s.site, Title: s.cfg.Web.Title,
		Logins: s.auth, Session: s.cfg.Web.Session, Version: s.version, System: s.webSystem(), Browse: s.webBrowse(), Files: webFiles{s}}
	if s.audit != nil {
		o.Audit = s.audit
	}
	h, err := web.New(o)
	if err != nil {
		return nil, err
	}
	s.web = h
	return h, nil
}
