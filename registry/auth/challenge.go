package auth

import (
	"cmp"
	"crypto/sha256"
	"net/http"
	"strings"

	"example.org/slipway/oci/wire"
)

// TokenPath is where [Auth.TokenHandler] is to be served, below Options.Prefix.
const TokenPath = "/token"

// challenge is how clients are told to authenticate.
type challenge struct {
	bearer     bool
	basicRealm string
	realm      string // the token service's URL; empty: made from the request
	path       string // of the token service, when realm is empty
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

// Challenge returns the WWW-Authenticate value for a request that needs other
// credentials to do act on repo. With act 0 (GET /v2/) it names no scope. It
// is Bearer when there is a token service, which every client understands,
// and Basic otherwise.
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
		act |= Pull // a push looks first for what is there
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

// basicChallenge is what the token endpoint itself answers with.
func (a *Auth) basicChallenge() string { return "Basic realm=" + wire.Quote(a.challenge.basicRealm) }

// tokenProblem tells what RFC 6750 calls the request's token: insufficient_scope
// when it is valid, invalid_token when not, nothing when there is none.
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

// origin is the URL of this server as the client named it. X-Forwarded-Proto
// is believed: it comes back only to who sent it. Of a list the first element counts,
// which is the scheme that the client used with the first proxy.
func origin(r *http.Request) string {
	scheme := "http"
	forwarded, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Proto"), ",")
	if r.TLS != nil || strings.EqualFold(strings.TrimSpace(forwarded), "https") {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}
