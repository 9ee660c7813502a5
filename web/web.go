// Package web is the registry's web page: what people look at and click. It is made of
// pages of HTML from templates in the binary; a browser without JavaScript can read and
// do everything, live figures excepted.
//
// Every page asks the same access rules as the registry's API does. Changes are POSTs of
// the page's own forms, which [Handler] tells from those of other sites, and go into the
// audit log.
//
// Nothing a page shows is trusted: names of tags, labels and files come from whoever
// pushed them. Templates escape them, and the pages' content security policy allows
// scripts, styles and pictures of the registry itself only, none within a page.
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
)

// Root is the path of the first page, below the server's prefix.
const Root = "/ui/"

// Access decides who asks and what they may see and do; *auth.Auth is one.
type Access interface {
	// Open tells that neither users nor rules are configured.
	Open() bool
	Authenticate(r *http.Request) (*auth.Identity, error)
	Allowed(id *auth.Identity, repo string, act auth.Action) bool
	Listed(id *auth.Identity, repo string) bool
}

// Auditor records changes; *auth.AuditLog is one.
type Auditor interface{ Record(auth.Event) }

// Options of New.
type Options struct {
	// Access; nil: everybody may see and do everything.
	Access Access
	// Logins; nil: nobody can log in, and rules go by the request alone.
	Logins Logins
	// Session is how long a login lasts; default 12 h.
	Session time.Duration
	// Audit; nil: none.
	Audit Auditor
	// Logger; default slog.Default.
	Logger *slog.Logger
	// Prefix is a path before Root, without a closing slash.
	Prefix string
	// Host, as scheme://host, is where browsers reach the server, if that is configured.
	Host string
	// Site tells pages of this server from those of others; default: one that knows no
	// names but that in Host.
	Site *auth.Site
	// Title of the pages; default "Slipway".
	Title string
	// Version of the program, shown at the foot.
	Version string
	// Clock; default time.Now.
	Clock func() time.Time
	// System is what the pages for who manages the registry show.
	System System
	// Browse is what the pages of repositories show; nil: there are none.
	Browse Browse
	// Files are those of images; nil: none are shown.
	Files Files
}

// Handler serves the page. Make one with New.
type Handler struct {
	opts   Options
	log    *slog.Logger
	access Access // nil where everything is open
	logins Logins // nil where nobody can log in
	pages  map[string]page
	assets assets
	render *renderer

	trees   *trees
	jobs    *jobs
	actions []action
	ring    cacheRing
	timing  timing
	// streams has an entry for each stream of events; streamsEnd is closed by endStreams.
	streams    chan struct{}
	streamsEnd chan struct{}
	endStreams sync.Once
	// ctx is of background, which stop ends and Close waits for; beginning keeps more from
	// being begun then.
	ctx        context.Context
	stop       context.CancelFunc
	background sync.WaitGroup
	beginning  sync.Mutex
}

// page is what stands at /ui/NAME or /ui/NAME/...: what it shows on GET and HEAD, and
// what it does on POST.
type page struct {
	get, post func(*request) error
	// admin: only for who may manage the registry.
	admin bool
	// exact: nothing stands below it.
	exact bool
}

// request is a request on its way through the handler.
type request struct {
	w  http.ResponseWriter
	r  *http.Request
	id *auth.Identity
	// rest is the path behind the page's name, without a slash before it.
	rest string
	h    *Handler
}

func (q *request) ctx() context.Context { return q.r.Context() }

// New returns the handler of the page. The caller closes it.
func New(o *Options) (*Handler, error) {
	h := &Handler{}
	if o != nil {
		h.opts = *o
	}
	if h.opts.Logger == nil {
		h.opts.Logger = slog.Default()
	}
	if h.opts.Site == nil {
		h.opts.Site = auth.NewSite(h.opts.Host, nil, nil)
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
		"":       {get: (*request).home, exact: true},
		"repo":   {get: (*request).repo},
		"image":  {get: (*request).image},
		"delete": {get: (*request).confirmDelete, post: (*request).doDelete},
		"login":  {get: (*request).loginPage, post: (*request).doLogin},
		"logout": {post: (*request).logout, exact: true},
		"tree":   {get: (*request).tree},
		"diff":   {get: (*request).diff},
	}
	h.trees = newTrees()
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

// method returns what a page does for the request's method.
func (q *request) method(p page) (func(*request) error, error) {
	switch {
	case q.r.Method == http.MethodPost && p.post != nil:
		return p.post, q.ownForm()
	case (q.r.Method == http.MethodGet || q.r.Method == http.MethodHead) && p.get != nil:
		return p.get, nil
	}
	return nil, &problem{status: http.StatusMethodNotAllowed, text: "This page does not take " + q.r.Method + "."}
}

// may reports whether who asks may do act on a repository. Where there are no users, only
// somebody at this machine manages the registry, and no site that has a browser there
// take its own name for this server's.
func (q *request) may(repo string, act auth.Action) bool {
	if q.h.access != nil {
		return q.h.access.Allowed(q.id, repo, act)
	}
	return act != auth.Admin || q.local() && q.h.opts.Site.Knows(q.r.Host)
}

// local reports whether the client is on this machine, and not a proxy that forwards for
// others.
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

// refuse is the answer to who may not see something: a login where that could help.
func (q *request) refuse(text string) error {
	if q.h.logins != nil && q.id.Anonymous() && q.r.Method == http.MethodGet {
		http.Redirect(q.w, q.r, q.h.opts.Prefix+Root+"login?next="+url.QueryEscape(q.r.URL.RequestURI()), http.StatusSeeOther)
		return nil
	}
	q.record("denied", "denied", q.r.Method, "", q.r.URL.Path)
	return &problem{status: http.StatusForbidden, text: text}
}

// problem is an error that is shown to people.
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
	p := &problem{status: http.StatusInternalServerError, text: "The registry failed; its log tells why."}
	var wire *oci.Error
	switch {
	case errors.As(err, &p):
	case errors.As(err, &wire) && wire.HTTPStatus() < 500:
		p = &problem{status: wire.HTTPStatus(), text: wire.Message}
	case q.r.Context().Err() != nil:
		return // nobody is left to be told
	default:
		q.h.log.Error("a page of the web failed", "path", q.r.URL.Path, "error", err)
	}
	q.show(p.status, "error", "", map[string]any{"Status": p.status, "Text": p.text})
}
