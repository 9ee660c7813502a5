package auth

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"example.org/slipway/registry/auth/signing"
)

// notBeforeSlack makes a token valid from a time before it was issued, so that it can be
// used at once at a replica whose clock is behind.
const notBeforeSlack = time.Minute

// issuer is the built-in token service. It signs tokens and verifies its own tokens. It
// is safe for concurrent use.
type issuer struct {
	name, service   string
	expiration      time.Duration
	refreshLifetime time.Duration  // 0 or less: no refresh tokens
	keys            []*signing.Key // the first one signs
	clock           func() time.Time
}

// newIssuer loads or creates the key. cfg may be nil.
func newIssuer(cfg *TokenConfig, o Options) (*issuer, error) {
	var c TokenConfig
	if cfg != nil {
		c = *cfg
	}
	is := &issuer{
		name:            cmp.Or(c.Issuer, DefaultName),
		service:         cmp.Or(c.Service, DefaultName),
		expiration:      c.Expiration,
		refreshLifetime: c.RefreshExpiration,
		clock:           o.Clock,
	}
	if is.expiration == 0 {
		is.expiration = DefaultTokenExpiration
	}
	path := c.Key
	if path == "" && o.Dir != "" {
		path = filepath.Join(o.Dir, "token.key")
	}
	var err error
	is.keys, err = signing.LoadKeys("token key", path, o.Logger)
	return is, err
}

// accessClaims are the claims of a token of Docker's specification, and in addition the
// subject's groups and method.
type accessClaims struct {
	jwt.RegisteredClaims
	Access []access `json:"access"`
	Groups []string `json:"groups,omitempty"`
	Method string   `json:"method,omitempty"`
	// Robot is the id of the API token that the token was given for.
	Robot string `json:"robot,omitempty"`
}

// refreshClaims are the claims of a refresh token.
type refreshClaims struct {
	jwt.RegisteredClaims
	Binding string `json:"binding"`
}

// issued is a signed token.
type issued struct {
	token      string
	id         string // jti
	at, expire time.Time
}

// issue signs a token for scopes. The token never outlives id.
func (is *issuer) issue(id *Identity, scopes []scope, groups []string) (issued, error) {
	now := is.clock()
	expire := now.Add(is.expiration)
	if !id.Expires.IsZero() && id.Expires.Before(expire) {
		expire = id.Expires
	}
	claim := []access{}
	for _, s := range scopes {
		claim = append(claim, s.claim()...)
	}
	claims := jwt.MapClaims{"access": claim}
	if id.Name != "" {
		claims["method"] = id.Method
	}
	if id.token != "" {
		claims["robot"] = id.token
	}
	if len(groups) > 0 {
		claims["groups"] = groups
	}
	return is.sign(claims, id.Name, is.service, now, expire)
}

// refresh signs a refresh token for a user whose password has the given hash.
func (is *issuer) refresh(name string, hash []byte) (string, error) {
	now := is.clock()
	claims := jwt.MapClaims{"binding": is.keys[0].Binding(name, hash)}
	t, err := is.sign(claims, name, is.refreshAudience(), now, now.Add(is.refreshLifetime))
	return t.token, err
}

// refreshAudience returns the audience of refresh tokens. It keeps refresh tokens from being
// taken for access tokens, and the other way round.
func (is *issuer) refreshAudience() string { return is.service + " refresh" }

func (is *issuer) sign(claims jwt.MapClaims, subject, audience string, now, expire time.Time) (issued, error) {
	jti := rand.Text()
	claims["iss"] = is.name
	claims["sub"] = subject
	claims["aud"] = audience
	claims["exp"] = expire.Unix()
	claims["nbf"] = now.Add(-notBeforeSlack).Unix()
	claims["iat"] = now.Unix()
	claims["jti"] = jti
	k := is.keys[0]
	t := jwt.NewWithClaims(k.Method, claims)
	t.Header["kid"] = k.ID
	signed, err := t.SignedString(k.Private)
	if err != nil {
		return issued{}, fmt.Errorf("sign token: %w", err)
	}
	return issued{signed, jti, now, expire}, nil
}

// verify implements verifier for access tokens.
func (is *issuer) verify(_ context.Context, token string) (*Identity, error) {
	var c accessClaims
	if _, err := is.parse(token, is.service, &c); err != nil {
		return nil, err
	}
	return &Identity{
		Name: c.Subject, Groups: c.Groups, Method: MethodToken, Expires: c.ExpiresAt.Time,
		limited: true, scopes: compileAccess(c.Access), token: c.Robot, htpasswd: c.Method == MethodHTPasswd,
	}, nil
}

var errRevoked = errors.New("the refresh token's user or password has changed")

// verifyRefresh returns the name of the user that a refresh token was given to. lookup finds
// the user's present hash.
func (is *issuer) verifyRefresh(token string, lookup func(string) ([]byte, bool)) (string, error) {
	var c refreshClaims
	k, err := is.parse(token, is.refreshAudience(), &c)
	if err != nil {
		return "", err
	}
	hash, ok := lookup(c.Subject)
	if !ok || !hmac.Equal([]byte(c.Binding), []byte(k.Binding(c.Subject, hash))) {
		return "", errRevoked
	}
	return c.Subject, nil
}

// parse verifies a token of this service and returns the key that signed it.
func (is *issuer) parse(token, audience string, claims jwt.Claims) (*signing.Key, error) {
	var key *signing.Key
	p := jwt.NewParser(
		jwt.WithValidMethods([]string{"EdDSA", "ES256"}),
		jwt.WithIssuer(is.name),
		jwt.WithAudience(audience),
		jwt.WithExpirationRequired(),
		jwt.WithTimeFunc(is.clock),
	)
	_, err := p.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		for _, k := range is.keys {
			if k.ID == t.Header["kid"] && k.Method.Alg() == t.Method.Alg() {
				key = k
				return k.Private.Public(), nil
			}
		}
		return nil, errUnknownKey
	})
	return key, err
}

var errUnknownKey = errors.New("the token is signed by an unknown key")
