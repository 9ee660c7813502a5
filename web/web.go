// Package web is the registry's web page, which people view and click. It consists of
// HTML pages made from templates in the binary. A browser without JavaScript can read and
// do everything except live figures.
//
// Every page applies the same access rules as the registry's API. Changes are POSTs of
// the page's own forms, which [Handler] distinguishes from forms of other sites. Changes
// are recorded in the audit log.
//
// Pages treat all content as untrusted, because the user who pushed it chose the names of
// tags, labels and files. Templates escape these names. The pages' content security
// policy allows only scripts, styles and pictures of the registry itself, and none
// inline.
package web

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server/edge"
	"example.org/slipway/web/images"
)

// Root is the path of the first page, below the server's prefix.
const Root = "/ui/"

// Access decides who a user is and what the user may see and do. *auth.Auth implements
// it.
type Access interface {
	// Open reports that neither users nor rules are configured.
	Open() bool
	Authenticate(r *http.Request) (*auth.Identity, error)
	Allowed(id *auth.Identity, repo string, act auth.Action) bool
	Listed(id *auth.Identity, repo string) bool
}

// Auditor records changes. *auth.AuditLog implements it.
type Auditor interface{ Record(auth.Event) }

// Options are options of New.
type Options struct {
	// Access decides who may do what. If it is nil, everybody may see and do everything.
	Access Access
	// Logins lets users log in. If it is nil, nobody can log in, and rules apply to the
	// request alone.
	Logins Logins
	// Session is how long a login lasts; default 12 h.
	Session time.Duration
	// Audit receives the audit events. If it is nil, they are not recorded.
	Audit Auditor
	// Logger defaults to slog.Default.
	Logger *slog.Logger
	// Prefix is a path before Root, without a trailing slash.
	Prefix string
	// Host is the address at which browsers reach the server, as scheme://host, if that
	// is configured.
	Host string
	// Site distinguishes pages of this server from pages of other sites. By default it
	// knows no names but the one in Host.
	Site *edge.Site
	// Title is the title of the pages; default "Slipway".
	Title string
	// Version is the version of the program, shown at the foot.
	Version string
	// Clock defaults to time.Now.
	Clock func() time.Time
	// System is what the pages for administrators show.
	System System
	// Browse is what the pages of repositories show. If it is nil, there are no such
	// pages.
	Browse Browse
	// Files gives access to the files of images. If it is nil, no files are shown.
	Files images.Files
}

// Handler serves the page. New creates one.
type Handler struct {
	opts   Options
	log    *slog.Logger
	access Access // nil if everything is open
	logins Logins // nil if nobody can log in
	pages  map[string]page
	assets assets
	render *renderer

	images  *images.Pages
	jobs    *jobs
	actions []action
	ring    cacheRing
	timing  timing
	// streams has an entry for each stream of events. endStreams closes streamsEnd.
	streams    chan struct{}
	streamsEnd chan struct{}
	endStreams sync.Once
	// stop ends background work, and Close waits for it.
	stop       context.CancelFunc
	background sync.WaitGroup
}

// page is what is at /ui/NAME or /ui/NAME/...: what it shows on GET and HEAD, and what it
// does on POST.
type page struct {
	get, post func(*request) error
	// admin restricts the page to administrators.
	admin bool
	// exact means that the page has no paths below it.
	exact bool
}

// request is a request that the handler is processing.
type request struct {
	w  http.ResponseWriter
	r  *http.Request
	id *auth.Identity
	// rest is the path after the page's name, without a leading slash.
	rest string
	h    *Handler
}

func (q *request) ctx() context.Context { return q.r.Context() }

// New returns the handler of the page. The caller must close it.
func New(o *Options) (*Handler, error) {
	h := &Handler{}
	if o != nil {
		h.opts = *o
	}
	if h.opts.Logger == nil {
		h.opts.Logger = slog.Default()
	}
	if h.opts.Site == nil {
		h.opts.Site = edge.NewSite(h.opts.Host, nil, nil)
	}
	if h.opts.Title == "" {
		h.opts.Title = "Slipway"
	}
	if h.opts.Clock == nil {
		h.opts.Clock = time.Now
	}
	if h.opts.Session <= 0 {
		h.opts.Session = 12 * time.Hour
	}
	h.log, h.access, h.logins = h.opts.Logger, h.opts.Access, h.opts.Logins
	if h.access != nil && h.access.Open() {
		h.access, h.logins = nil, nil
	}
	var err error
	if h.assets, err = loadAssets(); err != nil {
		return nil, err
	}
	if h.render, err = newRenderer(h.opts.Prefix+Root, h.assets); err != nil {
		return nil, err
	}
	h.pages = map[string]page{
		"":        {get: (*request).home, exact: true},
		"repo":    {get: (*request).repo},
		"image":   {get: (*request).image},
		"delete":  {get: (*request).confirmDelete, post: (*request).doDelete},
		"remove":  {get: (*request).confirmRemove, post: (*request).doRemove},
		"history": {get: (*request).history},
		"restore": {post: (*request).restore},
		"login":   {get: (*request).loginPage, post: (*request).doLogin},
		"logout":  {post: (*request).logout, exact: true},
		"tree":    {get: (*request).tree},
		"diff":    {get: (*request).diff},
	}
	h.images = images.New(images.Options{Starts: h.opts.System.Nodes, Browse: h.opts.Browse, Files: h.opts.Files, Logger: h.log, Clock: h.opts.Clock, Base: h.render.base})
	h.openSystem()
	return h, nil
}

// Serves reports whether a path below the server's prefix belongs to the page.
func Serves(path string) bool {
	return path == "/" || path == strings.TrimSuffix(Root, "/") || strings.HasPrefix(path, Root)
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.secure(w.Header())
	path := strings.TrimPrefix(r.URL.Path, h.opts.Prefix)
	if !strings.HasPrefix(path, Root) {
		http.Redirect(w, r, h.opts.Prefix+Root, http.StatusSeeOther)
		return
	}
	q := &request{w: w, r: r, h: h}
	if err := q.serve(strings.TrimPrefix(path, Root)); err != nil {
		q.fail(err)
	}
}

func (q *request) serve(path string) error {
	name, rest, below := strings.Cut(path, "/")
	if name == "static" {
		return q.h.assets.serve(q.w, q.r, rest)
	}
	p, ok := q.h.pages[name]
	if !ok || p.exact && below {
		return notFound("There is no page of that name.")
	}
	q.rest = rest
	do, err := q.method(p)
	if err != nil {
		return err
	}
	if err := q.identify(); err != nil {
		return err
	}
	if p.admin && !q.may("", auth.Admin) {
		if q.h.access == nil && q.local() {
			return q.refuse("Without users, this page is shown under an address, localhost, or a name in http.host or http.names only.")
		}
		return q.refuse("This page is for who manages the registry.")
	}
	return do(q)
}

// method returns the function of a page for the request's method.
func (q *request) method(p page) (func(*request) error, error) {
	switch {
	case q.r.Method == http.MethodPost && p.post != nil:
		return p.post, q.ownForm()
	case (q.r.Method == http.MethodGet || q.r.Method == http.MethodHead) && p.get != nil:
		return p.get, nil
	}
	return nil, &problem{status: http.StatusMethodNotAllowed, text: "This page does not take " + q.r.Method + "."}
}

// may reports whether the user may do act on a repository. If there are no users, only a
// client on this machine manages the registry, and only if it reaches the server by one
// of the server's own names. Otherwise a site that is open in a browser on this machine
// could pass off its own name as this server's.
func (q *request) may(repo string, act auth.Action) bool {
	if q.h.access != nil {
		return q.h.access.Allowed(q.id, repo, act)
	}
	return act != auth.Admin || q.local() && q.h.opts.Site.Knows(q.r.Host)
}

// local reports whether the client is on this machine and is not a proxy that forwards
// requests of others.
func (q *request) local() bool {
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-Ip", "Via"} {
		if q.r.Header.Get(name) != "" {
			return false
		}
	}
	addr := q.r.RemoteAddr
	if addr == "" || addr == "@" {
		return true // a unix socket
	}
	if host, _, err := net.SplitHostPort(addr); err == nil {
		addr = host
	}
	a, err := netip.ParseAddr(addr)
	return err == nil && a.Unmap().IsLoopback()
}

// refuse returns the answer for a user who may not see something. The answer is a login
// page if a login could help.
func (q *request) refuse(text string) error {
	if q.h.logins != nil && q.id.Anonymous() && q.r.Method == http.MethodGet {
		http.Redirect(q.w, q.r, q.h.opts.Prefix+Root+"login?next="+url.QueryEscape(q.r.URL.RequestURI()), http.StatusSeeOther)
		return nil
	}
	q.record("denied", "denied", q.r.Method, "", q.r.URL.Path)
	return &problem{status: http.StatusForbidden, text: text}
}

// problem is an error that is shown to the user.
type problem struct {
	status int
	text   string
	err    error
}

func (p *problem) Error() string { return p.text }
func (p *problem) Unwrap() error { return p.err }

func notFound(text string) error { return &problem{status: http.StatusNotFound, text: text} }

// fail shows an error as a page.
func (q *request) fail(err error) {
	p := &problem{status: http.StatusInternalServerError, text: "The registry failed; its log says why."}
	var wire *oci.Error
	switch {
	case errors.As(err, &p):
	case errors.As(err, &wire) && wire.HTTPStatus() < 500:
		p = &problem{status: wire.HTTPStatus(), text: wire.Message}
	case q.r.Context().Err() != nil:
		return // nobody is left to answer
	default:
		q.h.log.Error("a page of the web failed", "path", q.r.URL.Path, "error", err)
	}
	q.show(p.status, "error", "", map[string]any{"Status": p.status, "Text": p.text})
}
