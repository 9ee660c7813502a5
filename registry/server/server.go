// Package server puts an [oci.Registry] behind HTTP: the distribution protocol with its
// headers, errors and conditional requests, access control, limits, metrics and the
// access log.
//
// The handler parses the path itself (oci.Parse) and never uses a ServeMux, which would
// answer unclean paths with redirects. It writes bodies that lie in RAM in one piece, and
// leaves files to the kernel (sendfile). The response writer in this package takes care
// not to prevent that.
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

// Authorizer identifies clients and decides what they may do; *auth.Auth is an
// implementation.
type Authorizer interface {
	// Open reports whether everybody may do everything.
	Open() bool
	Authenticate(r *http.Request) (*auth.Identity, error)
	Allowed(id *auth.Identity, repo string, act auth.Action) bool
	// Listed reports whether the catalogue shows repo to id.
	Listed(id *auth.Identity, repo string) bool
	// PingAllowed reports whether GET /v2/ answers 200.
	PingAllowed(id *auth.Identity) bool
	// Refuse returns the answer to a request that Allowed rejected, and the challenge to
	// send with it.
	Refuse(r *http.Request, id *auth.Identity, repo string, act auth.Action) (*oci.Error, string)
	// Challenge returns the WWW-Authenticate value for invalid credentials.
	Challenge(r *http.Request, repo string, act auth.Action) string
}

// Auditor records changes; *auth.AuditLog is an implementation.
type Auditor interface{ Record(auth.Event) }

// AccessLog receives a record of every request; *trace.Writer is an implementation. The
// record is reused after Write returns.
type AccessLog interface{ Write(*trace.Record) }

// Options are the options of New. The zero value serves everybody.
type Options struct {
	// Auth controls access; nil: everybody may do everything.
	Auth Authorizer
	// Token serves the built-in token service at TokenPath; nil: none.
	Token     http.Handler
	TokenPath string
	// Repository returns the repository that a request means by a name, before the
	// client's rights to it are checked; nil: the repository of that name.
	Repository RepositoryFunc
	// Defaulted reports for which names Repository returns a default because no
	// repository has that name; nil: for none.
	Defaulted DefaultedFunc
	// Incomplete returns why lists of a repository may be incomplete, or "" if they are
	// complete; nil: they are always complete. The reason is sent in a Warning header.
	Incomplete func(repo string) string
	// Gear serves the Gear extension; nil: none.
	Gear Gear
	// Site distinguishes pages of this server from pages of others; default: a site that
	// is reached under any name.
	Site *edge.Site
	// History serves the history of tags; nil: none.
	History History
	// Nodes receives the reports of nodes; nil: they are not accepted.
	Nodes Nodes
	// Peers introduces nodes to each other; nil: nodes get files here only.
	Peers Peers
	// AnonymousReports accepts reports on nodes and profiles from anonymous clients, if
	// there are users.
	AnonymousReports bool
	// Warm keeps orders to nodes; nil: none.
	Warm Warm
	// Volumes serves the volume extension; nil: none.
	Volumes Volumes
	// Web serves the web page, at the paths for which IsWeb returns true; nil: none.
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
	// Name is the name of this server in the access log; default "slipway".
	Name string
	// Headers are added to every answer. If they include Access-Control-Allow-Origin,
	// browsers' preflight requests are answered, too.
	Headers http.Header
	// Host, as scheme://host, makes Locations absolute. By default they are only paths,
	// which pass through any proxy.
	Host string
	// Prefix is a path before /v2/, without a closing slash.
	Prefix string
	// MaxList is the largest number of names on a page of a list; default 10,000 for
	// tags. MaxCatalog is the same for the catalogue; default 1,000.
	MaxList, MaxCatalog int
	// MaxManifestBytes; default oci.MaxManifestSize.
	MaxManifestBytes int64
	// IdleTimeout is how long a client may neither send nor receive a byte in the middle
	// of a body; default 60 s.
	IdleTimeout time.Duration
	// MinBodyRate is how many bytes per second of a request's body must arrive, on
	// average over IdleTimeout. 0 means that one byte in that time is enough.
	MinBodyRate int64
	// RequestsPerSecond and Burst limit each client address; 0: no limit.
	RequestsPerSecond float64
	Burst             int
	// WithActor reports whether the client's identity goes into the context of reads
	// too, for pull events. nil means that it never does.
	WithActor func() bool
	// MaxUploadsPerClient bounds the concurrent uploads of one address; 0: no limit.
	MaxUploadsPerClient int
	// TrustedProxies are the peers whose X-Forwarded-For is believed. The client is then
	// the right-most address in it that is not a trusted proxy. The scheme and the host
	// that these peers forward are also believed. Default: none.
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
	votes   edge.Votes    // on profiles
	proxies *edge.Proxies // nil: there are none
	places  places
	headers http.Header // of every answer
	cors    *edge.CORS  // nil if no other origin may use the registry in a browser
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
		v.Site = edge.NewSite(v.Host, []string{edge.AnyName}, nil)
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

// Served returns the number of answered requests.
func (s *Server) Served() int64 { return s.metrics.served.Load() }

// These are shared header values. Each is a slice of one string, so that setting a header
// allocates nothing. They must not be changed.
var (
	apiVersion  = []string{"registry/2.0"}
	octetStream = []string{oci.MediaTypeOctetStream}
	acceptBytes = []string{"bytes"}
	noSniff     = []string{"nosniff"}
	jsonType    = []string{"application/json"}
	zero        = []string{"0"}
)

// request is a request that is being served.
type request struct {
	oci.Request
	ext extension // for a request of oci.KindExtension
	// asked is the repository's name as the client wrote it, if it differs from Repo.
	asked string
	w     *response
	r     *http.Request
	// sentTo is the Host header as it arrived. A proxy may say that the client used
	// another.
	sentTo string
	// id identifies the client. It is nil until the client is authenticated.
	id *auth.Identity
	// bodyRead counts the bytes of the request's body.
	bodyRead int64
	// pushed is the size of the blob that the request completed, or 0 if it completed
	// none.
	pushed int64
	actor  *oci.Actor
	// idText is the request's id. It is set when the id is first needed.
	idText string
	// refused says that an error was sent although the client may still be sending.
	refused bool
	// abort says that the connection has to be cut off.
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
		// This is also for bodies that nobody reads, because net/http reads a body to its
		// end before it sends the answer.
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
	s.metrics.pulls.Add(&q.Request, r.Method, rw.status)
	if s.opts.AccessLog != nil {
		s.logAccess(&q, start)
	}
	if q.refused {
		s.discardBody(&q)
	}
	rw.release()
	if q.abort {
		panic(http.ErrAbortHandler)
	}
}

// serveSafely is like serve, but a panic only makes this request fail. The panic is
// logged with its stack, answered if that is still possible, and counted like any
// failure.
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
				s.answer(q, &oci.Error{Code: oci.CodeUnknown, Message: "the registry failed; its log says why"})
				return
			}
		}
		// The client must not take what it received so far for a complete answer.
		q.abort = true
		if q.w.status == 0 {
			q.w.status = http.StatusInternalServerError
		}
	}()
	return s.serve(q)
}

// serve answers a request, or returns the error for the answer.
func (s *Server) serve(q *request) error {
	u := q.r.URL
	if s.opts.Prefix != "" {
		u = edge.WithoutPrefix(u, s.opts.Prefix)
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
	if err != nil { // a malformed request; only now, so that unknown clients do not learn more
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
	if h.writes || s.opts.WithActor != nil && s.opts.WithActor() {
		s.setActor(q)
	}
	return s.orAbsent(q, h.serve(s, q))
}

// fromHere returns an error for requests from pages of another site.
func (s *Server) fromHere(q *request) error {
	if err := s.opts.Site.Check(q.r); err != nil {
		return err
	}
	if s.open {
		return s.checkHost(q)
	}
	return nil
}

// checkHost returns an error for a request under a name that is not this server's, if
// only the Host header shows whether the request comes from a page of another site. Both
// the name that a proxy forwards and the name that the request itself was sent to must be
// this server's. A page in a browser can add X-Forwarded-Host and bypass the proxy.
func (s *Server) checkHost(q *request) error {
	if !edge.NeedsHost(q.r) {
		return nil
	}
	return cmp.Or(s.opts.Site.CheckHost(q.r.Host), s.opts.Site.CheckHost(q.sentTo))
}

// authorize checks that the client may perform act on repo.
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

// challengeFor adds the challenge to a 401 error from Authenticate.
func (s *Server) challengeFor(q *request, err error) {
	var e *oci.Error
	if errors.As(err, &e) && e.HTTPStatus() == http.StatusUnauthorized {
		act := q.handlers()[methodIndex(q.r.Method)].action
		q.w.Header().Set("WWW-Authenticate", s.opts.Auth.Challenge(q.r, q.Repo, act))
	}
}

// ctx returns the context for calls to the registry.
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

// handler is the function of an endpoint, with the rights that it requires.
type handler struct {
	serve  func(*Server, *request) error
	action auth.Action
	writes bool
}

// methods has the methods in the order of the handler table.
var methods = [...]string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"}

func methodIndex(m string) int {
	for i := range methods {
		if methods[i] == m {
			return i
		}
	}
	return len(methods)
}

// methodHandlers are the handlers of an endpoint by method. The last handler is for all
// other methods and stays empty.
type methodHandlers [len(methods) + 1]handler

// handlers is the table of endpoints by kind of path. Extensions have a separate
// table.
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

// handlers returns the handlers of the request's path.
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

// admit checks that the client may learn what the registry can do.
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

// methodsOf returns the methods of the request's path, or nil if the registry does not
// have the path.
func (q *request) methodsOf(err error) []string {
	if err != nil {
		return nil
	}
	return supported(q.handlers())
}

func tooMany(msg string) error { return &oci.Error{Code: oci.CodeTooManyRequests, Message: msg} }
