package auth

import (
	"cmp"
	"crypto/sha256"
	"net/http"
	"strings"

	"example.org/slipway/oci/wire"
)

// TokenPath is the path at which [Auth.TokenHandler] is to be served, below
// Options.Prefix.
const TokenPath = "/token"

// challenge holds the values of the challenge from which clients learn how to
// authenticate.
type challenge struct {
	bearer     bool
	basicRealm string
	realm      string // the token service's URL; if empty it is made from the request
	path       string // of the token service, if realm is empty
	service    string
}

func newChallenge(cfg Config, mode tokenMode, o Options) challenge {
	c := challenge{bearer: mode != tokenNone, basicRealm: DefaultName, service: DefaultName}
	if cfg.HTPasswd != nil {
		c.basicRealm = cmp.Or(cfg.HTPasswd.Realm, DefaultName)
	}
	if cfg.Token != nil {
		c.realm, c.service = cfg.Token.Realm, cmp.Or(cfg.Token.Service, DefaultName)
	}
	c.path = o.Prefix + TokenPath
	if c.realm == "" && o.Host != "" {
		c.realm = o.Host + c.path
	}
	if mode == tokenExternal && cfg.Token.AutoRedirect {
		c.realm, c.path = "", cmp.Or(cfg.Token.AutoRedirectPath, "/auth/token")
	}
	return c
}

// Challenge returns the WWW-Authenticate value for a request that needs other credentials
// to do act on repo. If act is 0 (GET /v2/) the challenge has no scope. If there is a
// token service the challenge is Bearer, which every client understands. Otherwise it is
// Basic.
func (a *Auth) Challenge(r *http.Request, repo string, act Action) string {
	c := &a.challenge
	if !c.bearer {
		return "Basic realm=" + wire.Quote(c.basicRealm)
	}
	realm := c.realm
	if realm == "" {
		realm = origin(r) + c.path
	}
	value := "Bearer realm=" + wire.Quote(realm) + ",service=" + wire.Quote(c.service)
	if act&Push != 0 {
		act |= Pull // a push first looks up what is already there
	}
	var scopes []string
	if onRepo := act & repositoryActions; onRepo != 0 && repo != "" {
		scopes = append(scopes, scope{repo, onRepo}.String())
	}
	if onRegistry := act & registryActions; onRegistry != 0 {
		scopes = append(scopes, scope{"", onRegistry}.String())
	}
	if len(scopes) > 0 {
		value += ",scope=" + wire.Quote(strings.Join(scopes, " "))
	}
	if e := a.tokenProblem(r); e != "" {
		value += ",error=" + wire.Quote(e)
	}
	return value
}

// basicChallenge returns the challenge of the token endpoint itself.
func (a *Auth) basicChallenge() string { return "Basic realm=" + wire.Quote(a.challenge.basicRealm) }

// tokenProblem returns the RFC 6750 error code for the request's token. It is
// insufficient_scope if the token is valid, invalid_token if it is not, and empty if
// there is no token.
func (a *Auth) tokenProblem(r *http.Request) string {
	c, err := parseAuthorization(r.Header.Get("Authorization"))
	if err != nil || !c.bearer {
		return ""
	}
	if _, ok := a.tokens.Get(sha256.Sum256([]byte(c.secret)), a.clock()); ok {
		return "insufficient_scope"
	}
	return "invalid_token"
}

// origin returns the URL of this server as the client wrote it. X-Forwarded-Proto may be
// trusted here, because its value only goes back to the client that sent it. If it is a
// list, the first element counts: the scheme that the client used with the first proxy.
func origin(r *http.Request) string {
	scheme := "http"
	forwarded, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Proto"), ",")
	if r.TLS != nil || strings.EqualFold(strings.TrimSpace(forwarded), "https") {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}
