// Package server puts an [oci.Registry] behind HTTP: the distribution protocol
// with its headers, errors and conditional requests, access control, limits,
// metrics and the access log.
//
// The handler takes the path apart itself (oci.Parse) and never through a
// ServeMux, which would answer unclean paths with redirects. Bodies that lie in
// RAM are written in one piece, files are handed to the kernel (sendfile), which
// the response writer here takes care not to prevent.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server/edge"
	"example.org/slipway/workload/trace"
)

// Authorizer decides who asks and what they may do; *auth.Auth is one.
type Authorizer interface {
	// Open tells that everybody may do everything.
	Open() bool
	Authenticate(r *http.Request) (*auth.Identity, error)
	Allowed(id *auth.Identity, repo string, act auth.Action) bool
	// Listed reports whether the catalogue shows repo to id.
	Listed(id *auth.Identity, repo string) bool
	// PingAllowed reports whether GET /v2/ answers 200.
	PingAllowed(id *auth.Identity) bool
	// Refuse returns the answer to a request that Allowed turned down, and the
	// challenge to send with it.
	Refuse(r *http.Request, id *auth.Identity, repo string, act auth.Action) (*oci.Error, string)
	// Challenge is the WWW-Authenticate value for credentials that are no good.
	Challenge(r *http.Request, repo string, act auth.Action) string
}

// Auditor records changes; *auth.AuditLog is one.
type Auditor interface{ Record(auth.Event) }

// AccessLog takes a record of every request; *trace.Writer is one. The record
// is reused after Write returns.
type AccessLog interface{ Write(*trace.Record) }

// Options of New. The zero value serves everybody.
type Options struct {
	// Auth; nil: everybody may do everything.
	Auth Authorizer
	// Token serves the built-in token service at TokenPath; nil: none.
	Token     http.Handler
	TokenPath string
	// Repository tells which repository a request means by a name, before anybody is
	// asked for the right to it; nil: the one of that name.
	Repository RepositoryFunc
	// Defaulted tells of which names Repository says something only for want of a
	// repository of that name; nil: of none.
	Defaulted DefaultedFunc
	// Incomplete returns why lists of a repository may not be whole, "" where they are; nil:
	// they always are. It is told in a Warning header.
	Incomplete func(repo string) string
	// Gear serves the Gear extension; nil: none.
	Gear Gear
	// Site tells pages of this server from those of others; default: one that is
	// reached under any name.
	Site *auth.Site
	// Nodes takes what nodes report; nil: nobody does.
	Nodes Nodes
	// AnonymousReports takes what anonymous clients report of nodes and profiles, where
	// there are users.
	AnonymousReports bool
	// Volumes serves the volume extension; nil: none.
	Volumes Volumes
	// Web serves the web page, which the paths are that IsWeb names; nil: none.
	Web   http.Handler
	IsWeb func(path string) bool
	// Redirect sends clients elsewhere for blobs; nil: they get all of them here.
	Redirect Redirector
	// Logger; default slog.Default.
	Logger *slog.Logger
	// AccessLog; nil: none.
	AccessLog AccessLog
	// Audit; nil: none.
	Audit Auditor
	// Name of this server in the access log; default "slipway".
	Name string
	// Headers are added to every answer. With Access-Control-Allow-Origin among them
	// browsers' preflight requests are answered, too.
	Headers http.Header
	// Host, as scheme://host, makes Locations absolute; default: paths only,
	// which pass through any proxy.
	Host string
	// Prefix is a path before /v2/, without a closing slash.
	Prefix string
	// MaxList is how many names a page of a list has at most; default 10,000
	// for tags. The catalogue's pages are at most MaxCatalog, default 1,000.
	MaxList, MaxCatalog int
	// MaxManifestBytes; default oci.MaxManifestSize.
	MaxManifestBytes int64
	// IdleTimeout is how long a client may neither send nor take a byte in the
	// middle of a body; default 60 s.
	IdleTimeout time.Duration
	// MinBodyRate is how many bytes a second of a request's body must come, on
	// average over IdleTimeout; 0: a byte in that time is enough.
	MinBodyRate int64
	// RequestsPerSecond and Burst limit each client address; 0: no limit.
	RequestsPerSecond float64
	Burst             int
	// WithActor puts who asks into the context of reads too, for pull events.
	WithActor bool
	// MaxUploadsPerClient bounds the uploads one address sends at once; 0: no limit.
	MaxUploadsPerClient int
	// TrustedProxies are the peers whose X-Forwarded-For is believed: the client
	// is then the right-most address there that is not one of them. So are, of these
	// peers only, the scheme and the host that they forward. Default: none.
	TrustedProxies []netip.Prefix
	// TrustUnixPeers makes every peer of a unix socket a trusted proxy.
	TrustUnixPeers bool
	// Clock; default time.Now.
	Clock func() time.Time
}

// Server is the http.Handler of a registry.
type Server struct {
	reg     oci.Registry
	opts    Options
	log     *slog.Logger
	open    bool
	metrics *metrics
	limits  *edge.Limiter
	sending *edge.Limiter
	votes   votes         // on profiles
	proxies *edge.Proxies // nil: there are none
	places  places
	headers http.Header // of every answer
	cors    *edge.CORS  // nil: no other origin may use the registry in a browser
}

// New returns the handler of a registry.
func New(reg oci.Registry, o *Options) *Server {
	s := &Server{reg: reg}
	if o != nil {
		s.opts = *o
	}
	v := &s.opts
	if v.Logger == nil {
		v.Logger = slog.Default()
	}
	if v.Name == "" {
		v.Name = "slipway"
	}
	if v.MaxList <= 0 {
		v.MaxList = 10_000
	}
	if v.MaxCatalog <= 0 {
		v.MaxCatalog = 1_000
	}
	if v.MaxManifestBytes <= 0 {
		v.MaxManifestBytes = oci.MaxManifestSize
	}
	if v.IdleTimeout <= 0 {
		v.IdleTimeout = 60 * time.Second
	}
	if v.Clock == nil {
		v.Clock = time.Now
	}
	if v.Site == nil {
		v.Site = auth.NewSite(v.Host, []string{auth.AnyName}, nil)
	}
	s.log = v.Logger
	s.open = v.Auth == nil || v.Auth.Open()
	s.metrics = newMetrics()
	s.places = newPlaces()
	s.headers = http.Header{}
	for k, list := range v.Headers {
		s.headers[http.CanonicalHeaderKey(k)] = list
	}
	s.cors = edge.NewCORS(s.headers)
	if len(v.TrustedProxies) > 0 || v.TrustUnixPeers {
		s.proxies = &edge.Proxies{Trusted: v.TrustedProxies, UnixPeers: v.TrustUnixPeers}
	}
	s.limits = edge.NewLimiter(v.RequestsPerSecond, v.Burst, 0)
	s.sending = edge.NewLimiter(0, 0, v.MaxUploadsPerClient)
	return s
}

// Metrics returns the server's Prometheus collectors.
func (s *Server) Metrics() []prometheus.Collector {
	list := s.metrics.collectors()
	if s.opts.Redirect != nil {
		list = append(list, s.metrics.redirects.collectors()...)
	}
	return list
}

// Served returns how many requests were answered.
func (s *Server) Served() int64 { return s.metrics.served.Load() }

// Shared header values: a slice of one string each, so that setting a header
// allocates nothing. Nobody may change them.
var (
	apiVersion  = []string{"registry/2.0"}
	octetStream = []string{oci.MediaTypeOctetStream}
	acceptBytes = []string{"bytes"}
	noSniff     = []string{"nosniff"}
	jsonType    = []string{"application/json"}
	zero        = []string{"0"}
)

// request is a request on its way through the server.
type request struct {
	oci.Request
	ext extension // of a request of oci.KindExtension
	// asked is the repository's name as the client wrote it, where Repo is another.
	asked string
	w     *response
	r     *http.Request
	// sentTo is the Host header as it arrived, where a proxy says that it was another.
	sentTo string
	// id is who asks, nil while nobody may know.
	id *auth.Identity
	// bodyRead counts the bytes of the request's body.
	bodyRead int64
	// pushed is the size of the blob that the request completed, 0 if it completed none.
	pushed int64
	actor  *oci.Actor
	// idText is the request's id once somebody needed it.
	idText string
	// abort says that the connection is to be cut off.
	abort bool
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := s.opts.Clock()
	s.metrics.inFlight.Inc()
	sentTo := r.Host
	if s.proxies != nil {
		r = s.proxies.Through(r)
	}
	rw := newResponse(w, s.opts.IdleTimeout)
	q := request{w: rw, r: r, sentTo: sentTo}
	if r.ContentLength != 0 {
		// Also where nobody reads the body: net/http wants to see its end
		// before it sends the answer.
		rw.awaitBody()
	}
	for k, v := range s.headers {
		w.Header()[k] = v
	}
	if s.cors != nil {
		s.cors.AddTo(w.Header(), r.Header.Get("Origin"))
	}
	if err := s.serveSafely(&q); err != nil {
		s.fail(&q, err)
	}
	rw.finish()
	s.metrics.inFlight.Dec()
	s.metrics.observe(q.Kind, q.ext.endpoint, r.Method, rw.status, s.opts.Clock().Sub(start), q.bodyRead, rw.written)
	s.metrics.pulls.add(&q.Request, r.Method, rw.status)
	if s.opts.AccessLog != nil {
		s.logAccess(&q, start)
	}
	rw.release()
	if q.abort {
		panic(http.ErrAbortHandler)
	}
}

// serveSafely is serve, but a panic costs this request only: it is logged with
// its stack, answered if that is still possible, and counted as any failure.
func (s *Server) serveSafely(q *request) error {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p != http.ErrAbortHandler {
			s.log.Error("panic in a request", "method", q.r.Method, "uri", q.r.URL.Path, "request", q.requestID(),
				"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if q.w.status == 0 {
				s.answer(q, &oci.Error{Code: oci.CodeUnknown, Message: "the registry failed; its log tells why"})
				return
			}
		}
		// The client must not take what it got so far for a whole answer.
		q.abort = true
		if q.w.status == 0 {
			q.w.status = http.StatusInternalServerError
		}
	}()
	return s.serve(q)
}

// serve answers a request, or returns the error to answer it with.
func (s *Server) serve(q *request) error {
	u := q.r.URL
	if s.opts.Prefix != "" {
		u = withoutPrefix(u, s.opts.Prefix)
	}
	req, ok, err := oci.Parse(u)
	if err := s.fromHere(q); err != nil {
		return err
	}
	if !ok {
		return s.serveOther(q, u.Path)
	}
	q.Request = req
	if req.Kind == oci.KindExtension {
		err = s.parseExtension(q)
	}
	q.w.Header()["Docker-Distribution-Api-Version"] = apiVersion
	if !s.limits.Allow(q.r.RemoteAddr, s.opts.Clock) {
		return tooMany("this address sends more requests per second than http.ratelimit allows")
	}
	if s.cors.Asks(q.r) {
		s.cors.Preflight(q.w, q.methodsOf(err))
		return nil
	}
	if err == nil {
		err = s.resolveName(q)
	}
	if !s.open {
		id, authErr := s.opts.Auth.Authenticate(q.r)
		if authErr != nil {
			s.challengeFor(q, authErr)
			return authErr
		}
		q.id = id
	}
	if err != nil { // malformed, and now nobody unknown learns more than that
		return err
	}
	h := q.handlers()[methodIndex(q.r.Method)]
	if h.serve == nil {
		q.w.Header().Set("Allow", strings.Join(supported(q.handlers()), ", "))
		return &oci.Error{Code: oci.CodeUnsupported, Message: q.r.Method + " is not a method of this endpoint"}
	}
	if err := s.authorize(q, q.Repo, h.action); err != nil {
		return s.orAbsent(q, err)
	}
	if h.writes && q.id.Anonymous() {
		if err := s.checkHost(q); err != nil {
			return err
		}
	}
	if h.writes || s.opts.WithActor {
		s.setActor(q)
	}
	return s.orAbsent(q, h.serve(s, q))
}

// fromHere refuses what a page of another site sends.
func (s *Server) fromHere(q *request) error {
	if err := s.opts.Site.Check(q.r); err != nil {
		return err
	}
	if s.open {
		return s.checkHost(q)
	}
	return nil
}

// checkHost refuses a request under a name that is not this server's, where its Host
// is all that tells it from that of another site's page. The name that a proxy
// forwards must be one of the server's, and so must the one that the request itself
// was sent to: a page can add X-Forwarded-Host in a browser beside the proxy.
func (s *Server) checkHost(q *request) error {
	if !auth.NeedsHost(q.r) {
		return nil
	}
	return cmp.Or(s.opts.Site.CheckHost(q.r.Host), s.opts.Site.CheckHost(q.sentTo))
}

// authorize checks that the client may do act on repo.
func (s *Server) authorize(q *request, repo string, act auth.Action) error {
	if s.open || act == 0 || s.opts.Auth.Allowed(q.id, repo, act) {
		return nil
	}
	err, challenge := s.opts.Auth.Refuse(q.r, q.id, repo, act)
	if challenge != "" {
		q.w.Header().Set("WWW-Authenticate", challenge)
	}
	return err
}

// challengeFor adds the challenge to a 401 of Authenticate.
func (s *Server) challengeFor(q *request, err error) {
	var e *oci.Error
	if errors.As(err, &e) && e.HTTPStatus() == http.StatusUnauthorized {
		act := q.handlers()[methodIndex(q.r.Method)].action
		q.w.Header().Set("WWW-Authenticate", s.opts.Auth.Challenge(q.r, q.Repo, act))
	}
}

// ctx is the context for calls to the registry.
func (q *request) ctx() context.Context {
	if q.actor == nil {
		return q.r.Context()
	}
	return oci.WithActor(q.r.Context(), q.actor)
}

func (s *Server) setActor(q *request) {
	q.actor = &oci.Actor{Addr: q.r.RemoteAddr, UserAgent: q.r.UserAgent(), Host: q.r.Host, Method: q.r.Method,
		RequestID: q.requestID(), Time: s.opts.Clock()}
	if q.id != nil {
		q.actor.Name = q.id.Name
	}
}

// handler is what an endpoint does and what it takes to be allowed to.
type handler struct {
	serve  func(*Server, *request) error
	action auth.Action
	writes bool
}

// Methods in the order of the handler table.
var methods = [...]string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"}

func methodIndex(m string) int {
	for i := range methods {
		if methods[i] == m {
			return i
		}
	}
	return len(methods)
}

// methodHandlers are the handlers of an endpoint by method. The last is for all
// other methods and stays empty.
type methodHandlers [len(methods) + 1]handler

// handlers is the table of endpoints by kind of path. Extensions have a table of
// their own.
var handlers = [oci.KindExtension]methodHandlers{
	oci.KindPing:    {{(*Server).ping, 0, false}, {(*Server).ping, 0, false}},
	oci.KindCatalog: {{(*Server).listRepositories, auth.Catalog, false}, {(*Server).listRepositories, auth.Catalog, false}},
	oci.KindBlob: {{(*Server).getBlob, auth.Pull, false}, {(*Server).headBlob, auth.Pull, false},
		5: {(*Server).deleteBlob, auth.Delete, true}},
	oci.KindManifest: {{(*Server).getManifest, auth.Pull, false}, {(*Server).headManifest, auth.Pull, false},
		2: {(*Server).putManifest, auth.Push, true}, 5: {(*Server).deleteManifest, auth.Delete, true}},
	oci.KindUploads: {3: {(*Server).startUpload, auth.Push, true}},
	oci.KindUpload: {{(*Server).uploadStatus, auth.Push, false}, {(*Server).uploadStatus, auth.Push, false}, 2: {(*Server).commitUpload, auth.Push, true},
		4: {(*Server).appendUpload, auth.Push, true}, 5: {(*Server).cancelUpload, auth.Push, true}},
	oci.KindTags:      {{(*Server).listTags, auth.Pull, false}, {(*Server).listTags, auth.Pull, false}},
	oci.KindReferrers: {{(*Server).listReferrers, auth.Pull, false}, {(*Server).listReferrers, auth.Pull, false}},
}

// handlers returns what may be done with the request's path.
func (q *request) handlers() *methodHandlers {
	if q.Kind == oci.KindExtension {
		return &extensions[q.ext.endpoint]
	}
	return &handlers[q.Kind]
}

// supported returns the methods of an endpoint.
func supported(h *methodHandlers) []string {
	list := []string{}
	for i, m := range methods {
		if h[i].serve != nil {
			list = append(list, m)
		}
	}
	return list
}

// ping answers GET /v2/. SPEC: end-1.
func (s *Server) ping(q *request) error {
	if err := s.admit(q); err != nil {
		return err
	}
	h := q.w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{"2"}
	_, err := q.w.Write([]byte("{}"))
	return ignoreClient(err)
}

// admit checks that the client may know what the registry can do.
func (s *Server) admit(q *request) error {
	if s.open || s.opts.Auth.PingAllowed(q.id) {
		return nil
	}
	err, challenge := s.opts.Auth.Refuse(q.r, q.id, "", 0)
	if challenge == "" {
		challenge = s.opts.Auth.Challenge(q.r, "", 0)
	}
	q.w.Header().Set("WWW-Authenticate", challenge)
	return err
}

// serveOther answers paths outside /v2/.
func (s *Server) serveOther(q *request, path string) error {
	if s.opts.Token != nil && path == s.opts.TokenPath {
		if !s.limits.Allow(q.r.RemoteAddr, s.opts.Clock) {
			return tooMany("this address sends more requests per second than http.ratelimit allows")
		}
		if s.cors.Asks(q.r) {
			s.cors.Preflight(q.w, []string{http.MethodGet, http.MethodPost})
			return nil
		}
		s.opts.Token.ServeHTTP(q.w, q.r)
		return nil
	}
	if s.opts.Web != nil && s.opts.IsWeb(path) {
		if !s.limits.Allow(q.r.RemoteAddr, s.opts.Clock) {
			return tooMany("this address sends more requests per second than http.ratelimit allows")
		}
		s.setActor(q)
		s.opts.Web.ServeHTTP(q.w, q.r.WithContext(q.ctx()))
		return nil
	}
	return &oci.Error{Code: oci.CodeNameUnknown, Message: "this is a container registry; its API is below /v2/"}
}

// methodsOf returns the methods of the request's path; nil for a path that the
// registry does not have.
func (q *request) methodsOf(err error) []string {
	if err != nil {
		return nil
	}
	return supported(q.handlers())
}

func tooMany(msg string) error { return &oci.Error{Code: oci.CodeTooManyRequests, Message: msg} }
