package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/ldap"
	"example.org/slipway/registry/auth/passwords"
	"example.org/slipway/registry/auth/recent"
)

// The methods by which an Identity can be proved.
const (
	MethodHTPasswd = "htpasswd"
	MethodLDAP     = "ldap"
	MethodOIDC     = "oidc"
	MethodMTLS     = "mtls"
	MethodToken    = "token"
	MethodRobot    = "robot"
)

const (
	// tokenCacheSize bounds the number of remembered tokens, which take about 10 MB.
	tokenCacheSize = 20_000
	// tokenCacheTTL bounds how long a token is accepted after its issuer has withdrawn
	// the key.
	tokenCacheTTL = 15 * time.Minute
)

// Identity says who makes a request. The zero value is an anonymous client. Identities
// are shared between requests and are immutable.
type Identity struct {
	// Name is the subject, empty for an anonymous client.
	Name string
	// Groups lists the groups of the subject, each as SOURCE:GROUP. The source is the
	// name of an OIDC issuer, "ldap" or "mtls". So groups of different sources are never the
	// same.
	Groups []string
	// Method is how the identity was proved, empty for an anonymous client.
	Method string
	// Expires is when the proof ends. If it is zero, the proof ends with the request.
	Expires time.Time

	limited bool    // a token: only scopes count
	foreign bool    // an external service's token: scopes count, whatever the rules say
	scopes  []scope // the scopes of the token
	// own is what a robot's API token permits, and token is the id of that token. For
	// others they are nil and empty.
	own   *grants
	token string
	// htpasswd says that a token was given to an htpasswd user, who must still exist.
	htpasswd bool
}

// Anonymous reports whether the client is anonymous. It may still have a token, because
// token services give tokens to anonymous clients.
func (id *Identity) Anonymous() bool { return id == nil || id.Name == "" }

// verifier checks the tokens of one issuer. If its error is an *oci.Error, the client
// gets that error. Any other error means that the token is not valid.
type verifier interface {
	verify(ctx context.Context, token string) (*Identity, error)
}

var (
	_ verifier = (*issuer)(nil)
	_ verifier = (*external)(nil)
	_ verifier = (*oidcIssuer)(nil)
)

// Auth authenticates and authorizes requests. It is safe for concurrent use.
type Auth struct {
	clock     func() time.Time
	log       *slog.Logger
	audit     *AuditLog
	open      bool
	cfg       Config // as it was at the start
	mode      tokenMode
	grants    atomic.Pointer[grants]
	anonymous *Identity // shared by all anonymous clients
	reloads   *reloads
	reloading sync.Mutex // held while something is read again
	// repository is Options.Repository, or nil if that is not set.
	repository func(r *http.Request, name string) string

	htpasswd  *passwords.File     // nil: not configured
	directory *ldap.Directory     // nil: not configured
	mtls      *mtls               // nil: not configured
	issuer    *issuer             // nil: no built-in token service
	robots    *robots             // nil: no API tokens
	verifiers map[string]verifier // by iss claim
	tokens    *recent.Cache[*Identity]
	hasOIDC   bool
	// sessions signs the tokens of browsers' sessions. It is nil if nobody can log in.
	// ended holds the sessions that ended with a logout.
	sessions *issuer
	ended    *recent.Cache[struct{}]

	challenge challenge
}

// New checks the configuration and reads the files that it names. It does not contact
// OIDC issuers. An error gives the configuration key, or the file and line, and never
// contains a secret. The caller closes the Auth.
func New(cfg Config, opts *Options) (*Auth, error) {
	o := opts.orDefault()
	a := &Auth{
		clock: o.Clock, log: o.Logger, audit: o.Audit, anonymous: &Identity{}, repository: o.Repository,
		verifiers: map[string]verifier{}, tokens: recent.NewCache[*Identity](tokenCacheSize),
		cfg: cfg, reloads: newReloads(o.Audit),
	}
	rules, err := compileRules(cfg.Access, cfg.groupSources())
	if err != nil {
		return nil, err
	}
	a.grants.Store(rules)
	mode, err := cfg.tokenMode(len(rules.anonymous) > 0)
	if err != nil {
		return nil, err
	}
	a.mode = mode
	if err := a.addMethods(cfg, mode, o); err != nil {
		return nil, err
	}
	a.addRobots(cfg, o)
	methods := a.PasswordLogin() || a.hasOIDC || a.mtls != nil || mode == tokenExternal || cfg.Robots != nil && *cfg.Robots
	switch {
	case !methods && len(rules.anonymous) == 0 && (len(cfg.Access) > 0 || mode == tokenBuiltin):
		return nil, mistake("auth", "nobody could get in: configure a method (htpasswd, ldap, oidc, mtls, token, robots) or grant something to anonymous")
	case !methods && len(cfg.Access) == 0:
		a.open = true
	case len(cfg.Access) == 0:
		a.grants.Store(everything())
	}
	a.challenge = newChallenge(cfg, mode, o)
	return a, nil
}

// addMethods sets up the methods that cfg configures.
func (a *Auth) addMethods(cfg Config, mode tokenMode, o Options) (err error) {
	failures := recent.NewFailures(cmp.Or(cfg.MaxFailuresPerMinute, DefaultMaxFailuresPerMinute))
	if cfg.HTPasswd != nil {
		path := cfg.HTPasswd.Path
		a.htpasswd, err = passwords.OpenFile(path, passwords.FileOptions{
			Failures: failures, Logger: o.Logger, Clock: o.Clock,
			Read:    func(err error) { a.reloads.note(reloadUsers, path, err) },
			Current: func() { a.reloads.stale.WithLabelValues(reloadUsers).Set(0) },
		})
		if err != nil {
			return mistake("auth.htpasswd", "%w", err)
		}
	}
	if err = a.addDirectory(cfg.LDAP, failures, o); err != nil {
		return err
	}
	if cfg.MTLS != nil {
		if a.mtls, err = newMTLS(cfg.MTLS); err != nil {
			return err
		}
	}
	switch mode {
	case tokenBuiltin:
		if a.issuer, err = newIssuer(cfg.Token, o); err != nil {
			return mistake("auth.token", "%w", err)
		}
		err = a.addVerifier(a.issuer.name, a.issuer)
	case tokenExternal:
		e, errNew := newExternal(cfg.Token, o)
		if errNew != nil {
			return mistake("auth.token", "%w", errNew)
		}
		err = a.addVerifier(e.issuer, e)
	}
	if err != nil {
		return mistake("auth.token", "%w", err)
	}
	names := map[string]bool{groupsOfCertificates: cfg.MTLS != nil, directorySource: cfg.LDAP != nil}
	for i, c := range cfg.OIDC {
		key := fmt.Sprintf("auth.oidc[%d]", i)
		v, err := newOIDCIssuer(c, o)
		if err != nil {
			return mistake(key, "%w", err)
		}
		if names[v.cfg.Name] {
			return mistake(key, "the name %q is used twice", v.cfg.Name)
		}
		names[v.cfg.Name] = true
		if err := a.addVerifier(c.Issuer, v); err != nil {
			return mistake(key, "%w", err)
		}
		a.hasOIDC = true
	}
	if err := a.addSessions(cfg, o); err != nil {
		return mistake("auth.token", "%w", err)
	}
	return nil
}

func (a *Auth) addVerifier(issuer string, v verifier) error {
	if a.verifiers[issuer] != nil {
		return fmt.Errorf("the issuer %q is configured twice", issuer)
	}
	a.verifiers[issuer] = v
	return nil
}

// Open reports whether neither methods nor rules are configured. Then everybody may do
// everything.
func (a *Auth) Open() bool { return a.open }

// Close releases what the Auth holds. It is idempotent. It does not close the audit log.
func (a *Auth) Close() error { return nil }

// takesHeader reports whether any method uses the Authorization header.
func (a *Auth) takesHeader() bool {
	return a.PasswordLogin() || len(a.verifiers) > 0 || a.robots != nil
}

// Authenticate returns the identity of the client that makes the request. Credentials in
// the Authorization header take precedence over a client certificate. A request with
// neither is anonymous, which is not an error. If the error is nil, the identity is not
// nil.
//
// Errors are *oci.Error: UNAUTHORIZED (to be answered with [Auth.Challenge]),
// TOOMANYREQUESTS (with a *passwords.RetryError as its cause), or UNAVAILABLE if an identity
// provider cannot be reached. The request's context bounds the call.
func (a *Auth) Authenticate(r *http.Request) (*Identity, error) {
	if h := r.Header["Authorization"]; len(h) > 0 && a.takesHeader() {
		if len(h) > 1 {
			return nil, &oci.Error{Code: oci.CodeUnauthorized, Message: "more than one Authorization header"}
		}
		return a.header(r, h[0])
	}
	if a.mtls != nil {
		if id := a.mtls.identity(r.TLS); id != nil {
			return id, nil
		}
	}
	return a.anonymous, nil
}

// header authenticates a client by an Authorization header.
func (a *Auth) header(r *http.Request, h string) (*Identity, error) {
	c, err := parseAuthorization(h)
	if err != nil {
		return nil, &oci.Error{Code: oci.CodeUnauthorized, Message: err.Error()}
	}
	if c.bearer {
		id, err := a.bearer(r.Context(), c.secret)
		if err != nil {
			return nil, a.tokenError(r, err)
		}
		return id, nil
	}
	if c.user == "" && c.secret == "" { // podman without credentials
		return a.anonymous, nil
	}
	return a.password(r, c.user, c.secret)
}

// password authenticates a client by user and password. The password may be an OIDC
// token or an API token.
func (a *Auth) password(r *http.Request, name, secret string) (*Identity, error) {
	id, err := a.checkPassword(r, name, secret)
	if err == nil {
		return id, nil
	}
	var known string
	if a.htpasswd != nil {
		// A name that no user has may be a password that was typed into the wrong field.
		if _, ok := a.htpasswd.Hash(name); ok {
			known = name
		}
	}
	var wire *oci.Error
	if !errors.As(err, &wire) {
		wire = &oci.Error{Code: oci.CodeUnauthorized, Message: passwords.ErrWrong.Error(), Err: err}
	}
	e := eventOf(r, "login")
	e.Subject, e.Outcome, e.Reason = known, "failure", string(wire.Code)
	if isAPIToken(secret) {
		e.Method, e.Reason = MethodRobot, err.Error()
		if wire.Code == oci.CodeUnauthorized {
			wire.Message = err.Error()
		}
	}
	a.audit.Record(e)
	return nil, wire
}

func (a *Auth) checkPassword(r *http.Request, name, secret string) (*Identity, error) {
	if isAPIToken(secret) && a.robots != nil {
		return a.robots.verify(r.Context(), name, secret)
	}
	if a.isIDToken(secret) {
		return a.bearer(r.Context(), secret)
	}
	known := false
	if a.htpasswd != nil {
		_, known = a.htpasswd.Hash(name)
	}
	switch {
	case a.directory != nil && !known:
		return a.inDirectory(r, name, secret)
	case a.htpasswd == nil:
		return nil, passwords.ErrWrong
	}
	if err := a.htpasswd.Verify(r.Context(), oci.ClientOf(r.RemoteAddr), name, secret); err != nil {
		return nil, err
	}
	return inFile(name), nil
}

// isIDToken reports whether a password looks like a token of an OIDC issuer.
func (a *Auth) isIDToken(secret string) bool {
	if !a.hasOIDC {
		return false
	}
	_, ok := a.verifiers[issuerOf(secret)].(*oidcIssuer)
	return ok
}

// inFile returns the identity of a user in the htpasswd file.
func inFile(name string) *Identity { return &Identity{Name: name, Method: MethodHTPasswd} }

var errUserGone = errors.New("the user that the token was given to is gone")

var errUnknownIssuer = errors.New("the token's issuer is not known here")

// bearer authenticates a client by a token. It uses the cache if the token was seen
// before.
func (a *Auth) bearer(ctx context.Context, token string) (*Identity, error) {
	if isAPIToken(token) {
		return a.robots.verify(ctx, "", token)
	}
	id, err := a.signed(ctx, token)
	switch {
	case err != nil:
	case id.token != "":
		return a.robots.present(ctx, id)
	case id.htpasswd:
		if a.htpasswd == nil {
			return nil, errUserGone
		}
		if _, ok := a.htpasswd.Hash(id.Name); !ok {
			return nil, errUserGone
		}
	}
	return id, err
}

// signed returns the identity in a signed token.
func (a *Auth) signed(ctx context.Context, token string) (*Identity, error) {
	key := sha256.Sum256([]byte(token))
	if id, ok := a.tokens.Get(key, a.clock()); ok {
		return id, nil
	}
	v := a.verifiers[issuerOf(token)]
	if v == nil {
		return nil, errUnknownIssuer
	}
	id, err := v.verify(ctx, token)
	if err != nil {
		return nil, err
	}
	now := a.clock()
	until := now.Add(tokenCacheTTL)
	if id.Expires.Before(until) {
		until = id.Expires
	}
	a.tokens.Put(key, id, until, now)
	return id, nil
}

// tokenError returns the error that a client gets for an invalid token. An expired token
// is an everyday event and is not recorded.
func (a *Auth) tokenError(r *http.Request, err error) error {
	var wire *oci.Error
	var expired *oidc.TokenExpiredError
	if errors.As(err, &wire) {
		return wire
	}
	if errors.Is(err, jwt.ErrTokenExpired) || errors.Is(err, errAPITokenExpired) || errors.As(err, &expired) {
		return &oci.Error{Code: oci.CodeUnauthorized, Message: "the token has expired", Err: err}
	}
	e := eventOf(r, "login")
	e.Outcome, e.Reason = "failure", "token"
	a.audit.Record(e)
	return &oci.Error{Code: oci.CodeUnauthorized, Message: "the token is not valid", Err: err}
}

// issuerOf returns the iss claim of a JWT without verifying anything, or "". The claim is
// used only to choose the verifier.
func issuerOf(token string) string {
	_, rest, ok := strings.Cut(token, ".")
	payload, signature, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || signature == "" || len(token) > maxCredentialBytes {
		return ""
	}
	b, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return ""
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(b, &c) != nil {
		return ""
	}
	return c.Issuer
}

// Allowed reports whether id may do all of act on repo. Catalog and Admin ignore
// repo. A nil id is anonymous.
func (a *Auth) Allowed(id *Identity, repo string, act Action) bool {
	if a.open {
		return true
	}
	if act == 0 {
		return false
	}
	missing := act &^ a.grants.Load().toAnonymous(repo, act)
	if missing == 0 {
		return true
	}
	if id == nil || id.Name == "" && !id.limited {
		return false
	}
	if id.limited && inScopes(id.scopes, repo, missing) != missing {
		return false
	}
	return id.foreign || a.to(id, repo, missing) == missing
}

// Listed reports whether the catalogue shows repo to id. It shows the repositories that
// id may pull, even if the token is for only one repository. If an external token service
// lets a client list the catalogue, the client may list all of it.
func (a *Auth) Listed(id *Identity, repo string) bool {
	if a.open || a.grants.Load().toAnonymous(repo, Pull) == Pull {
		return true
	}
	if id == nil {
		return false
	}
	if id.foreign {
		return inScopes(id.scopes, "", Catalog) == Catalog
	}
	return a.to(id, repo, Pull) == Pull
}

// PingAllowed reports whether GET /v2/ is answered with 200. Otherwise it is answered
// with 401 and a challenge. The package comment gives the reasons.
func (a *Auth) PingAllowed(id *Identity) bool {
	if a.open || id != nil && (id.Name != "" || id.limited) {
		return true
	}
	return !a.takesHeader() && len(a.grants.Load().anonymous) > 0
}

// Refuse returns the error for a request of id that Allowed did not permit, and the
// challenge to send with it. The challenge is empty unless other credentials could help.
// The error is
//
//   - 401 UNAUTHORIZED for anonymous clients, and for a token that lacks scope
//     which another token could have;
//   - 403 DENIED for everybody else. This is recorded in the audit log.
func (a *Auth) Refuse(r *http.Request, id *Identity, repo string, act Action) (*oci.Error, string) {
	anonymous := id.Anonymous()
	wider := id != nil && id.limited && (id.foreign || a.to(id, repo, act) == act)
	if (anonymous || wider) && (a.takesHeader() || a.mtls != nil) {
		msg := "authentication required"
		if wider {
			msg = "the token does not allow " + act.String()
		}
		return &oci.Error{Code: oci.CodeUnauthorized, Message: msg}, a.Challenge(r, repo, act)
	}
	e := eventOf(r, "denied")
	e.Action, e.Repo, e.Outcome = act.String(), repo, "denied"
	if !anonymous {
		e.Subject, e.Method = id.Name, id.Method
	}
	a.audit.Record(e)
	return &oci.Error{Code: oci.CodeDenied, Message: "you are not allowed to " + act.String()}, ""
}
