package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/recent"
)

// The audiences keep the tokens of sessions, and those of logins under way, from being
// taken for other tokens that the same key has signed.
const (
	sessionAudience = " web session"
	loginAudience   = " web login"
)

// sessionClaims are the claims of a session's token. If the user is in the htpasswd file,
// Binding ties the session to the user's password.
type sessionClaims struct {
	jwt.RegisteredClaims
	Method  string   `json:"method"`
	Groups  []string `json:"groups,omitempty"`
	Binding string   `json:"binding,omitempty"`
}

// PasswordLogin reports whether there are users with passwords.
func (a *Auth) PasswordLogin() bool { return a.htpasswd != nil || a.directory != nil }

// Login authenticates a user by name and password, like a request with both. It takes no
// token for a password, because a session would outlive the token. Errors are those of
// [Auth.Authenticate].
func (a *Auth) Login(r *http.Request, user, password string) (*Identity, error) {
	if !a.PasswordLogin() {
		return nil, errNoSessions
	}
	if isAPIToken(password) || a.isIDToken(password) {
		return nil, &oci.Error{Code: oci.CodeUnauthorized, Message: "a token is for programs; log in as a user"}
	}
	return a.password(r, user, password)
}

var errNoSessions = errors.New("nobody can log in here: auth configures neither htpasswd nor ldap nor the client of an OIDC issuer")

// NewSession returns a token that stands for id for the given lifetime. With the token,
// the rules at the time of its use decide what id may do. If id is an htpasswd user, the
// token ends early when the user is removed or the password changes. The token contains
// no other secret.
func (a *Auth) NewSession(id *Identity, lifetime time.Duration) (token string, expires time.Time, err error) {
	if a.sessions == nil || id.Anonymous() || id.token != "" {
		return "", time.Time{}, errNoSessions
	}
	claims := jwt.MapClaims{"method": id.Method}
	if len(id.Groups) > 0 {
		claims["groups"] = id.Groups
	}
	if id.Method == MethodHTPasswd {
		hash, ok := a.htpasswd.Hash(id.Name)
		if !ok {
			return "", time.Time{}, errRevoked
		}
		claims["binding"] = a.sessions.keys[0].Binding(id.Name, hash)
	}
	now := a.clock()
	t, err := a.sessions.sign(claims, id.Name, a.sessions.service+sessionAudience, now, now.Add(lifetime))
	return t.token, t.expire, err
}

// Session returns the identity that a session's token stands for.
func (a *Auth) Session(token string) (*Identity, error) {
	if a.sessions == nil || len(token) > maxCredentialBytes {
		return nil, errNoSessions
	}
	if _, ended := a.ended.Get(sessionKey(token), a.clock()); ended {
		return nil, errRevoked
	}
	var c sessionClaims
	k, err := a.sessions.parse(token, a.sessions.service+sessionAudience, &c)
	if err != nil {
		return nil, err
	}
	if !a.stillTakes(c.Method, c.Subject) {
		return nil, errRevoked
	}
	if c.Method != MethodHTPasswd {
		return &Identity{Name: c.Subject, Groups: c.Groups, Method: c.Method, Expires: c.ExpiresAt.Time}, nil
	}
	hash, ok := a.htpasswd.Hash(c.Subject)
	if !ok || !hmac.Equal([]byte(c.Binding), []byte(k.Binding(c.Subject, hash))) {
		return nil, errRevoked
	}
	return &Identity{Name: c.Subject, Method: MethodHTPasswd, Expires: c.ExpiresAt.Time}, nil
}

// stillTakes reports whether the method by which a user logged in is still configured.
// Sessions are not known here, so those of a method that was taken away end by that.
func (a *Auth) stillTakes(method, user string) bool {
	switch method {
	case MethodHTPasswd:
		return a.htpasswd != nil
	case MethodLDAP:
		return a.directory != nil
	case MethodMTLS:
		return a.mtls != nil
	case MethodOIDC:
		for _, v := range a.verifiers {
			if i, ok := v.(*oidcIssuer); ok && strings.HasPrefix(user, oidcPrefix+i.cfg.Name+":") {
				return true
			}
		}
	}
	return false
}

// EndSession makes a session's token invalid at this server. Other servers of the
// registry accept it until it expires, so a client that logs out must forget it.
func (a *Auth) EndSession(token string) {
	if id, err := a.Session(token); err == nil {
		a.ended.Put(sessionKey(token), struct{}{}, id.Expires, a.clock())
	}
}

// sessionKey returns the key under which an ended session is remembered. It is the hash
// of the signed part of the token, because one signature can be written in several ways.
func sessionKey(token string) [sha256.Size]byte {
	return sha256.Sum256([]byte(token[:max(0, strings.LastIndexByte(token, '.'))]))
}

// endedSessions bounds how many sessions that were ended early are remembered.
const endedSessions = 16 << 10

// addSessions sets up logins with a browser if the configuration has a way to log in.
func (a *Auth) addSessions(cfg Config, o Options) (err error) {
	login := a.PasswordLogin()
	for _, c := range cfg.OIDC {
		login = login || c.ClientID != ""
	}
	if !login {
		return nil
	}
	a.ended = recent.NewCache[struct{}](endedSessions)
	if a.sessions = a.issuer; a.sessions == nil {
		// Only the key of the token section is used. Its other values may describe an
		// external service.
		var key TokenConfig
		if cfg.Token != nil {
			key.Key = cfg.Token.Key
		}
		a.sessions, err = newIssuer(&key, o)
	}
	return err
}
