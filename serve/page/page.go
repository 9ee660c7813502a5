// Package page is what the web page shows of a server, and what can be done there: it connects package
// web with the data root and the server.
package page

import (
	"log/slog"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci/fleet"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server/edge"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/serve/gate"
	"example.org/slipway/web"
	"example.org/slipway/web/manage"
)

// Options are what the page needs.
type Options struct {
	Config *config.Config
	Root   *dataroot.Root
	Writes *gate.Writes
	Logger *slog.Logger
	// Version is the version of the program.
	Version string
	Auth    *auth.Auth
	Site    *edge.Site
	// Audit is nil without an audit log.
	Audit *auth.AuditLog
	Nodes *fleet.Book
	// Listeners returns the addresses on which the server listens.
	Listeners func() []manage.Fact
}

// Page is the handler of the web page.
type Page struct {
	*web.Handler
	system *system
}

// New creates the page.
func New(o Options) (*Page, error) {
	c := o.Config
	page := &system{o: &o, began: time.Now()}
	page.survey.measure = page.measure
	shown, err := newShownImages(&o)
	if err != nil {
		return nil, err
	}
	wo := &web.Options{Access: o.Auth, Logger: o.Logger, Prefix: config.NoSlash(c.HTTP.Prefix), Host: config.NoSlash(c.HTTP.Host), Site: o.Site, Title: c.Web.Title,
		Logins: o.Auth, Session: c.Web.Session, Version: o.Version, System: page.shown(), Browse: shown, Files: files{o.Root}}
	if o.Audit != nil {
		wo.Audit = o.Audit
	}
	h, err := web.New(wo)
	if err != nil {
		return nil, err
	}
	return &Page{h, page}, nil
}

// EndStreams ends the streams of events. p may be nil.
func (p *Page) EndStreams() {
	if p != nil {
		p.Handler.EndStreams()
	}
}

// Close ends the page's work in the background. p may be nil.
func (p *Page) Close() {
	if p != nil {
		p.Handler.Close()
		p.system.survey.close()
	}
}
